"""Formats of request traces: ``formats.yaml`` describes their columns; this module derives values from whole rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from forerun.arrays import BoolArray
from forerun.yaml_files import packaged
from traces.errors import TraceError
from traces.fields import candidates, number_of
from traces.requests.layout import FAILED, Drop, Options, Prepare, TraceLayout
from traces.requests.rows import RawChunk
from traces.requests.values import Values, parse_counts


def _drop_burstgpt(chunk: RawChunk, outputs: Values, options: Options) -> Mapping[str, BoolArray]:
    """Rows to drop: other models, and failed requests, which have 0 output tokens."""
    reasons: dict[str, BoolArray] = {}
    if options.model is not None:
        if "Model" not in chunk.columns:
            raise TraceError(f"{chunk.place.format(chunk.lines[0])}: model={options.model!r} needs a column Model")
        reasons["other model"] = np.array([model != options.model for model in chunk.columns["Model"]], dtype=np.bool_)
    if options.drop_failures:
        parsed = parse_counts(outputs, minimum=0)
        failed = parsed.values == 0
        failed[list(parsed.problems)] = False
        reasons[f"{FAILED} (0 response tokens)"] = failed
    return reasons


def _sessions(chunk: RawChunk, roots: dict[object, Any]) -> dict[str, Values]:
    """The conversation of each request, named after its first chat (memory grows with the number of chats)."""
    sessions = []
    for chat, parent in zip(chunk.column("chat_id"), chunk.column("parent_chat_id"), strict=True):
        parent = parent if isinstance(parent, str | int) else None
        root = roots.get(parent, "" if chat is None else str(chat))
        if isinstance(chat, str | int):
            roots[chat] = root
        sessions.append(root)
    derived: dict[str, Values] = {"session_id": sessions}
    if "turn" in chunk.columns:
        derived["turn"] = np.maximum(parse_counts(chunk.columns["turn"], 0, "turns").values - 1, 0)
    return derived


def _turns_after(chunk: RawChunk, seen: dict[object, Any]) -> dict[str, Values]:
    """Earliest arrivals of turns that state a delay after the turn before instead of a time, and that turn.

    Source: AIPerf v0.13, ``mooncake_trace``: ``delay`` counts from the end of the session's last turn.
    """
    if not seen.setdefault("delays", "delay" in chunk.columns):
        return {}
    stamps, after, first = list(chunk.column("timestamp")), list[list[int]](), seen.get("rows", 0)
    seen["rows"] = first + chunk.count
    for row, (session, delay) in enumerate(zip(chunk.column("session_id"), chunk.column("delay"), strict=True)):
        before, at = seen.get(("turn", str(session)), (None, None))
        follows = stamps[row] is None and number_of(at) is not None
        if follows:
            stamps[row] = at + (number_of(delay) or 0)
        after.append([before] if follows else [])
        seen["turn", str(session)] = (first + row, stamps[row])
    return {"arrival_s": stamps, "request": range(first, first + chunk.count), "after": after}


_DROP: dict[str, Drop] = {"burstgpt": _drop_burstgpt}
_PREPARE: dict[str, Prepare] = {
    "bailian": _sessions,
    "mooncake": _turns_after,
    "timed-trace": _turns_after,
}


def _layouts() -> dict[str, TraceLayout]:
    layouts = {}
    for name, described in packaged("traces.requests", "formats.yaml").items():
        fields = {**described, "columns": {ours: candidates(names) for ours, names in described["columns"].items()}}
        for key, kind in (("signature", tuple), ("required", tuple), ("options", frozenset)):
            if key in fields:
                fields[key] = kind(fields[key])
        layouts[name] = TraceLayout(name, **fields, drop=_DROP.get(name), prepare=_PREPARE.get(name))
    return layouts


LAYOUTS = _layouts()
"""Every format by name; table formats are tried in this order, the most specific first."""
PLAIN = LAYOUTS["plain"]
