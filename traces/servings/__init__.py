"""Measured serving runs: one canonical record per run, readers for benchmark results and published tables."""

from traces.servings.read import FORMATS, read_runs, register_table
from traces.servings.run import (
    LATENCIES,
    METRICS,
    PROCESSES,
    THROUGHPUTS,
    MeasuredRun,
    PromptPool,
    TokenCounts,
    latencies_ms,
)

__all__ = [
    "FORMATS",
    "LATENCIES",
    "METRICS",
    "PROCESSES",
    "THROUGHPUTS",
    "MeasuredRun",
    "PromptPool",
    "TokenCounts",
    "latencies_ms",
    "read_runs",
    "register_table",
]
