"""Pages and figures that the examples of attention-level speculation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.figures.attention import HIT_COLOURS, atlas_data, atlas_figure, region_words, token_grid
from dashboards.page import bullets, card, figure_cards, footer, header, page_html
from dashboards.theme import BLUE, GREEN, GREY, ORANGE, SKY, Look, add_line, add_points, captioned
from forerun.arrays import FloatArray
from forerun.document import Json


class Finding(NamedTuple):
    """A figure and its caption sentence."""

    figure: go.Figure
    sentence: str


def attention_report_html(title: str, lead: str, findings: Mapping[str, Finding], notes: Mapping[str, str]) -> str:
    """The whole page as text."""
    figures = {name: finding.figure for name, finding in findings.items()}
    plots = figure_cards(figures)
    sections = [
        header(title, "Attention-level speculation", lead),
        *(f"{plots[name]}<p>{escape(finding.sentence)}</p>" for name, finding in findings.items()),
        card("What it rests on", bullets(f"{name}: {text}" for name, text in notes.items())),
        footer("Forerun", "a prediction, not a measurement"),
    ]
    return page_html(title, sections, figures)


def atlas_html(cases: Sequence[Json]) -> str:
    """The page of ``examples/alspec_atlas.py``: a map per number of chips, lambda, S and drafter, for one sequence.

    Args:
        cases: ``chip``, ``model``, ``chips``, ``lambda``, ``window_tokens``, ``speculation``, and ``gains`` by batch
            and context or the reason why it is ``refused``.
    """
    kinds: dict[tuple[Any, ...], list[Json]] = {}
    for case in cases:
        if "gains" in case:
            key = (case["chips"], case["lambda"], case["window_tokens"], case["speculation"])
            kinds.setdefault(key, []).append(case)
    findings = {}
    for (chips, tolerance, window, drafter), gains in sorted(kinds.items(), key=lambda item: str(item[0])):
        layouts = tuple(f"{case['model']} on {case['chip']}" for case in gains)
        with_drafts = f", with {drafter}" if drafter else ""
        title = f"TP {chips // 2} x SP 2 on {chips} chips{with_drafts}"
        caption = f"gsm8k's hits at lambda {tolerance:g} and S = {window}, one sequence"
        data = atlas_data(gains, layouts, 1, title, caption)
        if np.isnan(data.speedup).all():
            continue
        figure = atlas_figure(data)
        regions = [f"{name}: {region_words(case, 1)}" for name, case in zip(layouts, gains, strict=True)]
        paying = [words for words in regions if ": pays from" in words]
        name = f"atlas-{chips}-{tolerance:g}-{window}-{drafter or 'plain'}".replace(".", "")
        findings[name] = Finding(figure, "; ".join(paying) + "." if paying else "It pays nowhere here.")
    refused = {case["refused"]: None for case in cases if "refused" in case}
    notes = {
        "hits": "the share published for gsm8k on Llama-3.1-8B, moved by lambda and S; other models have their own",
        "compared with": "the fastest single group of as many chips or fewer, on the chips' scale-up link",
        "ranges": "every assumed cost of the mechanism at both ends of its range",
        "not priced": "; ".join(refused) or "nothing",
    }
    lead = f"Decode steps of {len(cases):,} layouts priced; a blank cell is a context whose KV does not fit."
    return attention_report_html("Where attention-level speculation pays", lead, findings, notes)


class RateData(NamedTuple):
    """Output tokens per second of one user under several layouts, by context."""

    title: str
    contexts: tuple[int, ...]
    layouts: tuple[str, ...]
    tokens_per_s: FloatArray
    """[layouts, contexts]."""
    basis: str


def rate_figure(data: RateData) -> go.Figure:
    """Grouped bars, one group per context."""
    figure = go.Figure()
    for name, row, colour in zip(data.layouts, data.tokens_per_s, (GREY, SKY, ORANGE, GREEN, BLUE), strict=False):
        figure.add_bar(
            x=[token_grid(context) for context in data.contexts],
            y=row,
            name=name,
            marker={"color": colour},
            text=[f"{value:.0f}" for value in row],
            textposition="outside",
            hovertemplate="%{y:.1f} tokens/s",
        )
    axes = ("context (tokens)", "tokens/s of one user")
    return captioned(figure, data.title, "batch 1, by layout", data.basis, 480, *axes)


class LeverData(NamedTuple):
    """Speedup and error let through by S and lambda, and what never checking gives at each S."""

    where: str
    window_tokens: tuple[int, ...]
    tolerances: tuple[float, ...]
    speedup: FloatArray
    """[chunk lengths, lambdas]."""
    error: FloatArray
    """Mean relative error over layers of what passes, [chunk lengths, lambdas]."""
    static_speedup: FloatArray
    static_error: FloatArray
    """[chunk lengths]."""


def lever_figure(data: LeverData) -> go.Figure:
    """Speedup against error: a line per S along lambda, exact attention, and attention to both chunks never checked."""
    figure = go.Figure()
    rows = zip(data.window_tokens, data.speedup, data.error, HIT_COLOURS, strict=False)
    for window, speedup, error, colour in rows:
        hover = "lambda %{customdata}: %{y:.2f}x, error %{x:.1%}"
        look: Look = {"mode": "lines+markers", "customdata": data.tolerances}
        add_line(figure, error, speedup, f"S = {window}", colour, hover, **look)
    marker = {"symbol": "x", "size": 9, "color": GREY}
    hover = "S = %{customdata}, never checked: %{y:.2f}x, error %{x:.1%}<extra></extra>"
    unchecked = (data.static_error, data.static_speedup, "never checked", marker, hover)
    add_points(figure, *unchecked, customdata=data.window_tokens)
    marker = {"symbol": "diamond-open", "size": 10, "color": GREY, "line": {"width": 2}}
    add_points(figure, [0.0], [1.0], "exact attention", marker, "exact: 1x, no error<extra></extra>")
    x = {"title": "relative error let through, mean over layers", "tickformat": ".0%"}
    return captioned(figure, "Lambda and S", data.where, "extrapolated", 480, x, "speedup over TP 8")
