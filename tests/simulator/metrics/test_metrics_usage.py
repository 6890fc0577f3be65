"""Bottleneck shares, utilisation, energy and cost obey their definitions and conservation."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.running.metrics import bottleneck_shares, main_bottleneck, utilisation
from simulator.running.metrics.usage import BOUNDS, cost_usd, energy_joules, kv_cache_section, usd_per_million_tokens
from simulator.running.step_rows import StepTotals
from simulator.serving.records import KvCacheReport


def totals(steps, replicas=1, peak_flops_per_s=1e15, bandwidth_bytes_per_s=1e12):
    """Sums over the steps of equal replicas."""
    result = StepTotals.none([peak_flops_per_s] * replicas, [bandwidth_bytes_per_s] * replicas)
    result.add(steps)
    return result


times = st.lists(st.floats(0, 10), min_size=5, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(times, min_size=1, max_size=8), st.integers(1, 4), st.floats(0.001, 100))
def test_shares_are_a_partition_of_engine_time(make_steps, rows, replicas, duration_s):
    parts = np.array(rows).T
    seconds = parts.sum(axis=0)
    steps = make_steps(np.arange(len(rows)).tolist(), seconds.tolist(), **_by_bound(parts))
    shares = bottleneck_shares(totals(steps, replicas), replicas, duration_s)
    assert shares is not None
    assert list(shares) == [*BOUNDS, "idle"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in shares.values())


def _by_bound(parts):
    return {f"{bound}_s": column for bound, column in zip(BOUNDS, parts, strict=True)}


def test_idle_is_what_the_steps_leave(make_steps):
    shares = bottleneck_shares(totals(make_steps([0.0, 3.0], [1.0, 1.0])), replicas=2, duration_s=4.0)
    assert shares["memory"] == 0.25
    assert shares["idle"] == 0.75
    assert main_bottleneck(shares) == "memory"


def test_no_engine_time_has_no_bottleneck(make_steps):
    assert bottleneck_shares(totals(make_steps([], [])), 1, 0.0) is None
    assert main_bottleneck(None) is None
    assert main_bottleneck(bottleneck_shares(totals(make_steps([], [])), 1, 5.0)) == "idle"


def test_utilisation_over_the_whole_run(make_steps):
    steps = make_steps([0.0, 1.0], [1.0, 1.0], flops=[4.0, 0.0], bytes=[1.0, 2.0])
    used = utilisation(totals(steps, 2, peak_flops_per_s=20.0, bandwidth_bytes_per_s=2.0), duration_s=4.0)
    # 4 FLOPs of 4 chips * 10 FLOP/s * 4 s; 3 bytes of 4 chips * 1 byte/s * 4 s.
    assert used.mfu == pytest.approx(4 / 160)
    assert used.mbu == pytest.approx(3 / 16)
    # One replica is 2 chips: step 1 uses max(4 / 20, 1 / 2) of its second, step 2 all of it; 2 engines * 4 s in total.
    assert used.power_share == pytest.approx(1.5 / 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (energy_joules(100.0, 700.0, 2, 10.0, 0.0), 2000.0),
        (energy_joules(100.0, 700.0, 2, 10.0, 0.5), 8000.0),
        (energy_joules(100.0, 700.0, 2, 10.0, 1.0), 14000.0),
        (energy_joules(None, 700.0, 1, 1.0, 0.5), None),
        (energy_joules(50.0, None, 1, 1.0, 0.5), None),
        (cost_usd(2.5, 8, 1800.0), 10.0),
        (cost_usd(None, 1, 1.0), None),
        (usd_per_million_tokens(10.0, 4_000_000), 2.5),
        (usd_per_million_tokens(None, 10), None),
        (usd_per_million_tokens(1.0, 0), None),
    ],
)
def test_energy_and_cost_are_none_where_they_are_not_known(value, expected):
    assert value == expected


def test_kv_section_shares_and_hits(make_requests):
    requests = make_requests(
        arrival_s=[0.0, 0.0], first_token_s=[1.0, np.nan], finished_s=[2.0, np.nan], scheduled_s=[0.1, np.nan]
    )
    section = kv_cache_section(KvCacheReport(100, 16, 50, 25.0, 3, 40, 1e3, 1e9, 0.0, 1e8, 8e9, False), requests)
    assert (section["peak_use"], section["mean_use"], section["capacity_tokens"]) == (0.5, 0.25, 1600)
    assert section["prefix_hit_rate"] == 0.4
    without = kv_cache_section(KvCacheReport(100, 16, 50, 25.0, 3, None, 1e3, 1e9, 0.0, 1e8, 8e9, False), requests)
    assert without["prefix_hit_rate"] is None
