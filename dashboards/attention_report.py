"""One self-contained HTML page about attention-level speculation: each figure with the sentence it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.page import bullets, card, figure_cards, footer, header, page_html


class Finding(NamedTuple):
    """A figure and what it says."""

    figure: go.Figure
    sentence: str


def attention_report_html(title: str, lead: str, findings: Mapping[str, Finding], notes: Mapping[str, str]) -> str:
    """The whole page as text.

    Args:
        title: plain text.
        lead: what the page says in one sentence.
        findings: by an id of letters and dashes.
        notes: further facts by name.
    """
    figures = {name: finding.figure for name, finding in findings.items()}
    plots = figure_cards(figures)
    parts = [header(title, "Attention-level speculation", lead)]
    for name, finding in findings.items():
        parts.append(f"{plots[name]}<p>{escape(finding.sentence)}</p>")
    parts.append(card("What it rests on", bullets(f"{name}: {text}" for name, text in notes.items())))
    parts.append(footer("Forerun", "a prediction, not a measurement"))
    return page_html(f"{title} · Forerun", "\n".join(parts), figures)
