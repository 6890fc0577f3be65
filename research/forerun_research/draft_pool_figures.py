"""The figure of a pool of drafters: gain by verifiers per drafter."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from forerun.studies import ResultFigure, text_intervals, theme
from forerun_research.draft_pool import WAYS


class PoolData(NamedTuple):
    """Gain of each way to draft, a row for each number of verifiers per drafter."""

    gains: dict[str, list[dict[str, Any]]]
    batch: int
    acceptance_factors: tuple[float, float]
    basis: str


def pool_data(document: dict[str, Any]) -> PoolData:
    """Gains of a ``draft-pool`` document."""
    gains = {way: one["gains"] for way, one in document["ways"].items()}
    return PoolData(gains, document["batch"], document["acceptance_factors"], document["basis"])


def pool_figure(data: PoolData) -> go.Figure:
    """Gain over the same verifiers without drafts, a line and a band per way of drafting."""
    figure = go.Figure()
    for (way, rows), colour in zip(data.gains.items(), (theme.BLUE, theme.VERMILLION), strict=True):
        shares = [row["verifiers_per_drafter"] for row in rows]
        low, high = ([row[end] for row in rows] for end in ("low", "high"))
        theme.add_band(figure, shares, low, high, fillcolor=colour, opacity=0.2, showlegend=False)
        use = [(row["use"], 1e3 * row["step_s"]) for row in rows]
        hover = "%{x} verifiers: %{y:.2f}x, drafter at work %{customdata[0]:.0%}, step %{customdata[1]:.1f} ms"
        look: dict[str, Any] = {"mode": "lines+markers", "customdata": use}
        theme.add_line(figure, shares, [row["gain"] for row in rows], f"drafting {WAYS[way]}", colour, hover, **look)
    figure.add_hline(y=1.0, line={"color": theme.GREY, "width": 1, "dash": "dot"})
    ticks = {"tickvals": shares, "ticktext": [f"{share:g}" for share in shares]}
    axes = ({"type": "log", "title": "verifiers per drafter", **ticks}, {"title": "gain", "rangemode": "tozero"})
    least, most = data.acceptance_factors
    caption = f"{data.batch} sequences each; bands: acceptance times {least:g} to {most:g}"
    return theme.captioned(figure, "Drafters that verifiers share", caption, data.basis, 480, *axes)


def pool_text(data: PoolData) -> str:
    """Gain of each way to draft by verifiers per drafter."""
    rows = [
        (f"{row['verifiers_per_drafter']} {way}", row["low"], row["gain"], row["high"])
        for way, gains in data.gains.items()
        for row in gains
    ]
    text = "gain over the same verifiers without drafts, by verifiers per drafter, | = 1\n"
    return text + text_intervals(rows, 1.0)


FIGURES = (ResultFigure("gain", pool_data, pool_figure, pool_text),)
