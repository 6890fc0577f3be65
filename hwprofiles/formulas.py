"""Building blocks of the formulas: functions for numbers and arrays, chip limits, and kernel times with their parts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hwprofiles.dtypes import VARIANT
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
    log: Callable[[Num], Num]
    exp: Callable[[Num], Num]


def _choose(condition: Num, yes: Num, no: Num) -> Num:
    return yes if condition else no


SCALAR = Functions(maximum=max, minimum=min, ceil=math.ceil, where=_choose, log2=math.log2, log=math.log, exp=math.exp)
"""Functions for Python numbers, without numpy: each call takes a fraction of a microsecond."""

ARRAY = Functions(np.maximum, np.minimum, np.ceil, np.where, np.log2, np.log, np.exp)
"""Elementwise functions for numpy arrays."""


OPERATIONS: dict[str, Callable[..., Num]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "maximum": max,
    "minimum": min,
    "ceil": math.ceil,
    "where": _choose,
    "less": operator.lt,
    "at_most": operator.le,
    "both": lambda one, two: bool(one and two),
    "log": math.log,
    "log2": math.log2,
    "exp": math.exp,
    "equal": operator.eq,
    "floor_divide": operator.floordiv,
}
"""Operations that may be recorded, as computed for numbers; conditions evaluate to 1 or 0."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
"""Numbers of the operations in a recording."""


def _operator(operation: str, reflected: bool = False) -> Callable[[Any, Num], Any]:
    """Method of ``Traced`` that records an operation, with its operands exchanged if ``reflected``."""

    def applied(self: Traced, other: Num) -> Traced:
        return _traced(operation, other, self) if reflected else _traced(operation, self, other)

    return applied


class Traced:
    """A symbolic number that records the operations applied to it."""

    __slots__ = ("book", "place")

    def __init__(self, book: Any, place: int) -> None:
        self.book = book
        self.place = place

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", reflected=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", reflected=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", reflected=True)
    __pow__ = _operator("power")
    __lt__, __gt__ = _operator("less"), _operator("less", reflected=True)
    __le__, __ge__ = _operator("at_most"), _operator("at_most", reflected=True)
    __and__ = __rand__ = _operator("both")

    def __array_ufunc__(self, function: Any, method: str, *operands: Num, **_: Any) -> Num:
        return self.book.record(function.__name__, *operands) if method == "__call__" else operands[0]

    def __bool__(self) -> bool:
        raise TypeError("a formula of numbers that are not known yet cannot branch on them")


def _traced(operation: str, *operands: Num) -> Traced:
    """Record a step and return its symbolic result; operands are numbers or results of earlier steps."""
    book = next(operand.book for operand in operands if isinstance(operand, Traced))
    traced: Traced = book.record(operation, *operands)
    return traced


def look_up(source: Any, *arguments: Num) -> Num:
    """Return ``source(*arguments)``; if an argument is traced, record the call as one step."""
    for argument in arguments:
        if isinstance(argument, Traced):
            return argument.book.look_up(source, arguments)
    return source(*arguments)


def _unless_known(operation: str, plain: Callable[..., Num]) -> Callable[..., Num]:
    """Wrap a scalar function: calls with a traced operand are recorded, all others are evaluated."""

    def applied(*operands: Num) -> Num:
        known = not any(isinstance(operand, Traced) for operand in operands)
        return plain(*operands) if known else _traced(operation, *operands)

    return applied


TRACED = Functions(
    maximum=_unless_known("maximum", max),
    minimum=_unless_known("minimum", min),
    ceil=_unless_known("ceil", math.ceil),
    where=lambda condition, yes, no: (
        _traced("where", condition, yes, no) if isinstance(condition, Traced) else _choose(condition, yes, no)
    ),
    log2=_unless_known("log2", math.log2),
    log=_unless_known("log", math.log),
    exp=_unless_known("exp", math.exp),
)
"""Functions for traced numbers."""


def functions_of(value: Num) -> Functions:
    """Return the functions for the type of a value: number, array or traced number."""
    if value.__class__ in PLAIN:
        return SCALAR
    return TRACED if isinstance(value, Traced) else ARRAY


def smooth_maximum(xp: Functions, first: Num, second: Num, sharpness: Num) -> Num:
    """Return ``(first^p + second^p)^(1/p)``: close to the larger if the two differ, above it if they are similar.

    Imperfect overlap of computation and data movement, two times in seconds that are not both 0. ``sharpness`` p >= 1:
    1 = no overlap at all (the sum), infinity = perfect overlap (the maximum).

    >>> smooth_maximum(SCALAR, 3.0, 4.0, 2.0)
    5.0
    """
    high = xp.maximum(first, second)
    low = xp.minimum(first, second)
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness)


class KernelTime(NamedTuple):
    """Time of one kernel (all fields floats, or all arrays): total, parts of the total, and work.

    ``seconds`` is launch plus the smooth maximum of compute and memory time; ``flops`` counts useful operations and
    ``bytes`` counts each operand once, so MFU follows from ``flops / seconds`` and MBU from ``bytes / seconds``.
    """

    seconds: Num
    launch_s: Num
    compute_s: Num
    memory_s: Num
    flops: Num
    bytes: Num

    @property
    def bound(self) -> Num:
        """Limiting resource: ``"compute"``, ``"memory"`` or ``"latency"`` (the launch); a string or an array."""
        if isinstance(self.seconds, np.ndarray):
            busy = np.where(self.compute_s >= self.memory_s, "compute", "memory")
            return np.where(self.launch_s >= np.maximum(self.compute_s, self.memory_s), "latency", busy)
        if self.launch_s >= self.compute_s and self.launch_s >= self.memory_s:
            return "latency"
        return "compute" if self.compute_s >= self.memory_s else "memory"


def times_where(condition: Num, one: KernelTime, other: KernelTime) -> KernelTime:
    """The times of ``one`` where a condition holds, else those of ``other``; floats if all are numbers."""
    chosen = (np.where(condition, a, b) for a, b in zip(one, other, strict=True))
    return KernelTime(*(value if value.ndim else value.item() for value in chosen))


class CollectiveTime(NamedTuple):
    """Time of one collective: total, latency part and transfer part."""

    seconds: Num
    latency_s: Num
    transfer_s: Num


HEAD_SIZES = (64, 128, 192, 256, 512)
"""Head sizes that attention libraries compile kernels for; a set named by the format alone has head size 128."""
PLAIN_HEAD = "128"
"""Attention head size of parameter sets that are named by the format alone."""
WINDOWED = "w"
"""Suffix of the name of a kernel for sliding-window attention."""


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
    windowed: bool = False
    """True if the layer uses sliding-window attention."""
    source: str = ""
    """Kernel name if a library has several for a head size; empty = the library's default."""
    slots: int = 0
    """Sequence slots among which a decode kernel divides the cores, busy or not; 0 = only the running sequences."""
    expanded: tuple[int, int] | None = None
    """Absorbed MLA: key and value width per head after expanding the latent; None = the latent is never expanded."""

    @property
    def of_prompts(self) -> AttentionShape:
        """Shape of the layer in the prefill kernel. With few queries per key all heads share the MLA latent; with many,
        expanding it is cheaper (DeepSeek-V3, 128 heads: 320 multiplications per pair and head instead of 1,088).

        Source: vLLM's ``MLACommonImpl`` (compute-friendly and data-movement-friendly approaches), SGLang's ``MHA``
        forward methods of ``deepseek_v2.py``, TensorRT-LLM's ``MLA.forward_context``.
        """
        if self.expanded is None:
            return self
        keys, values = self.expanded
        stored = self.num_heads * (keys + values) * self.kv_bytes_per_token / self.qk_dim
        return self._replace(
            num_kv_heads=self.num_heads, qk_dim=keys, v_dim=values, kv_bytes_per_token=stored, expanded=None
        )

    @property
    def kernel(self) -> str:
        """Name of the layer's parameter set. Kernels are compiled for a few head sizes; a size between two of them uses
        the larger one. MLA, whose keys and values differ in width, has its own set; in some libraries, so have sliding
        windows.

        Head sizes and widths may be arrays if all elements select the same kernel.
        """
        keys, values = int(np.max(self.qk_dim)), int(np.max(self.v_dim))
        size = next((size for size in HEAD_SIZES if keys <= size), HEAD_SIZES[-1])
        name = "mla" if keys != values else f"{size}{WINDOWED if self.windowed else ''}"
        return VARIANT.join(part for part in (self.dtype, name, self.source) if part)


class Limits(NamedTuple):
    """Chip limits that a formula needs, as plain floats."""

    peak_flops: float
    cores: float
    bandwidth: float
    """Device memory bandwidth, bytes/s."""
    on_chip_bytes: float
    on_chip_bandwidth: float
    """Bandwidth of the on-chip store, bytes/s."""
    multicast: float = 1.0
    """Number of neighbouring tiles that share one read of an operand (thread block clusters)."""
    asynchronous: bool = False
    """True if copies overlap with arithmetic (Hopper and later: TMA, warp-specialised persistent kernels)."""
    vector_flops: float = 0.0
    """Operations per second of the vector units; 0 = not stated."""
    clock_hz: float = 0.0
    """Core clock in Hz; 0 = not stated."""
    memory_share: float = 1.0
    """Memory bandwidth of one core relative to an equal share, >= 1."""
    on_chip_share: float = 1.0
    """On-chip bandwidth of one core relative to an equal share, >= 1."""
    fitted_cores: float = math.inf
    """Core count of the chip that the fits come from; libraries can always split their work for that many cores."""
    exponentials: tuple[float, float] = (1.0, 1.0)
    """Exponentials of a core per clock cycle, of this chip and of the chip that the fits come from."""


def warm_reads(
    xp: Functions, limits: Limits, parameters: Any, size: Num, fade: float, bandwidth: float
) -> tuple[Num, Num]:
    """Cache hit rate of ``size`` bytes that were just read, and seconds per byte: hits come from the on-chip store.

    Operands up to ``warm_share`` of the store hit completely; larger cyclic reads evict their own data, and at ``fade``
    times that size the hit rate is 0.
    """
    kept = parameters.warm_share * limits.on_chip_bytes
    hit = xp.minimum(1.0, xp.maximum(0.0, (fade * kept - size) / ((fade - 1.0) * kept + 1e-9)))
    fast = max(limits.on_chip_bandwidth * parameters.warm_efficiency, bandwidth)
    return hit, hit / fast + (1.0 - hit) / bandwidth


T = TypeVar("T", KernelTime, CollectiveTime)
PLAIN = (int, float)
"""Types of a scalar size; other values are arrays, numpy scalars or traced numbers."""


def all_plain(first: Num, second: Num, third: Num) -> bool:
    """True if three sizes are plain numbers."""
    return first.__class__ in PLAIN and second.__class__ in PLAIN and third.__class__ in PLAIN


def evaluate_formula(values: tuple[Num, ...], formula: Callable[..., T]) -> T:
    """Evaluate a formula on numbers or on arrays with broadcasting. The time is zero if any size is zero."""
    if any(isinstance(value, Traced) for value in values):
        return formula(TRACED, *values)
    if not any(isinstance(value, np.ndarray) for value in values):
        numbers = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
        if not all(number >= 0 for number in numbers):
            raise ProfileError(f"kernel sizes must be numbers >= 0, got {numbers}")
        if not all(numbers):
            result = formula(SCALAR, *(number or 1 for number in numbers))
            return type(result)(*(0.0 for _ in result))
        return formula(SCALAR, *numbers)
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    least = np.minimum.reduce(arrays)
    if not (least >= 0).all():
        array = next(array for array in arrays if not np.all(array >= 0))
        raise ProfileError(f"kernel sizes must be numbers >= 0, got {array[~(array >= 0)].flat[0]}")
    work = least > 0
    if work.all():
        result = formula(ARRAY, *arrays)
        return type(result)(*(np.full(work.shape, float(part)) if np.ndim(part) == 0 else part for part in result))
    result = formula(ARRAY, *(np.where(array > 0, array, 1.0) for array in arrays))
    return type(result)(*(np.where(work, part, 0.0) for part in result))
