"""One self-contained HTML page about a replay of measured engine steps."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.figures.serving_parity import ServingParity, serving_parity_figure
from dashboards.figures.theme import BASIS_WORDS
from dashboards.page import card, figure_cards, page_html
from dashboards.report_parts import number
from dashboards.requests_report import simple_table
from simulator.metrics.files import write_text_atomically

_SCORES = ("kind", "n", "mape", "median_ape", "p90_ape", "bias")
_STEP = ("kind", "prefill_seqs", "prefill_tokens", "decode_seqs", "query_len", "decode_kv_tokens", "scope", "bound")


def write_steps_report(document: dict[str, Any], path: Path) -> Path:
    """Write the page of a step replay to ``path`` and return it.

    Raises:
        OSError: the file cannot be written.
    """
    write_text_atomically(path, steps_html(document))
    return path


def steps_html(document: dict[str, Any]) -> str:
    """The whole page as text."""
    figures = {"figure-steps": serving_parity_figure(step_parity_data(document))}
    scores = [[_cell(group[key]) for key in _SCORES] for group in (*document["groups"], document["overall"])]
    worst = [
        [_cell(row[key]) for key in _STEP]
        + [f"{row[key] * 1e3:,.4g}" for key in ("measured_s", "predicted_s")]
        + [f"{row['ape']:.1f}"]
        for row in document["worst"]
    ]
    overall, basis = document["overall"], document["basis"]
    title = ", ".join(Path(source).name for source in document["sources"])
    header = (
        f"<header><h1>{escape(title)}</h1><p>Measured engine steps beside predicted ones · "
        f'{escape(BASIS_WORDS.get(basis, basis))}</p><p class="lead">{overall["n"]:,} steps: mean error '
        f"{overall['mape']:.1f} %, median {overall['median_ape']:.1f} %, bias {overall['bias']:+.1f} %.</p></header>"
    )
    sections = [
        header,
        *figure_cards(figures).values(),
        card("Errors by kind of step (%)", simple_table(_SCORES, scores)),
        card("Steps furthest off", simple_table((*_STEP, "measured (ms)", "predicted (ms)", "error (%)"), worst)),
        f"<footer>Forerun {escape(str(document['version']))} · engine steps beside predictions</footer>",
    ]
    return page_html("Replay of engine steps · Forerun", "\n".join(sections), figures)


def step_parity_data(document: dict[str, Any]) -> ServingParity:
    """Both times of every step in milliseconds, coloured by kind."""
    steps = document["steps"]
    return ServingParity(
        "step_ms",
        np.array([row["measured_s"] for row in steps]) * 1e3,
        np.array([row["predicted_s"] for row in steps]) * 1e3,
        tuple(row["kind"] for row in steps),
        tuple(row["place"].rsplit("/", 1)[-1] for row in steps),
        document["overall"]["mape"],
        document["basis"],
    )


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else number(value, 4)
