"""Gates on the validation of speculation: a group's score against a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from simulator.errors import ForerunError, did_you_mean

METRICS = ("mape", "bias", "wrong_sign")
"""Percentages: mean absolute error, size of the mean error, share of rows on the wrong side of 1."""
ALL = "all"


class Gate(NamedTuple):
    """A limit that a score must not exceed."""

    group: str
    """A published table, or ``all`` rows."""
    metric: str
    value: float


def parse_gates(texts: Sequence[str], groups: Sequence[str]) -> list[Gate]:
    """``GROUP.METRIC=VALUE`` options.

    Raises:
        ForerunError: an unknown group or metric, or a limit that is no number >= 0.
    """
    return [_gate(text, [ALL, *groups]) for text in texts]


def _gate(text: str, groups: Sequence[str]) -> Gate:
    place = f"--fail-above {text}"
    path, equals, number = text.partition("=")
    group, dot, metric = path.rpartition(".")
    if not equals or not dot:
        raise ForerunError(f"{place}: write GROUP.METRIC=VALUE, for example all.mape=20")
    if group not in groups:
        raise ForerunError(f"{place}: no such table{did_you_mean(group, groups)} (one of {', '.join(groups)})")
    if metric not in METRICS:
        raise ForerunError(f"{place}: no such metric{did_you_mean(metric, METRICS)} (one of {', '.join(METRICS)})")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ForerunError(f"{place}: the limit must be a percentage >= 0")
    return Gate(group, metric, value)


def broken_gates(gates: Sequence[Gate], scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each gate that does not hold has to say.

    Args:
        gates: limits.
        scores: ``groups`` and ``overall`` of the validation document; a group without predicted rows breaks its gate.
    """
    by_name = {score["group"]: score for score in scores}
    said = []
    for gate in gates:
        score = by_name.get(gate.group)
        if score is None:
            said.append(f"{gate.group}: no row was predicted")
            continue
        seen = {"mape": score["mape"], "bias": abs(score["bias"]), "wrong_sign": 100.0 - score["right_sign"]}[
            gate.metric
        ]
        if seen > gate.value:
            said.append(f"{gate.group}.{gate.metric} is {seen:.1f} %, above {gate.value:g} %")
    return said
