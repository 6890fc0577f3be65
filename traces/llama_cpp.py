"""Readers for llama.cpp's measured rates: server logs, ``/metrics``, llama-bench and llama-batched-bench."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from traces.errors import TraceError
from traces.files import read_text


class LocalRate(NamedTuple):
    """One measured rate of decoding or of a prompt."""

    kind: str
    """``decode`` or ``prompt``."""
    tokens_per_s: float
    """Tokens per second, summed over all streams."""
    streams: int
    tokens: int
    """Number of tokens that the rate was measured over."""
    context: int | None
    """Tokens in the KV cache of each stream half-way through the measurement; None if the log does not state it."""
    drafted: int
    """Draft tokens that were proposed; 0 without speculation."""
    accepted: int
    place: str
    """File and line of the rate, for messages."""

    @property
    def cycles(self) -> int:
        """Number of verify steps: each yields exactly one token that is not an accepted draft token."""
        return max(1, self.tokens - self.accepted)

    @property
    def draft_tokens(self) -> float:
        """Mean number of draft tokens per verify step."""
        return self.drafted / self.cycles


_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_EVAL = re.compile(rf"(prompt )?eval time\s*=\s*{_NUMBER} ms\s*/\s*(\d+) (?:tokens|runs)")
_DRAFT = re.compile(r"draft acceptance(?: rate)?\s*=.*?\(\s*(\d+) accepted\s*/\s*(\d+) generated\)")
_METRIC = re.compile(rf"^llamacpp:(\w+)(?:\{{[^}}]*\}})?\s+{_NUMBER}(?:e\+?(\d+))?\s*$")
_TEST = re.compile(r"^(?:(pp)(\d+))?\+?(?:(tg)(\d+))?(?: @ d(\d+))?$")
_BATCHED = ("PP", "TG", "B", "N_KV")


def read_llama_cpp(path: Path) -> tuple[LocalRate, ...]:
    """Return all rates in a llama.cpp file; the kind of file is recognised by its lines.

    Raises:
        TraceError: a file that cannot be read, or in which no rate is found.
    """
    text = read_text(path)
    lines = text.splitlines()
    rates = [*_server(path, lines), *_metrics(path, lines), *_tables(path, lines)]
    if not rates and text.lstrip()[:1] in ("[", "{"):
        rates = list(_bench_json(path, text))
    if not rates:
        raise TraceError(
            f"{path}: no rates of llama.cpp found; give a llama-server log, its /metrics, or what llama-bench or "
            f"llama-batched-bench printed"
        )
    return tuple(rates)


MOST_COUNT = 10**12
"""Maximum count of tokens, sequences or drafts that a file may state."""


def _count(value: str | float, place: str) -> int:
    number = float(value)
    if not -MOST_COUNT <= number <= MOST_COUNT:
        raise TraceError(f"{place}: {str(value)[:20]} is not a possible count (at most 1e12)")
    return int(number)


def _rate(kind: str, tokens: float, seconds: float, place: str, **more: Any) -> Iterator[LocalRate]:
    if 0 < tokens <= MOST_COUNT and 0.0 < seconds < float("inf"):
        plain = {"streams": 1, "context": None, "drafted": 0, "accepted": 0}
        yield LocalRate(kind, tokens / seconds, tokens=int(tokens), place=place, **plain | more)


def _server(path: Path, lines: list[str]) -> Iterator[LocalRate]:
    """Timings that a server prints for each request, followed by its draft statistics."""
    prompt = 0
    pending: LocalRate | None = None
    for number, line in enumerate(lines, 1):
        timing, draft = _EVAL.search(line), _DRAFT.search(line)
        if timing:
            if pending is not None:
                yield pending
                pending = None
            place = f"{path}:{number}"
            tokens, seconds = _count(timing[3], place), float(timing[2]) / 1e3
            if timing[1]:
                prompt = tokens
                yield from _rate("prompt", tokens, seconds, place, context=tokens // 2)
            else:
                context = prompt + tokens // 2
                pending = next(_rate("decode", tokens, seconds, place, context=context), None)
        elif draft and pending is not None:
            accepted, drafted = (_count(draft[group], f"{path}:{number}") for group in (1, 2))
            if accepted <= drafted and accepted < pending.tokens:
                pending = pending._replace(accepted=accepted, drafted=drafted)
            yield pending
            pending = None
    if pending is not None:
        yield pending


def _metrics(path: Path, lines: list[str]) -> Iterator[LocalRate]:
    values: dict[str, float] = {}
    for line in lines:
        match = _METRIC.match(line.strip())
        if match:
            values[match[1]] = float(f"{match[2]}e{match[3] or 0}")
    for kind, stem in (("prompt", "prompt"), ("decode", "tokens_predicted")):
        tokens = values.get(f"{stem}_tokens_total", values.get(f"{stem}_total", 0.0))
        yield from _rate(kind, tokens, values.get(f"{stem}_seconds_total", 0.0), str(path))


def _tables(path: Path, lines: list[str]) -> Iterator[LocalRate]:
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "t/s" in cells or cells[:4] == list(_BATCHED):
            header = cells
        elif len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            yield from (_bench_row if "test" in row else _batched_row)(row, f"{path}:{number}")


def _bench_row(row: dict[str, str], place: str) -> Iterator[LocalRate]:
    """Rate in a row of llama-bench, over all tokens of its test (``tg128``, ``pp512 @ d4096``)."""
    test, rate = _TEST.match(row["test"]), re.match(_NUMBER, row["t/s"])
    if not test or not rate or bool(test[1]) == bool(test[3]):
        return
    tokens, depth = _count(test[2] or test[4], place), _count(test[5] or 0, place)
    kind = "prompt" if test[1] else "decode"
    if float(rate[1]) > 0:
        yield from _rate(kind, tokens, tokens / float(rate[1]), place, context=depth + tokens // 2)


def _batched_row(row: dict[str, str], place: str) -> Iterator[LocalRate]:
    """Rates of ``B`` streams with a prompt of ``PP`` tokens each, in batched decoding of ``TG`` tokens each."""
    try:
        prompt, tokens, streams = (_count(row[name], place) for name in ("PP", "TG", "B"))
        rate = float(row["S_TG t/s"])
    except TraceError:
        raise
    except (KeyError, ValueError):
        return
    if rate > 0 and streams > 0:
        all_tokens, context = tokens * streams, prompt + tokens // 2
        yield from _rate("decode", all_tokens, all_tokens / rate, place, streams=streams, context=context)


def _bench_json(path: Path, text: str) -> Iterator[LocalRate]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or whole numbers of more than 4,300 digits
        return
    for row in data if isinstance(data, list) else [data]:
        if not isinstance(row, dict):
            continue
        timings = row.get("timings")
        row = timings if isinstance(timings, dict) else row
        numbers = {key: _finite(value) for key, value in row.items() if isinstance(value, int | float)}
        prompt, tokens, rate = (numbers.get(key, 0.0) for key in ("n_prompt", "n_gen", "avg_ts"))
        depth = _count(numbers.get("n_depth", 0.0), str(path))
        if rate > 0 and bool(prompt) != bool(tokens):
            count = _count(prompt or tokens, str(path))
            kind = "prompt" if prompt else "decode"
            yield from _rate(kind, count, count / rate, str(path), context=depth + count // 2)
        if numbers.get("predicted_n"):
            count, seconds = _count(numbers["predicted_n"], str(path)), numbers.get("predicted_ms", 0.0) / 1e3
            context = _count(numbers.get("prompt_n", 0.0) + count // 2, str(path))
            drafted, accepted = (_count(numbers.get(key, 0.0), str(path)) for key in ("draft_n", "draft_n_accepted"))
            more = {"drafted": drafted, "accepted": accepted} if accepted <= drafted else {}
            yield from _rate("decode", count, seconds, str(path), context=context, **more)


def _finite(value: float) -> float:
    """Convert a number of a JSON file to float; infinite if it is too large."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")
