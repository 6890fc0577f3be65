"""What formulas are written with: functions of numbers and of arrays, the limits of a chip, the parts of a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hwprofiles.errors import ProfileError

Num = Any
"""A Python number or a numpy array; formulas are written once for both."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions a formula may use besides arithmetic operators."""

    maximum: Callable[[Num, Num], Num]
    minimum: Callable[[Num, Num], Num]
    ceil: Callable[[Num], Num]
    where: Callable[[Num, Num, Num], Num]
    log2: Callable[[Num], Num]


def _choose(condition: Num, yes: Num, no: Num) -> Num:
    return yes if condition else no


SCALAR = Functions(maximum=max, minimum=min, ceil=math.ceil, where=_choose, log2=math.log2)
"""Plain numbers: no numpy call, a fraction of a microsecond each."""

ARRAY = Functions(maximum=np.maximum, minimum=np.minimum, ceil=np.ceil, where=np.where, log2=np.log2)
"""Numpy arrays, elementwise."""


def smooth_maximum(xp: Functions, first: Num, second: Num, sharpness: Num) -> Num:
    """Return ``(first^p + second^p)^(1/p)``: near the larger where they differ, above it where they meet.

    Args:
        xp: scalar or array functions.
        first: a time in seconds, >= 0.
        second: another time in seconds, >= 0; not both zero.
        sharpness: p >= 1; 1 = no overlap at all (the sum), infinity = perfect overlap (the maximum).

    Returns:
        Seconds, never below the larger argument. Imperfect overlap of computation and data movement.
    """
    high = xp.maximum(first, second)
    low = xp.minimum(first, second)
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness)


class KernelTime(NamedTuple):
    """Time of one kernel (all fields floats, or all arrays): total, its parts, and the work it does.

    ``seconds`` is launch plus the smooth maximum of compute and memory time; ``flops`` counts useful operations and
    ``bytes`` each operand moved once, so ``flops / seconds`` is what MFU and ``bytes / seconds`` what MBU is made of.
    """

    seconds: Num
    launch_s: Num
    compute_s: Num
    memory_s: Num
    flops: Num
    bytes: Num

    @property
    def bound(self) -> Num:
        """What limits it: ``"compute"``, ``"memory"`` or ``"latency"`` (the launch); a string, or an array of them."""
        if isinstance(self.seconds, np.ndarray):
            busy = np.where(self.compute_s >= self.memory_s, "compute", "memory")
            return np.where(self.launch_s >= np.maximum(self.compute_s, self.memory_s), "latency", busy)
        if self.launch_s >= self.compute_s and self.launch_s >= self.memory_s:
            return "latency"
        return "compute" if self.compute_s >= self.memory_s else "memory"


class CollectiveTime(NamedTuple):
    """Time of one collective: total, the part that is latency, the part that is transfer."""

    seconds: Num
    latency_s: Num
    transfer_s: Num


class AttentionShape(NamedTuple):
    """One attention layer as one chip sees it (heads already divided by tensor parallelism).

    Absorbed MLA is ``num_kv_heads=1, qk_dim=576, v_dim=512, kv_bytes_per_token=576 * bytes``.
    """

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    kv_bytes_per_token: float
    """Bytes of K and V (or of the latent) one token occupies in this layer on this chip."""
    dtype: str
    """Format of the KV cache."""


class Limits(NamedTuple):
    """The chip's limits a formula needs, as plain floats."""

    peak_flops: float
    cores: float
    bandwidth: float
    """Device memory, bytes/s."""
    on_chip_bytes: float
    on_chip_bandwidth: float
    """bytes/s."""
    multicast: float = 1.0
    """Neighbouring tiles that share one read of an operand (thread block clusters)."""
    asynchronous: bool = False
    """Whether copies run beside the arithmetic (Hopper and later: TMA, warp-specialised persistent kernels)."""
    vector_flops: float = 0.0
    """fp32 peak of the vector units, FLOP/s; 0 = not stated."""
    clock_hz: float = 0.0
    """Of the cores; 0 = not stated."""


T = TypeVar("T", KernelTime, CollectiveTime)
PLAIN = (int, float)
"""Classes of a single size; all others are arrays, or numbers of numpy."""


def all_plain(first: Num, second: Num, third: Num) -> bool:
    """Whether three sizes are plain numbers."""
    return first.__class__ in PLAIN and second.__class__ in PLAIN and third.__class__ in PLAIN


def evaluate(values: tuple[Num, ...], formula: Callable[..., T]) -> T:
    """Call a formula on numbers or on arrays broadcast together; where the product of all sizes is zero, so is the
    time."""
    if not any(isinstance(value, np.ndarray) for value in values):
        numbers = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
        if not all(number >= 0 for number in numbers):
            raise ProfileError(f"kernel sizes must be numbers >= 0, got {numbers}")
        if not all(numbers):
            result = formula(SCALAR, *(number or 1 for number in numbers))
            return type(result)(*(0.0 for _ in result))
        return formula(SCALAR, *numbers)
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    work = np.ones(arrays[0].shape, dtype=bool)
    for array in arrays:
        if not np.all(array >= 0):
            raise ProfileError(f"kernel sizes must be numbers >= 0, got {array[~(array >= 0)].flat[0]}")
        work &= array > 0
    result = formula(ARRAY, *(np.where(array > 0, array, 1.0) for array in arrays))
    return type(result)(*(np.where(work, part, 0.0) for part in result))
