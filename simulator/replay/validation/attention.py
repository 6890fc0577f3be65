"""Attention-level speculation: the published maxima beside what one documented parameter set gives."""

from __future__ import annotations

from simulator.replay.validation.errors import ErrorRow
from simulator.speculation.attention_level import compare_layouts, consistency_set, consistency_sets


def attention_errors() -> list[ErrorRow]:
    """Speed-up and cut in attention overhead of every published result that has a parameter set."""
    rows = []
    for name in consistency_sets():
        parameters = consistency_set(name)
        published = parameters.published
        found = compare_layouts(parameters, published["context_tokens"], published["hit_rate"])
        for metric, predicted, measured in (
            ("speedup", found.speedup, published["max_speedup"]),
            ("overhead_reduction", found.overhead_reduction, published["max_overhead_reduction"]),
        ):
            error = 100.0 * (float(predicted) / measured - 1.0)
            rows.append(
                ErrorRow(
                    "attention",
                    f"{name}, {published['context_tokens']:,} tokens, {published['hit_rate']:.1%} hits",
                    metric,
                    1,
                    abs(error),
                    abs(error),
                    error,
                    "extrapolated",
                    "consistency, not validation: parameters were chosen knowing the published figure",
                    True,
                )
            )
    return rows
