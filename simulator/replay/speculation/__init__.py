"""Speculation as published: every speedup found in print or in a log, beside what the model says."""

from simulator.replay.speculation.cases import Case, Unpredicted, case_of
from simulator.replay.speculation.gate import Gate, broken_gates, parse_gates
from simulator.replay.speculation.page import (
    curve_scores,
    group_scores,
    validation_document,
    validation_page,
)
from simulator.replay.speculation.predict import Comparison, compare_published, compare_row
from simulator.replay.speculation.published import PublishedSpeedup, load_published

__all__ = [
    "Case",
    "Comparison",
    "Gate",
    "PublishedSpeedup",
    "Unpredicted",
    "broken_gates",
    "case_of",
    "compare_published",
    "compare_row",
    "curve_scores",
    "group_scores",
    "load_published",
    "parse_gates",
    "validation_document",
    "validation_page",
]
