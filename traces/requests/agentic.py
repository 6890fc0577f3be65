"""Agent sessions as recorded by kv-cache-tester: one JSON file per session, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traces.errors import TraceError, shown
from traces.requests.files import load_document
from traces.requests.layout import Layout, Options, columns
from traces.requests.rows import RawChunk, record_chunks
from traces.requests.values import parse_hash_lists

AGENTIC = Layout(
    "agentic",
    "agent sessions of kv-cache-tester (JSON with block_size and requests of t, in, out, hash_ids), a file or a folder",
    {
        "arrival_s": columns("t:s"),
        "input_tokens": columns("in"),
        "output_tokens": columns("out"),
        "session_id": columns("session"),
        "turn": columns("turn"),
        "think_time_s": columns("think_time:s"),
        "prefix_hashes": columns("hash_ids"),
        "block_tokens": columns("block_size"),
        "measured_ttft_s": columns("ttft:s"),
        "measured_e2e_s": columns("api_time:s"),
    },
    signature=("block_size", "requests"),
    options=frozenset({"session_interval_s"}),
    merged=True,
)


def session_files(folder: Path) -> list[Path]:
    """Session files of a folder by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))


def agentic_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of all sessions, subagents as sessions of their own that start when their parent calls them.

    Every file counts time from its own start: session i begins at ``i * session_interval_s``. Block ids are only
    comparable inside a file (unless it says ``hash_id_scope: global``), so each file gets a range of its own.
    """
    first_free = 0
    for index, file in enumerate(session_files(path) if path.is_dir() else [path]):
        session = load_document(file)
        if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
            raise TraceError(f"{file}: a session object with a list 'requests' expected")
        name = str(session.get("id", file.name.split(".")[0]))
        records = list(_walk(file, session["requests"], name, index * options.session_interval_s))
        local = session.get("hash_id_scope", "local") == "local"
        for record in records:
            record["block_size"] = session.get("block_size")
        if local:
            first_free = _separate(records, first_free)
        yield from record_chunks(file, records, where="request {}")


def _walk(file: Path, requests: list[Any], session: str, start_s: float) -> Iterator[dict[str, Any]]:
    """Flat records of a session and, where they are called, of its subagents."""
    turn = 0
    for number, request in enumerate(requests, start=1):
        if not isinstance(request, dict):
            raise TraceError(f"{file}: {session}: request {number}: {shown(request)}: a JSON object expected")
        at = request.get("t")
        timed = isinstance(at, int | float) and not isinstance(at, bool)
        if request.get("type") == "subagent":
            inner = request.get("requests")
            if not isinstance(inner, list) or not timed:
                raise TraceError(f"{file}: {session}: request {number}: a subagent needs 't' and a list 'requests'")
            name = f"{session}/{request.get('agent_id', number)}"
            yield from _walk(file, inner, name, start_s + float(request["t"]))
            continue
        fields = ("in", "out", "hash_ids", "think_time", "ttft", "api_time")
        record = {key: request.get(key) for key in fields}
        record |= {"t": start_s + float(request["t"]) if timed else at, "session": session, "turn": turn}
        turn += 1
        yield record


def _separate(records: list[dict[str, Any]], first_free: int) -> int:
    """Shift a file's block ids into a range of their own; returns the first id after that range."""
    lists, problems = parse_hash_lists([record["hash_ids"] for record in records])
    spoiled = {problem.row for problem in problems}
    filled = [ids for ids in lists if ids]
    if not filled:
        return first_free
    low, high = min(map(min, filled)), max(map(max, filled))
    if high - low > 2**48:
        numbers: dict[int, int] = {}
        lists = [[numbers.setdefault(block, len(numbers)) for block in ids] for ids in lists]
        low, high = 0, len(numbers) - 1
    for row, record in enumerate(records):
        if row not in spoiled:
            record["hash_ids"] = [block - low + first_free for block in lists[row]]
    return first_free + high - low + 1
