"""Calls of a model as others log them: spans of tracers, sessions of coding agents, request lines of servers.

Each reader lists calls with their begin, end and tokens; calls of one trace or session wait for those that had ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forerun.yaml_files import packaged
from traces.errors import TraceError, shown
from traces.fields import Record, number_of, object_at, objects_at, squash, value_at
from traces.files import read_text
from traces.requests.agents import Records, interval_order
from traces.requests.layout import Options
from traces.requests.rows import RawChunk, record_chunks
from traces.requests.values import float_of, moment_of

_NAMES = packaged("traces.requests", "calls.yaml")
SPAN_KEYS: dict[str, list[str]] = _NAMES["span"]
SIDES: dict[str, list[str]] = _NAMES["usage_details"]
SESSION_KEYS: list[set[str]] = list(map(set, _NAMES["session_entries"]))
AGENT_OPERATIONS: list[str] = _NAMES["agent_operations"]
SESSION_BLOCK_TOKENS = 64
"""Tokens of a prefix block where a session counts cached tokens."""


class TracedSpan(NamedTuple):
    """A span of any tracer."""

    key: tuple[object, object]
    """Trace and span id."""
    parent: object
    operation: str
    """Operation by OpenTelemetry's conventions: its attribute, or the first word of the name."""
    began: float
    ended: float
    values: Record
    """Attributes and usage by dotted name."""


def spans_of(document: object) -> Iterator[TracedSpan]:
    """Spans anywhere in an export of OTLP, Tempo, Jaeger or Langfuse, or as an SDK prints them."""
    if isinstance(document, Mapping):
        span = _span(document)
        if span is not None:
            yield span
            return
    for inner in document.values() if isinstance(document, Mapping) else document if isinstance(document, list) else ():
        if isinstance(inner, Mapping | list):
            yield from spans_of(inner)


def _span(raw: Record) -> TracedSpan | None:
    """A JSON object as a span; None if it has no begin or names no trace."""
    flat = {squash(key): value for key, value in {**object_at(raw, "context"), **raw}.items()}
    trace = flat.get("traceid", flat.get("contexttraceid"))
    began, ended = (
        moment_of(flat.get(f"{side}timeunixnano"), 1e-9) or moment_of(flat.get(f"{side}time"))
        for side in ("start", "end")
    )
    if began is None:  # a log record has one time
        began = ended = moment_of(flat.get("timeunixnano"), 1e-9)
    if began is None or not (
        flat.keys() & set(_NAMES["span_fields"]) or any(key.startswith("attributes.") for key in raw)
    ):
        return None
    if ended is None:  # Jaeger's, in microseconds
        ended = began + (number_of(flat.get("duration")) or 0) * 1e-6
    parents = (str(value_at(one, "spanID") or "") for one in objects_at(raw, "references"))
    parent = next((flat[key] for key in ("parentspanid", "parentid", "parentobservationid") if flat.get(key)), None)
    values = {key.removeprefix("attributes."): value for key, value in raw.items()}
    values |= _by_name({key: value for key, value in raw.items() if key.startswith("usage")})
    for key in ("attributes", "tags"):
        values |= _by_name(raw.get(key))
    identity = flat.get("spanid") or flat.get("contextspanid") or flat.get("id")
    name = values.get("gen_ai.operation.name") or flat.get("name") or flat.get("operationname") or ""
    operation = str(name).partition(" ")[0]
    return TracedSpan((trace, identity), parent or next(parents, ""), operation, began, ended, values)


def _by_name(holder: object) -> dict[str, object]:
    """Attributes by dotted name: OTLP's and Jaeger's lists of keys and values, or nested objects."""
    if isinstance(holder, list):
        values = {str(one.get("key")): one.get("value") for one in holder if isinstance(one, Mapping)}
        return {key: next(iter(one.values()), None) if isinstance(one, Mapping) else one for key, one in values.items()}
    flat: dict[str, object] = {}
    for key, value in holder.items() if isinstance(holder, Mapping) else ():
        inner = _by_name(value) if isinstance(value, Mapping) else {}
        flat |= {f"{key}.{name}": one for name, one in inner.items()} or {str(key): value}
    return flat


def requests_of(spans: Iterable[TracedSpan]) -> tuple[Records, int]:
    """Requests of spans in order of start, and the number of spans that repeat other spans' usage.

    Of nested spans with usage only the innermost are requests: a client's span repeats its server's, and an agent's or
    chain's span has the sum of its calls. Calls inside a tool's span are the tool's own. A span exported twice counts
    once.
    """
    by_id: dict[object, TracedSpan] = {}
    for number, span in enumerate(spans):
        by_id.setdefault(span.key if span.key[1] else number, span)
    rows = {key: row for key, span in by_id.items() if (row := _request_of(span)) is not None}
    outer: set[object] = set()
    cut: dict[object, list[object]] = {}
    for first in rows:
        key, span, seen, in_tool = first, by_id[first], {first}, False
        while (key := (span.key[0], span.parent)) in by_id and key not in seen:
            seen.add(key)
            span = by_id[key]
            in_tool |= span.operation == "execute_tool"
            if not in_tool or span.operation in AGENT_OPERATIONS:
                outer.add(key)
        if span.key[0] and str(span.parent or "").strip("0") and (span.key[0], span.parent) not in by_id:
            cut.setdefault(span.key[0], []).append(first)
    for key in sorted(rows.keys() - outer, key=lambda one: rows[one]["e2el"] or 0.0) if cut else ():
        span = by_id[key]
        agent = span.operation in AGENT_OPERATIONS
        if not agent and str(span.parent or "").strip("0"):
            continue
        inside = [one for one in cut.get(span.key[0], ()) if one != key and one not in outer]
        inside = [one for one in inside if span.began <= by_id[one].began and by_id[one].ended <= span.ended]
        sums = [sum(rows[one][side] for one in inside) for side in SIDES]
        if inside and (agent or all(rows[key][side] >= most for side, most in zip(SIDES, sums, strict=True))):
            outer.add(key)
    inner = sorted((row for key, row in rows.items() if key not in outer), key=lambda row: row["began"])
    return inner, len(outer & rows.keys())


def outer_note(count: int) -> str:
    """Remark on spans that ``requests_of`` left out."""
    return (
        f"{count} spans around others (by parent; where that is not in the file, by time and usage) with usage left "
        f"out: of nested spans the innermost are requests"
    )


def _request_of(span: TracedSpan) -> dict[str, Any] | None:
    """Request of a span by the keys of ``SPAN_KEYS``, with when it ``began`` (seconds) and its ``trace``.

    None if the span is no request's.
    """
    request: dict[str, Any] = {
        name: next((number for key in keys if (number := float_of(span.values.get(key))) is not None), None)
        for name, keys in SPAN_KEYS.items()
    }
    if request["prompt"] is None:
        request |= _details(span.values)
    first = moment_of(span.values.get("completionStartTime"))
    if request["ttft"] is None and first is not None:
        request["ttft"] = max(0.0, first - span.began)
    if not request["prompt"] or not request["output"]:
        return None
    e2el = (span.ended - span.began or None) if request["e2el"] is None else request["e2el"]
    return request | {"began": span.began, "e2el": e2el, "trace": span.key[0]}


def _details(values: Record) -> dict[str, float]:
    """Tokens of Langfuse's usage: sums over kinds of input and output, or those two alone where they are the total."""
    for holder in ("usageDetails.", "usage."):
        own = {key.removeprefix(holder): value for key, value in values.items() if key.startswith(holder)}
        counts = {key: count for key, value in own.items() if "." not in key and (count := float_of(value)) is not None}
        sums = {
            side: sum(count for key, count in counts.items() if any(word in key for word in words))
            for side, words in SIDES.items()
        }
        if "total" in counts and sum(sums.values()) > counts["total"]:
            sums = {
                side: next((counts[word] for word in words if word in counts), 0.0) for side, words in SIDES.items()
            }
        if all(sums.values()):
            return sums
    return {}


def json_files(path: Path) -> list[Path]:
    """The file itself, or the JSON files of a folder in the order of their names."""
    ends = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")
    return sorted(file for file in path.rglob("*") if file.name.endswith(ends)) if path.is_dir() else [path]


def json_documents(path: Path) -> Iterator[tuple[Path, object]]:
    """JSON documents of a file, perhaps one after the other, or of all JSON files in a folder."""
    decoder, blank = json.JSONDecoder(), re.compile(r"\s*")
    for file in json_files(path):
        text, at = read_text(file), 0
        while (at := blank.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # matches everywhere
            try:
                document, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as problem:
                line = text.count("\n", 0, getattr(problem, "pos", at)) + 1
                raise TraceError(f"{file}:{line}: not valid JSON: {shown(str(problem), 80)}") from None
            yield file, document


_COLUMNS = ("began", "prompt", "output", "trace", "ttft", "e2el", "request", "after", "hashes", "block_tokens")


def _linked(path: Path, records: Records, where: str, note: str) -> Iterator[RawChunk]:
    """Calls counted from the first; those of one trace wait for each other by ``interval_order``."""
    records.sort(key=lambda record: record["began"])
    by_trace: dict[object, list[int]] = {}
    for number, record in enumerate(records):
        record |= {"request": number, "after": []}
        if record["trace"]:
            by_trace.setdefault(record["trace"], []).append(number)
    for members in by_trace.values():
        spans_s = [
            (round(r["began"], 6), round(r["began"] + (r["e2el"] or 0.0), 6)) for r in map(records.__getitem__, members)
        ]
        for number, ended in zip(members, interval_order(spans_s), strict=True):
            records[number]["after"] = [members[one] for one in ended]
    rows = [{key: value for key, value in record.items() if key in _COLUMNS} for record in records]
    yield from record_chunks(path, rows, where=where, note=note)


def otel_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of spans, of one file or of the files in a folder."""
    by_document = [list(spans_of(document)) for _, document in json_documents(path)]
    records, outer = requests_of(span for spans in by_document for span in spans)
    if not records:
        raise TraceError(f"{path}: no spans of requests with gen_ai.usage attributes (or Langfuse's usage) in it")
    notes = [outer_note(outer)] * bool(outer) + _left_out("documents without a span", by_document.count([]))
    yield from _linked(path, records, "span {}", "; ".join(notes))


def _left_out(what: str, count: int) -> list[str]:
    """Remark on what was left out; none if nothing was."""
    return [f"{count} {what} left out"] * bool(count)


def coding_agent_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of coding agents' session files: answers with their usage.

    An answer has one id on several lines, the last of which counts all its tokens; it was requested when the entry
    before it was written. Prompts are what was read from the cache, written to it and new. Cached tokens are those of
    the request before in the session, and beyond it a prefix that all sessions share.
    """
    calls: dict[str, dict[str, Any]] = {}
    times: dict[object, float] = {}
    foreign = 0
    for file, entry in json_documents(path):
        foreign += value_at(entry, "type") is None
        at = moment_of(value_at(entry, "timestamp"))
        if at is None:
            continue
        times[value_at(entry, "uuid") or (file, at)] = at
        kinds = [str(value_at(entry, name)) for name in ("type", "payload.type", "payload.role", "message.role")]
        usage: Record = next((found for name in _NAMES["session_usage"] if (found := object_at(entry, name))), {})
        counts = {key: int(count) for key, value in usage.items() if (count := number_of(value)) is not None}
        if not counts:
            if "user" in kinds or kinds[1].endswith(("_output", "user_message")):
                times[file] = at
            continue
        session = str(value_at(entry, "sessionId") or file.name.partition(".")[0])
        identity = next((named for name in _NAMES["session_answer"] if (named := value_at(entry, name))), at)
        call = calls.setdefault(f"{session} {identity}", {"began": at, "output": 0})
        if not call["output"]:
            call["began"] = min(at, times.get(value_at(entry, "parentUuid") or file, times.get(file, at)))
        written, read = (counts.get(f"cache_{way}_input_tokens", 0) for way in ("creation", "read"))
        call |= {
            "e2el": at - call["began"],
            "prompt": counts.get("input_tokens", 0) + written + read,
            "output": max(call["output"], counts.get("output_tokens", 0)),
            "cached": read or counts.get("cached_input_tokens", 0),
            "trace": session,
            "thread": (session, value_at(entry, "isSidechain"), value_at(entry, "agentId")),
        }
    records = sorted((call for call in calls.values() if call["prompt"] and call["output"]), key=lambda c: c["began"])
    if not records:
        raise TraceError(f"{path}: no answer with usage (input_tokens, output_tokens) in this session")
    before: dict[object, list[int]] = {}
    first_free = max(call["prompt"] for call in records) // SESSION_BLOCK_TOKENS + 1
    for call in records:
        blocks, kept = call["prompt"] // SESSION_BLOCK_TOKENS, call["cached"] // SESSION_BLOCK_TOKENS
        ids = before.get(call["thread"], [])[:kept]
        ids += range(len(ids), min(kept, blocks))
        call["hashes"] = before[call["thread"]] = ids + list(range(first_free, first_free + blocks - len(ids)))
        first_free += blocks
        call["block_tokens"] = SESSION_BLOCK_TOKENS
    yield from _linked(
        path, records, "answer {}", "".join(_left_out("lines that are no entries of a session", foreign))
    )


_STAMP = re.compile(r"(?<!\d)(?:\d{4}-)?(\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_LOGGED = re.compile(
    r"(?P<finish>Finish: obj=|\"event\": ?\"request\.finished\")|(?:(?P<sent>Received request|Request)|Added request|"
    r"(?P<answer>Generated response)) (?P<id>[\w-]*\d[\w-]*)|\"(?:GET|POST) /\S* HTTP"
)
_SGLANG = {
    name: re.compile(rf""".*["']?{key}["']?[:=] ?([\d.]+)""", re.DOTALL) for name, key in _NAMES["finish_line"].items()
}
_TOKEN_IDS = re.compile(r"(?:prompt|output)_token_ids: (?:\[([^\]]*)\]|\(([^)]*)\))")


def is_server_log(text: str) -> bool:
    """True if a text has lines of requests as vLLM and SGLang log them, or as a web server does."""
    return _LOGGED.search(text) is not None


def server_log_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of a server's log: SGLang's lines of finished requests; vLLM's of what was received and generated."""
    calls: dict[object, dict[str, Any]] = {}
    logged = cached = 0
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        match = _LOGGED.search(line)
        if match is None or "HEALTH_CHECK" in line:
            continue
        logged += 1
        stamp = _STAMP.search(line, 0, match.start() or len(line))
        at = None if stamp is None else moment_of(stamp[0] if stamp[0] != stamp[1] else f"2000-{stamp[0]}")
        if match["finish"]:
            matches = {name: pattern.match(line, match.start()) for name, pattern in _SGLANG.items()}
            values = {name: float(one[1].rstrip(".")) for name, one in matches.items() if one is not None}
            e2el = values.get("e2el", 0.0)
            cached += int(values.pop("cached", 0))
            calls[number] = {"began": None if at is None else at - e2el, "e2el": e2el, **values}
        elif match["id"]:
            call = calls.setdefault(match["id"], {"began": at, "e2el": 0.0, "output": 0})
            ids = _TOKEN_IDS.search(line, match.end())
            tokens = len((ids[1] or ids[2] or "").split(",")) if ids and (ids[1] or ids[2]) else 0
            if match["sent"]:
                call["prompt"] = tokens or call.get("prompt", 0)
            elif match["answer"] and at is not None and call["began"] is not None:
                if not call["output"] and "(streaming delta)" in line:
                    call["ttft"] = at - call["began"]
                call |= {"output": call["output"] + tokens, "e2el": at - call["began"]}
    records = [call | {"trace": None} for call in calls.values() if call.get("prompt") and call.get("output")]
    if not records or any(record["began"] is None for record in records):
        raise TraceError(
            f"{path}: a server log whose {logged} lines of requests tell no token counts or times. vLLM: "
            "--enable-log-requests --enable-log-outputs with VLLM_LOGGING_LEVEL=DEBUG, or spans "
            "(--otlp-traces-endpoint); SGLang: --log-requests --log-requests-level 1"
        )
    notes = _left_out("requests without token counts", len(calls) - len(records))
    if cached:
        share = cached / sum(record["prompt"] for record in records)
        notes.append(f"{share:.0%} of prompt tokens were cached; which requests share them is not logged: no prefixes")
    yield from _linked(path, records, "request {}", "; ".join(notes))
