"""A heat map of speedups with the number in every cell; 1 is neutral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from dashboards.figures.theme import gain_scale


def gain_map(x: Sequence[Any], y: Sequence[Any], gain: Any, title: str, hover: str) -> go.Figure:
    """The cells, without axis titles.

    Args:
        x, y: of the columns and rows.
        gain: speedup per row and column.
        title: of the colour bar.
        hover: Plotly's hover template.
    """
    low, high = min(0.5, float(gain.min())), max(1.5, float(gain.max()))
    return go.Figure(
        go.Heatmap(
            x=x,
            y=y,
            z=gain,
            colorscale=gain_scale(low, 1.0, high),
            zmin=low,
            zmax=high,
            text=[[f"{cell:.2f}" for cell in row] for row in gain],
            texttemplate="%{text}",
            textfont={"size": 11},
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": title, "font": {"size": 12}}, "thickness": 12, "tickfont": {"size": 11}},
            hovertemplate=hover,
        )
    )
