"""Speedup of attention-level speculation by context and hit rate, as a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.attention_speculation import tokens
from dashboards.figures.gain_map import gain_map
from dashboards.figures.theme import captioned
from simulator.speculation.attention_level import ConsistencySet, Reading, compare_layouts

FloatArray = NDArray[np.float64]
HIT_RATES = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 0.95, 1.0)


class AttentionMapData(NamedTuple):
    """``speedup[rate, context]`` of two groups over one."""

    contexts: tuple[int, ...]
    hit_rates: tuple[float, ...]
    speedup: FloatArray
    reading: str
    basis: str


def attention_map_data(
    parameters: ConsistencySet, contexts: Sequence[int], reading: Reading, hit_rates: Sequence[float] = HIT_RATES
) -> AttentionMapData:
    """Every hit rate at every context, from one parameter set."""
    axis = np.array(contexts, dtype=np.float64)
    rows = [compare_layouts(parameters, axis, rate, reading).speedup for rate in hit_rates]
    return AttentionMapData(tuple(contexts), tuple(hit_rates), np.array(rows), reading, parameters.label.split(":")[0])


def attention_map_figure(data: AttentionMapData) -> go.Figure:
    """A heat map with the speedup in every cell; 1 is neutral."""
    figure = gain_map(
        [tokens(context) for context in data.contexts],
        [f"{rate:.1%}" for rate in data.hit_rates],
        data.speedup,
        "speedup",
        "%{x} tokens, %{y} hits: %{z:.3f} x<extra></extra>",
    )
    figure.update_xaxes(title="context (tokens)", type="category", showgrid=False)
    figure.update_yaxes(title="hit rate", type="category", showgrid=False)
    return captioned(figure, "TP 4 x SP 2 over TP 8", f"reading: {data.reading}", data.basis, 420)
