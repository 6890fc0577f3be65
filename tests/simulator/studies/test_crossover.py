"""Crossovers: found where a curve passes 1 for sure, with its interval, and nowhere else."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ForerunError
from simulator.studies.compare.crossover import CurvePoint, crossings_of, grid_values
from simulator.studies.paired import Ratio
from simulator.studies.study_file import Range

LOADS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def curve(exponent, centre, width=0.05):
    """A speedup that is a power of the load: it passes 1 exactly at ``centre``, its interval's ends beside it."""
    from math import exp

    points = []
    for load in LOADS:
        ratio = (load / centre) ** exponent
        points.append(CurvePoint(load, Ratio(ratio, ratio * exp(-width), ratio * exp(width))))
    return points


@given(st.floats(3.0, 12.0), st.floats(0.2, 1.0), st.booleans())
def test_a_power_law_crosses_where_it_must(centre, exponent, falling):
    signed = -exponent if falling else exponent
    result = crossings_of(curve(signed, centre))
    assert len(result) == 1
    assert result[0].value == pytest.approx(centre)
    assert result[0].better == ("below" if falling else "above")
    assert log(result[0].high / centre) == pytest.approx(0.05 / exponent, rel=1e-6)
    assert log(centre / result[0].low) == pytest.approx(0.05 / exponent, rel=1e-6)


def test_noise_around_one_is_no_crossover():
    wobble = [CurvePoint(load, Ratio(1.0 + 0.002 * (-1) ** n, 0.99, 1.01)) for n, load in enumerate(LOADS)]
    assert crossings_of(wobble) == ()
    exact = [CurvePoint(load, Ratio(1.0 + 1e-9 * (-1) ** n, 1.0, 1.0)) for n, load in enumerate(LOADS)]
    assert crossings_of(exact) == ()


def test_two_crossings():
    ratios = [0.8, 0.9, 1.2, 1.3, 0.9, 0.7]
    points = [CurvePoint(x, Ratio(r, r * 0.99, r * 1.01)) for x, r in zip(LOADS, ratios, strict=True)]
    result = crossings_of(points)
    assert [crossing.better for crossing in result] == ["above", "below"]
    assert 2.0 < result[0].value < 4.0
    assert 8.0 < result[1].value < 16.0


def test_a_single_pair_has_a_crossing_without_interval():
    points = [CurvePoint(1.0, Ratio(2.0, None, None)), CurvePoint(4.0, Ratio(0.5, None, None))]
    crossing = crossings_of(points)[0]
    assert crossing.value == pytest.approx(2.0)
    assert (crossing.low, crossing.high, crossing.better) == (None, None, "below")


def test_grids():
    assert grid_values(None, 8.0, False, "x")[0] == 1.0
    assert grid_values(Range(1, 64), None, True, "x") == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    assert grid_values((4, 1, 2), None, False, "x") == [1.0, 2.0, 4.0]
    for values, base, message in (
        ((1,), None, "x: a crossover needs at least two values"),
        (("a", "b"), None, "x: a crossover is looked for along numbers"),
        (None, None, "x: the scenario has no value there"),
    ):
        with pytest.raises(ForerunError, match=message):
            grid_values(values, base, False, "x")
