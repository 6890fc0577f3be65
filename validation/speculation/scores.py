"""Errors of predicted speedups and acceptance curves, by table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator.speculation import curve_names, fit_acceptance_lengths, load_curve
from validation.speculation.cases import Unpredicted
from validation.speculation.compare import Comparison

FITTED_DEPTH = 3
"""Acceptance curves are fitted on K = 1 to this and read off beyond."""
ALL = "all"


class GroupScore(NamedTuple):
    """Errors over one published table, in percent."""

    group: str
    rows: int
    mape: float
    bias: float
    right_sign: float
    """Share of rows on the right side of 1 (published within 2 % of 1 counts as either)."""

    @property
    def wrong_sign(self) -> float:
        """Share of rows on the wrong side of 1."""
        return 100.0 - self.right_sign


class CurveScore(NamedTuple):
    """Acceptance length of one published curve beyond the depths that it was fitted on."""

    curve: str
    depth: int
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.published - 1


def group_scores(comparisons: Iterable[Comparison]) -> list[GroupScore]:
    """Scores by published table, in the order of the rows."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.row.group, []).append(comparison)
    return [group_score(name, members) for name, members in groups.items()]


def group_score(name: str, comparisons: Sequence[Comparison]) -> GroupScore:
    """The score of some rows under a name."""
    errors = 100 * np.array([comparison.error for comparison in comparisons])
    right = [abs(c.row.speedup - 1) <= 0.02 or (c.row.speedup > 1) == (c.predicted > 1) for c in comparisons]
    return GroupScore(
        name, len(comparisons), float(np.abs(errors).mean()), float(errors.mean()), 100 * float(np.mean(right))
    )


def curve_scores() -> list[CurveScore]:
    """Every catalogue curve published to K = 5 or deeper. Fitted on K = 1 to 3, read off at its deepest."""
    scores = []
    for name in curve_names():
        lengths = load_curve(name).lengths or {}
        near = {k: length for k, length in lengths.items() if k <= FITTED_DEPTH}
        if len(near) >= 2 and max(lengths) >= 5:
            depth = max(lengths)
            predicted = fit_acceptance_lengths(near).model.acceptance_length(depth)
            scores.append(CurveScore(name, depth, lengths[depth], predicted))
    return scores


def speculation_document(
    comparisons: Sequence[Comparison], left: Sequence[Unpredicted], curves: Sequence[CurveScore]
) -> dict[str, Any]:
    """The JSON of ``forerun validate speculation``: scores by table, every row, every refusal."""
    kept = ("predicted", "error", "acceptance_length", "plain_step_s", "verify_step_s", "basis", "constants")
    return {
        "groups": [score._asdict() for score in group_scores(comparisons)],
        "overall": [group_score(ALL, comparisons)._asdict()] if comparisons else [],
        "rows": [
            {"id": c.row.id, "group": c.row.group, "published": c.row.speedup, "source": c.row.source}
            | {name: getattr(c, name) for name in kept}
            for c in comparisons
        ],
        "not_predicted": [{"id": item.row.id, "group": item.row.group, "reason": item.reason} for item in left],
        "curves": [curve._asdict() | {"error": curve.error} for curve in curves],
    }
