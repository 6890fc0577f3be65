"""Formats of agents, whose requests wait for each other: kv-cache-tester's sessions and AIPerf's DAG files.

Each row lists the rows that it waits for. AIPerf's files state these; in recordings, a request waits for requests that
ended before it began.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from traces.errors import TraceError, shown
from traces.fields import Record, number_of, objects_at, value_at
from traces.files import json_value, load_document, read_text
from traces.requests.layout import Options
from traces.requests.rows import RawChunk, record_chunks
from traces.requests.values import parse_hash_lists

Records = list[dict[str, Any]]
"""Flat records of requests by column, filled in several passes."""

_FIELDS = ("in", "out", "hash_ids", "think_time", "ttft", "api_time")
CHARACTERS_PER_TOKEN = 4.0
DAG_BLOCK_TOKENS = 16
MOST_REQUESTS = 100_000
MOST_TOKENS = 10**7
"""Maximum tokens of a request whose blocks are hashed here."""


def interval_order(spans: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Direct predecessors of each recorded request: A ended before B began and no third request lies between.

    Args:
        spans: (began, ended) of each, seconds.

    Source: AIPerf v0.13, ``timing/replay_dependencies.py``, replays recorded agents in the same order: overlapping
    requests are not ordered, touching ones are, equal starts are not.
    """
    order = sorted(range(len(spans)), key=lambda one: (spans[one][1], spans[one][0]))
    begins, ends = ([spans[one][which] for one in order] for which in (0, 1))
    latest = list(accumulate(begins, max))
    concurrent = []
    for began, _ in spans:
        last = bisect_right(ends, began)
        while last and begins[last - 1] >= began:  # takes no time, and begins with this one
            last -= 1
        first = last
        while first and (ends[first - 1] > latest[last - 1] or begins[first - 1] == latest[last - 1]):
            first -= 1
        concurrent.append(sorted(order[first:last]))
    return concurrent


def session_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))


def agentic_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of all sessions, subagents as sessions of their own that start when their parent calls them.

    Every file counts time from its own start: session i begins at ``i * session_interval_s``. Block ids are only
    comparable inside a file (unless it says ``hash_id_scope: global``), so each file gets a range of its own.
    """
    first_free = numbered = 0
    for index, file in enumerate(session_files(path) if path.is_dir() else [path]):
        session = load_document(file)
        if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
            raise TraceError(f"{file}: a session object with a list 'requests' expected")
        name = str(session.get("id", file.name.split(".")[0]))
        records = list(_walk(file, session["requests"], name, index * options.session_interval_s))
        for record in records:
            record["block_size"] = session.get("block_size")
        if session.get("hash_id_scope", "local") == "local":
            first_free = _separate(records, first_free)
        _link(records, numbered)
        numbered += len(records)
        yield from record_chunks(file, records, where="request {}")


def _walk(file: Path, requests: Sequence[object], session: str, start_s: float) -> Iterator[dict[str, object]]:
    """Flat records of a session, with its subagents' records where they are called."""
    turn = 0
    for number, request in enumerate(requests, start=1):
        if not isinstance(request, dict):
            raise TraceError(f"{file}: {session}: request {number}: {shown(request)}: a JSON object expected")
        at = _number(request.get("t"))
        if request.get("type") == "subagent":
            inner = request.get("requests")
            if not isinstance(inner, list) or at is None:
                raise TraceError(f"{file}: {session}: request {number}: a subagent needs 't' and a list 'requests'")
            name = f"{session}/{request.get('agent_id', number)}"
            first = next((_number(one.get("t")) for one in inner if isinstance(one, dict)), None)
            counts_from_call = first is None or first < at  # newer files count from the session's start
            yield from _walk(file, inner, name, start_s + at if counts_from_call else start_s)
            continue
        arrival = request.get("t") if at is None else start_s + at
        yield {**{key: request.get(key) for key in _FIELDS}, "t": arrival, "session": session, "turn": turn}
        turn += 1


def _number(value: object) -> float | None:
    number = number_of(value)
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None


def _link(records: Records, numbered: int) -> None:
    """Set the dependencies of each request of a session: its agent's previous request, and ``interval_order``."""
    before: dict[str, int] = {}
    begins = [_number(record["t"]) or 0.0 for record in records]
    lasted = [max(0.0, _number(record["api_time"]) or 0.0) for record in records]
    spans = [(began, began + took) for began, took in zip(begins, lasted, strict=True)]
    for number, (record, ended) in enumerate(zip(records, interval_order(spans), strict=True)):
        waits = {one for one in ended if one < number or records[one]["session"] != record["session"]}
        if record["session"] in before:
            waits.add(before[record["session"]])
        before[record["session"]] = number
        record |= {"request": numbered + number, "after": [numbered + one for one in sorted(waits)]}


def _separate(records: Records, first_free: int) -> int:
    """Shift a file's block ids into a range of their own; returns the first id after that range."""
    lists, problems = parse_hash_lists([record["hash_ids"] for record in records])
    filled = [ids for ids in lists if ids]
    if not filled:
        return first_free
    low, high = min(map(min, filled)), max(map(max, filled))
    if high - low > 2**48:
        numbers: dict[int, int] = {}
        lists = [[numbers.setdefault(block, len(numbers)) for block in ids] for ids in lists]
        low, high = 0, len(numbers) - 1
    for row, record in enumerate(records):
        if row not in problems:
            record["hash_ids"] = [block - low + first_free for block in lists[row]]
    return first_free + high - low + 1


Part = tuple[object, int]
"""A message or an answer, and its number of tokens."""


@dataclass
class _Dag:
    """State of the traversal of a DAG file, conversation by conversation, turn by turn."""

    path: Path
    conversations: Mapping[str, Record]
    characters_per_token: float
    block_tokens: int
    records: Records = field(default_factory=list)
    blocks: dict[tuple[object, ...], int] = field(default_factory=dict)

    def walk(self, name: str, after: list[int], history: list[Part], path: tuple[str, ...] = ()) -> list[int]:
        """Add the requests of a conversation and of the conversations that it calls; return its final requests."""
        if name in path:
            raise TraceError(f"{self.path}: session {name!r} calls itself ({' > '.join((*path, name))})")
        if name not in self.conversations:
            raise TraceError(f"{self.path}: session {path[-1]!r} calls {shown(name)}, which no line has as session_id")
        turns = objects_at(self.conversations[name], "turns")
        history, joins, path = list(history), dict[int, list[int]](), (*path, name)
        for child in _names(self.conversations[name], "pre_session_spawns", self._place(name)):
            self.walk(child, after, [], path)
        for index, turn in enumerate(turns):
            number = self._request(name, index, turn, [*after, *joins.pop(index, [])], history)
            after = [number]
            for children, entry in _entries(turn, "spawns", self._place(name, index)):
                join_at = index + 1 if entry.get("join_at") is None else entry["join_at"]
                if not isinstance(join_at, int) or not index < join_at <= max(len(turns) - 1, index + 1):
                    raise TraceError(f"{self._place(name, index)}: join_at: {shown(join_at)}: a later turn expected")
                ends = [end for child in children for end in self.walk(child, [number], [], path)]
                joins.setdefault(join_at, []).extend(ends)
            leaves: list[int] = []
            for children, entry in _entries(turn, "forks", self._place(name, index)):
                ends = [end for child in children for end in self.walk(child, [number], history, path)]
                leaves += [] if entry.get("background") is True else ends
            if leaves and index + 1 < len(turns):
                raise TraceError(f"{self._place(name, index)}: forks: the last turn forks, or background: true")
            after = leaves or after
        return after

    def _request(self, name: str, index: int, turn: Record, after: list[int], history: list[Part]) -> int:
        messages, answer = turn.get("messages"), turn.get("max_tokens")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise TraceError(f"{self._place(name, index)}: messages: a list of messages expected")
        if len(self.records) >= MOST_REQUESTS:
            raise TraceError(f"{self.path}: sessions that call sessions come to more than {MOST_REQUESTS} requests")
        for message in messages:
            text = json.dumps(message, sort_keys=True)
            history.append((text, max(1, ceil(len(_text(message)) / self.characters_per_token))))
        number, prompt = len(self.records), sum(tokens for _, tokens in history)
        known = isinstance(answer, int) and not isinstance(answer, bool) and 0 < answer <= MOST_TOKENS
        answer_tokens = answer if isinstance(answer, int) and known else 0
        history.append((number, answer_tokens))
        self.records.append(
            {
                "input_tokens": prompt,
                "max_tokens": answer,
                "session_id": name,
                "turn": index,
                "delay": turn.get("delay", 0),
                "hashes": self._hashes(history, prompt + answer_tokens - 1),
                "block_tokens": self.block_tokens,
                "request": number,
                "after": sorted(set(after)),
            }
        )
        return number

    def _hashes(self, history: Sequence[Part], tokens: int) -> list[int]:
        """Hashes of the whole blocks of the first ``tokens``; equal for equal conversations up to there."""
        hashes: list[int] = []
        block: list[object] = []
        left = self.block_tokens
        for what, length in history:
            at = 0
            while at < length:
                part = min(left, length - at)
                block += (what, at, part)
                at, left = at + part, left - part
                if not left:
                    key = (hashes[-1] if hashes else -1, *block)
                    hashes.append(self.blocks.setdefault(key, len(self.blocks)))
                    block, left = [], self.block_tokens
        return hashes[: max(0, tokens) // self.block_tokens]

    def _place(self, name: str, turn: int | None = None) -> str:
        return f"{self.path}: session {name!r}" + ("" if turn is None else f": turn {turn}")


def _names(holder: Record, key: str, place: str) -> list[str]:
    names = holder.get(key) or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise TraceError(f"{place}: {key}: {shown(names)}: ids of sessions expected")
    return names


def _entries(turn: Record, key: str, place: str) -> Iterator[tuple[list[str], Record]]:
    """(sessions, their fields) of each of a turn's forks or spawns, ids or objects."""
    entries = turn.get(key) or []
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, dict):
            yield _names(entry if "children" in entry else {"children": [entry.get("child")]}, "children", place), entry
        else:
            yield _names({key: [entry]}, key, place), {}


def _text(message: Record) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (value_at(part, "text") for part in parts)
    return "".join(text for text in texts if isinstance(text, str)) + (json.dumps(calls) if calls else "")


def dag_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of AIPerf's DAG conversations. Conversations that no other one calls start first, in file order.

    A turn follows the one before it; a forked conversation continues the messages and answers up to its parent's turn,
    a spawned one starts empty, and the parent's turn ``join_at`` waits for either.

    Source: AIPerf v0.13, ``dataset/loader/dag_jsonl_models.py``.
    """
    conversations: dict[str, Record] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        record = json_value(line, f"{path}:{number}")
        name, turns = value_at(record, "session_id"), value_at(record, "turns")
        if not isinstance(name, str) or turns != objects_at(record, "turns"):
            raise TraceError(f"{path}:{number}: a conversation with session_id and a list 'turns' expected")
        if value_at(record, "orchestrator") or not turns:
            raise TraceError(f"{path}:{number}: {name}: has no turns, or is an orchestrator, which sends no requests")
        if name in conversations:
            raise TraceError(f"{path}:{number}: session_id {name!r} a second time")
        conversations[name] = {"turns": turns, "pre_session_spawns": value_at(record, "pre_session_spawns")}
    ratio, block = options.characters_per_token or CHARACTERS_PER_TOKEN, options.block_tokens or DAG_BLOCK_TOKENS
    dag = _Dag(path, conversations, ratio, block)
    called: set[str] = set()
    for name, conversation in conversations.items():
        called.update(_names(conversation, "pre_session_spawns", f"{path}: session {name!r}"))
        for turn in objects_at(conversation, "turns"):
            for key in ("forks", "spawns"):
                called.update(child for children, _ in _entries(turn, key, str(path)) for child in children)
    try:
        for name in conversations:
            if name not in called:
                dag.walk(name, [], [])
    except RecursionError:
        raise TraceError(f"{path}: sessions call sessions too many levels deep") from None
    if conversations and not dag.records:
        raise TraceError(f"{path}: every session is called by another; at least one must be top-level")
    yield from record_chunks(path, dag.records, where="request {}")
