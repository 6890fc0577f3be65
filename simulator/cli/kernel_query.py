"""One line of a canonical kernel trace (op plus its columns) to the time of that kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hwprofiles import AttentionShape, KernelLibrary, dtype_bytes, load_chip, load_link
from simulator.errors import ForerunError, did_you_mean

Shape = dict[str, Any]
"""Column to size (int), word (str) or None where it has neither."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


class Columns(NamedTuple):
    """Columns of an op: sizes that must be given, sizes and words with a default."""

    sizes: tuple[str, ...]
    defaults: Mapping[str, int | str | None]


_ATTENTION = Columns(
    ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"),
    {"dtype": "bf16", "kv_dtype": None, "window": None},
)
OPS: dict[str, Columns] = {
    "gemm": Columns(("m", "n", "k"), {"dtype": "bf16"}),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "moe": Columns(
        ("tokens", "num_experts", "experts_per_token", "hidden", "intermediate"),
        {"dtype": "bf16", "expert_parallel": 1},
    ),
    **dict.fromkeys(COLLECTIVES, Columns(("message_bytes", "world_size"), {"link": None})),
}
"""The canonical kernel trace's ops and columns."""

WORDS = ("dtype", "kv_dtype", "link")


def read_shape(op: str, values: Sequence[str]) -> Shape:
    """Parse ``KEY=VALUE`` texts into the columns of ``op``, defaults filled in.

    Raises:
        ForerunError: an unknown op or key, a key twice or without ``=``, a size that is not a whole number >= 1, or
            one that is missing.
    """
    columns = columns_of(op)
    known = (*columns.sizes, *columns.defaults)
    shape: Shape = dict.fromkeys(columns.sizes) | dict(columns.defaults)
    given = set()
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise ForerunError(f"{op}: '{text}' is not KEY=VALUE, e.g. {known[0]}=16")
        if key not in known:
            raise ForerunError(f"{op}: no column '{key}'{did_you_mean(key, known)} (columns: {', '.join(known)})")
        if key in given:
            raise ForerunError(f"{op}: {key} is given twice")
        given.add(key)
        shape[key] = value if key in WORDS else _size(op, key, value)
    missing = [key for key in columns.sizes if key not in given]
    if missing:
        raise ForerunError(f"{op}: {', '.join(missing)} missing, e.g. {' '.join(f'{key}=16' for key in missing)}")
    return shape


def columns_of(op: str) -> Columns:
    """The columns of ``op``.

    Raises:
        ForerunError: no such op.
    """
    if op not in OPS:
        raise ForerunError(f"no kernel '{op}'{did_you_mean(op, OPS)} (one of {', '.join(OPS)})")
    return OPS[op]


def _size(op: str, key: str, text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if not 1 <= size <= 10**15:
        raise ForerunError(f"{op}: {key}={text}: a whole number from 1 to 1e15 is needed")
    return size


def kernel_document(chip: str, library: str, op: str, shape: Shape) -> dict[str, Any]:
    """Time of one kernel and what it rests on, as the JSON of ``forerun predict``.

    Raises:
        ForerunError: attention whose heads or lengths do not fit together, a collective of a chip without a link.
        hwprofiles.ProfileError: unknown chip, link or dtype, or one the chip cannot compute in.
    """
    kernels = KernelLibrary(load_chip(chip), library)
    head = {"op": op, "chip": kernels.chip.name, "library": library, "shape": shape}
    if op in COLLECTIVES:
        return head | _collective(kernels, op, shape)
    run, family, dtype = _KERNELS[op]
    time = run(kernels, op, shape)
    return head | {
        "seconds": time.seconds,
        "bound": time.bound,
        "launch_s": time.launch_s,
        "compute_s": time.compute_s,
        "memory_s": time.memory_s,
        "flops": time.flops,
        "bytes": time.bytes,
        "flops_per_s": time.flops / time.seconds if time.seconds else None,
        "bytes_per_s": time.bytes / time.seconds if time.seconds else None,
        "basis": kernels.basis(family, str(shape[dtype] or shape["dtype"])),
    }


def _gemm(kernels: KernelLibrary, op: str, shape: Shape) -> Any:
    return kernels.gemm(shape["m"], shape["n"], shape["k"], dtype=shape["dtype"])


def _moe(kernels: KernelLibrary, op: str, shape: Shape) -> Any:
    if _int(shape, "experts_per_token") > _int(shape, "num_experts"):
        raise ForerunError(
            f"moe: experts_per_token={shape['experts_per_token']} exceeds num_experts={shape['num_experts']}"
        )
    return kernels.moe(**shape)


def _attention(kernels: KernelLibrary, op: str, shape: Shape) -> Any:
    batch, q_len, kv_len = (_int(shape, key) for key in ("batch", "q_len", "kv_len"))
    heads, kv_heads, head_dim = (_int(shape, key) for key in ("num_heads", "num_kv_heads", "head_dim"))
    if heads % kv_heads:
        raise ForerunError(f"{op}: num_heads={heads} is not a multiple of num_kv_heads={kv_heads}")
    if q_len > kv_len:
        raise ForerunError(f"{op}: q_len={q_len} exceeds kv_len={kv_len}, which counts cached and new tokens")
    window = None if shape["window"] is None else _int(shape, "window")
    kv_dtype = str(shape["kv_dtype"] or shape["dtype"])
    layer = AttentionShape(
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        kv_bytes_per_token=2 * kv_heads * head_dim * dtype_bytes(kv_dtype),
        dtype=kv_dtype,
    )
    read_tokens = batch * tokens_read(q_len, kv_len, window)
    if op == "attention_decode":
        return kernels.attention_decode(layer, seqs=batch, q_len=q_len, kv_tokens=read_tokens)
    return kernels.attention_prefill(
        layer,
        seqs=batch,
        q_tokens=batch * q_len,
        pairs=batch * admitted_pairs(q_len, kv_len, window),
        kv_tokens=read_tokens,
    )


def admitted_pairs(q_len: int, kv_len: int, window: int | None) -> int:
    """Pairs (query, key) of one sequence that a causal mask, and a sliding window if any, admits.

    The last ``q_len`` of ``kv_len`` tokens are the queries; the query at position p (from 1) sees min(p, window) keys.
    """
    if window is None or window >= kv_len:
        return q_len * (kv_len - q_len) + q_len * (q_len + 1) // 2
    first = kv_len - q_len + 1
    growing = max(0, window - first)
    return growing * (first + window - 1) // 2 + (q_len - growing) * window


def tokens_read(q_len: int, kv_len: int, window: int | None) -> int:
    """Tokens of one sequence whose K and V some query of the step can see."""
    return kv_len if window is None else min(kv_len, window + q_len - 1)


def _collective(kernels: KernelLibrary, op: str, shape: Shape) -> dict[str, Any]:
    chip = kernels.chip
    name = shape["link"] or chip.links.scale_up
    if name is None:
        raise ForerunError(f"{op}: chip '{chip.name}' has no scale-up link of its own; add link=NAME")
    if _int(shape, "world_size") < 2:
        raise ForerunError(f"{op}: world_size={shape['world_size']}: a collective needs 2 chips or more")
    time = kernels.collective(op, shape["message_bytes"], _int(shape, "world_size"), load_link(str(name)))
    return {
        "shape": shape | {"link": str(name)},
        "seconds": time.seconds,
        "bound": "latency" if time.latency_s >= time.transfer_s else "interconnect",
        "latency_s": time.latency_s,
        "transfer_s": time.transfer_s,
        "flops": None,
        "bytes": shape["message_bytes"],
        "basis": kernels.basis("collective", "any"),
    }


def _int(shape: Shape, key: str) -> int:
    value = shape[key]
    assert isinstance(value, int)
    return value


_Kernel = Callable[[KernelLibrary, str, Shape], Any]
_KERNELS: dict[str, tuple[_Kernel, str, str]] = {
    "gemm": (_gemm, "gemm", "dtype"),
    "attention_prefill": (_attention, "attention_prefill", "kv_dtype"),
    "attention_decode": (_attention, "attention_decode", "kv_dtype"),
    "moe": (_moe, "moe", "dtype"),
}
"""op -> how it is asked for, its parameter family, and the column of its stored operand's dtype."""
