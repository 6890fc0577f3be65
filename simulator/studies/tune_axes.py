"""Batch sizes and context lengths to tune at, and the range that each of them stands for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt

from simulator.errors import ForerunError

MOST = 4_194_304
"""Largest batch or context that is accepted."""
CONTEXTS = (512, 2048, 8192, 32768)
"""Context lengths unless given, tokens."""
USUAL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def axis_values(texts: Sequence[str], option: str) -> tuple[int, ...]:
    """Ascending values of an option given once or several times: ``8``, ``1,8,64``, or ``1..64`` doubling from 1.

    Raises:
        ForerunError: anything that is not a whole number from 1 on, or a range that does not ascend.
    """
    found: set[int] = set()
    for part in (part.strip() for text in texts for part in text.split(",")):
        low, dots, high = part.partition("..")
        first = _whole(low, option, part)
        found.add(first)
        if dots:
            last = _whole(high, option, part)
            if last < first:
                raise ForerunError(f"{option} {part}: the range must ascend")
            while first < last:
                found.add(first)
                first *= 2
            found.add(last)
    return tuple(sorted(found))


def _whole(text: str, option: str, part: str) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9] or 0) <= MOST or len(text) > 7:
        raise ForerunError(f"{option} {part}: write whole numbers from 1 to {MOST}, such as 1,8,64 or 1..256")
    return int(text)


def usual_batches(most: int) -> tuple[int, ...]:
    """Doubling batch sizes up to ``most``, that one included."""
    return tuple(sorted({*(batch for batch in USUAL_BATCHES if batch < most), most}))


def usual_contexts(most: int | None) -> tuple[int, ...]:
    """The usual contexts that a request may reach; ``most`` is the longest, or None."""
    if most is None or most >= CONTEXTS[-1]:
        return CONTEXTS
    return tuple(sorted({*(context for context in CONTEXTS if context < most), most}))


def stretches(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """For each of ascending values the whole numbers nearest to it in logarithms: first and last, both included.

    The first stretch begins at the first value and the last ends at the last, and together they leave no gap.
    """
    ends = [isqrt(low * high) for low, high in pairwise(values)]
    starts = [values[0], *(end + 1 for end in ends)]
    return tuple(zip(starts, [*ends, values[-1]], strict=True))
