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
"""Values of ``scope``: ``measured_s`` covers the whole step with host work, or the device alone."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured engine steps; arrays of equal length."""

    prefill_seqs: IntArray
    """Number of sequences with a prompt chunk."""
    prefill_tokens: IntArray
    prefill_kv_tokens: IntArray
    """Number of keys that the prompt chunks read, cached and new."""
    prefill_pairs: IntArray
    """Number of (query, key) pairs that the causal mask admits."""
    sampled_prefills: IntArray
    """Number of chunks that complete their prompt."""
    decode_seqs: IntArray
    query_len: IntArray
    """Tokens per decoding sequence: 1, or K+1 in a verify step."""
    decode_kv_tokens: IntArray
    """Number of keys that the decoding sequences read, their own new tokens included."""
    measured_s: FloatArray
    device: BoolArray
    """True if ``measured_s`` is the device's time alone."""
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


def step_table(rows: Sequence[Mapping[str, Any]], source: str, skipped: Mapping[str, int] | None = None) -> StepTable:
    """Build a table from rows of canonical columns; missing values are derived from the present ones.

    Defaults: one chunk per step without ``prefill_seqs``, uncached prompts without ``prefill_kv_tokens``, and chunks of
    equal length (``q k - q (q - 1) / 2`` pairs each) without ``prefill_pairs``. ``place`` names the row.

    Raises:
        TraceError: a step without work, or with fewer keys than tokens.
    """
    complete = [_complete(row) for row in rows]
    return StepTable(
        **{name: np.array([row[name] for row in complete], dtype=np.int64) for name in COLUMNS[:-2]},
        measured_s=np.array([float(row["measured_s"]) for row in rows], dtype=np.float64),
        device=np.array([row.get("scope") == "device" for row in rows], dtype=np.bool_),
        place=tuple(str(row["place"]) for row in rows),
        source=source,
        skipped=dict(skipped or {}),
    )


def _complete(row: Mapping[str, Any]) -> dict[str, int]:
    """Counts of a step; missing counts are derived from the present ones."""
    place = row["place"]
    known: dict[str, int] = {name: int(row.get(name) or 0) for name in COLUMNS[:-2]}
    stated = {name for name in known if row.get(name) is not None}
    tokens, decoding, query = known["prefill_tokens"], known["decode_seqs"], known["query_len"] or 1
    seqs, keys = known["prefill_seqs"] or min(tokens, 1), known["prefill_kv_tokens"] or tokens
    if tokens + decoding == 0:
        raise TraceError(f"{place}: a step without prefill_tokens and without decode_seqs")
    if tokens < seqs:
        raise TraceError(f"{place}: prefill_tokens: {tokens} for {seqs} prompt chunks")
    if keys < tokens:
        raise TraceError(f"{place}: prefill_kv_tokens: {keys} is less than the {tokens} new tokens it includes")
    if decoding and "decode_kv_tokens" not in stated:
        raise TraceError(f"{place}: decode_kv_tokens is missing: the context lengths of the decoding sequences, summed")
    decode_keys = known["decode_kv_tokens"] if decoding else 0
    if decode_keys < decoding * query:
        raise TraceError(f"{place}: decode_kv_tokens: {decode_keys} is less than the {decoding * query} new tokens")
    for name, value in known.items():
        if value > (LARGEST_PAIRS if name == "prefill_pairs" else LARGEST_COUNT):
            raise TraceError(f"{place}: {name}: {shown(value)} is more than any step computes")
    chunk = tokens / max(seqs, 1)
    derived = {"prefill_seqs": seqs, "prefill_kv_tokens": keys, "query_len": query, "decode_kv_tokens": decode_keys}
    if "prefill_pairs" not in stated:
        derived["prefill_pairs"] = round(chunk * keys - seqs * chunk * (chunk - 1) / 2)
    if "sampled_prefills" not in stated:
        derived["sampled_prefills"] = seqs
    return known | derived
