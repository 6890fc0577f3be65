"""The event model is the oracle of the closed forms; the closed forms keep their invariants."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from forerun.errors import ForerunError
from simulator.speculation.attention_level import (
    READINGS,
    LayerTimes,
    expected_pass_seconds,
    hit_seconds,
    layer_seconds,
    miss_seconds,
    pass_seconds,
    simulate_pass,
)
from simulator.speculation.attention_level.hit_rates import batch_hit_rate, failing_chance

MICROSECONDS = st.floats(0.0, 1000.0).map(lambda us: us * 1e-6)
SHARE = st.floats(0.0, 1.0)
OUTCOMES = st.lists(st.booleans(), min_size=1, max_size=10)


@st.composite
def layers(draw):
    pre, post, exact = draw(MICROSECONDS), draw(MICROSECONDS), draw(MICROSECONDS)
    return LayerTimes(
        pre_s=pre,
        post_s=post,
        exact_s=exact,
        window_s=exact * draw(SHARE),
        send_s=draw(MICROSECONDS),
        verify_s=draw(MICROSECONDS),
        sync_s=draw(MICROSECONDS),
        skip_pre_s=pre * draw(SHARE),
        skip_post_s=post * draw(SHARE),
    )


TYPICAL = LayerTimes(200e-6, 470e-6, 668e-6, 8e-6, 6e-6, 3e-6, 25e-6, 3e-6, 8e-6)
REPEATABLE = settings(max_examples=60, deadline=None, derandomize=True)


@REPEATABLE
@given(layers(), OUTCOMES, st.sampled_from(READINGS))
def test_events_take_as_long_as_the_closed_form(times, hits, reading):
    assert_allclose(simulate_pass(times, hits, reading).seconds, pass_seconds(times, hits, reading), rtol=1e-9)


@st.composite
def batches(draw):
    """A layer, and what becomes of it in each layer of a pass: all pass, all fail, or some are rolled back alone."""
    times = draw(layers())

    def part(share):
        pre, post = times.pre_s - times.skip_pre_s, times.post_s - times.skip_post_s
        return times.rolled_back(times.skip_pre_s + share * pre, times.skip_post_s + share * post)

    some = st.builds(part, SHARE)
    return times, draw(st.lists(st.one_of(st.booleans(), some), min_size=1, max_size=8))


@REPEATABLE
@given(batches(), st.sampled_from(READINGS[:2]))
def test_requests_that_roll_back_alone_take_as_long_as_events_say(batch, reading):
    times, outcomes = batch
    result = pass_seconds(times, outcomes, reading)
    assert_allclose(simulate_pass(times, outcomes, reading).seconds, result, rtol=1e-9)
    passed = [bool(outcome) for outcome in outcomes]
    assert pass_seconds(times, passed, reading) <= result * (1 + 1e-12)


def test_a_miss_of_some_costs_their_own_kernels_and_no_others():
    """By hand, microseconds: attention 668, verification 3; the receiver has the others after 8 + 6 + 670."""
    few = TYPICAL.rolled_back(50e-6, 150e-6)
    assert hit_seconds(few, "next-attention") == pytest.approx((668 + 3 + 50 + 150 + 25) * 1e-6)
    assert hit_seconds(few, "same-layer") == pytest.approx((200 + 668 + 3 + 150 + 25) * 1e-6)
    none = TYPICAL.rolled_back(TYPICAL.skip_pre_s, TYPICAL.skip_post_s)
    assert hit_seconds(none, "next-attention") == hit_seconds(TYPICAL, "next-attention")
    rows = [simulate_pass(TYPICAL, [few, True], "next-attention").bars]
    assert {"again post", "again next pre"} <= {bar.work for bars in rows for bar in bars}


@settings(max_examples=10, deadline=None, derandomize=True)
@given(layers(), st.floats(0.05, 0.95), st.sampled_from(READINGS[:2]), st.integers(2, 5))
def test_expectation_over_requests_is_the_mean_over_all_that_can_happen(times, rate, reading, requests):
    """Two layers and few requests: every combination of how many fail in each, with its chance."""
    chances = [rate**requests]
    chances += [float(failing_chance(failing, rate, requests, 1, 0.0)) for failing in range(1, requests)]
    chances += [(1 - rate) ** requests]
    assert sum(chances) == pytest.approx(1.0)
    some = [times.rolled_back(m / requests * times.pre_s, m / requests * times.post_s) for m in range(1, requests)]
    outcomes = [True, *some, False]
    every = sum(
        chances[first] * chances[second] * pass_seconds(times, [outcomes[first], outcomes[second]], reading)
        for first in range(requests + 1)
        for second in range(requests + 1)
    )
    rolled_back = [(custom, [chance] * 2) for custom, chance in zip(some, chances[1:-1], strict=True)]
    assert_allclose(expected_pass_seconds(times, chances[:1] * 2, reading, rolled_back), every, rtol=1e-12)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(layers(), st.lists(st.floats(0.05, 0.95), min_size=2, max_size=6), st.sampled_from(READINGS), st.integers(0, 99))
def test_expectation_lies_within_three_standard_errors_of_drawn_passes(times, rates, reading, seed):
    draws = np.random.default_rng(seed).random((150, len(rates))) < rates
    seconds = np.array([simulate_pass(times, row.tolist(), reading).seconds for row in draws])
    error = seconds.std(ddof=1) / np.sqrt(len(seconds))
    assert abs(seconds.mean() - expected_pass_seconds(times, rates, reading)) <= 3 * error + 1e-9 * seconds.mean()


@REPEATABLE
@given(layers(), OUTCOMES, st.sampled_from(READINGS))
def test_certain_outcomes_are_the_closed_form_of_their_sequence(times, hits, reading):
    certain = [float(hit) for hit in hits]
    assert_allclose(expected_pass_seconds(times, certain, reading), pass_seconds(times, hits, reading), rtol=1e-12)


@REPEATABLE
@given(layers(), SHARE)
def test_hit_rates_zero_and_one_are_a_miss_and_a_hit(times, rate):
    n, d = times.pre_s + times.post_s, times.sync_s
    skips = times.skip_pre_s + times.skip_post_s
    assert_allclose(miss_seconds(times), n + times.exact_s + times.verify_s + d, rtol=1e-12)
    hit = max(times.exact_s + times.verify_s + skips, times.window_s + times.send_s + n) + d
    assert_allclose(layer_seconds(times, 1.0, "next-attention"), hit, rtol=1e-12)
    sender, receiver = times.exact_s + times.verify_s + times.skip_post_s, times.window_s + times.send_s + times.post_s
    assert_allclose(layer_seconds(times, 1.0, "same-layer"), times.pre_s + max(sender, receiver) + d, rtol=1e-12)
    pipeline = max((n + times.exact_s) / 2, n + times.window_s + times.send_s) + d
    assert_allclose(layer_seconds(times, 1.0, "pipelined"), pipeline, rtol=1e-12)
    assert_allclose(hit_seconds(times, "pipelined"), pipeline, rtol=1e-12)
    for reading in READINGS:
        assert_allclose(layer_seconds(times, 0.0, reading), miss_seconds(times), rtol=1e-12)


@REPEATABLE
@given(layers(), OUTCOMES, st.sampled_from(READINGS))
def test_never_slower_than_serial_by_more_than_what_the_mechanism_adds(times, hits, reading):
    """A miss costs verification and synchronisation; a hit at most the send or verification and skipped launches."""
    serial = len(hits) * times.serial_s
    assert pass_seconds(times, [False] * len(hits), reading) <= (
        serial + len(hits) * (times.verify_s + times.sync_s)
    ) * (1 + 1e-12)
    skips = times.skip_pre_s + times.skip_post_s
    added = max(times.send_s, times.verify_s + skips, times.verify_s) + 2 * times.sync_s
    assert pass_seconds(times, hits, reading) <= (serial + len(hits) * added) * (1 + 1e-12)


@REPEATABLE
@given(layers(), st.lists(SHARE, min_size=2, max_size=2), st.integers(1, 40), st.sampled_from(READINGS[:2]))
def test_more_hits_are_never_slower_once_the_guess_arrives_before_the_verdict(times, rates, count, reading):
    low, high = sorted(rates)
    if times.window_s + times.send_s > times.exact_s + times.verify_s:
        return
    slower, faster = (expected_pass_seconds(times, [rate] * count, reading) for rate in (low, high))
    assert faster <= slower * (1 + 1e-12)


@REPEATABLE
@given(layers(), st.floats(1.0, 50.0), SHARE, st.sampled_from(READINGS))
def test_longer_attention_saves_more_seconds(times, factor, rate, reading):
    """Saved against the serial layer on the same group; longer contexts lengthen exact attention alone."""
    longer = LayerTimes(
        **{name: getattr(times, name) for name in times.__slots__ if name != "exact_s"},
        exact_s=times.exact_s * factor,
    )
    saved = [t.serial_s * 8 - expected_pass_seconds(t, [rate] * 8, reading) for t in (times, longer)]
    assert saved[1] >= saved[0] - 1e-12 * longer.serial_s * 8


def test_arrays_give_what_numbers_give():
    exact = np.array([10e-6, 100e-6, 1e-3])
    many = LayerTimes(20e-6, 40e-6, exact, 8e-6, 5e-6, 3e-6, 25e-6)
    for reading in READINGS:
        one = [
            expected_pass_seconds(LayerTimes(20e-6, 40e-6, a, 8e-6, 5e-6, 3e-6, 25e-6), [0.3, 0.9], reading)
            for a in exact.tolist()
        ]
        assert_allclose(expected_pass_seconds(many, [0.3, 0.9], reading), one, rtol=1e-14)


def test_roles_swap_on_a_hit_and_stay_on_a_miss():
    for reading in READINGS:
        assert simulate_pass(TYPICAL, [True, True, False, False, True], reading).senders == (0, 1, 0, 0, 0)


def test_a_miss_throws_the_receivers_work_away_and_launches_what_it_skips():
    trace = simulate_pass(TYPICAL, [False, True], "next-attention")
    first = [bar for bar in trace.bars if bar.layer == 0]
    dropped = [bar for bar in first if not bar.kept]
    assert {bar.lane for bar in dropped} == {"group 1", "link"}
    verdict = next(bar.end_s for bar in first if bar.work == "verify")
    assert all(bar.end_s <= verdict + TYPICAL.skip_pre_s + TYPICAL.skip_post_s + 1e-12 for bar in dropped)
    kept = [bar.work for bar in first if bar.lane == "group 0" and bar.kept]
    assert kept == ["pre", "first and last chunk", "rest of attention", "verify", "post", "next pre"]


def test_a_hit_skips_what_the_receiver_did():
    bars = simulate_pass(TYPICAL, [True, True], "next-attention").bars
    skipped = [bar for bar in bars if bar.layer == 0 and bar.work.startswith("skip")]
    assert [(bar.lane, bar.work) for bar in skipped] == [("group 0", "skip post"), ("group 0", "skip next pre")]
    assert_allclose([bar.end_s - bar.start_s for bar in skipped], [TYPICAL.skip_post_s, TYPICAL.skip_pre_s], rtol=1e-9)


def test_no_lane_does_two_things_at_once():
    for reading in READINGS:
        bars = simulate_pass(TYPICAL, [True, True, False, True, True, True, False], reading).bars
        for lane in {bar.lane for bar in bars}:
            custom = sorted((bar.start_s, bar.end_s) for bar in bars if bar.lane == lane)
            assert all(later[0] >= earlier[1] - 1e-15 for earlier, later in pairwise(custom))


def test_a_pass_has_a_layer():
    for call in (pass_seconds, expected_pass_seconds, simulate_pass):
        with pytest.raises(ForerunError, match="at least one layer"):
            call(TYPICAL, [], "next-attention")


def test_collected_grid_and_sensitivity_table(shared_data):
    """The grid that was collected with the equations: layers far from the ends of a pass, skipped launches free."""
    collected = json.loads((shared_data / "published" / "alspec.json").read_text())
    assumed = collected["assumed_parameters"]

    def layers(
        context, n8=assumed["n8"], n4=assumed["n4"], rate=assumed["bw_per_kv_head_GBps"], delta=assumed["delta"]
    ):
        """Serial layer, attention of it, and the parts of a layer on a group; microseconds."""
        head_bytes = context * 2 * 128 * assumed["kv_bytes_per_value"]
        single, exact = (head_bytes / (each * 1e3) for each in (assumed["bw_per_kv_head_GBps"], rate))
        group = LayerTimes(0.3 * n4, 0.7 * n4, exact, assumed["s"], assumed["x"], assumed["v"], delta)
        return n8 + single, single, group

    for row in collected["predicted_grid_variant_B"]:
        if row["context"] < 2048:
            continue  # the collected rows let a first chunk take longer than all of attention
        serial, _, group = layers(row["context"])
        speculative = layer_seconds(group, row["hit_rate"], "next-attention")
        assert_allclose(serial, row["tp8_layer_us"], rtol=1e-3)
        assert_allclose(speculative, row["tp4sp2_layer_us"], rtol=1e-3)
        assert_allclose(serial / speculative, row["speedup"], atol=2e-3)
    named = {
        "base": {},
        "a4 at 45 GB/s per KV head (midpoint of N300 and T3K rows)": {"rate": 45.0},
        "a4 at 36.2 GB/s per KV head (N300 row)": {"rate": 36.2},
        "current PERF.md era n8=450 n4=517": {"n8": 450.0, "n4": 517.0},
        "n4=n8=620": {"n4": 620.0},
        "delta=50": {"delta": 50.0},
    }
    checked = 0
    for row in collected["sensitivity_128K_h0875"]:
        if row["case"] not in named:
            continue
        serial, single, group = layers(131072, **named[row["case"]])
        speculative = layer_seconds(group, 0.875, "next-attention")
        assert_allclose(serial / speculative, row["variant_B_speedup"], atol=0.006)
        assert_allclose(single / (speculative - group.other_s), row["variant_B_overhead_reduction"], rtol=0.01)
        checked += 1
    assert checked == len(named)


@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("queries", [1, 4])
def test_every_request_fails_as_often_as_its_queries_do_however_they_hang_together(correlation, queries):
    """Expected failures of a batch: requests times the chance of one, whatever the correlation."""
    requests, rate = np.array([6, 3]), 0.9
    some = sum(m * failing_chance(m, rate, requests, queries, correlation) for m in range(1, 6))
    one = 1 - batch_hit_rate(rate, queries, "per-request", correlation)
    every = batch_hit_rate(np.array([rate] * 2), requests * queries, "per-request", correlation)
    partial = sum(failing_chance(m, rate, requests, queries, correlation) for m in range(1, 6))
    assert_allclose(some + requests * (1 - every - partial), requests * one, rtol=1e-9)
    if correlation == 1.0:
        assert not partial.any()
