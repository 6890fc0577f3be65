"""Canonical table of engine steps: one numpy column per attribute, one row per measured step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from traces.errors import TraceError, shown

COLUMNS = ("prefill_seqs", "prefill_tokens", "prefill_kv_tokens", "prefill_pairs", "sampled_prefills", "decode_seqs",
           "query_len", "decode_kv_tokens", "measured_s", "scope")  # fmt: skip
"""Columns of a canonical step trace (CSV or Parquet). Needed: ``measured_s``, and ``prefill_tokens`` or ``decode_seqs``
with ``decode_kv_tokens``."""
SCOPES = ("step", "device")
"""What ``measured_s`` covers: the whole step with the host's work, or the device alone."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured engine steps; arrays of equal length."""

    prefill_seqs: IntArray
    """Sequences with a prompt chunk."""
    prefill_tokens: IntArray
    prefill_kv_tokens: IntArray
    """Keys that the chunks read, cached and new."""
    prefill_pairs: IntArray
    """(query, key) pairs that the causal mask admits."""
    sampled_prefills: IntArray
    """Chunks that complete their prompt."""
    decode_seqs: IntArray
    query_len: IntArray
    """Tokens per decoding sequence: 1, or K+1 in a verify step."""
    decode_kv_tokens: IntArray
    """Keys that the decoding sequences read, own tokens included."""
    measured_s: FloatArray
    device: BoolArray
    """Whether ``measured_s`` is the device's time alone."""
    place: tuple[str, ...]
    """File and line of each row, for messages."""
    source: str
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.measured_s)

    @property
    def tokens(self) -> IntArray:
        """Number of tokens computed in each step."""
        return self.prefill_tokens + self.decode_seqs * self.query_len


LARGEST_COUNT, LARGEST_PAIRS = 10**9, 10**18
"""Maximum tokens and maximum token pairs of a step; larger values indicate a damaged file."""
_ARRAYS = (*COLUMNS[:-1], "device")


def step_table(rows: Sequence[Mapping[str, Any]], source: str, skipped: Mapping[str, int] | None = None) -> StepTable:
    """Build a table from rows of canonical columns; missing values are derived from the others.

    One chunk per step where ``prefill_seqs`` is unknown, fresh prompts where ``prefill_kv_tokens`` is not, chunks of
    equal length where ``prefill_pairs`` is not: ``q k - q (q - 1) / 2`` pairs each. ``place`` names the row.

    Raises:
        TraceError: a step without work, or with fewer keys than tokens.
    """
    complete = [_complete(row) for row in rows]
    kinds = {"measured_s": np.float64, "device": np.bool_}
    arrays: dict[str, Any] = {
        name: np.array([row[name] for row in complete], dtype=kinds.get(name, np.int64)) for name in _ARRAYS
    }
    place = tuple(str(row["place"]) for row in rows)
    return StepTable(**arrays, place=place, source=source, skipped=dict(skipped or {}))


def _complete(row: Mapping[str, Any]) -> dict[str, Any]:
    place = row["place"]
    tokens, decoding = int(row.get("prefill_tokens") or 0), int(row.get("decode_seqs") or 0)
    seqs = int(row.get("prefill_seqs") or 0) or min(tokens, 1)
    if tokens + decoding == 0:
        raise TraceError(f"{place}: a step without prefill_tokens and without decode_seqs")
    if tokens < seqs:
        raise TraceError(f"{place}: prefill_tokens: {tokens} for {seqs} prompt chunks")
    keys = int(row.get("prefill_kv_tokens") or tokens)
    if keys < tokens:
        raise TraceError(f"{place}: prefill_kv_tokens: {keys} is less than the {tokens} new tokens it includes")
    query = int(row.get("query_len") or 1)
    decode_keys = row.get("decode_kv_tokens")
    if decoding and decode_keys is None:
        raise TraceError(f"{place}: decode_kv_tokens is missing: the context lengths of the decoding sequences, summed")
    if decoding and int(decode_keys or 0) < decoding * query:
        raise TraceError(f"{place}: decode_kv_tokens: {decode_keys} is less than the {decoding * query} new tokens")
    pairs, sampled = row.get("prefill_pairs"), row.get("sampled_prefills")
    counts = {"prefill_tokens": tokens, "prefill_kv_tokens": keys, "prefill_pairs": pairs, "decode_seqs": decoding,
              "decode_kv_tokens": decode_keys, "query_len": query, "sampled_prefills": sampled}  # fmt: skip
    for name, value in counts.items():
        if (value or 0) > (LARGEST_PAIRS if name == "prefill_pairs" else LARGEST_COUNT):
            raise TraceError(f"{place}: {name}: {shown(value)} is more than any step computes")
    chunk = tokens / max(seqs, 1)
    if pairs is None:
        pairs = round(chunk * keys - seqs * chunk * (chunk - 1) / 2)
    return {
        "prefill_seqs": seqs,
        "prefill_tokens": tokens,
        "prefill_kv_tokens": keys,
        "prefill_pairs": int(pairs),
        "sampled_prefills": seqs if sampled is None else int(sampled),
        "decode_seqs": decoding,
        "query_len": query,
        "decode_kv_tokens": int(decode_keys or 0) if decoding else 0,
        "measured_s": float(row["measured_s"]),
        "device": row.get("scope") == "device",
    }
