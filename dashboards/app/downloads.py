"""Export a figure as CSV or as a separate HTML page, from the plain data in the browser."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboards.page import figure_cards, page_html
from forerun.document import Json

COLUMNS = ("x", "y", "z", "base", "text")
DTYPES = {"f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4"}
"""Formats in which Plotly packs numbers."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def figure_csv(spec: Json) -> str:
    """CSV with one line per point of a figure: trace, and x, y, z, base and text if present.

    A heat map gives one line per cell.
    """
    lines: list[list[object]] = []
    for number, trace in enumerate(spec.get("data") or []):
        name = trace.get("name") or f"trace {number}"
        lines += _cells(trace, name) if trace.get("type") == "heatmap" else _points(trace, name)
    used = [index for index, _ in enumerate(COLUMNS) if any(line[index + 1] not in (None, "") for line in lines)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trace", *(COLUMNS[index] for index in used)])
    for line in lines:
        writer.writerow([_safe(line[0]), *(_safe(line[index + 1]) for index in used)])
    return out.getvalue()


def figure_html(spec: Json) -> str:
    """A self-contained page with one figure; needs no network."""
    figure = go.Figure({"data": spec["data"], "layout": spec["layout"]}, skip_invalid=True)
    title = figure_title(spec)
    return page_html(title, figure_cards({"figure": figure}).values(), {"figure": figure})


def figure_title(spec: Json) -> str:
    """The bold part of a figure's title."""
    title = spec.get("layout", {}).get("title")
    text = (title or {}).get("text", "") if isinstance(title, dict) else str(title or "")
    match = re.search(r"<b>(.*?)</b>", text)
    return match[1] if match else "Figure"


def values(data: object) -> list[Any]:
    """Column as a list, from a plain list or from Plotly's packed form ``{dtype, bdata}``."""
    if isinstance(data, dict):
        if data.get("dtype") not in DTYPES:
            return []
        array = np.frombuffer(base64.b64decode(data.get("bdata", "")), dtype=np.dtype(f"<{data['dtype']}"))
        shape = data.get("shape")
        if shape is not None:
            array = array.reshape([int(size) for size in str(shape).split(",")])
        unpacked: list[object] = array.tolist()
        return unpacked
    return list(data) if isinstance(data, list | tuple) else []


def _points(trace: Json, name: str) -> Iterable[list[object]]:
    columns = [values(trace.get(column)) for column in COLUMNS]
    for row in range(max(map(len, columns), default=0)):
        yield [name, *(column[row] if row < len(column) else None for column in columns)]


def _cells(trace: Json, name: str) -> Iterable[list[object]]:
    across, down = values(trace.get("x")), values(trace.get("y"))
    for row, line in enumerate(values(trace.get("z"))):
        for column, cell in enumerate(line):
            yield [name, across[column], down[row], cell, None, None]


def _safe(value: object) -> object:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
