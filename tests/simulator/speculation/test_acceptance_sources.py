"""The acceptance section of a scenario: every source, its modifiers, and what is refused."""

import json

import numpy as np
import pytest
from acceptance_draws import path
from numpy.testing import assert_allclose, assert_array_equal
from plain_scenario import plain_scenario
from pydantic import ValidationError

from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario
from simulator.speculation import (
    AcceptanceConfig,
    LevelDecay,
    SpeculationConfig,
    load_curve,
    sampler_of,
    survival_rates,
)

EAGLE3 = "eagle3-llama-3.1-8b-mt-bench"
VLLM_LINE = (
    "SpecDecoding metrics: Mean acceptance length: 2.60, Accepted: 1600 tokens, Drafted: 3000 tokens, "
    "Per-position acceptance rate: 0.730, 0.520, 0.350, Avg Draft acceptance rate: 53.3%"
)


def section(**values):
    return AcceptanceConfig.model_validate(values)


def acceptance_sampler(acceptance, tokens, seed):
    return sampler_of(acceptance, survival_rates(acceptance, tokens), seed)


def test_alpha_with_decay_falls_with_every_doubling_of_the_position():
    survival = survival_rates(section(alpha=0.8, decay=0.9), 4)
    conditional = survival / np.concatenate(([1.0], survival[:-1]))
    assert_allclose(conditional[[0, 1, 3]], [0.8, 0.72, 0.648])


def test_acceptance_length_with_decay_is_met_exactly():
    survival = survival_rates(section(acceptance_length=2.6, decay=0.85), 4)
    assert 1 + survival.sum() == pytest.approx(2.6, abs=1e-12)
    conditional = survival / np.concatenate(([1.0], survival[:-1]))
    assert_allclose(conditional[[1, 3]] / conditional[[0, 1]], 0.85)


def test_a_curve_by_name():
    assert 1 + survival_rates(section(curve=EAGLE3), 3).sum() == pytest.approx(2.79)
    assert_array_equal(survival_rates(section(curve=EAGLE3), 5), load_curve(EAGLE3).survival(5))
    longer = 1 + survival_rates(section(curve=EAGLE3, extrapolate=True), 10).sum()
    assert 3.54 < longer < 4.0
    with pytest.raises(ForerunError, match="up to K = 7; set extrapolate: true"):
        survival_rates(section(curve=EAGLE3), 10)


def test_a_log_of_the_engine(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(VLLM_LINE)
    assert_allclose(survival_rates(section(log=str(path)), 3), [0.73, 0.52, 0.35])
    assert_allclose(survival_rates(section(log=str(path)), 2), [0.73, 0.52])
    with pytest.raises(ForerunError, match=r"vllm\.log has 3 positions.*extrapolate: true"):
        survival_rates(section(log=str(path)), 5)
    deep = survival_rates(section(log=str(path), extrapolate=True), 5)
    assert_allclose(deep[:3], [0.73, 0.52, 0.35])
    assert 0 < deep[4] < deep[3] < 0.35
    with pytest.raises(ForerunError, match="no such file"):
        survival_rates(section(log=str(tmp_path / "absent.log")), 3)


def test_a_log_without_positions_holds_for_its_own_depth_only(tmp_path):
    path = tmp_path / "bench.json"
    counts = {"num_drafts": 100, "draft_tokens": 300, "accepted_tokens": 160, "acceptance_length": 2.6}
    path.write_text(json.dumps({f"spec_decode_{key}": value for key, value in counts.items()}))
    assert 1 + survival_rates(section(log=str(path)), 3).sum() == pytest.approx(2.6)
    with pytest.raises(ForerunError, match="at 3 draft tokens, not 5"):
        survival_rates(section(log=str(path)), 5)


def test_a_log_lies_beside_its_scenario(tmp_path):
    (tmp_path / "vllm.log").write_text(VLLM_LINE)
    (tmp_path / "chat.yaml").write_text(
        "model: llama-3.1-8b\nhardware: {chip: h100-sxm}\n"
        "workload: {arrivals: {process: burst}, input_tokens: 100, output_tokens: 10, num_requests: 2}\n"
        "speculation: {method: draft-model, num_speculative_tokens: 3, draft: {model: llama-3.2-1b},\n"
        "  acceptance: {log: vllm.log}}\n"
    )
    acceptance = load_scenario(tmp_path / "chat.yaml").speculation.acceptance
    assert_allclose(survival_rates(acceptance, 3), [0.73, 0.52, 0.35])


def test_rates_are_extrapolated_only_when_requested():
    rates = LevelDecay(0.8, 0.9).survival(3).tolist()
    with pytest.raises(ForerunError, match="extrapolate: true"):
        survival_rates(section(per_position=rates), 6)
    assert_allclose(
        survival_rates(section(per_position=rates, extrapolate=True), 6), LevelDecay(0.8, 0.9).survival(6), rtol=1e-3
    )
    assert_allclose(
        survival_rates(section(conditional=[0.8, 0.72], extrapolate=True), 6),
        LevelDecay(0.8, 0.9).survival(6),
        rtol=1e-3,
    )


def test_a_curve_that_is_too_short_is_detected_when_the_scenario_is_read():
    block = {"method": "draft-model", "draft": {"model": "llama-3.2-1b"}, "num_speculative_tokens": 9}
    with pytest.raises(ValidationError, match=r"acceptance\.curve has 7 positions.*acceptance\.extrapolate: true"):
        SpeculationConfig.model_validate({**block, "acceptance": {"curve": EAGLE3}})
    SpeculationConfig.model_validate({**block, "acceptance": {"curve": EAGLE3, "extrapolate": True}})


def drawn(spread, requests=400, tokens=3000, seed=5):
    sampler = acceptance_sampler(section(per_position=[0.73, 0.52, 0.35], spread=spread), 3, seed)
    return [path(sampler, request, tokens) for request in range(requests)]


@pytest.mark.parametrize("spread", [None, 0.05, 0.15, 0.25])
def test_pooled_counters_do_not_move_with_spread(spread):
    """Requests of equal output: drafts pooled over requests accept position i as often as the section says."""
    paths = drawn(spread)
    drafts = sum(map(len, paths))
    pooled = np.array([sum((steps >= i).sum() for steps in paths) for i in (1, 2, 3)]) / drafts
    by_request = np.array([[(steps >= i).sum(), len(steps)] for steps in paths for i in (1,)])
    residual = by_request[:, 0] - pooled[0] * by_request[:, 1]
    error = np.sqrt((residual**2).sum()) / drafts
    assert abs(pooled[0] - 0.73) < 4 * error + 1e-4
    assert_allclose(pooled, [0.73, 0.52, 0.35], atol=4 * error + 1e-3)


def test_spread_is_the_standard_deviation_across_requests():
    """Weighted by drafts, the rate of the first position varies by the spread, beyond the noise of the draws."""
    for spread in (0.1, 0.2):
        rates, weights = np.array([[(steps >= 1).mean(), len(steps)] for steps in drawn(spread, requests=1500)]).T
        mean = (rates * weights).sum() / weights.sum()
        deviation = np.sqrt((weights * (rates - mean) ** 2).sum() / weights.sum())
        assert deviation == pytest.approx(spread, rel=0.15)
    alike = np.std([(steps >= 1).mean() for steps in drawn(None)])
    assert alike < 0.02


def test_a_request_stays_itself():
    """The same request, drawn again or from a later step, is of the same class and makes the same draws."""
    sampler = acceptance_sampler(section(alpha=0.7, spread=0.2), 4, 3)
    for request in (0, 7, 123):
        whole = path(sampler, request, 200)
        assert_array_equal(whole, path(sampler, request, 200))
        rest = 200 - int((whole[:10] + 1).sum())
        assert_array_equal(whole[10:], path(sampler, request, rest, 10))


def test_spread_of_zero_draws_what_no_spread_draws():
    plain, zero = (acceptance_sampler(section(alpha=0.7, spread=spread), 4, 3) for spread in (None, 0.0))
    assert_array_equal(path(plain, 5, 300), path(zero, 5, 300))


def test_both_engine_paths_agree_on_requests_that_differ():
    """Preemptions and batching do not change who accepts what: fast spans and single steps give one result."""
    draft = {"method": "draft-model", "num_speculative_tokens": 4, "draft": {"model": "llama-3.2-1b"}}
    scenario = plain_scenario(
        inputs=120,
        outputs=150,
        requests=40,
        engine={"num_kv_blocks": 130, "max_num_seqs": 16, "max_model_len": 2048},
        speculation=draft | {"acceptance": {"curve": EAGLE3, "spread": 0.2}},
        workload={"arrivals": {"process": "poisson", "request_rate": 400.0}},
    )
    fast, exact = (simulate(scenario.with_values({"engine.stepping": one}), seed=2) for one in ("fast", "exact-steps"))
    assert fast.requests.preemptions.sum() > 0
    assert_allclose(fast.requests.finished_s, exact.requests.finished_s, rtol=1e-9)
    assert_array_equal(fast.requests.accepted_tokens, exact.requests.accepted_tokens)
    assert fast.speculation == exact.speculation
    per_draft = fast.requests.accepted_tokens / fast.requests.drafts
    assert per_draft.std() > 0.4, "requests differ"
