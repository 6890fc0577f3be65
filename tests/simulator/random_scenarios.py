"""Scenarios at random, over all that a scenario can combine: schedulers, layouts, speculation, pools, failures."""

from hypothesis import strategies as st
from scenario_parts import drafts, uniform
from tiny_scenario import tiny_data

DENSE = ("llama-3.2-1b", "llama-3.2-3b", "gemma-3-4b")
EXPERTS = ("gpt-oss-20b", "qwen3-30b-a3b")
TOKEN_SPECULATION = (
    None,
    drafts("ngram", 3, 0.6),
    drafts("draft-model", 2, acceptance={"per_position": [0.7, 0.4]}, draft={"model": "llama-3.2-1b"}),
    drafts("ngram", 4, 0.9, policy={"name": "disable-above-batch", "batch": 2}),
    drafts("draft-model", 3, 0.7, draft={"model": "llama-3.2-1b"}, policy={"name": "confidence-budget"}),
)
ARRIVALS = (
    {"process": "poisson", "request_rate": 20.0},
    {"process": "poisson", "request_rate": 500.0},
    {"process": "burst"},
    {"process": "closed-loop", "max_concurrency": 1},
    {"process": "closed-loop", "max_concurrency": 5},
)


HIT_RATES = (
    {"hit_rate": 0.0},
    {"hit_rate": 0.5},
    {"hit_rate": 1.0},
    {"task": "gsm8k"},
    {"hit_rate_by_context": [[64, 0.9], [512, 0.4]]},
)


@st.composite
def workloads(draw):
    return {
        "arrivals": draw(st.sampled_from(ARRIVALS)),
        "input_tokens": draw(st.sampled_from([1, 90, uniform(1, 700)])),
        "output_tokens": draw(st.sampled_from([1, 2, uniform(1, 60)])),
        "num_requests": draw(st.integers(1, 16)),
    }


@st.composite
def engines(draw, *schedulers, swaps=True):
    scheduler = draw(st.sampled_from(schedulers))
    return {
        "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
        "max_num_batched_tokens": draw(st.sampled_from([64, 256, 4096] if scheduler == "vllm-v1" else [4096])),
        "scheduler": scheduler,
        "stepping": draw(st.sampled_from(["fast", "fast", "exact-steps"])),
        "num_kv_blocks": draw(st.sampled_from([None, 60, 120])),
        "framework": draw(st.sampled_from(["vllm", "sglang", "trtllm", "generic"])),
        "cuda_graphs": draw(st.booleans()),
        "preemption": draw(st.sampled_from(["recompute", "swap"])) if swaps and scheduler == "vllm-v1" else "recompute",
    }


@st.composite
def attention_speculations(draw):
    """Hit rates with every way to verify a batch, to wait and to draw; some are refused."""
    verification = draw(st.sampled_from(["joint", "every-query", "per-request"]))
    return {
        **draw(st.sampled_from(HIT_RATES)),
        "lambda": draw(st.sampled_from([0.05, 0.1, 0.3])),
        "window_tokens": draw(st.sampled_from([16, 128, 2048])),
        "reading": draw(st.sampled_from(["next-attention", "same-layer", "pipelined"])),
        "prefill": draw(st.sampled_from(["context-parallel", "replicated"])),
        "verification": verification,
        "batch_correlation": draw(st.sampled_from([0.0, 0.5, 1.0])) if verification != "joint" else 0.0,
        **draw(st.sampled_from([{}, {"hits": "drawn", "layer_correlation": 0.2, "token_correlation": 0.6}])),
        **draw(st.sampled_from([{}, {"send_s": 0.0, "verify_s": 1e-5, "sync_s": 1e-3, "skip_launch_s": 1e-6}])),
    }


@st.composite
def scenarios(draw):
    """One kind of replica, as plain data; some are refused."""
    layout = draw(
        st.sampled_from(
            [
                {},
                {},
                {"tensor_parallel": 2},
                {"replicas": 3},
                {"pipeline_parallel": 2},
                {"pipeline_parallel": 3, "tensor_parallel": 2},
                {"speculative_parallel": 2},
                {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 4},
            ]
        )
    )
    experts, staged = "expert_parallel" in layout, "pipeline_parallel" in layout
    schedulers = ("vllm-v1",) if staged else ("vllm-v1", "vllm-v1", "prefill-first", "static")
    data = tiny_data(**draw(workloads())) | {
        "model": draw(st.sampled_from(EXPERTS if experts else (*DENSE, *EXPERTS))),
        "hardware": {"chip": draw(st.sampled_from(["h100-sxm", "a100-sxm-80gb", "n150", "mi300x", "l40s"])), **layout},
        "engine": draw(engines(*schedulers, swaps=not staged)),
        "weights_dtype": draw(st.sampled_from([None, "bf16", "fp8", "int4", "int8", {"mlp": "int4"}])),
        "kv_cache_dtype": draw(st.sampled_from(["bf16", "fp8"])),
        "speculation": draw(st.sampled_from(TOKEN_SPECULATION)),
    }
    if staged and data["speculation"] is not None:
        data["speculation"] = TOKEN_SPECULATION[1]
    if "speculative_parallel" in layout:
        data["attention_speculation"] = draw(attention_speculations())
    return data


@st.composite
def fleet_scenarios(draw):
    """Pools, disaggregated or not, and failures, as plain data; some are refused."""
    data = draw(scenarios()) | {"engine": draw(engines("vllm-v1"))}
    data["hardware"] = {"chip": data["hardware"]["chip"], "tensor_parallel": draw(st.sampled_from([1, 2]))}
    data.pop("attention_speculation", None)
    data["engine"]["routing"] = draw(st.sampled_from(["round-robin", "least-outstanding"]))
    disaggregated = draw(st.booleans())
    names = {"first": "prefill", "second": "decode"} if disaggregated else {"first": "both", "second": "both"}
    data["pools"] = {
        name: {
            "role": role,
            "hardware": {
                "replicas": draw(st.integers(1, 2)),
                "chip": draw(st.sampled_from(["h100-sxm", data["hardware"]["chip"]])),
            },
            "engine": {"max_num_seqs": draw(st.sampled_from([1, 4]))},
        }
        for name, role in names.items()
    }
    if disaggregated:
        data["kv_transfer"] = {"link": "pcie5-x16", "first_token": draw(st.sampled_from(["prefill", "decode"]))}
    if draw(st.booleans()):
        data["faults"] = {"mtbf_s": draw(st.sampled_from([0.05, 0.3, 2.0])), "mttr_s": 0.05}
    return data
