"""A scenario as the commands that start the engines: every field of it is a flag, or a remark says what no flag can."""

import json
import re
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario_parts import burst, drafts
from tiny_scenario import tiny_data

from simulator.running.scenario import scenario_from
from simulator.speculation.methods import METHODS, option_release
from simulator.studies.engine_flags import checkpoint_name, launch_flags
from simulator.studies.tune.command import tune


def command(engine, sections):
    """Words and remark of one engine's command."""
    data = tiny_data() | {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
    for name, value in sections.items():
        data[name] = {**(data.get(name) or {}), **value} if isinstance(value, dict) else value
    command, _, remark = launch_flags(scenario_from(data, "test"))[engine].partition("  # ")
    return shlex.split(command), remark


def pair(words, flag):
    return words[words.index(flag) + 1] if flag in words else None


GROUPS = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}
DEEPSEEK = {"model": "deepseek-r1", "hardware": {"chip": "h200-sxm", "tensor_parallel": 8}}
A100 = {"hardware": {"chip": "a100-sxm-80gb"}}
MIXED = {"weights_dtype": {"default": "bf16", "mlp": "fp8"}, "kv_cache_dtype": "fp32"}
UNSAID = f"# load a checkpoint with weights_dtype {MIXED['weights_dtype']}; no flag is known for kv_cache_dtype fp32"
ROUTED = {"hardware": {"replicas": 3}, "engine": {"routing": "least-outstanding"}}
TREE = {"method": "eagle", "tree": "eagle-25", "acceptance": {"alpha": 0.6}}


def scheduled(name):
    return {"engine": {"scheduler": name}}


def drafting(method, tokens, **draft):
    return {"speculation": drafts(method, tokens, **draft)}


def vllm_drafts(method, tokens, model=None, **options):
    config = {"method": method, **options, "num_speculative_tokens": tokens}
    return f"--speculative-config {json.dumps(config | ({'model': model} if model else {}))}"


def sglang_drafts(algorithm, tokens, model=None):
    path = f" --speculative-draft-model-path {model}" if model else ""
    steps = f"--speculative-num-steps {tokens} --speculative-eagle-topk 1 --speculative-num-draft-tokens {tokens + 1}"
    return f"--speculative-algorithm {algorithm} {steps}{path}"


def sglang_block(algorithm, verified):
    drafter = "--speculative-draft-model-path DRAFT_MODEL"
    return f"--speculative-algorithm {algorithm} --speculative-num-draft-tokens {verified} {drafter}"


@pytest.mark.parametrize(
    ("sections", "vllm", "sglang"),
    [
        ({"engine": {"enable_chunked_prefill": False}}, "--no-enable-chunked-prefill", "-1"),
        ({"engine": {"enable_prefix_caching": False}}, "--no-enable-prefix-caching", "--disable-radix-cache"),
        ({"engine": {"scheduler_reserve_full_isl": False}}, "--no-scheduler-reserve-full-isl", ""),
        ({"engine": {"scheduler_reserve_full_isl": True}}, "", ""),
        ({"engine": {"cuda_graphs": False}}, "--enforce-eager", "--disable-cuda-graph"),
        ({"engine": {"max_num_batched_tokens": 4096}}, "4096", "4096"),
        (scheduled("vllm-v1"), "", ""),
        (scheduled("priority"), "--scheduling-policy priority", "# SGLang has no scheduler like priority"),
        (scheduled("static"), "# vLLM has no scheduler like static", "# SGLang has no scheduler like static"),
        (scheduled("sglang"), "# vLLM has no scheduler like sglang", ""),
        (
            {
                "engine": {
                    "kv_stores": [
                        {"bytes": 4e11},
                        {"medium": "disk", "bytes": 2e12, "read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9},
                    ]
                }
            },
            '--kv-transfer-config {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", '
            '"kv_connector_extra_config": {"lmcache.local_cpu": true, "lmcache.local_disk": "file:///DISK/", '
            '"lmcache.max_local_cpu_size": 372.529, "lmcache.max_local_disk_size": 1862.65}} '
            "# vLLM copies blocks to the host as they are computed",
            "--enable-hierarchical-cache --hicache-size 400 --hicache-write-policy write_back "
            "--hicache-storage-backend file # no flag limits the disk to 2,000 GB",
        ),
        (
            {"engine": {"kv_offloading_bytes": 1e11}},
            "--kv-offloading-size 93.1323 --kv-offloading-backend native",
            "--enable-hierarchical-cache --hicache-size 100 --hicache-write-policy write_back",
        ),
        (ROUTED, *["# 3 copies behind a least-outstanding router"] * 2),
        ({"hardware": {"tensor_parallel": 2}}, "--tensor-parallel-size 2", "--tp-size 2"),
        (
            {"model": "qwen3-30b-a3b", "hardware": GROUPS},  # vLLM counts the chips of a group, SGLang all of them
            "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel",
            "--tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8",
        ),
        ({"weights_dtype": "bf16", "kv_cache_dtype": "bf16"}, "", ""),
        ({"weights_dtype": "fp8"}, *["--quantization fp8"] * 2),
        (A100 | {"weights_dtype": "int4"}, *["--quantization awq"] * 2),
        (A100 | {"weights_dtype": "int8"}, "--quantization compressed-tensors", "--quantization w8a8_int8"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3"),
        (MIXED, UNSAID, UNSAID),
        (DEEPSEEK | {"weights_dtype": "fp8_block"}, "", ""),  # a quantised checkpoint is not quantised again
        (
            DEEPSEEK | {"weights_dtype": "fp8"},
            *["# load a checkpoint with weights_dtype fp8 (the published one has fp8_block)"] * 2,
        ),
        (
            drafting("draft-model", 4, draft={"model": "llama-3.2-1b"}),
            vllm_drafts("draft_model", 4, model="meta-llama/Llama-3.2-1B"),
            sglang_drafts("STANDALONE", 4, "meta-llama/Llama-3.2-1B"),
        ),
        (
            drafting("eagle3", 2),
            vllm_drafts("eagle3", 2, model="DRAFT_MODEL"),
            sglang_drafts("EAGLE3", 2, "DRAFT_MODEL"),
        ),
        (
            drafting("ngram", 5),
            vllm_drafts("ngram", 5),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 6",
        ),
        (
            drafting("parallel-draft", 5, policy="confidence-budget"),
            vllm_drafts("dspark", 5, model="DRAFT_MODEL", enable_adaptive_verification=True),
            sglang_block("DSPARK", 6),
        ),
        (
            drafting("eagle3", 5, policy="confidence-budget"),
            "# vLLM verifies by confidence with method: parallel-draft (DSpark) alone",
            "# SGLang verifies by confidence with method: parallel-draft (DSpark) alone",
        ),
        ({"speculation": TREE}, "# vLLM has no eagle tree", "# flags of eagle in SGLang are not known here"),
        (
            drafting("parallel-draft", 3),
            vllm_drafts("eagle3", 3, model="DRAFT_MODEL", parallel_drafting=True)
            + f" # {METHODS['parallel-draft'].names['vllm'].other}",
            sglang_block("DFLASH", 4),
        ),
        (
            drafting("parallel-draft", 3, draft={"markov_rank": 256}),
            vllm_drafts("dspark", 3, model="DRAFT_MODEL"),
            sglang_block("DSPARK", 4),
        ),
    ],
)
def test_a_field_adds_its_flag_or_a_remark_says_what_no_flag_can(sections, vllm, sglang):
    plain = DEEPSEEK if "deepseek-r1" in sections.values() else {"model": sections.get("model", "llama-3.1-8b")}
    plain |= A100 if A100.items() <= sections.items() else {}
    for engine, expected in (("vllm", vllm), ("sglang", sglang)):
        words, remark = command(engine, sections)
        added = [word for word in words if word not in command(engine, plain)[0]]
        assert " ".join([*added, *([f"# {remark}"] if remark else [])]) == expected


@pytest.mark.parametrize(
    ("custom", "message"),
    [({"name": "mine"}, "mine"), ({"_name_or_path": "folder/of-mine"}, "folder/of-mine"), ({}, "MODEL")],
)
def test_a_model_given_inline_goes_by_its_name(custom, message):
    inline = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, **custom}  # fmt: skip
    data = tiny_data() | {"model": inline}
    assert shlex.split(launch_flags(scenario_from(data, "test"))["vllm"])[2] == message


@pytest.mark.parametrize(
    ("framework", "engines"),
    [("vllm", ["vllm", "sglang"]), ("sglang", ["sglang", "vllm"]), ("trtllm", ["trtllm", "vllm", "sglang"])],
)
def test_the_command_of_the_scenarios_own_engine_comes_first(framework, engines):
    data = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "engine": {"framework": framework}}
    commands = launch_flags(scenario_from(tiny_data() | data, "test"))
    assert list(commands) == engines
    assert "no scheduler" not in "".join(commands.values())  # the engine's own scheduler, which nobody chose


def test_a_local_engine_has_the_command_of_llama_server():
    """Each slot has the context of one request; draft tokens and their method as the server names them."""
    data = {
        "model": "qwen2.5-14b",
        "weights_dtype": "q4_k_m",
        "kv_cache_dtype": "q8_0",
        "hardware": {"chip": "rtx-4090", "tensor_parallel": 2},
        "engine": {"framework": "llama.cpp", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 8192},
        "speculation": drafts("draft-model", 3, draft={"model": "qwen2.5-0.5b"}),
        "workload": burst(1, 9, 9),
    }
    result = launch_flags(scenario_from(data, "test"))
    assert list(result) == ["llama.cpp"]
    command, _, remark = result["llama.cpp"].partition("  # ")
    assert remark == "a file of type q4_k_m"
    words = shlex.split(command)
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "llama-server"
    assert (flags["--ctx-size"], flags["--parallel"], flags["--cache-type-k"]) == ("32768", "4", "q8_0")
    assert (flags["--split-mode"], flags["--model-draft"], flags["--spec-draft-n-max"]) == ("tensor", "DRAFT.gguf", "3")


FIELD_OF = {
    "--tensor-parallel-size": "tensor_parallel",
    "--tp-size": "tensor_parallel",
    "--max-num-seqs": "max_num_seqs",
    "--max-running-requests": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--chunked-prefill-size": "max_num_batched_tokens",
}


def read_back(command):
    """Role and fields that a printed command sets."""
    words = shlex.split(command, comments=True)
    if "--kv-transfer-config" in words:
        side = json.loads(pair(words, "--kv-transfer-config"))["kv_role"]
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}[side]
    else:
        role = pair(words, "--disaggregation-mode") or "both"
    fields = {"tensor_parallel": 1} | {name: int(pair(words, flag)) for flag, name in FIELD_OF.items() if flag in words}
    return role, fields


POOL = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "max_num_seqs": st.sampled_from([16, 256]),
        "max_num_batched_tokens": st.sampled_from([2048, 16384]),
    }
)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@given(prefill=POOL, decode=POOL)
def test_the_command_of_each_pool_reads_back_as_the_pool(engine, prefill, decode):
    pools = {}
    for role, drawn in (("prefill", prefill), ("decode", decode)):
        engine_fields = {name: drawn[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
        hardware = {"tensor_parallel": drawn["tensor_parallel"]}
        pools[f"the-{role}"] = {"role": role, "hardware": hardware, "engine": engine_fields}
    data = tiny_data() | {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "pools": pools}
    data["kv_transfer"] = {"link": "infiniband-ndr"}
    lines = launch_flags(scenario_from(data, "test"))[engine].splitlines()
    commands = dict(pairwise(lines))
    for role, drawn in (("prefill", prefill), ("decode", decode)):
        assert read_back(commands[f"# the-{role}"]) == (role, drawn)
    assert "in front" in lines[-1]


def test_pools_that_serve_whole_requests_transfer_nothing():
    data = tiny_data() | {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
    data["pools"] = {"new": {"role": "both"}, "old": {"role": "both", "hardware": {"chip": "a100-sxm-80gb"}}}
    text = launch_flags(scenario_from(data, "test"))["vllm"]
    assert text.count("vllm serve") == 2
    assert "kv-transfer" not in text
    assert "in front" not in text


@pytest.mark.parametrize("method", [method for method in METHODS if METHODS[method].names])
@pytest.mark.parametrize("policy", ["fixed", "confidence-budget"])
def test_every_option_of_a_command_is_in_the_table_of_releases(method, policy):
    """An option that no release is known to have is not written."""
    if policy == "confidence-budget" and METHODS[method].looks_up:
        return
    draft = {"draft": {"model": "llama-3.2-1b"}} if method == "draft-model" else {}
    chain = drafts(method, 3, 0.7, policy=policy, **draft)
    options = 0
    for framework in ("vllm", "llama.cpp"):
        data = {"model": "deepseek-v3" if method == "mtp" else "llama-3.1-8b", "speculation": chain,
                "engine": {"framework": framework}}  # fmt: skip
        for engine, line in launch_flags(scenario_from(tiny_data() | data, "test")).items():
            words = line.partition("  # ")[0]
            names = re.findall(r"--(?:spec[a-z]*|model-draft)[a-z-]*", words) + re.findall(r'"([a-z_]+)":', words)
            for name in names:
                if name != "--speculative-config":
                    assert option_release(engine, name).date[:4] in ("2025", "2026")
                    options += 1
    assert options or policy == "confidence-budget"


def test_an_unknown_option_has_no_release():
    with pytest.raises(KeyError):
        option_release("vllm", "num_draft_words")


def test_a_tuning_tells_from_which_release_its_flags_are_known():
    data = {"model": "llama-3.3-70b", "speculation": drafts("eagle3", 3, 0.7), "engine": {"max_num_seqs": 512}}
    data["hardware"] = {"chip": "a100-sxm-80gb", "tensor_parallel": 4}
    document = tune(scenario_from(tiny_data() | data, "test"), batch=[1, 512], context=[512]).document
    known = {one["name"]: one["since"] for one in document["emit_needs"]}
    assert known == {
        "eagle3": "0.11",
        "method": "0.11",
        "model": "0.11",
        "num_speculative_tokens": "0.11",
        "num_speculative_tokens_per_batch_size": "0.25",
    }


@pytest.mark.parametrize(("model", "named"), [("hf/config.json", "./hf"), ("/models/hf/config.json", "/models/hf")])
def test_a_folder_is_none_of_the_hub(model, named):
    scenario = scenario_from(tiny_data(), "test").model_copy(update={"model": model})
    assert checkpoint_name(scenario) == named
