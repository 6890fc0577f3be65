"""Speculation as published: every speedup found in print or in a log, beside what the model says."""

from simulator.replay.speculation.cases import RESEARCH, Case, Unpredicted, case_of, grows_trees
from simulator.replay.speculation.compare import Comparison, compare_published, compare_row
from simulator.replay.speculation.published import PublishedSpeedup, load_published
from simulator.replay.speculation.scores import (
    ALL,
    FITTED_DEPTH,
    CurveScore,
    GroupScore,
    curve_scores,
    group_score,
    group_scores,
    speculation_document,
)

__all__ = [
    "ALL",
    "FITTED_DEPTH",
    "RESEARCH",
    "Case",
    "Comparison",
    "CurveScore",
    "GroupScore",
    "PublishedSpeedup",
    "Unpredicted",
    "case_of",
    "compare_published",
    "compare_row",
    "curve_scores",
    "group_score",
    "group_scores",
    "grows_trees",
    "load_published",
    "speculation_document",
]
