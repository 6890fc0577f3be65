"""Self-contained HTML pages of a few figures, each with the sentence it stands for; the one of the atlas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.figures.attention import atlas_data, atlas_figure, region_words
from dashboards.page import bullets, card, figure_cards, footer, header, page_html
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
