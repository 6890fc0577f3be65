"""llama.cpp with --flash-attn off: scores go through memory."""

import numpy as np
import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from hwprofiles import AttentionShape, KernelLibrary
from simulator import simulate
from simulator.running.build import build_replica
from simulator.studies.engine_flags import launch_flags

SHAPE = AttentionShape(32, 8, 128, 128, 4096.0, "bf16")


def scenario(flash=True, **changes):
    engine = {"framework": "llama.cpp", "max_num_seqs": 2, "max_num_batched_tokens": 512, "max_model_len": 8192}
    engine |= {"flash_attention": flash}
    sections = {"weights_dtype": "q4_k_m", "engine": engine}
    return plain_scenario("llama-3.1-8b", "rtx-4090", 3000, 8, 2, **sections).with_values(changes)


@pytest.mark.parametrize("context", [512, 4096, 32768])
def test_scores_pass_four_times_and_every_query_head_reads_its_own_keys_and_values(context):
    fused, disaggregated = (KernelLibrary("rtx-4090", "llama.cpp", flash=flash) for flash in (True, False))
    alone = SHAPE.num_heads / SHAPE.num_kv_heads - 1
    forwards = disaggregated.elementwise(4 * 4 * 32 * 3 * context + alone * context * SHAPE.kv_bytes_per_token, 2)
    sizes = {"seqs": 1, "q_len": 3, "kv_tokens": context}
    one, more = (kernels.attention_decode(SHAPE, **sizes) for kernels in (fused, disaggregated))
    assert more.seconds - one.seconds == pytest.approx(forwards.seconds)
    assert more.bytes - one.bytes == forwards.bytes
    prompt = {"seqs": 1, "q_tokens": 512, "pairs": 512 * (context - 256), "kv_tokens": context}
    assert disaggregated.attention_prefill(SHAPE, **prompt).seconds > fused.attention_prefill(SHAPE, **prompt).seconds


def test_scores_of_prompt_chunks_and_decoding_sequences_of_one_step_are_added():
    fused, disaggregated = (KernelLibrary("rtx-4090", "llama.cpp", flash=flash) for flash in (True, False))
    forwards = disaggregated.elementwise(4 * 4 * 32 * (256 * 2048 + 15000), 2)
    sizes = {"seqs": 1, "q_tokens": 256, "pairs": 256 * 1920, "kv_tokens": 2048}
    sizes |= {"decode_seqs": 5, "decode_kv_tokens": 15000}
    one, more = (kernels.attention_mixed(SHAPE, **sizes) for kernels in (fused, disaggregated))
    assert more.bytes - one.bytes == forwards.bytes
    assert more.seconds - one.seconds == pytest.approx(forwards.seconds)


def test_a_run_without_it_is_slower_and_equal_in_both_engines():
    fast, exact = (simulate(scenario(False, **{"engine.stepping": one})) for one in ("fast", "exact-steps"))
    assert np.array_equal(fast.requests.finished_s, exact.requests.finished_s)
    assert fast.requests.finished_s.max() > simulate(scenario()).requests.finished_s.max()
    assert "--flash-attn off" in launch_flags(scenario(False))["llama.cpp"]
    assert "--flash-attn" not in launch_flags(scenario())["llama.cpp"]


def test_scores_of_a_whole_ubatch_over_a_full_context_are_reserved():
    """32 heads x 512 tokens x 8,192 keys x 4 bytes = 537 MB, in place of the MLP's 3 x 14,336 x 2 bytes a token; the
    residual stream, logits and blocks as before."""
    fused, disaggregated = (build_replica(scenario(flash)).main.memory for flash in (True, False))
    scores, mlp = 32 * 512 * 8192 * 4, 512 * 3 * 14336 * 2
    assert disaggregated.activation_bytes - fused.activation_bytes == scores - mlp == 492_830_720
    block = fused.block_size * fused.kv_bytes_per_token
    assert fused.num_blocks - disaggregated.num_blocks == pytest.approx((scores - mlp) / block, abs=1)
    short = build_replica(scenario(False, **{"engine.max_model_len": 600, "workload.input_tokens": 300})).main.memory
    assert short.activation_bytes == fused.activation_bytes
    cards = {"hardware.tensor_parallel": 2, "hardware.link": "pcie4-x16"}
    halves = [build_replica(scenario(flash, **cards)).main.memory.activation_bytes for flash in (True, False)]
    assert halves[1] - halves[0] == (scores - mlp) / 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_dtype": "q8_0"}, "llama.cpp needs it for a cache in q8_0"),
        ({"engine.framework": "vllm"}, "vllm has no attention without it"),
    ],
)
def test_what_has_no_such_switch_is_refused(changes, words):
    with pytest.raises(ForerunError, match=words):
        build_replica(scenario(False, **changes))
