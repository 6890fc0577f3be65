"""Measured serving runs: one canonical record per run, readers for benchmark results and published tables."""

from traces.servings.read import FORMATS, read_runs
from traces.servings.run import LATENCIES, METRICS, PROCESSES, THROUGHPUTS, MeasuredRun, PromptPool, TokenCounts

__all__ = [
    "FORMATS",
    "LATENCIES",
    "METRICS",
    "PROCESSES",
    "THROUGHPUTS",
    "MeasuredRun",
    "PromptPool",
    "TokenCounts",
    "read_runs",
]
