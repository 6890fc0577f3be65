"""Designs: grids are complete, Latin hypercubes put one point into every slice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from simulator.studies.study_file import Range, at, design_points, unique_points


def test_grid_is_every_combination_first_path_slowest():
    points = design_points({"a": (1, 2), "b": ("x", "y", "z")})
    assert [(p["a"], p["b"]) for p in points] == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]


def test_without_variation_a_grid_is_the_scenario_itself():
    assert design_points({}) == [{}]


@pytest.mark.parametrize("samples", [5, 16])
def test_latin_hypercube_has_one_point_in_every_slice(samples):
    points = design_points({"a": Range(0.0, 1.0), "b": Range(10.0, 1000.0, log=True)}, "latin-hypercube", samples, 3)
    from math import log

    for share in ([p["a"] for p in points], [log(p["b"] / 10.0) / log(100.0) for p in points]):
        assert sorted(int(s * samples) for s in share) == list(range(samples))


@pytest.mark.parametrize("design", ["random", "latin-hypercube"])
def test_draws_repeat_with_the_seed_alone(design):
    vary = {"a": Range(1, 1000), "b": ("x", "y")}
    assert design_points(vary, design, 20, 1) == design_points(vary, design, 20, 1)
    assert design_points(vary, design, 20, 1) != design_points(vary, design, 20, 2)


@given(st.integers(-50, 50), st.integers(1, 100), st.floats(0, 1, exclude_max=True), st.booleans())
def test_whole_ranges_stay_whole_and_inside(low, span, share, log):
    low = max(1, low) if log else low
    value = at(Range(low, low + span, log), share)
    assert isinstance(value, int)
    assert low <= value <= low + span


def test_every_whole_number_of_a_range_is_equally_likely():
    drawn = [at(Range(1, 4), (i + 0.5) / 400) for i in range(400)]
    assert [drawn.count(v) for v in (1, 2, 3, 4)] == [100, 100, 100, 100]


def test_repeated_draws_are_one_point():
    assert unique_points([{"a": 1}, {"a": 1.0}, {"a": 1}, {"a": "1"}]) == [{"a": 1}, {"a": 1.0}, {"a": "1"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"a": Range(1, 2)},), "a grid needs values"),
        (({"a": (1,)}, "grid", 3), "samples: a grid"),
        (({"a": (1,)}, "random"), "without samples"),
        (({"a": (1,)}, "random", 0), "without samples"),
        (({}, "random", 3), "nothing to draw"),
        (({"a": tuple(range(2000)), "b": tuple(range(2000))},), "4,000,000 combinations"),
        (({"a": (1,)}, "sobol"), "one of grid, random, latin-hypercube"),
    ],
)
def test_bad_designs_are_refused(arguments, words):
    with refused(words):
        design_points(*arguments)
