"""A scenario as the commands that start the engines: every field of it is a flag, or a remark says what no flag can."""

import json
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_scenario import tiny_data

from simulator.running.scenario import scenario_from
from simulator.studies.engine_flags import launch_flags


def flags(engine, /, **sections):
    """Words and remark of one engine's command."""
    data = tiny_data() | {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
    for name, value in sections.items():
        data[name] = {**(data.get(name) or {}), **value} if isinstance(value, dict) else value
    command, _, remark = launch_flags(scenario_from(data, "test"))[engine].partition("  # ")
    return shlex.split(command), remark


def pair(words, flag):
    return words[words.index(flag) + 1] if flag in words else None


@pytest.mark.parametrize(
    ("sections", "vllm", "sglang"),
    [
        ({"engine": {"enable_chunked_prefill": False}}, "--no-enable-chunked-prefill", None),
        ({"engine": {"enable_prefix_caching": False}}, "--no-enable-prefix-caching", "--disable-radix-cache"),
        ({"engine": {"cuda_graphs": False}}, "--enforce-eager", "--disable-cuda-graph"),
        (
            {"model": "qwen3-30b-a3b", "hardware": {"tensor_parallel": 4, "expert_parallel": 4}},
            "--enable-expert-parallel",
            "--ep-size",
        ),
    ],
)
def test_what_is_switched_has_its_switch_and_what_is_not_has_none(sections, vllm, sglang):
    for engine, flag in (("vllm", vllm), ("sglang", sglang)):
        if flag is not None:
            assert flag in flags(engine, **sections)[0]
            assert flag not in flags(engine, engine={"enable_prefix_caching": True})[0]


def test_attention_groups_are_as_each_engine_counts_chips():
    """Eight chips in four groups of two: vLLM counts those of a group, SGLang all of them."""
    spread = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}
    words, _ = flags("vllm", model="qwen3-30b-a3b", hardware=spread)
    assert [pair(words, f"--{name}-parallel-size") for name in ("tensor", "data")] == ["2", "4"]
    words, _ = flags("sglang", model="qwen3-30b-a3b", hardware=spread)
    assert [pair(words, f"--{name}-size") for name in ("tp", "dp", "ep")] == ["8", "4", "8"]
    assert "--enable-dp-attention" in words
    single, _ = flags("sglang", model="qwen3-30b-a3b", hardware={"tensor_parallel": 2})
    assert "--dp-size" not in single
    assert pair(single, "--tp-size") == "2"


def test_an_unchunked_prompt_is_minus_one_for_sglang():
    words, _ = flags("sglang", engine={"enable_chunked_prefill": False})
    assert pair(words, "--chunked-prefill-size") == "-1"
    words, _ = flags("sglang", engine={"max_num_batched_tokens": 4096})
    assert pair(words, "--chunked-prefill-size") == "4096"


@pytest.mark.parametrize(
    ("requested", "vllm", "sglang"),
    [("fp8", "fp8", "fp8"), ("int4", "awq", "awq"), ("int8", "compressed-tensors", "w8a8_int8")],
)
def test_quantised_weights_have_each_engines_name(requested, vllm, sglang):
    chip = {"chip": "a100-sxm-80gb"} if requested.startswith("int") else {"chip": "h100-sxm"}
    for engine, name in (("vllm", vllm), ("sglang", sglang)):
        words, remark = flags(engine, hardware=chip, weights_dtype=requested)
        assert pair(words, "--quantization") == name
        assert remark == ""
    words, _ = flags("vllm", weights_dtype="bf16")
    assert "--quantization" not in words


def test_what_no_flag_says_is_a_remark():
    mixed = {"default": "bf16", "mlp": "fp8"}
    words, remark = flags("vllm", weights_dtype=mixed, kv_cache_dtype="fp32")
    assert "--quantization" not in words
    assert "load a checkpoint with weights_dtype" in remark
    assert "no flag is known for kv_cache_dtype fp32" in remark


@pytest.mark.parametrize(("requested", "message"), [(None, ""), ("fp8_block", ""), ("fp8", "load a checkpoint with")])
def test_a_quantised_checkpoint_is_not_quantised_again(requested, message):
    chips = {"chip": "h200-sxm", "tensor_parallel": 8}
    for engine in ("vllm", "sglang"):
        words, remark = flags(engine, model="deepseek-r1", hardware=chips, weights_dtype=requested)
        assert "--quantization" not in words
        assert remark.startswith(message)
        assert bool(remark) == bool(message)


def test_an_fp8_cache_has_each_engines_name():
    assert pair(flags("vllm", kv_cache_dtype="fp8")[0], "--kv-cache-dtype") == "fp8"
    assert pair(flags("sglang", kv_cache_dtype="fp8")[0], "--kv-cache-dtype") == "fp8_e4m3"
    assert "--kv-cache-dtype" not in flags("vllm", kv_cache_dtype="bf16")[0]


def test_replicas_stand_behind_a_router():
    words, remark = flags("vllm", hardware={"replicas": 3}, engine={"routing": "least-outstanding"})
    assert remark == "3 copies behind a least-outstanding router"
    assert "3" not in words


def speculation(method, **fields):
    return {"speculation": {"method": method, "acceptance": {"alpha": 0.6}} | fields}


def test_speculation_of_vllm_is_one_json():
    words, remark = flags(
        "vllm", **speculation("draft-model", num_speculative_tokens=4, draft={"model": "llama-3.2-1b"})
    )
    assert json.loads(pair(words, "--speculative-config")) == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": "meta-llama/Llama-3.2-1B",
    }
    assert remark == ""
    eagle = json.loads(
        pair(flags("vllm", **speculation("eagle3", num_speculative_tokens=2))[0], "--speculative-config")
    )
    assert eagle == {"method": "eagle3", "num_speculative_tokens": 2, "model": "DRAFT_MODEL"}
    ngram = json.loads(pair(flags("vllm", **speculation("ngram", num_speculative_tokens=5))[0], "--speculative-config"))
    assert ngram == {"method": "ngram", "num_speculative_tokens": 5}


def test_speculation_of_sglang_counts_steps_and_verified_tokens():
    words, _ = flags("sglang", **speculation("draft-model", num_speculative_tokens=4, draft={"model": "llama-3.2-1b"}))
    assert pair(words, "--speculative-algorithm") == "STANDALONE"
    assert (pair(words, "--speculative-num-steps"), pair(words, "--speculative-num-draft-tokens")) == ("4", "5")
    assert pair(words, "--speculative-draft-model-path") == "meta-llama/Llama-3.2-1B"
    words, _ = flags("sglang", **speculation("eagle3", num_speculative_tokens=2))
    assert pair(words, "--speculative-draft-model-path") == "DRAFT_MODEL"


def test_methods_that_an_engine_lacks_are_reported():
    tree = speculation("eagle", tree="eagle-25")
    for engine, message in (
        ("vllm", "vLLM has no eagle tree"),
        ("sglang", "flags of eagle in SGLang are not known here"),
    ):
        words, remark = flags(engine, **tree)
        assert remark == message
        assert not [word for word in words if word.startswith("--speculative")]
    assert flags("vllm", **speculation("parallel-draft", num_speculative_tokens=3))[1] == "vLLM has no parallel-draft"


@pytest.mark.parametrize(
    ("custom", "message"),
    [({"name": "mine"}, "mine"), ({"_name_or_path": "folder/of-mine"}, "folder/of-mine"), ({}, "MODEL")],
)
def test_a_model_given_inline_goes_by_its_name(custom, message):
    inline = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, **custom}  # fmt: skip
    data = tiny_data() | {"model": inline}
    assert shlex.split(launch_flags(scenario_from(data, "test"))["vllm"])[2] == message


def test_the_scheduler_has_its_flag_or_a_remark():
    for scheduler, message in (("vllm-v1", None), ("priority", "priority"), ("static", None)):
        words, remark = flags("vllm", engine={"scheduler": scheduler})
        assert pair(words, "--scheduling-policy") == message
        assert ("no scheduler like static" in remark) == (scheduler == "static")
    assert "SGLang has no scheduler like priority" in flags("sglang", engine={"scheduler": "priority"})[1]
    assert "no scheduler" not in flags("sglang", engine={"scheduler": "sglang"})[1]


def test_a_local_engine_has_the_command_of_llama_server():
    """Each slot has the context of one request; draft tokens and their method as the server names them."""
    data = {
        "model": "qwen2.5-14b",
        "weights_dtype": "q4_k_m",
        "kv_cache_dtype": "q8_0",
        "hardware": {"chip": "rtx-4090", "tensor_parallel": 2},
        "engine": {"framework": "llama.cpp", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 8192},
        "speculation": {
            "method": "draft-model",
            "num_speculative_tokens": 3,
            "draft": {"model": "qwen2.5-0.5b"},
            "acceptance": {"alpha": 0.7},
        },
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 9, "output_tokens": 9, "num_requests": 1},
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
