"""A figure as CSV and as a page of its own, from the plain data that the browser holds."""

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
    """Every point of a figure as one line: trace, then whichever of x, y, z, base and text it has.

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
    """A column as a list, whether plain or packed as ``{dtype, bdata}``."""
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
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
