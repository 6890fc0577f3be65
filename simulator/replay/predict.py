"""Predicted seconds for every row of a kernel table, by groups of rows that differ in sizes only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.errors import ForerunError
from hwprofiles import BASES, AttentionShape, KernelLibrary, KernelTime, ProfileError, dtype_bytes, load_link
from hwprofiles.dtypes import VARIANT, format_of
from hwprofiles.formulas import ARRAY, HEAD_SIZES
from hwprofiles.kernels.attention import attention_pairs, windowed_length
from hwprofiles.kernels.recurrent import RecurrentShape
from simulator.replay.modules import Modules
from traces.kernels import COLLECTIVES, OTHER, KernelTable, kernel_class
from traces.kernels.table import IndexArray, equal_rows

FloatArray = NDArray[np.float64]

REGIMES = ("latency", "memory", "compute")
"""Resources that bound a kernel; a collective is bound by latency or by the link, which counts as memory."""
COPY, CONVOLUTION = "copy", "convolution "
FAMILIES = {
    "gemm": "gemm",
    "attention_prefill": "attention_prefill",
    "attention_decode": "attention_decode",
    "attention_mixed": "attention_prefill",
    "moe": "moe",
    "elementwise": "elementwise",
    "recurrent_prefill": "recurrent_prefill",
    "recurrent_decode": "recurrent_decode",
    "sparse_prefill": "sparse_prefill",
    "sparse_decode": "sparse_decode",
    **dict.fromkeys(COLLECTIVES, "collective"),
}
"""Operation of a trace -> family of kernel parameters."""


MOE_SIZES = (
    "tokens",
    "num_experts",
    "experts_per_token",
    "hidden",
    "intermediate",
    "expert_parallel",
    "tensor_parallel",
)


class Operand(NamedTuple):
    """Key of a parameter set and peak: family, formats of the stored operand and of the math, cached or not."""

    family: str
    stored: str
    math: str
    warm: bool


@dataclass(slots=True)
class Prediction:
    """One value per row of a table; NaN or code -1 where a row cannot be predicted.

    Attributes:
        seconds: predicted.
        regime: code into ``REGIMES``.
        basis: code into ``BASES``.
        flops: useful operations.
        bytes: every operand moved once (a collective: what leaves one chip at least).
        warm: whether operands may already be on the chip.
        peak_flops: dense peak of the math, FLOP/s.
        low, high: ends of the 90 % interval as factors on ``seconds``; NaN where none is known.
        launch_s, compute_s, memory_s: the parts physics adds up.
        refused: reason -> rows that cannot be predicted.
    """

    seconds: FloatArray
    regime: NDArray[np.int8]
    basis: NDArray[np.int8]
    flops: FloatArray
    bytes: FloatArray
    warm: NDArray[np.bool_]
    peak_flops: FloatArray
    low: FloatArray
    high: FloatArray
    launch_s: FloatArray
    compute_s: FloatArray
    memory_s: FloatArray
    refused: dict[str, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> Prediction:
        """Nothing predicted yet."""
        numbers: dict[str, Any] = {
            item.name: np.full(rows, np.nan)
            for item in fields(cls)
            if item.name not in ("regime", "basis", "warm", "refused")
        }
        code = np.full(rows, -1, dtype=np.int8)
        return cls(regime=code, basis=code.copy(), warm=np.zeros(rows, dtype=bool), **numbers)

    def put(self, rows: IndexArray, time: KernelTime, basis: str, peak: float, warm: bool) -> None:
        """Fill in ``rows``."""
        self.seconds[rows] = time.seconds
        self.launch_s[rows] = time.launch_s
        self.compute_s[rows] = time.compute_s
        self.memory_s[rows] = time.memory_s
        self.flops[rows] = time.flops
        self.bytes[rows] = time.bytes
        self.peak_flops[rows] = peak
        self.warm[rows] = warm
        self.basis[rows] = BASES.index(basis)
        bound = np.asarray(time.bound)
        self.regime[rows] = np.select([bound == name for name in REGIMES], list(range(len(REGIMES))), -1)

    def where(self, rows: NDArray[Any]) -> Prediction:
        """The prediction of some rows."""
        parts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "refused"}
        return Prediction(**{name: values[rows] for name, values in parts.items()}, refused=dict(self.refused))

    def refuse(self, reason: str, rows: int) -> None:
        """Count rows that cannot be predicted."""
        self.refused[reason] = self.refused.get(reason, 0) + rows


def predict_table(table: KernelTable, kernels: KernelLibrary) -> Prediction:
    """Predict every row; rows that cannot be are counted in ``refused`` with their reason.

    Raises:
        ForerunError: collectives on a chip without a scale-up link.
    """
    result = Prediction.empty(len(table))
    op = table.word("op")
    for code, name in enumerate(op.names):
        rows = np.flatnonzero(op.codes == code)
        if not len(rows):
            continue
        if name == OTHER:
            _refuse_others(table, rows, result)
        elif name in COLLECTIVES:
            _collective(table, kernels, name, rows, result)
        else:
            _PREDICTORS[name](table, kernels, rows, result)
    return result


def _refuse_others(table: KernelTable, rows: IndexArray, result: Prediction) -> None:
    names = table.word("name")
    kinds = [kernel_class(name) for name in names.names]
    for kind in sorted(set(kinds)):
        count = int(np.isin(names.codes[rows], [code for code, other in enumerate(kinds) if other == kind]).sum())
        if count:
            result.refuse(f"{kind} kernel without a shape", count)


def _by(table: KernelTable, rows: IndexArray, words: tuple[str, ...], *numbers: NDArray[np.int64]) -> list[IndexArray]:
    columns: list[NDArray[Any]] = [table.word(name).codes[rows] for name in words]
    columns += [column[rows] for column in numbers]
    return [rows[part] for part in equal_rows(columns)]


def _text(table: KernelTable, name: str, row: Any) -> str:
    column = table.word(name)
    return str(column.names[column.codes[row]])


def _floats(table: KernelTable, name: str, rows: IndexArray) -> FloatArray:
    return table.size(name)[rows].astype(np.float64)


def _gemm(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    for part in _by(table, rows, ("dtype", "cache")):
        dtype = _text(table, "dtype", part[0])
        run = partial(gemm_rows, table, kernels, part)
        _guarded(result, part, run, kernels, Operand("gemm", dtype, dtype, _text(table, "cache", part[0]) != "cold"))


def gemm_rows(table: KernelTable, kernels: KernelLibrary, rows: IndexArray) -> KernelTime:
    """Times of matrix products of one format."""
    m, n, k = (_floats(table, name, rows) for name in ("m", "n", "k"))
    return kernels.gemm(m, n, k, dtype=_text(table, "dtype", rows[0]))


def _attention(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    uneven = table.size("num_heads")[rows] % np.maximum(1, table.size("num_kv_heads")[rows]) != 0
    if uneven.any():
        result.refuse("query heads are no multiple of the KV heads", int(uneven.sum()))
        rows = rows[~uneven]
    for part in _by(table, rows, ("op", "dtype", "kv_dtype", "cache", "source"), attention_kernels(table)):
        dtype = _text(table, "dtype", part[0])
        stored = stored_attention(table, part[0])
        warm = _text(table, "cache", part[0]) == "warm"
        run = partial(attention_rows, table, kernels, part)
        _guarded(result, part, run, kernels, Operand(FAMILIES[_text(table, "op", part[0])], stored, dtype, warm))


def attention_rows(table: KernelTable, kernels: KernelLibrary, rows: IndexArray) -> KernelTime:
    """Times of attention of one operation, format and cache state; see ``attention_call``."""
    return attention_call(table, rows)(kernels)


def attention_call(table: KernelTable, rows: IndexArray) -> Callable[[KernelLibrary], KernelTime]:
    """What asks a library for the times of attention of one operation, format and cache state: a fit asks thousands of
    times, and what the rows say stays as it is.

    Raises:
        hwprofiles.ProfileError: the format of the KV cache is not known.
    """
    op = _text(table, "op", rows[0])
    warm = _text(table, "cache", rows[0]) == "warm"
    shape = attention_shapes(table, rows)
    batch, q_len, kv_len, window = (_floats(table, name, rows) for name in ("batch", "q_len", "kv_len", "window"))
    read = batch * windowed_length(ARRAY, q_len, kv_len, window)
    total = _floats(table, "kv_tokens", rows)
    read = np.where(total > 0, total, read)
    longest, many = _floats(table, "longest_kv", rows), np.maximum(1.0, _floats(table, "longest_batch", rows))
    if op == "attention_decode":
        plain: dict[str, Any] = {"seqs": batch, "q_len": q_len, "kv_tokens": read, "warm": warm}
        return lambda kernels: kernels.attention_decode(
            shape, **plain, tail_kv=tail_keys(kernels, shape, longest, many, batch, read)
        )
    pairs = batch * attention_pairs(ARRAY, q_len, kv_len, window)
    chunks: dict[str, Any] = {"seqs": batch, "q_tokens": batch * q_len, "pairs": pairs, "kv_tokens": read}
    if op == "attention_prefill":
        return lambda kernels: kernels.attention_prefill(shape, **chunks)
    seqs, context = _floats(table, "decode_batch", rows), _floats(table, "decode_kv_len", rows)
    total = _floats(table, "decode_kv_tokens", rows)
    tokens = np.where(total > 0, total, seqs * windowed_length(ARRAY, np.ones(len(rows)), context, window))
    chunks |= {"decode_seqs": seqs, "decode_kv_tokens": tokens, "warm": warm, "longest_kv": longest}
    return lambda kernels: kernels.attention_mixed(
        shape, **chunks, tail_kv=tail_keys(kernels, shape, longest, many, seqs, tokens)
    )


def tail_keys(
    kernels: KernelLibrary,
    shape: AttentionShape,
    longest: FloatArray,
    many: FloatArray,
    seqs: FloatArray,
    tokens: FloatArray,
) -> FloatArray:
    """KV length of the longest sequence beyond the mean of those that end alone, in batches of two lengths.

    Args:
        kernels: kernel library of the chip.
        shape: of the layers, an array for every number.
        longest: the larger length; 0 = all alike.
        many: sequences that long.
        seqs: sequences.
        tokens: their KV lengths, total.
    """
    if not longest.any():
        return np.zeros(len(longest))
    alone = np.maximum(1e-9, kernels.tail_sequences(shape))
    short = (tokens - many * longest) / np.maximum(1.0, seqs - many)
    difference = np.where((longest > 0) & (many < seqs), np.maximum(0.0, longest - short), 0.0)
    beyond: FloatArray = difference * np.maximum(0.0, alone - many) / alone
    return beyond


def attention_kernels(table: KernelTable) -> NDArray[np.int64]:
    """A number for every row, the same where one attention kernel of a format serves them."""
    size = np.searchsorted(HEAD_SIZES, np.minimum(table.size("head_dim"), HEAD_SIZES[-1]))
    value = table.size("v_head_dim")
    latent = (value > 0) & (value != table.size("head_dim"))
    return np.where(latent, -1, 2 * size + (table.size("window") > 0))


def stored_attention(table: KernelTable, row: Any) -> str:
    """The parameter set of a row's attention."""
    return attention_shapes(table, np.array([row])).kernel


def attention_shapes(table: KernelTable, rows: IndexArray) -> AttentionShape:
    """The layers of some rows that one kernel serves, with an array for every number."""
    heads, kv_heads = (_floats(table, name, rows) for name in ("num_heads", "num_kv_heads"))
    head_dim, v_dim, latent = (_floats(table, name, rows) for name in ("head_dim", "v_head_dim", "latent"))
    kv_dtype = _text(table, "kv_dtype", rows[0]) or _text(table, "dtype", rows[0])
    width = np.where(v_dim > 0, v_dim, head_dim)
    stored = kv_heads * np.where(latent > 0, head_dim, head_dim + width)
    windowed, source = bool(table.size("window")[rows[0]] > 0), _text(table, "source", rows[0])
    shape: Any = (heads, kv_heads, head_dim, width, stored * dtype_bytes(kv_dtype), kv_dtype, windowed, source)
    return AttentionShape(*shape)


def _moe(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    many = table.size("experts_per_token")[rows] > table.size("num_experts")[rows]
    if many.any():
        result.refuse("more experts per token than experts", int(many.sum()))
        rows = rows[~many]
    gated = (table.size("projections") != 2).astype(np.int64)
    known = (table.size("activated_experts") > 0).astype(np.int64)
    for part in _by(table, rows, ("dtype", "distribution", "source"), gated, known):
        dtype = _text(table, "dtype", part[0])
        run = partial(moe_rows, table, kernels, part)
        _guarded(result, part, run, kernels, Operand("moe", stored_format(table, part[0]), dtype, True))
        if _text(table, "distribution", part[0]) not in ("balanced", ""):
            result.bytes[part] = 0.0  # uneven routing may touch fewer experts than expected: no lower bound


def stored_format(table: KernelTable, row: Any) -> str:
    """The format of a row's experts, with the kernel that served them where the trace names it."""
    dtype, source = _text(table, "dtype", row), _text(table, "source", row)
    return f"{dtype}{VARIANT}{source}" if source else dtype


def moe_rows(table: KernelTable, kernels: KernelLibrary, rows: IndexArray) -> KernelTime:
    """Times of routed feed-forwards of one format, all gated or none, all with known activated experts or none."""
    active = _floats(table, "activated_experts", rows)
    sizes: dict[str, Any] = {name: _floats(table, name, rows) for name in MOE_SIZES}
    for name in ("expert_parallel", "tensor_parallel"):
        sizes[name] = np.maximum(1.0, sizes[name])
    return kernels.moe(
        **sizes,
        dtype=_text(table, "dtype", rows[0]),
        gated=bool(table.size("projections")[rows[0]] != 2),
        active_experts=active if active[0] > 0 else None,
        routing=_text(table, "distribution", rows[0]) or "uniform",
        kernel=_text(table, "source", rows[0]),
    )


def _elementwise(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    for part in _by(table, rows, ("cache", "dtype", "name")):
        run = partial(pass_rows, table, kernels, part)
        stored = stored_pass(table, part[0])
        _guarded(
            result, part, run, kernels, Operand("elementwise", stored, "bf16", _text(table, "cache", part[0]) != "cold")
        )


def stored_pass(table: KernelTable, row: Any) -> str:
    """The parameter set of a memory-bound pass: ``any``, that of plain copies, which compute nothing, or that of the
    convolution before a recurrence."""
    name = _text(table, "name", row)
    if name.startswith(CONVOLUTION):
        return f"any{VARIANT}{name.removeprefix(CONVOLUTION)}"
    return f"any{VARIANT}{COPY}" if kernel_class(name) == COPY else "any"


def pass_rows(table: KernelTable, kernels: KernelLibrary, rows: IndexArray) -> KernelTime:
    """Times of memory-bound passes of one kind, format and cache state."""
    width = dtype_bytes(_text(table, "dtype", rows[0]) or "bf16")
    warm = _text(table, "cache", rows[0]) == "warm"
    kernel = stored_pass(table, rows[0]).partition(VARIANT)[2]
    moved, pieces = _floats(table, "bytes_moved", rows), _floats(table, "pieces", rows)
    return kernels.elementwise(moved, warm=warm, element_bytes=width, pieces=pieces, kernel=kernel)


def _recurrent(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    for part in _by(table, rows, ("op", "dtype", "cache", "name")):
        op, dtype, cache = (_text(table, name, part[0]) for name in ("op", "dtype", "cache"))
        run = partial(recurrent_rows, table, kernels, part)
        _guarded(result, part, run, kernels, Operand(op, stored_recurrent(table, part[0]), dtype, cache == "warm"))


def stored_recurrent(table: KernelTable, row: Any) -> str:
    """The parameter set of a recurrent layer: of its format, and of its kernel where that is not the delta rule's."""
    dtype, name = _text(table, "dtype", row), _text(table, "name", row)
    return f"{dtype}{VARIANT}{name}" if name not in ("", "gdn") else dtype


def recurrent_rows(table: KernelTable, kernels: KernelLibrary, rows: IndexArray) -> KernelTime:
    """Times of scans or of updates of recurrent layers, of one format and cache state."""
    batch, q_len, heads, key_heads = (_floats(table, n, rows) for n in ("batch", "q_len", "num_heads", "num_kv_heads"))
    key, value = _floats(table, "head_dim", rows), _floats(table, "v_head_dim", rows)
    shape = RecurrentShape(key_heads, heads, key, np.where(value > 0, value, key), stored_recurrent(table, rows[0]))
    warm = _text(table, "cache", rows[0]) == "warm"
    if _text(table, "op", rows[0]) == "recurrent_prefill":
        return kernels.recurrent_prefill(shape, seqs=batch, q_tokens=batch * q_len)
    return kernels.recurrent_decode(shape, seqs=batch, q_len=q_len, warm=warm)


def _sparse(table: KernelTable, kernels: KernelLibrary, rows: IndexArray, result: Prediction) -> None:
    for part in _by(table, rows, ("op", "dtype", "kv_dtype", "name")):
        op, dtype = (_text(table, name, part[0]) for name in ("op", "dtype"))
        try:
            beyond = Modules(table, part, kernels).beyond_memory
            if beyond.any():
                result.refuse("more KV than the chip's memory holds in all layers of the model", int(beyond.sum()))
                part = part[~beyond]
            modules = Modules(table, part, kernels) if len(part) else None
        except ForerunError as error:
            result.refuse(str(error), len(part))
            continue
        if modules is not None:
            operand = Operand(op, stored_sparse(table, part[0]), dtype, True)
            _guarded(result, part, partial(modules.times, kernels), kernels, operand)


def stored_sparse(table: KernelTable, row: Any) -> str:
    """The parameter set of a sparse module: of its KV format and its rule."""
    kind = _text(table, "name", row).rpartition(" ")[2]
    return f"{_text(table, 'kv_dtype', row)}{VARIANT}{kind.removesuffix('-shared')}"


def _collective(table: KernelTable, kernels: KernelLibrary, op: str, rows: IndexArray, result: Prediction) -> None:
    name = kernels.chip.links.scale_up
    if name is None:
        raise ForerunError(f"chip '{kernels.chip.name}' has no scale-up link, so '{op}' rows cannot be predicted")
    link = load_link(name)
    for part in _by(table, rows, (), table.size("world_size")):
        world = int(table.size("world_size")[part[0]])
        if world < 2:
            result.refuse("collective of one chip", len(part))
            continue
        size = _floats(table, "message_bytes", part)
        time = kernels.collective(op, size, world, link)
        share = 1.0 if op == "send_recv" else (world - 1) / world
        light = size * share * kernels.chip.memory.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
        as_kernel = KernelTime(time.seconds, time.latency_s, 0.0 * size, time.transfer_s, 0.0 * size, light)
        result.put(part, as_kernel, kernels.basis("collective", "any"), 1.0, False)


def _guarded(
    result: Prediction, rows: IndexArray, run: Callable[[], KernelTime], kernels: KernelLibrary, operand: Operand
) -> None:
    """Predict ``rows``; a format that this chip cannot compute with is a reason to refuse them, not an error."""
    try:
        time = run()
        formats = {operand.math, format_of(operand.stored)} - {"any"}
        peak = max(kernels.chip.peak_flops(name) for name in formats)
        basis = kernels.basis(operand.family, operand.stored)
    except ProfileError:
        result.refuse(f"{kernels.chip.name} cannot compute in {operand.math}", len(rows))
        return
    result.put(rows, time, basis, peak, operand.warm)


_PREDICTORS: dict[str, Callable[[KernelTable, KernelLibrary, IndexArray, Prediction], None]] = {
    "gemm": _gemm,
    "attention_prefill": _attention,
    "attention_decode": _attention,
    "attention_mixed": _attention,
    "moe": _moe,
    "elementwise": _elementwise,
    "recurrent_prefill": _recurrent,
    "recurrent_decode": _recurrent,
    "sparse_prefill": _sparse,
    "sparse_decode": _sparse,
}
