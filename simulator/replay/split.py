"""Rows that a fit may see: a split by shape, whatever their order or file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray
from forerun.errors import ForerunError
from traces.kernels import SIZES, KernelTable

_HASHED_NAMES = {"active_experts": "activated_experts"}
"""Columns that hash under their earlier name, so that recorded splits stay unchanged."""
_TEXTS = ("op", "dtype", "kv_dtype")
"""Words that are part of a shape; library, source and file are not: one shape is held out everywhere."""


class Split(NamedTuple):
    """Share of the shapes that a fit may see, and the seed of the hash that picks them."""

    train: float = 0.7
    seed: int = 1


def parse_split(text: str) -> Split:
    """Read ``train=0.7,seed=1``.

    Raises:
        ForerunError: another key, a share outside (0, 1), or a seed that is not a whole number >= 0.
    """
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in ("train", "seed") or not equals or key in values:
            raise ForerunError(f"--split: '{part.strip()}' is not train=SHARE or seed=N, e.g. train=0.7,seed=1")
        values[key] = value
    try:
        split = Split(float(values.get("train", "0.7")), int(values.get("seed", "1")))
    except ValueError:
        raise ForerunError(f"--split: '{text}': train is a share such as 0.7, seed a whole number") from None
    if not 0 < split.train < 1 or split.seed < 0:
        raise ForerunError(f"--split: '{text}': train must be between 0 and 1, seed at least 0")
    return split


def training_rows(table: KernelTable, split: Split) -> BoolArray:
    """Rows that a fit may see; the others are held out."""
    share = shape_hashes(table, split.seed).astype(np.float64) / 2.0**64
    return share < split.train


def shape_hashes(table: KernelTable, seed: int) -> NDArray[np.uint64]:
    """A number per row that depends on its shape and ``seed`` alone, even over 0 .. 2^64 - 1.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), doi:10.1145/2660193.2660195
        (the SplitMix64 finaliser).
    """
    with np.errstate(over="ignore"):
        state = np.full(len(table), _mix(np.array([seed + 1], dtype=np.uint64))[0], dtype=np.uint64)
        for name in _TEXTS:
            column = table.word(name)
            numbers = np.array([_text_number(text) for text in column.names], dtype=np.uint64)
            state = _mix(state ^ numbers[column.codes])
        for name in SIZES:
            values = table.sizes.get(name)
            if values is not None and values.any():
                mixed = _mix(
                    state ^ _mix(values.astype(np.uint64) + np.uint64(_text_number(_HASHED_NAMES.get(name, name))))
                )
                state = np.where(values > 0, mixed, state)
    return state


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _text_number(text: str) -> int:
    """FNV-1a, 64 bit: the same on every machine and run."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number
