"""Token speculation: published speed-ups by table, and acceptance curves beyond the depths that were fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.replay.speculation import Comparison, group_scores
from simulator.replay.speculation.page import FITTED_DEPTH, CurveScore
from simulator.replay.validation.errors import ErrorRow

FITTED_TABLES = {
    "vllm20780": "two constants per drafter (host seconds per step and pass) on its K = 2 and 6",
    "trtllm_dsr1_mtp": "one constant",
}
"""Tables of which a part was fitted; everything else was predicted untouched."""
BORROWED = ("vllm16937", "vllm16035")
"""Same engine as ``vllm20780``, whose constants they take."""


def speculation_errors(comparisons: Sequence[Comparison], curves: Sequence[CurveScore]) -> list[ErrorRow]:
    """One row per published table, one for the acceptance curves."""
    by_group: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_group.setdefault(comparison.row.group, []).append(comparison)
    rows = []
    for score in group_scores(comparisons):
        errors = np.abs([comparison.error for comparison in by_group[score.group]])
        bases = {comparison.basis for comparison in by_group[score.group]}
        fitted = FITTED_TABLES.get(score.group, "nothing")
        rows.append(
            ErrorRow(
                "speculation",
                score.group,
                "speedup",
                score.rows,
                score.mape,
                100.0 * float(np.median(errors)),
                score.bias,
                next((basis for basis in ("extrapolated", "datasheet", "calibrated") if basis in bases), None),
                "constants of vllm20780" if score.group in BORROWED else fitted,
                True,
            )
        )
    if curves:
        signed = np.array([curve.error for curve in curves])
        rows.append(
            ErrorRow(
                "speculation",
                "acceptance curves, deepest K",
                "acceptance_length",
                len(signed),
                100.0 * float(np.abs(signed).mean()),
                100.0 * float(np.median(np.abs(signed))),
                100.0 * float(signed.mean()),
                None,
                f"level and decay of each curve on K = 1 to {FITTED_DEPTH}",
                True,
            )
        )
    return rows
