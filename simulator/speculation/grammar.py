"""A grammar as a drafter: spans that a JSON schema forces are drafts accepted with certainty."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError

FORCED_SPAN = 8.0
"""Mean tokens of a forced span unless given or measured; assumed."""
PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]+|\s+")
"""Text piece that counts as a token: up to six letters of a word, or punctuation, with the preceding blank."""
ANSWER_KEYS = ("output", "text", "completion", "response", "content")


class ForcedTokens(NamedTuple):
    """Share of an output that a grammar forces."""

    share: float
    """Share of tokens."""
    span: float
    """Mean tokens in a row."""


def forced_survival(conditional: FloatArray, forced: ForcedTokens) -> FloatArray:
    """Probability that at least i draft tokens are accepted if a grammar forces some of them, i = 1..K.

    Tokens alternate between forced and free as a Markov chain: a forced one is followed by another with chance
    1 - 1/span, and a share of all is forced. A forced draft token is accepted for certain, a free one with the
    drafter's rate. A step that ends at a rejected token starts the next one after a free token.

    Args:
        conditional: the drafter's rate of each position given those before it; 0 where only the grammar drafts.
        forced: share and span. Free tokens come one at a time at least, so spans last at least share / (1 - share).

    >>> forced_survival(np.zeros(3), ForcedTokens(0.5, 1.0)).tolist()
    [1.0, 0.0, 0.0]
    """
    if forced.share <= 0.0:
        return np.asarray(np.cumprod(conditional), dtype=np.float64)
    if forced.share >= 1.0:
        return np.ones(len(conditional))
    odds = forced.share / (1.0 - forced.share)
    span = max(1.0, forced.span, odds)
    moves = np.array([[1.0 - odds / span, odds / span], [1.0 / span, 1.0 - 1.0 / span]])
    starts = np.array([1.0, 0.0])  # free, forced
    for _ in range(100):
        state, survival = starts, []
        for rate in conditional:
            state = (state @ moves) * (rate, 1.0)
            survival.append(float(state.sum()))
        after = state @ moves
        starts = after + np.array([1.0 - after.sum(), 0.0])
    return np.array(survival)


@lru_cache(maxsize=16)
def measured_forced(outputs: str, schema: str) -> ForcedTokens:
    """Share and span of forced tokens in a file of outputs, one JSON value a line, under a JSON schema.

    A line is the output itself, or an object with it under one of ``ANSWER_KEYS``. Text is cut into pieces of about a
    token's length; a piece is forced if all its characters are. Forced are the keys of required properties, constants,
    what an enumeration leaves no choice of, and the punctuation that must follow; values are free, and so are the ends
    of strings, numbers and arrays, and optional properties.

    Raises:
        ForerunError: a file that cannot be read, or a line that is no JSON.
    """
    try:
        rules = json.loads(Path(schema).read_text(encoding="utf-8"))
        lines = Path(outputs).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ForerunError(f"speculation.grammar: {error}") from None
    runs: list[int] = []
    pieces = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = _answer(json.loads(line))
        except ValueError as error:
            raise ForerunError(f"speculation.grammar.outputs: {outputs}:{number}: {error}") from None
        flags = list(_pieces(forced_text(value, rules)))
        pieces += len(flags)
        runs += [len(list(same)) for forced, same in groupby(flags) if forced]
    if not pieces:
        raise ForerunError(f"speculation.grammar.outputs: {outputs}: the file contains no outputs")
    return ForcedTokens(sum(runs) / pieces, float(np.mean(runs)) if runs else 1.0)


def forced_text(value: Any, schema: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """A value as compact JSON, in parts that are forced or not."""
    return list(_parts(value, schema, schema))


def _answer(line: Any) -> Any:
    if isinstance(line, dict):
        text = next((line[key] for key in ANSWER_KEYS if isinstance(line.get(key), str)), None)
        if text is not None:
            return json.loads(text)
    return line


def _parts(value: Any, schema: Any, root: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    rules = _resolved(schema, root)
    single = isinstance(rules.get("type"), str)
    if "const" in rules:
        yield json.dumps(value), True
    elif "enum" in rules:
        yield from _chosen(json.dumps(value), [json.dumps(one) for one in rules["enum"]])
    elif isinstance(value, dict):
        yield from _object(value, rules, root, single)
    elif isinstance(value, list):
        yield "[", single
        for place, item in enumerate(value):
            if place:
                yield ", ", False
            yield from _parts(item, rules.get("items", {}), root)
        yield "]", False
    elif isinstance(value, str):
        yield '"', single
        yield json.dumps(value)[1:], False
    else:
        yield json.dumps(value), value is None and rules.get("type") == "null"


def _object(
    value: dict[str, Any], rules: Mapping[str, Any], root: Mapping[str, Any], single: bool
) -> Iterator[tuple[str, bool]]:
    known, required = rules.get("properties", {}), set(rules.get("required", ()))
    closed = rules.get("additionalProperties") is False
    yield "{", single
    for place, (key, item) in enumerate(value.items()):
        certain = key in required and key in known
        if place:
            yield ", ", certain
        yield f"{json.dumps(key)}: ", certain
        yield from _parts(item, known.get(key, {}), root)
    yield "}", closed and set(known) <= required


def _chosen(text: str, choices: list[str]) -> Iterator[tuple[str, bool]]:
    """Characters of a chosen text; forced if all choices with the same beginning continue alike."""
    for at, letter in enumerate(text):
        yield letter, len({one[at : at + 1] for one in choices if one.startswith(text[:at])}) == 1


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's ``$ref`` chain; an empty mapping if the target is no object."""
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        target: Any = root
        for part in str(schema["$ref"]).lstrip("#/").split("/"):
            target = target.get(part, {}) if isinstance(target, dict) else {}
        schema = target
    return schema if isinstance(schema, dict) else {}


def _pieces(parts: list[tuple[str, bool]]) -> Iterator[bool]:
    """True if each piece of a text is forced."""
    text = "".join(words for words, _ in parts)
    forced = [flag for words, flag in parts for _ in words]
    for piece in PIECE.finditer(text):
        yield all(forced[piece.start() : piece.end()])
