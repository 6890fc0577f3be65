"""Steps of llama.cpp on Apple's GPUs against rates that llama-bench and llama-batched-bench measured."""

import numpy as np
import pytest
from plain_scenario import plain_scenario
from timing_steps import arrays, decode

from simulator.running.build import build_replica
from simulator.studies.steady_state.prices import decode_steps, prompt_chunks
from simulator.timing import running


def step_s(chip, model, weights, streams=1, context=64):
    """Seconds of a step that decodes one token of each stream."""
    engine = {"framework": "llama.cpp", "max_num_seqs": 8, "max_num_batched_tokens": 512, "num_kv_blocks": 4096}
    timer = build_replica(plain_scenario(model, chip, weights_dtype=weights, engine=engine)).main.timer
    work = decode_steps(timer.windows, np.array([streams]), 1, np.array([context + 1]))
    costs = timer.costs(work)
    return float((costs.device_s + costs.host_s)[0])


def test_four_bits_of_llama_2_7b_gain_on_an_m1_pro():
    """12.75 tok/s in F16, 35.52 in Q4_0 measured."""
    assert 2.4 < step_s("apple-m1-pro-14", "llama-2-7b", "f16") / step_s("apple-m1-pro-14", "llama-2-7b", "q4_0") < 2.9


@pytest.mark.parametrize(
    ("chip", "model", "weights", "streams", "measured"),
    [
        ("apple-m4", "qwen3-0.6b", "bf16", 8, 4.99),
        ("apple-m1-pro", "llama-2-7b", "q8_0", 8, 3.00),
        ("apple-m2-ultra", "qwen2.5-7b", "q8_0", 8, 3.70),
        ("apple-m2-ultra", "qwen2.5-32b", "q4_k_m", 6, 1.77),
        ("apple-m2-ultra", "gpt-oss-120b", "mxfp4_moe", 8, 1.99),
    ],
)
def test_eight_streams_amortise_as_measured(chip, model, weights, streams, measured):
    one, all_ = (step_s(chip, model, weights, n) for n in (1, streams))
    assert streams * one / all_ == pytest.approx(measured, rel=0.15)


def test_recurrent_states_beside_a_drafter_are_computed_slot_by_slot():
    """ggml-org/llama.cpp#25004: a rollback needs each sequence in a pass of its own; dense models have no rollback."""

    def timer(model, method, framework="llama.cpp"):
        drafting = {"method": method, "num_speculative_tokens": 3, "acceptance": {"alpha": 0.7}}
        engine = {"framework": framework, "max_num_seqs": 4, "max_num_batched_tokens": 512}
        scenario = plain_scenario(model, "strix-halo", weights_dtype="q4_k_m", engine=engine, speculation=drafting)
        return build_replica(scenario).main.timer.target

    hybrid = timer("qwen3.5-27b", "mtp")
    works = [decode(seqs, 900, 4, hybrid.windows) for seqs in (1, 4)]
    one, four = map(hybrid.seconds, works)
    assert four == pytest.approx(4 * one, rel=1e-12)
    prompts = prompt_chunks(hybrid.windows, 300, 512)
    drafted = arrays(works[1])
    mixed = prompts._replace(
        decode_seqs=drafted.decode_seqs, query_len=drafted.query_len, decode_kv_tokens=drafted.decode_kv_tokens
    )
    assert hybrid.costs(mixed).device_s[0] == pytest.approx(four + hybrid.costs(prompts).device_s[0], rel=1e-9)
    for steps in (drafted, mixed):
        listed = sum(float(kernel.step_s) for kernel in running(hybrid.kernels(steps)))
        assert listed == pytest.approx(hybrid.costs(steps).device_s[0], rel=1e-12)
    for batched in (timer("qwen3-8b", "eagle3"), timer("qwen3.5-27b", "none"), timer("qwen3.5-27b", "mtp", "vllm")):
        one, four = (batched.seconds(decode(seqs, 900, 4, batched.windows)) for seqs in (1, 4))
        assert four < 3 * one
