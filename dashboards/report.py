"""One self-contained HTML page about a run: no network, no server, light and dark, wide and narrow."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dashboards.figures import (
    BASIS_WORDS,
    bottleneck_data,
    bottleneck_figure,
    dark_template,
    latency_data,
    latency_figure,
    light_template,
    timeline_data,
    timeline_figure,
    waterfall_data,
    waterfall_figure,
)
from dashboards.report_parts import (
    badges,
    kv_rows,
    latency_table,
    lead_sentence,
    notes_list,
    pairs_table,
    serving_rows,
    slo_table,
    speculation_rows,
    tiles,
    use_rows,
)
from dashboards.runs import Run, load_run
from simulator.metrics.files import write_text_atomically

REPORT_FILE = "report.html"


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of the run in ``folder`` to ``output`` (default: ``report.html`` in it) and return its path.

    Raises:
        ForerunError: when ``folder`` is not a run folder.
        OSError: when a file cannot be read or written.
    """
    path = output or folder / REPORT_FILE
    write_text_atomically(path, report_html(load_run(folder)))
    return path


def report_figures(run: Run) -> dict[str, go.Figure]:
    """The figures of a report by the id of their place in the page; empty ones are left out."""
    figures = {}
    if (bottleneck := bottleneck_data(run)).shares:
        figures["figure-bottleneck"] = bottleneck_figure(bottleneck)
    if (latency := latency_data(run)).curves:
        figures["figure-latency"] = latency_figure(latency)
    if len((timeline := timeline_data(run)).time_s):
        figures["figure-timeline"] = timeline_figure(timeline)
    if len((waterfall := waterfall_data(run)).row):
        figures["figure-waterfall"] = waterfall_figure(waterfall)
    return figures


def report_html(run: Run) -> str:
    """The whole page as text."""
    from plotly.offline import get_plotlyjs

    figures = report_figures(run)
    templates = {"light": light_template().to_plotly_json(), "dark": dark_template().to_plotly_json()}
    title = escape(f"{run.name} · Forerun")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_asset("report.css")}</style>
</head>
<body>
<main>
{_body(run, figures)}
</main>
<script type="application/json" id="figures">{_figures_json(figures)}</script>
<script type="application/json" id="templates">{_in_script(json.dumps(templates))}</script>
<script>{get_plotlyjs()}</script>
<script>{_asset("report.js")}</script>
</body>
</html>
"""


def _body(run: Run, figures: dict[str, go.Figure]) -> str:
    document = run.document
    plots = {name: f'<section class="card plot"><div class="figure" id="{name}"></div></section>' for name in figures}
    sections = [
        _header(run),
        tiles(document),
        plots.get("figure-bottleneck", ""),
        _card("Latency (ms)", latency_table(document)),
        _card("Service-level objectives", slo_table(document)),
        _grid(plots.get("figure-latency", ""), plots.get("figure-waterfall", "")),
        plots.get("figure-timeline", ""),
        _grid(
            _card("Serving", pairs_table(serving_rows(document))),
            _card("Chips", pairs_table(use_rows(document))),
        ),
        _grid(
            _card("KV cache and memory", pairs_table(kv_rows(document))),
            _card("Speculative decoding", pairs_table(speculation_rows(document))),
        ),
        _card("Notes", notes_list(document)),
        _scenario(document),
        f"<footer>Forerun {escape(str(document.get('version', '')))} · seed {escape(str(document.get('seed', '')))} · "
        f"a prediction, not a measurement</footer>",
    ]
    return "\n".join(section for section in sections if section)


def _header(run: Run) -> str:
    document = run.document
    basis = BASIS_WORDS.get(run.basis, run.basis)
    return (
        f"<header><h1>{escape(run.name)}</h1><p>Simulated serving run · {escape(basis)}</p>"
        f'<p class="lead">{lead_sentence(document)}</p>{badges(document)}</header>'
    )


def _card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{content}</section>' if content else ""


def _grid(*cards: str) -> str:
    shown = [card for card in cards if card]
    if len(shown) < 2:
        return "".join(shown)
    return f'<div class="grid">{"".join(shown)}</div>'


def _scenario(document: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(document["scenario"], sort_keys=False, default_flow_style=None, width=100)
    return f'<section class="card"><details><summary>Scenario</summary><pre>{escape(text)}</pre></details></section>'


def _figures_json(figures: dict[str, go.Figure]) -> str:
    """Figures without their template, which the page holds once."""
    plain = {}
    for name, figure in figures.items():
        spec = json.loads(figure.to_json())
        spec["layout"].pop("template", None)
        plain[name] = {"data": spec["data"], "layout": spec["layout"]}
    return _in_script(json.dumps(plain, allow_nan=False))


def _in_script(text: str) -> str:
    """JSON that cannot close the script element it stands in."""
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("dashboards").joinpath("assets", name).read_text(encoding="utf-8")
