"""Whole runs: determinism, physics, and what the summary of a scenario must show."""

import numpy as np
import pytest
from both_engines import assert_same_bytes
from numpy.testing import assert_array_equal
from refused import refused
from scenario_parts import burst, closed_loop, drafts, lognormal, on_h100, poisson, uniform

from simulator.running.run import simulate
from simulator.serving import compiled as engine_choice
from simulator.speculation import expected_tokens

SPECULATION = drafts("draft-model", 4, draft={"model": "llama-3.2-1b"})


def scenario(workload=None, **sections):
    return on_h100(workload or poisson(20.0, 120, lognormal(400, 1.0, 4096), uniform(1, 200)), **sections)


def tpot_s(**changes):
    """Mean time per output token of one stream."""
    requests = simulate(scenario(workload=closed_loop(1, 2, 128, 512), **changes)).requests
    return float(np.mean((requests.finished_s - requests.first_token_s) / (requests.output_tokens - 1)))


@pytest.mark.parametrize("speculation", [None, SPECULATION])
def test_the_same_seed_gives_the_same_bytes(speculation):
    first, second = (simulate(scenario(speculation=speculation), seed=7) for _ in range(2))
    assert_same_bytes(first, second)
    assert not np.array_equal(first.requests.arrival_s, simulate(scenario(), seed=8).requests.arrival_s)


def test_single_stream_8b_on_h100():
    """TPOT between the bandwidth bound with the LM head (4.8 ms) and 1.6 times it."""
    assert 4.8e-3 < tpot_s() < 1.6 * 4.8e-3


def test_70b_on_four_h100_shows_its_communication():
    four = {"model": "llama-3.1-70b", "hardware": {"chip": "h100-sxm", "tensor_parallel": 4}}
    bound = (141.1 - 2.1) / 4 / 3350
    assert bound < tpot_s(**four) < 1.6 * bound
    result = simulate(scenario(workload=closed_loop(1, 2, 128, 512), **four))
    assert result.steps.interconnect_s.sum() / result.steps.seconds.sum() > 0.03
    assert result.chips == 4


def test_preemption_under_a_small_measured_cache_loses_nothing():
    result = simulate(scenario(workload=burst(40, 200, 200), engine={"num_kv_blocks": 300}))
    assert result.requests.preemptions.sum() > 0
    assert result.kv.preemptions == result.requests.preemptions.sum()
    assert (result.kv.num_blocks, result.kv.overridden) == (300, True)
    assert result.kv.peak_blocks <= 300
    assert np.isfinite(result.requests.finished_s).all()


def test_too_long_requests_are_counted_as_failed_with_a_note():
    result = simulate(scenario(workload=burst(50, uniform(1, 300), 10), engine={"max_model_len": 150}))
    failed = int(result.requests.failed.sum())
    assert 0 < failed < 50
    assert result.notes == (
        f"{failed} requests refused: longer than the context of 150 tokens (max_model_len): shorten them or raise "
        "engine.max_model_len",
    )
    assert_array_equal(np.isnan(result.requests.finished_s), result.requests.failed)


def test_an_engine_that_is_not_compiled_says_so(monkeypatch):
    """A stale build is as none: the source as it stands decides."""
    monkeypatch.setattr(engine_choice, "engine_checksum", lambda: "another")
    engine_choice._compiled.cache_clear()
    reason = engine_choice.why_interpreted()
    with pytest.warns(RuntimeWarning, match="setup.py build_ext --inplace"):
        interpreted = simulate(scenario(engine={"scheduler": "prefill-first"}))
    monkeypatch.undo()
    engine_choice._compiled.cache_clear()
    assert reason is not None
    assert "setup.py build_ext --inplace" in reason
    either = simulate(scenario(engine={"scheduler": "prefill-first"}))
    assert_array_equal(either.requests.finished_s, interpreted.requests.finished_s)


def test_continuous_batching_beats_static_batching():
    workload = burst(120, lognormal(400, 1.0, 4096), uniform(1, 200))
    continuous, static = (
        simulate(scenario(workload=workload, engine={"scheduler": rule, "max_num_seqs": 16})).requests.finished_s.max()
        for rule in ("vllm-v1", "static")
    )
    assert continuous < 0.8 * static


@pytest.mark.parametrize("speculation", [None, SPECULATION])
def test_the_whole_azure_trace_is_served(shared_data, speculation):
    trace = shared_data / "workloads/azure_llm_2023/AzureLLMInferenceTrace_conv.head11619.csv"
    result = simulate(scenario(workload={"trace": str(trace)}, speculation=speculation))
    assert len(result.requests) == 11_619
    assert not result.requests.failed.any()
    assert np.isfinite(result.requests.finished_s).all()
    assert result.steps.output_tokens.sum() == result.requests.output_tokens.sum()
    if speculation is not None:
        length = 1 + result.speculation.accepted_tokens / result.speculation.num_drafts
        assert abs(length - expected_tokens(0.7, 4)) < 0.02


@pytest.mark.parametrize(
    ("changes", "basis"),
    [
        ({}, "extrapolated"),  # a fifth of the weights is the LM head, whose vocabulary no fit has seen
        ({"weights_dtype": "int4"}, "extrapolated"),
        ({"hardware": {"chip": "a100-sxm-80gb"}, "weights_dtype": "fp8"}, "extrapolated"),
        ({"hardware": {"chip": "rtx-4090"}, "weights_dtype": "bf16"}, "calibrated"),
        ({"hardware": {"chip": "rtx-4090", "tensor_parallel": 2}, "weights_dtype": "bf16"}, "datasheet"),
    ],
)
def test_the_basis_is_that_of_the_kernels_in_use(changes, basis):
    assert simulate(scenario(workload=burst(2, 8, 2), **changes)).basis == basis


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
def test_static_batches_may_exceed_the_token_budget(stepping):
    engine = {"scheduler": "static", "max_num_batched_tokens": 1, "stepping": stepping}
    assert not simulate(scenario(engine=engine)).requests.failed.any()


def test_a_run_in_which_nothing_can_be_served_is_an_error():
    with refused("no request can be served here (120 requests: longer than the context of 2 tokens (max_model_len)"):
        simulate(scenario(engine={"max_model_len": 2}))


def test_speculation_switched_off_equals_none():
    off = simulate(scenario(speculation=SPECULATION | {"method": "none"}))
    plain = simulate(scenario())
    assert_array_equal(off.requests.finished_s, plain.requests.finished_s)
    assert off.speculation is None


def test_a_step_budget_below_the_batch_is_noted_where_vllm_would_not_start():
    def notes(budget):
        return [note for note in simulate(scenario(engine={"max_num_batched_tokens": budget})).notes if "start" in note]

    assert len(notes(8)) == 1
    assert "max_num_batched_tokens: 8 is below max_num_seqs" in notes(8)[0]
    assert not notes(8192)


def test_a_run_says_when_its_kv_memory_was_nearly_gone():
    short = scenario(engine={"num_kv_blocks": 40}, workload=burst(8, 200, 40))
    message = [note for note in simulate(short).notes if "KV memory was nearly gone" in note]
    assert len(message) == 1
    assert "of 40 blocks (640 tokens) in use at the peak" in message[0]
    assert not [note for note in simulate(scenario()).notes if "KV memory" in note]
