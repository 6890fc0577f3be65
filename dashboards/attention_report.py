"""One self-contained HTML page about attention-level speculation: each figure with the sentence it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.figures.attention import AtlasData, atlas_figure
from dashboards.page import bullets, card, figure_cards, footer, header, page_html

PAYS = 1.02
"""Gain from which on a layout is said to pay."""


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


def region_words(case: Mapping[str, Any], batch: int) -> str:
    """From which context on a layout of the atlas pays, and its largest gain with the range; of those whose KV fits."""
    rows = [row for row in case["gains"] if row["batch"] == batch and row["fits"]]
    if not rows:
        return "KV does not fit"
    paying = [row["context_tokens"] for row in rows if row["speedup"] >= PAYS]
    best = max(rows, key=lambda row: row["speedup"])
    where = f"pays from {min(paying) // 1024}K" if paying else "pays nowhere"
    range_words = f"{best['speedup']:.2f}x ({best['low']:.2f} to {best['high']:.2f})"
    return f"{where}, at most {range_words} at {best['context_tokens'] // 1024}K"


def atlas_html(cases: Sequence[Mapping[str, Any]]) -> str:
    """The page of ``examples/alspec_atlas.py``: a map per number of chips, lambda, S and drafter, for one sequence.

    Args:
        cases: ``chip``, ``model``, ``chips``, ``lambda``, ``window_tokens``, ``speculation``, and ``gains`` by batch
            and context or the reason why it is ``refused``.
    """
    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for case in cases:
        if "gains" in case:
            key = (case["chips"], case["lambda"], case["window_tokens"], case["speculation"])
            kinds.setdefault(key, []).append(case)
    findings = {}
    for (chips, tolerance, window, drafter), found in sorted(kinds.items(), key=lambda item: str(item[0])):
        contexts = tuple(sorted({row["context_tokens"] for row in found[0]["gains"]}))
        gains = [{row["context_tokens"]: row for row in case["gains"] if row["batch"] == 1} for case in found]
        speedup = np.array([[r[c]["speedup"] if r[c]["fits"] else np.nan for c in contexts] for r in gains])
        if np.isnan(speedup).all():
            continue
        layouts = tuple(f"{case['model']} on {case['chip']}" for case in found)
        with_drafts = f", with {drafter}" if drafter else ""
        title = f"TP {chips // 2} x SP 2 over TP {chips}{with_drafts}"
        caption = f"gsm8k's hits at lambda {tolerance:g} and S = {window}, one sequence"
        figure = atlas_figure(AtlasData(layouts, contexts, speedup, title, caption))
        paying = [f"{name}: {words}" for name, case in zip(layouts, found, strict=True)
                  if "from" in (words := region_words(case, 1))]  # fmt: skip
        name = f"atlas-{chips}-{tolerance:g}-{window}-{drafter or 'plain'}".replace(".", "")
        findings[name] = Finding(figure, "; ".join(paying) + "." if paying else "It pays nowhere here.")
    refused = {case["refused"]: None for case in cases if "refused" in case}
    notes = {
        "hits": "the share published for gsm8k on Llama-3.1-8B, moved by lambda and S; other models have their own",
        "ranges": "every assumed cost of the mechanism at both ends of its range",
        "not priced": "; ".join(refused) or "nothing",
    }
    lead = f"Decode steps of {len(cases):,} layouts priced; a blank cell is a context whose KV does not fit."
    return attention_report_html("Where attention-level speculation pays", lead, findings, notes)
