"""Text with results in it: blocks that a benchmark prints, Markdown and boxed tables, CSV, and JSON of any shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from traces.benchmark_results.names import Row, amount, name_of
from traces.errors import TraceError
from traces.fields import Record, squash
from traces.files import csv_lines

_BLOCK = re.compile(r"=+[\w ]*Benchmark Result\s*=+|MLPerf Results Summary", re.IGNORECASE)
_RULE = re.compile(r"\n[^\w\n]*={10,}[^\w\n]*(?:\n|$)")
_LINE = re.compile(r"^[^A-Za-z0-9]*(?P<name>[A-Za-z0-9][^:=|]*?)\s*:\s+(?P<value>\S.*?)\s*\|?$")
_CLIENT = re.compile(r"Namespace\(.*|.*\b(?:bench_serving|bench serve|benchmark_serving)\b.*")
_OPTION = re.compile(r"--([a-z-]+)[ =]+([^\s\\]+)|\b(\w+)=('[^']*'|[^,()]+)")
_CLIENT_KEYS = {name: name for name in ("request_rate", "burstiness", "max_concurrency", "backend")}
_CLIENT_KEYS |= {"model": "model_id", "tokenizer": "tokenizer_id"}
Cells = list[tuple[int, list[str]]]
"""Rows of cells, each with its line."""


def blocks_in(text: str, file: Path) -> list[Row]:
    """Blocks of ``name: value`` that a benchmark printed, with what the client's command before them says.

    A text without a known heading is one block if two of its lines are figures.
    """
    starts = [found.start() for found in _BLOCK.finditer(text)]
    if not starts and sum(_is_figure(label) for label, _ in _lines(text)) > 1 and not tables_in(text, file):
        starts = [0]
    rows: list[Row] = []
    for number, start in enumerate(starts):
        cells: dict[str, object] = {}
        before = re.sub(r"\\\s*\n\s*", " ", text[starts[number - 1] if number else 0 : start] or text)
        for client in _CLIENT.findall(before)[-1:]:
            for option, value, field, quoted in _OPTION.findall(client):
                key = _CLIENT_KEYS.get((option or field).replace("-", "_"))
                if key and (value or quoted) != "None":
                    cells[key] = (value or quoted).strip("'\"")
            if not {"request_rate", "max_concurrency"} & set(cells) and "bench" in client:
                cells["request_rate"] = "inf"  # the clients' default: all at once
        announced = _RULE.split(before)[1:] if number else [before]
        for label, value in _lines(announced[-1] if announced else ""):
            if (name := name_of(label)) and name.key in ("request_rate", "max_concurrency") and value != "None":
                cells = {key: one for key, one in cells.items() if key != name.key} | {label: value}
        block = text[start : [*starts[1:], len(text)][number]]
        if block.startswith("="):
            block = _RULE.split(block)[0] if _BLOCK.match(block) else block
        for label, value in _lines(block):
            if name := name_of(label):
                cells = {key: one for key, one in cells.items() if key != name.key} | {label: value}
            elif label in ("SUT name", "Scenario"):
                cells[label] = value
        if "TensorRT LLM Version" in block:
            cells["framework"] = "trtllm"
        if "Offline Throughput" in block[:60]:
            cells["request rate"] = "inf"
        if {"Traffic request rate", "Max request concurrency"} & set(cells):
            cells.pop("Concurrency", None)  # SGLang's measured mean
        rows.append((f"{file}:{text.count(chr(10), 0, start) + 1}", cells))
    return rows


def _lines(block: str) -> Iterator[tuple[str, str]]:
    """Names and values of the lines of a block.

    A unit behind the number of an unknown name is put into the name, and a heading before a name that is a statistic.
    """
    heading = ""
    for line in block.splitlines():
        match = _LINE.match(line)
        if match is None:
            heading = line.strip(" #*-=:") if line.rstrip().endswith(":") else heading if line.strip() else ""
            continue
        listed = re.findall(r"([\d.,]*\d) ([a-z ]*/s)(?:,|$)", match["value"])
        if len(listed) > 1:  # vLLM's offline benchmark: 8.27 requests/s, 3417.4 total tokens/s, 1640.3 output tokens/s
            yield from [*((unit, number) for number, unit in listed), ("request rate", "inf")]
            continue
        unit = re.fullmatch(r"[\d.,]+(?:\s*±\s*[\d.,]+)?\s*([a-zA-Z/]+)", match["value"])
        names = [match["name"], *([f"{match['name']} ({unit[1]})"] if unit else [])]
        names += [f"{heading} {name}" for name in names[::-1] if heading]
        yield next((name for name in names if name_of(name)), names[0]), match["value"]


def tables_in(text: str, file: Path) -> list[list[Row]]:
    """Tables with figures in a text as rows of name -> cell; AIPerf's as name -> statistics."""
    pasted = re.search(r"^[ \t]*Metric,.*(?:\n[ \t]*(?:[^,\n]+,.*)?)*", text, re.MULTILINE)  # AIPerf's CSV
    tables = [_csv(text, file)] if file.suffix in (".csv", ".tsv") else _piped(text)
    tables = [_csv(re.sub(r"^[ \t]+", "", pasted[0], flags=re.MULTILINE), file)] if pasted else tables
    return [rows for cells in tables if cells and (rows := _oriented(cells, file))]


def _csv(text: str, file: Path) -> Cells:
    delimited = text.replace("\t", ",") if "\t" in text.partition("\n")[0] else text
    rows = [(line, [cell.strip() for cell in row]) for line, row in csv_lines(file, delimited)]
    return [(line, row) for line, row in rows if any(row)]


def _piped(text: str) -> Iterator[Cells]:
    """Tables whose cells stand between vertical lines; a row without values continues the name above it."""
    rows: Cells = []
    for line, whole in enumerate([*text.splitlines(), ""], 1):
        plain = re.sub("[┃│║]", "|", whole).strip().removeprefix(">").strip()
        if plain.count("|") >= 2:
            row = [cell.strip(" *`") for cell in re.sub(r"^\||\|$", "", plain).split("|")]
            if rows and row[0] and not any(row[1:]) and len(row) > 2 and whole.strip()[0] != "|":
                rows[-1][1][0] += f" {row[0]}"
            elif not all(re.fullmatch(r":?[-=]*:?", cell) for cell in row):
                rows.append((line, row))
        elif not re.search("[━─┏┡├└╭╰]|^[+][-=+]+$", plain):
            yield rows
            rows = []


def _oriented(rows: Cells, file: Path) -> list[Row]:
    """Rows of a table, whose names stand in its header or its first column; empty if it has no figure."""
    (line, head), body = rows[0], rows[1:]
    while len(body) > 1 and len(set(head)) < len(head) and not any(map(_has_number, body[0][1])):
        head, body = [" ".join(filter(None, pair)) for pair in zip(head, body[0][1], strict=False)], body[1:]
    across, down = (sum(map(_is_figure, names)) for names in (head, [row[0] for _, row in body]))
    if across > down:
        wide = next(((at, row) for at, row in body if len(row) != len(head)), None)
        if wide is not None:
            raise TraceError(f"{file}:{wide[0]}: {len(wide[1])} cells where the header names {len(head)} columns")
        over = next(((at, row[0]) for at, row in body if len(row) > 2 and not any(row[1:])), None)
        if over is not None:
            raise TraceError(f"{file}:{over[0]}: '{over[1]}' heads the rows below it; put it into a column of its own")
        return [(f"{file}:{at}", dict(zip(head, row, strict=True))) for at, row in body]
    if not down:
        return []
    place = f"{file}:{line}"
    statistics = [one for name in head[1:] if (one := name_of(f"TTFT {name}")) and not one.guess]
    if statistics or [squash(name) for name in head[1:2]] == ["value"]:
        return [(place, _statistics(rows, file))]
    columns = [(f"{place}: {name}", {"run": name, **{row[0]: row[number] for _, row in rows if number < len(row)}})
               for number, name in enumerate(head) if number]  # fmt: skip
    return [row for row in columns if any(_is_figure(key) and _has_number(one) for key, one in row[1].items())]


def _statistics(rows: Cells, file: Path) -> dict[str, object]:
    """Table with a row for each metric and a column for each statistic, as AIPerf's result, or by joined names."""
    head, metrics = rows[0][1], dict[str, dict[str, object]]()
    for line, row in rows[1:]:
        if squash(row[0]) in ("metric", "statistic"):
            head = row
            continue
        names = ["avg" if squash(name) == "value" else name for name in head[1:]]
        cells = zip(names, row[1:], strict=False)
        values = {name: one[0] for name, cell in cells if (one := amount(cell, f"{file}:{line}: {name}"))}
        name, _, unit = row[0].partition("(")
        metrics[name.strip()] = {"unit": unit.strip(") "), **values}
    if any(squash(name) == "requestlatency" for name in metrics):
        return {re.sub(r"\W+", "_", name.lower()): values for name, values in metrics.items()}
    return {f"{name} ({values['unit']}) {statistic}": value for name, values in metrics.items()
            for statistic, value in values.items() if statistic != "unit"}  # fmt: skip


def _has_number(cell: object) -> bool:
    return re.search(r"\d[^\d%x×]*$", str(cell)) is not None


def _is_figure(label: str) -> bool:
    name = name_of(label)
    return name is not None and name.is_figure


def json_rows(value: object, place: str) -> list[Row]:
    """Rows of a JSON document of any shape: objects with figures, each value under the longest name in its path."""
    shared: dict[str, object] = {}
    if isinstance(value, Mapping):
        lists = [name for name, one in value.items() if isinstance(one, list) and any(isinstance(o, dict) for o in one)]
        if len(lists) == 1 and not any(map(_is_figure, _flat(value))):
            shared, value = _flat({name: one for name, one in value.items() if name != lists[0]}), value[lists[0]]
        else:
            value = [value]
    rows = [{**shared, **_flat(one)} for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
    places = [f"{place}: [{number}]" if len(rows) > 1 else place for number in range(len(rows))]
    return [row for row in zip(places, rows, strict=True) if any(map(_is_figure, row[1]))]


def _flat(holder: Record, path: tuple[str, ...] = ()) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in holder.items():
        here = (*path, str(key))
        if isinstance(value, Mapping):
            flat = {**_flat(value, here), **flat}
        elif not isinstance(value, list):
            names = [" ".join(here[start:]) for start in range(len(here))]
            if isinstance(unit := holder.get("unit", holder.get("units")), str) and key not in ("unit", "units"):
                names = [f"{name} ({unit})" for name in names] + names
            flat.setdefault(next((name for name in names if name_of(name)), names[-1]), value)
    return flat
