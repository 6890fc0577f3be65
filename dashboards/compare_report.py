"""The report of a comparison: from its document to tables, figures and the sentence."""

from __future__ import annotations

from typing import Any

from dashboards.figures.studies import (
    ForestData,
    LoadCurveData,
    TornadoData,
    forest_data,
    forest_figure,
    load_curve_data,
    load_curve_figure,
    tornado_data,
    tornado_figure,
)
from dashboards.study_report import StudyFigure, StudyReport, text_intervals
from simulator.studies.paired import HIGHER_IS_BETTER, load_words, metric_words
from simulator.tables import ABSENT, Table, number

VALUE_KEYS = (
    "output_throughput",
    "request_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "spec_decode_acceptance_length",
)
LEFT_OUT = ("p50_", "std_")
"""Statistics that the table of speedups leaves out: p50 is the median."""


def compare_report(document: dict[str, Any], command: str) -> StudyReport:
    """What :mod:`dashboards.study_report` writes, from a ``compare`` document.

    Args:
        document: of ``simulator.studies.compare.comparison``.
        command: that runs it again.
    """
    names = [variant["name"] for variant in document["variants"]]
    hardware = document["scenario"]["hardware"]["chip"]
    model = document["scenario"]["model"] if isinstance(document["scenario"]["model"], str) else "inline model"
    tables = (_speedups(document), _values(document), _assumed(document), _crossings(document))
    return StudyReport(
        title=f"{model} on {hardware}: {' against '.join(names[:2]) if len(names) == 2 else f'{len(names)} variants'}",
        conclusion=document["conclusion"],
        tables=[table for table in tables if table.rows],
        figures=_figures(document),
        scenario=document["scenario"],
        seed=document["seed"],
        version=document["version"],
        basis=document["basis"],
        command=command,
        notes=document["notes"],
        badges=[f"{document['replications']} paired runs", f"judged by {metric_words(document['metric'])}"],
    )


def _figures(document: dict[str, Any]) -> list[StudyFigure]:
    forest = forest_data(document)
    found = [StudyFigure("speedup", forest_figure(forest), _forest_text(forest))] if forest.rows else []
    curve = load_curve_data(document)
    if curve is not None:
        found.append(StudyFigure("load", load_curve_figure(curve), _curve_text(curve)))
    tornado = tornado_data(document)
    if tornado is not None:
        found.append(StudyFigure("tornado", tornado_figure(tornado), _tornado_text(tornado)))
    return found


def _forest_text(data: ForestData) -> str:
    several = len({row.variant for row in data.rows}) > 1
    rows = [
        (
            f"{row.variant}: {metric_words(row.metric)}" if several else metric_words(row.metric),
            row.low,
            row.ratio,
            row.high,
        )
        for row in data.rows
    ]
    return f"speedup over {data.baseline}, | = 1\n" + text_intervals(rows, 1.0)


def _tornado_text(data: TornadoData) -> str:
    rows = [
        (row.parameter, min(row.at_low, row.at_high), data.ratio, max(row.at_low, row.at_high)) for row in data.rows
    ]
    return f"{data.variant}: speedup over the range of each assumed parameter\n" + text_intervals(rows, data.ratio)


def _curve_text(data: LoadCurveData) -> str:
    parts = []
    for name, loads, ratios, lows, highs in data.curves:
        rows = [
            (load_words(data.path, load), low, ratio, high)
            for load, low, ratio, high in zip(loads, lows, ratios, highs, strict=True)
        ]
        parts.append(f"{name}: speedup over load, | = 1\n" + text_intervals(rows, 1.0))
    return "\n\n".join(parts)


def _speedups(document: dict[str, Any]) -> Table:
    others = document["variants"][1:]
    rows = []
    for metric in (key for key in HIGHER_IS_BETTER if not key.startswith(LEFT_OUT)):
        cells = [variant["speedup"].get(metric) for variant in others]
        if any(cell is not None for cell in cells):
            rows.append([metric_words(metric), *map(_ratio, cells)])
    return Table(f"Speedup over {document['baseline']} (above 1 is better)", ["", *(v["name"] for v in others)], rows)


def _values(document: dict[str, Any]) -> Table:
    rows = []
    for key in VALUE_KEYS:
        cells = [variant["summary"].get(key) for variant in document["variants"]]
        if any(cell is not None for cell in cells):
            rows.append([key, *map(number, cells)])
    rows.append(["basis", *(variant["basis"] for variant in document["variants"])])
    return Table("Means", ["", *(variant["name"] for variant in document["variants"])], rows)


def _assumed(document: dict[str, Any]) -> Table:
    names = [variant["name"] for variant in document["variants"][1:]]
    rows = []
    for row in document["sensitivity"]:
        cells = []
        for name in names:
            ends = row["ratios"].get(name, {"at_low": None, "at_high": None})
            turned = " (turns over)" if name in row["flips"] else ""
            cells.append(f"{number(ends['at_low'])} .. {number(ends['at_high'])}{turned}")
        sign = "×" if row["unit"] == "factor" else ""
        unit = "" if row["unit"] == "factor" else f" {row['unit']}"
        rows.append([row["parameter"], row["says"], f"{sign}{row['low']:g} .. {sign}{row['high']:g}{unit}", *cells])
    return Table(
        f"Assumed parameters: speedup of {metric_words(document['metric'])} at the ends of their ranges",
        ["parameter", "what it is", "range", *names],
        rows,
    )


def _crossings(document: dict[str, Any]) -> Table:
    crossover = document["crossover"]
    rows = [
        [row["variant"], row["better"], load_words(crossover["path"], row["value"]), _ends(row)]
        for row in (crossover["all"] if crossover is not None else [])
    ]
    return Table("Crossover", ["variant", "pays", "at", "95 % interval"], rows)


def _ratio(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ABSENT
    return f"{cell['ratio']:.3f}" + (f" [{cell['low']:.3f}, {cell['high']:.3f}]" if cell["low"] is not None else "")


def _ends(row: dict[str, Any]) -> str:
    return f"{number(row['low'], 3)} .. {number(row['high'], 3)}"
