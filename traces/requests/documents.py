"""Request formats that are one document each: ShareGPT's conversations, results of vLLM's benchmark.

Conversations have token counts that came along, or that are estimated on request. Results must have been saved with
per-request details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traces.errors import TraceError, shown
from traces.fields import Record, number_of
from traces.files import load_document
from traces.requests.layout import Options
from traces.requests.rows import RawChunk, record_chunks
from traces.requests.values import Values

_TOKEN_KEYS = ("tokens", "num_tokens", "token_count", "n_tokens", "length")
_USER, _ANSWER = {"human", "user"}, {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}


def sharegpt_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of a list of conversations; a conversation without an exchange of question and answer gives none.

    The input of an exchange is the conversation before the answer. ``turns="first"`` takes the first exchange, as
    vLLM's benchmark does; ``"all"`` takes every one, as a session.
    """
    document = load_document(path)
    if not isinstance(document, list):
        raise TraceError(f"{path}: a JSON list of conversations expected, not {type(document).__name__}")
    records: list[object] = []
    for number, entry in enumerate(document, start=1):
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if isinstance(turns, list):
            name = entry.get("id", number)
            exchanges = enumerate(_exchanges(f"{path}: conversation {number}", turns, options))
            records += ({"session_id": name, "turn": turn, **tokens} for turn, tokens in exchanges)
        else:
            records.append({"entry": number} if isinstance(entry, dict) else entry)
    yield from record_chunks(path, records, where="exchange {}")


def _exchanges(place: str, turns: Sequence[object], options: Options) -> Iterator[dict[str, int]]:
    """Token counts of each exchange of a conversation."""
    context = 0
    prompted = False
    for turn in turns:
        if not isinstance(turn, dict):
            raise TraceError(f"{place}: {shown(turn)}: a message object expected")
        speaker = str(turn.get("from", turn.get("role", "")))
        tokens = _tokens(place, turn, options)
        if speaker in _ANSWER and prompted:
            yield {"input_tokens": context, "output_tokens": tokens}
            if options.turns == "first":
                return
        prompted = speaker in _USER or (prompted and speaker not in _ANSWER)
        context += tokens


def _tokens(place: str, turn: Record, options: Options) -> int:
    """Tokens of one message: as recorded, or characters over ``characters_per_token`` rounded, at least 1."""
    for key in _TOKEN_KEYS:
        if isinstance(recorded := number_of(turn.get(key)), int):
            return recorded
    text = turn.get("value", turn.get("content"))
    if not isinstance(text, str):
        raise TraceError(f"{place}: a message has neither text nor tokens")
    if options.characters_per_token is None:
        raise TraceError(
            f"{place}: text without token counts; add 'tokens' to each message with the model's "
            "tokenizer, or accept an estimate with characters_per_token (about 4 for English)"
        )
    return max(1, round(len(text) / options.characters_per_token))


_ARRAYS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")


def vllm_bench_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """The per-request arrays of one result file; end-to-end latency is TTFT plus the sum of the inter-token gaps."""
    result = load_document(path)
    if not isinstance(result, dict):
        raise TraceError(f"{path}: one JSON object expected, as vllm bench serve --save-result writes it")
    if "input_lens" not in result or "output_lens" not in result:
        raise TraceError(
            f"{path}: holds only totals (no input_lens, output_lens); save the benchmark again with --save-detailed"
        )
    arrays: dict[str, Values] = {}
    count = len(result["input_lens"]) if isinstance(result["input_lens"], list) else 0
    for name in _ARRAYS:
        values = result.get(name)
        if values is None and name not in ("input_lens", "output_lens"):
            continue
        if not isinstance(values, list) or len(values) != count:
            raise TraceError(f"{path}: {name}: a list of {count} values expected, one for each of input_lens")
        arrays[name] = values
    if "ttfts" in arrays and "itls" in arrays:
        arrays["e2e_s"] = [_total(*pair) for pair in zip(arrays["ttfts"], arrays.pop("itls"), strict=True)]
    arrays.pop("itls", None)
    yield RawChunk(arrays, count, range(count), place=f"{path}: request {{}} (from 0)")


def _total(ttft: Any, gaps: Any) -> float | str | None:
    """End-to-end latency in seconds, or a text that the row check will refuse."""
    try:
        return float(ttft) + float(sum(gaps))
    except (TypeError, ValueError, OverflowError):
        return None if ttft is None or gaps is None else "ttfts and itls that are no numbers"
