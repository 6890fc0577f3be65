"""Loads of experts under a named routing, against draws of the same distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwprofiles import KernelLibrary, ProfileError
from hwprofiles.formulas import ARRAY, SCALAR
from hwprofiles.kernels.moe import expected_maximum, expert_loads, read_routing, slowest_rank_factor

SHAPES = [(8, 2), (128, 8), (256, 8)]


def drawn_uniform(tokens, experts, chosen, ranks, draws=60):
    """Mean load of the slowest rank, and its experts with any token, over random draws."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(draws):
        picks = np.argsort(rng.random((tokens, experts)), axis=1)[:, :chosen]
        by_rank = np.bincount(picks.ravel(), minlength=experts).reshape(ranks, -1)
        slowest = by_rank[by_rank.sum(axis=1).argmax()]
        rows.append((slowest.sum(), (slowest > 0).sum()))
    return np.mean(rows, axis=0)


def drawn_power_law(tokens, experts, chosen, ranks, alpha, draws=200):
    """The same where popularity is drawn from a truncated power law, scaled and rounded."""
    rng = np.random.default_rng(0)
    low, high = (1.0, 0.8 * tokens) if tokens * chosen > experts else (0.01, 2.0)
    rest, result = 1 - alpha, []
    for _ in range(draws):
        loads = ((high**rest - low**rest) * rng.random(experts) + low**rest) ** (1 / rest)
        loads = np.minimum(np.rint(loads / loads.sum() * tokens * chosen), tokens)
        by_rank = loads.reshape(ranks, -1)
        slowest = by_rank[by_rank.sum(axis=1).argmax()]
        result.append((slowest.sum(), (slowest > 0).sum()))
    return np.mean(result, axis=0)


@pytest.mark.parametrize(("experts", "chosen"), SHAPES)
@pytest.mark.parametrize("tokens", [1, 4, 32, 512])
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_random_routing_loads_the_slowest_rank_as_draws_do(experts, chosen, tokens, ranks):
    loads = expert_loads(SCALAR, read_routing("uniform"), tokens, experts, chosen, ranks)
    load, active = drawn_uniform(tokens, experts, chosen, ranks)
    assert loads.assignments == pytest.approx(load, rel=0.16)
    assert loads.active == pytest.approx(active, rel=0.16)


@pytest.mark.parametrize(("experts", "chosen"), SHAPES)
@pytest.mark.parametrize("tokens", [64, 1024, 8192])
@pytest.mark.parametrize("ranks", [1, 4, 8])
@pytest.mark.parametrize("alpha", [1.01, 1.2])
def test_a_power_law_loads_the_slowest_rank_as_draws_do(experts, chosen, tokens, ranks, alpha):
    loads = expert_loads(SCALAR, read_routing(f"power-law-{alpha}"), tokens, experts, chosen, ranks)
    load, active = drawn_power_law(tokens, experts, chosen, ranks, alpha)
    assert loads.assignments == pytest.approx(load, rel=0.3)
    assert loads.active == pytest.approx(active, rel=0.3)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["balanced", "uniform", "power-law-1.01", "power_law_1.2"]),
    st.sampled_from(SHAPES),
    st.integers(1, 20000),
    st.sampled_from([1, 2, 4, 8]),
)
def test_loads_add_up_and_stay_possible(name, shape, tokens, ranks):
    experts, chosen = shape
    routing = read_routing(name)
    loads = expert_loads(SCALAR, routing, tokens, experts, chosen, ranks)
    assert 0 < loads.active <= experts / ranks * (1 + 1e-9)
    assert loads.active <= max(1.0, loads.assignments) * (1 + 1e-9)
    assert tokens * chosen / ranks <= loads.assignments * (1 + 1e-9)
    assert loads.assignments <= max(1.0, tokens * min(chosen, experts / ranks)) * (1 + 1e-9)
    if ranks == 1:
        assert loads.assignments == pytest.approx(tokens * chosen)
    many = expert_loads(ARRAY, routing, np.array([tokens, tokens]), experts, chosen, ranks)
    assert many.assignments[1] == pytest.approx(loads.assignments)
    assert slowest_rank_factor(SCALAR, routing, tokens, experts, chosen, ranks) >= 1.0


def test_distinct_experts_of_random_routing():
    """E (1 - (1 - k/E)^n)."""
    loads = expert_loads(SCALAR, read_routing("uniform"), 5, 256, 8, 1)
    assert loads.active == pytest.approx(256 * (1 - (248 / 256) ** 5))


def test_expected_maximum_of_normal_numbers():
    rng = np.random.default_rng(0)
    for count in (2, 8, 64, 256):
        drawn = rng.standard_normal((4000, count)).max(axis=1).mean()
        assert expected_maximum(SCALAR, count) == pytest.approx(drawn, rel=0.06)
    assert expected_maximum(SCALAR, 1) == 0.0


@pytest.mark.parametrize(
    "name",
    ["even", "power-law", "power-law-x", "power-law-9", "power-law--1", "power-law-nan", "zipf", "zipf-0", "zipf-inf"],
)
def test_unknown_routings_are_refused(name):
    with pytest.raises(ProfileError, match="no routing"):
        read_routing(name)


@given(st.floats(0.05, 2.5), st.integers(1, 20_000), st.sampled_from([(128, 4), (256, 8), (8, 2)]))
def test_zipf_keeps_every_pick_and_touches_fewer_experts_than_random(alpha, tokens, experts):
    number, chosen = experts
    skewed, random = (
        expert_loads(SCALAR, read_routing(name), tokens, number, chosen, 1) for name in (f"zipf-{alpha}", "uniform")
    )
    assert skewed.assignments == pytest.approx(max(1.0, tokens * chosen))
    assert skewed.active <= random.active * (1 + 1e-6)
    more = expert_loads(SCALAR, read_routing(f"zipf-{alpha}"), tokens + 1, number, chosen, 1)
    assert more.active >= skewed.active * (1 - 1e-9)


def test_flat_zipf_is_random_routing():
    for tokens in (1, 16, 500):
        flat = expert_loads(SCALAR, read_routing("zipf-0.000001"), tokens, 128, 4, 1)
        assert flat.active == pytest.approx(
            expert_loads(SCALAR, read_routing("uniform"), tokens, 128, 4, 1).active, 1e-4
        )


def test_uneven_routing_costs_the_kernel_time():
    kernels = KernelLibrary("h100-sxm", "vllm")
    shape = {"tokens": 2048, "num_experts": 128, "experts_per_token": 8, "hidden": 4096, "intermediate": 1536}
    times = [
        kernels.moe(**shape, expert_parallel=8, routing=name).seconds
        for name in ("balanced", "uniform", "power-law-1.01", "power-law-1.2")
    ]
    assert times == sorted(times)
    assert times[3] > 1.15 * times[0]


def test_identical_tokens_reach_the_experts_of_one():
    for tokens in (1, 300):
        alone = expert_loads(SCALAR, read_routing("identical"), tokens, 256, 8, 1)
        assert (alone.active, alone.assignments, alone.loads) == (8, 8 * tokens, (tokens,))
    spread = expert_loads(SCALAR, read_routing("identical"), 300, 256, 8, 8)
    assert 1 < spread.active < 8, "of eight ranks one has more of the eight experts than its share, and none all"
    assert expert_loads(SCALAR, read_routing("identical"), 300, 16, 8, 8).active == 2, "no rank has more than it holds"
