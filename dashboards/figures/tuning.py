"""The best number of draft tokens by batch and context, as a map."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import captioned, gain_scale


class TuningData(NamedTuple):
    """``speedup[context][batch]`` of the best way to draft, and what is drafted there."""

    batches: tuple[str, ...]
    contexts: tuple[str, ...]
    speedup: list[list[float]]
    words: list[list[str]]
    hover: list[list[str]]
    method: str
    basis: str


def tuning_data(document: dict[str, Any]) -> TuningData:
    """The map of a ``tune`` document."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for cell in document["table"]:
        rows.setdefault(cell["judged_at"]["context"], []).append(cell)
    first = next(iter(rows.values()))
    return TuningData(
        tuple(f"{cell['judged_at']['batch']:,}" for cell in first),
        tuple(f"{context:,}" for context in rows),
        [[cell["if_on"]["speedup"] for cell in row] for row in rows.values()],
        [[_words(cell) for cell in row] for row in rows.values()],
        [[_hover(cell) for cell in row] for row in rows.values()],
        document["method"],
        document["basis"],
    )


def _words(cell: dict[str, Any]) -> str:
    drafted = cell["draft"].replace("tree of ", "T").removeprefix("K=")
    return f"<b>{drafted}</b><br>{cell['if_on']['speedup']:.2f}{'' if cell['fits_kv_cache'] else '*'}"


def _hover(cell: dict[str, Any]) -> str:
    on = cell["if_on"]
    ends = f"{on['speedup']:.3f} x ({on['low']:.2f} to {on['high']:.2f}) with {on['num_speculative_tokens']} drafted"
    batch, context = (f"{low:,} to {high:,}" for low, high in (cell["batch"], cell["context"]))
    return f"batch {batch}, context {context}<br>{ends}"


def tuning_figure(data: TuningData) -> go.Figure:
    """A heat map: what to draft in every cell, and the speed-up of the best way to draft; 1 is neutral."""
    cells = [value for row in data.speedup for value in row]
    low, high = min(0.5, *cells), max(1.5, *cells)
    figure = go.Figure(
        go.Heatmap(
            x=list(data.batches),
            y=list(data.contexts),
            z=data.speedup,
            colorscale=gain_scale(low, 1.0, high),
            zmin=low,
            zmax=high,
            text=data.words,
            customdata=data.hover,
            texttemplate="%{text}",
            textfont={"size": 10},
            xgap=1,
            ygap=1,
            showscale=False,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(title="batch (sequences)", type="category", showgrid=False)
    figure.update_yaxes(title="context (tokens)", type="category", showgrid=False)
    caption = f"{data.method}: draft tokens, speed-up"
    return captioned(figure, "What to draft", caption, data.basis, 160 + 64 * max(3, len(data.contexts)))
