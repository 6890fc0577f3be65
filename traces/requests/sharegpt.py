"""Conversations in ShareGPT's JSON, with token counts that came along or that are estimated on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traces.errors import TraceError, shown
from traces.requests.files import load_document
from traces.requests.layout import Layout, Options, columns
from traces.requests.rows import RawChunk, record_chunks

SHAREGPT = Layout(
    "sharegpt",
    "ShareGPT-style JSON (a list of {conversations: [{from, value, perhaps tokens}]})",
    {
        "input_tokens": columns("input_tokens"),
        "output_tokens": columns("output_tokens"),
        "session_id": columns("session_id"),
        "turn": columns("turn"),
    },
    signature=("conversations",),
    required=("input_tokens", "output_tokens"),
    options=frozenset({"characters_per_token", "turns"}),
)

_TOKEN_KEYS = ("tokens", "num_tokens", "token_count", "n_tokens", "length")
_USER, _ANSWER = {"human", "user"}, {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}


def sharegpt_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """Requests of a list of conversations; a conversation without an exchange of question and answer gives none.

    The input of an exchange is everything said before the answer. ``turns="first"`` takes the first exchange, as
    vLLM's benchmark does; ``"all"`` takes every one, as a session.

    Raises:
        TraceError: no list of conversations, or text without token counts and no ``characters_per_token``.
    """
    document = load_document(path)
    if not isinstance(document, list):
        raise TraceError(f"{path}: a JSON list of conversations expected, not {type(document).__name__}")
    records: list[Any] = []
    for number, entry in enumerate(document, start=1):
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            records.append(entry if not isinstance(entry, dict) else {"entry": number})
            continue
        records += _exchanges(path, number, entry.get("id", number), turns, options)
    yield from record_chunks(path, records, where="exchange {}")


def _exchanges(path: Path, number: int, name: object, turns: list[Any], options: Options) -> list[dict[str, Any]]:
    """The exchanges of one conversation as flat records."""
    found: list[dict[str, Any]] = []
    context = 0
    asked = False
    for turn in turns:
        speaker = str(turn.get("from", turn.get("role", ""))) if isinstance(turn, dict) else ""
        tokens = _tokens(path, number, turn, options)
        if speaker in _ANSWER and asked:
            found.append({"session_id": name, "turn": len(found), "input_tokens": context, "output_tokens": tokens})
            if options.turns == "first":
                return found
        asked = speaker in _USER or (asked and speaker not in _ANSWER)
        context += tokens
    return found


def _tokens(path: Path, number: int, turn: Any, options: Options) -> int:
    """Tokens of one message: as recorded, or characters over ``characters_per_token`` rounded, at least 1."""
    if not isinstance(turn, dict):
        raise TraceError(f"{path}: conversation {number}: {shown(turn)}: a message object expected")
    for key in _TOKEN_KEYS:
        if isinstance(turn.get(key), int) and not isinstance(turn[key], bool):
            return int(turn[key])
    text = turn.get("value", turn.get("content"))
    if not isinstance(text, str):
        raise TraceError(f"{path}: conversation {number}: a message has neither text nor tokens")
    if options.characters_per_token is None:
        raise TraceError(
            f"{path}: conversation {number}: text without token counts; add 'tokens' to each message with the model's "
            "tokenizer, or accept an estimate with characters_per_token (about 4 for English)"
        )
    return max(1, round(len(text) / options.characters_per_token))
