"""The table of kernel operations: columns, the library call that prices them, and the fitted parameter set.

``predict_kernel`` reads one row of it from text; replay and calibration read the columns of a kernel trace as arrays.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from forerun.errors import warn_renamed
from hwprofiles.catalogue import load_chip
from hwprofiles.choice import BASES
from hwprofiles.dtypes import DTYPES, VARIANT, dtype_bytes, format_of
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import AttentionShape, KernelTime, Num, functions_of
from hwprofiles.kernels.attention import attention_pairs, windowed_length
from hwprofiles.kernels.moe import DISPATCHED, read_routing
from hwprofiles.kernels.movement import OPERATIONS as COLLECTIVES
from hwprofiles.kernels.recurrent import RecurrentShape
from hwprofiles.library import CORRECTED, KernelLibrary
from hwprofiles.schema import Chip

KernelRow = Mapping[str, Any]
"""Columns of a kernel trace: sizes as numbers or as arrays, texts that are the same for all rows."""
PriceCall = Callable[[KernelLibrary], KernelTime]
COPY, CONVOLUTION = "copy", "convolution "
"""Names of elementwise kernels with a parameter set of their own: plain copies, and convolutions of a rule."""
NEEDED = object()
"""Default of a column that must be given."""


class _Column(NamedTuple):
    """A column as an argument of ``predict_kernel``: numbers have a smallest value, texts the allowed ones."""

    default: object = NEEDED
    lowest: int = 1
    whole: bool = True
    allowed: Collection[str] = ()
    noun: str = ""
    """Noun for an allowed text; empty = any text, or a number."""


class _Operation(NamedTuple):
    """One operation of a kernel trace."""

    family: str
    """Family of kernel parameters that a calibration fits."""
    columns: Mapping[str, _Column]
    call: Callable[[KernelRow], PriceCall]
    """Function from columns to the library call that prices the rows."""
    stored: Callable[[KernelRow], str]
    """Name of the parameter set by columns: format of the stored operand, and of the kernel if it has one."""
    words: tuple[str, ...]
    """Text columns on which the call depends."""
    held: tuple[str, ...] = ()
    """Values of ``cache`` at which operands may still be on the chip."""
    check: Callable[[str, KernelRow], None] = lambda op, row: None
    """Refuses sizes that contradict each other."""


def attention_shape(row: KernelRow) -> AttentionShape:
    """Layer shape from rows that one attention kernel serves; each number may be an array."""
    xp, kv_heads, head_dim, v_dim = functions_of(row["batch"]), row["num_kv_heads"], row["head_dim"], row["v_head_dim"]
    kv_dtype = row["kv_dtype"] or row["dtype"]
    width = xp.where(v_dim > 0, v_dim, head_dim)
    elements = kv_heads * xp.where(row["latent"] > 0, head_dim, head_dim + width)
    windowed = bool(np.max(row["window"]) > 0)
    stored = elements * dtype_bytes(kv_dtype)
    return AttentionShape(row["num_heads"], kv_heads, head_dim, width, stored, kv_dtype, windowed, row["source"])


def _attention(op: str) -> Callable[[KernelRow], PriceCall]:
    """Library call of one attention operation: sizes are computed once, because a fit repeats the call often."""

    def call(row: KernelRow) -> PriceCall:
        shape, xp, warm = attention_shape(row), functions_of(row["batch"]), row["cache"] == "warm"
        batch, q_len, kv_len, window = row["batch"], row["q_len"], row["kv_len"], row["window"]
        read = batch * windowed_length(xp, q_len, kv_len, window)
        read = xp.where(row["kv_tokens"] > 0, row["kv_tokens"], read)
        longest, many = row["longest_kv"], xp.maximum(1.0, row["longest_batch"])
        if op == "decode":
            return lambda kernels: kernels.attention_decode(
                shape, seqs=batch, q_len=q_len, kv_tokens=read, warm=warm,
                tail_kv=_tail_keys(kernels, shape, longest, many, batch, read),
            )  # fmt: skip
        pairs = batch * attention_pairs(xp, q_len, kv_len, window)
        chunks: dict[str, Num] = {"seqs": batch, "q_tokens": batch * q_len, "pairs": pairs, "kv_tokens": read}
        if op == "prefill":
            return lambda kernels: kernels.attention_prefill(shape, **chunks)
        seqs, total = row["decode_batch"], row["decode_kv_tokens"]
        tokens = xp.where(total > 0, total, seqs * windowed_length(xp, 0.0 * seqs + 1.0, row["decode_kv_len"], window))
        chunks |= {"decode_seqs": seqs, "decode_kv_tokens": tokens, "warm": warm, "longest_kv": longest}
        return lambda kernels: kernels.attention_mixed(
            shape, **chunks, tail_kv=_tail_keys(kernels, shape, longest, many, seqs, tokens)
        )

    return call


def _tail_keys(kernels: KernelLibrary, shape: AttentionShape, longest: Num, many: Num, seqs: Num, tokens: Num) -> Num:
    """Excess of the ``many`` sequences of length ``longest`` over the mean of the ``tail_sequences`` longest."""
    if not np.any(longest):
        return 0.0 * longest
    alone = np.maximum(1e-9, kernels.tail_sequences(shape))
    short = (tokens - many * longest) / np.maximum(1.0, seqs - many)
    difference = np.where((longest > 0) & (many < seqs), np.maximum(0.0, longest - short), 0.0)
    return difference * np.maximum(0.0, alone - many) / alone


def _check_attention(op: str, row: KernelRow) -> None:
    _check_heads(op, row)
    if row["q_len"] > row["kv_len"]:
        raise ProfileError(
            f"{op}: kv_len={row['kv_len']} is below q_len={row['q_len']}; it counts cached and new tokens"
        )


def _check_heads(op: str, row: KernelRow) -> None:
    if row["num_heads"] % row["num_kv_heads"]:
        raise ProfileError(
            f"{op}: num_heads={row['num_heads']} is not a multiple of num_kv_heads={row['num_kv_heads']}"
        )


def _moe(row: KernelRow) -> PriceCall:
    xp = functions_of(row["tokens"])
    sizes = {name: row[name] for name in ("tokens", "num_experts", "experts_per_token", "hidden", "intermediate")}
    sizes |= {name: xp.maximum(1.0, row[name]) for name in ("expert_parallel", "tensor_parallel")}
    return lambda kernels: kernels.moe(
        **sizes,
        dtype=row["dtype"],
        gated=bool(np.max(row["projections"]) != 2),
        active_experts=row["active_experts"] if np.any(row["active_experts"]) else None,
        routing=row["routing"] or "uniform",
        kernel=row["source"],
        dispatched=row["source"].startswith(DISPATCHED),
    )


def _check_moe(op: str, row: KernelRow) -> None:
    experts, chosen, parallel = row["num_experts"], row["experts_per_token"], row["expert_parallel"]
    if chosen > experts:
        raise ProfileError(f"{op}: experts_per_token={chosen} exceeds num_experts={experts}")
    if experts % parallel:
        raise ProfileError(f"{op}: num_experts={experts} is not a multiple of expert_parallel={parallel}")
    if row["active_experts"] > experts:
        raise ProfileError(f"{op}: active_experts={row['active_experts']} exceeds num_experts={experts}")


def _pass_kernel(row: KernelRow) -> str:
    """Name of a memory-bound kernel that has its own parameter set; empty for all others."""
    name: str = row["name"]
    return name.removeprefix(CONVOLUTION) if name.startswith(CONVOLUTION) or name == COPY else ""


def _elementwise(row: KernelRow) -> PriceCall:
    rest: dict[str, Num] = {"warm": row["cache"] == "warm", "element_bytes": dtype_bytes(row["dtype"] or "bf16")}
    rest |= {"pieces": row["pieces"], "kernel": _pass_kernel(row)}
    return lambda kernels: kernels.elementwise(row["bytes_moved"], row["launches"], **rest)


def _recurrent_set(row: KernelRow) -> str:
    return str(row["dtype"]) if row["name"] in ("", "gdn") else f"{row['dtype']}{VARIANT}{row['name']}"


def _recurrent(op: str) -> Callable[[KernelRow], PriceCall]:
    def call(row: KernelRow) -> PriceCall:
        batch, q_len, key, value = row["batch"], row["q_len"], row["head_dim"], row["v_head_dim"]
        width = functions_of(batch).where(value > 0, value, key)
        shape = RecurrentShape(row["num_kv_heads"], row["num_heads"], key, width, _recurrent_set(row))
        if op == "prefill":
            return lambda kernels: kernels.recurrent_prefill(shape, seqs=batch, q_tokens=batch * q_len)
        return lambda kernels: kernels.recurrent_decode(shape, seqs=batch, q_len=q_len, warm=row["cache"] == "warm")

    return call


def _collective(op: str) -> Callable[[KernelRow], PriceCall]:
    def call(row: KernelRow) -> PriceCall:
        size, world = row["message_bytes"], int(np.max(row["world_size"]))

        def priced(kernels: KernelLibrary) -> KernelTime:
            time = kernels.collective(op, size, world, link_of(op, row, kernels.chip))
            return KernelTime(time.seconds, time.latency_s, 0.0 * size, time.transfer_s, 0.0 * size, size)

        return priced

    return call


def link_of(op: str, row: KernelRow, chip: Chip) -> str:
    """Name of the link of a collective: the row's ``link``, else the link of the chip's profile."""
    link: str | None = row["link"] or chip.links.scale_up
    if link is None:
        raise ProfileError(f"{op}: chip '{chip.name}' has no scale-up link; give link=NAME")
    return link


def _module(row: KernelRow) -> PriceCall:
    raise ProfileError("attention modules are priced by replay only")


def _module_set(row: KernelRow) -> str:
    return f"{row['kv_dtype']}{VARIANT}{row['name'].rpartition(' ')[2].removesuffix('-shared')}"


_SIZE, _SIZE_OR_ZERO, _DTYPE = (_Column(), _Column(0, lowest=0), _Column("bf16", allowed=DTYPES, noun="dtype"))
_ATTENTION = {
    **dict.fromkeys(("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"), _SIZE),
    "dtype": _DTYPE, "kv_dtype": _DTYPE._replace(default=None), "window": _SIZE_OR_ZERO,
}  # fmt: skip
_RECURRENT = {
    **dict.fromkeys(("batch", "q_len", "num_heads", "num_kv_heads", "head_dim"), _SIZE),
    "dtype": _DTYPE, "v_head_dim": _SIZE_OR_ZERO,
    "name": _Column("gdn", allowed=("gdn", "kda", "mamba2"), noun="rule"),
}  # fmt: skip
_MOE = {
    **dict.fromkeys(("tokens", "num_experts", "experts_per_token", "hidden", "intermediate"), _SIZE),
    "dtype": _DTYPE, "expert_parallel": _Column(1), "tensor_parallel": _Column(1),
    "projections": _Column(0, lowest=2), "active_experts": _Column(0, whole=False), "routing": _Column("uniform"),
}  # fmt: skip
_COLLECTIVE = {
    "message_bytes": _Column(whole=False),
    "world_size": _Column(lowest=2),
    "link": _Column(None, noun="link"),
}
_ATTENTION_CALL = (lambda row: attention_shape(row).kernel, ("dtype", "kv_dtype", "cache", "source"), ("warm",))
_RECURRENT_CALL = (_recurrent_set, ("dtype", "cache", "name"), ("warm",), _check_heads)
_STATES = ("", "warm", "cold")
OPERATIONS: dict[str, _Operation] = {
    "gemm": _Operation(
        "gemm",
        dict.fromkeys("mnk", _SIZE) | {"dtype": _DTYPE},
        lambda row: lambda kernels: kernels.gemm(row["m"], row["n"], row["k"], row["dtype"]),
        lambda row: str(row["dtype"]),
        ("dtype", "cache"),
        ("", "warm"),
    ),
    "attention_prefill": _Operation(
        "attention_prefill", _ATTENTION, _attention("prefill"), *_ATTENTION_CALL, _check_attention
    ),
    "attention_decode": _Operation(
        "attention_decode",
        {**_ATTENTION, "q_len": _Column(1), "cache": _Column("", allowed=("", "warm", "cold"), noun="cache state")},
        _attention("decode"),
        *_ATTENTION_CALL,
        _check_attention,
    ),
    "attention_mixed": _Operation("attention_prefill", {}, _attention("mixed"), *_ATTENTION_CALL),
    "moe": _Operation(
        "moe",
        _MOE,
        _moe,
        lambda row: VARIANT.join(filter(None, (row["dtype"], row["source"]))),
        ("dtype", "routing", "source"),
        _STATES,
        _check_moe,
    ),
    "recurrent_prefill": _Operation("recurrent_prefill", _RECURRENT, _recurrent("prefill"), *_RECURRENT_CALL),
    "recurrent_decode": _Operation(
        "recurrent_decode", {**_RECURRENT, "q_len": _Column(1)}, _recurrent("decode"), *_RECURRENT_CALL
    ),
    "elementwise": _Operation(
        "elementwise",
        {"bytes_moved": _Column(whole=False), "launches": _Column(1)},
        _elementwise,
        lambda row: VARIANT.join(filter(None, ("any", _pass_kernel(row)))),
        ("cache", "dtype", "name"),
        ("", "warm"),
    ),
    **{name: _Operation("collective", _COLLECTIVE, _collective(name), lambda row: "any", ()) for name in COLLECTIVES},
    **{
        name: _Operation(name, {}, _module, _module_set, ("dtype", "kv_dtype", "name"), _STATES)
        for name in ("sparse_prefill", "sparse_decode")
    },
}
"""Every operation of a kernel trace, by name; whole attention modules need a model, so replay makes their calls."""
_ABSENT: KernelRow = {
    **dict.fromkeys(("window", "v_head_dim", "latent", "kv_tokens", "longest_kv", "longest_batch", "pieces",
                     "decode_kv_tokens", "active_experts", "projections"), 0),
    **dict.fromkeys(("source", "name", "cache", "dtype", "kv_dtype", "routing", "link"), ""), "launches": 1,
}  # fmt: skip
"""Columns that a row need not have."""
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OLD_TRUTHS: Mapping[str, tuple[str, Mapping[bool, object]]] = {
    "warm": ("cache", {True: "warm", False: "cold"}),
    "gated": ("projections", {True: 3, False: 2}),
}
"""Earlier arguments that were true or false: the column that replaces each argument, and its values."""
_OLD_NAMES = {"activated_experts": "active_experts", "distribution": "routing"}
_PREDICTED = tuple(name for name, operation in OPERATIONS.items() if operation.columns)


def row_call(op: str, row: KernelRow) -> PriceCall:
    """Call of a ``KernelLibrary`` that prices the columns of an operation of a kernel trace. Absent optional columns
    count as 0 or empty, and sizes may be arrays if one kernel serves all rows."""
    return OPERATIONS[op].call({**_ABSENT, **row})


def stored_set(op: str, row: KernelRow) -> str:
    """Name of the parameter set of the kernel that serves some columns of one operation."""
    return OPERATIONS[op].stored({**_ABSENT, **row})


def operation_names() -> tuple[str, ...]:
    """Return the operations ``predict_kernel`` knows."""
    return _PREDICTED


def operation_columns(op: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the required and the optional keys of an operation.

    Raises:
        ProfileError: no such operation.
    """
    columns = _find(op).columns
    needed = tuple(name for name, column in columns.items() if column.default is NEEDED)
    return needed, tuple(name for name in columns if name not in needed)


def predict_kernel(
    chip: Chip | str, op: str, values: Mapping[str, object], library: str = "generic", corrected: bool = CORRECTED
) -> dict[str, Any]:
    """Predict one kernel.

    Args:
        chip: a profile, a catalogue name or a path.
        op: an operation of the canonical kernel trace, or ``elementwise``.
        values: values of the operation's columns, as numbers or command-line text.
        library: kernel library.
        corrected: whether to apply the profile's learned correction to the analytical time.

    Returns:
        ``op chip library seconds interval bound flops bytes basis launch_s compute_s memory_s``; ``interval`` holds
        the ends of the 90 % interval in seconds. For a collective ``launch_s`` is its latency, ``transfer_s`` is added
        and ``bound`` may be ``interconnect``.

    Raises:
        ProfileError: unknown chip, operation or key, a missing key, or a value out of range or not supported by the
            chip.
    """
    operation = _find(op)
    profile = load_chip(chip) if isinstance(chip, str) else chip
    row = _read(op, operation, values)
    kernels = KernelLibrary(profile, library, corrected=corrected)
    operation.check(op, row)
    if "v_head_dim" in operation.columns:
        row["v_head_dim"] = row["v_head_dim"] or row["head_dim"]
    family, stored = operation.family, operation.stored(row)
    if format_of(stored) != "any":
        kernels.chip.math_dtype(format_of(stored))
    time = operation.call(row)(kernels)
    # Fits do not distinguish measured from expected numbers of experts.
    sizes = {
        key: row[key] for key in operation.columns if isinstance(row[key], int | float) and key != "active_experts"
    }
    sizes["projections"] = 2 if row["projections"] == 2 else 0
    bound = "interconnect" if family == "collective" and time.bound == "memory" else time.bound
    low, high = kernels.interval(family, stored, sizes, bound, assumed=True)
    prediction = {
        "op": op,
        "chip": profile.name,
        "library": library,
        "seconds": time.seconds,
        "interval": [float(low) * time.seconds, float(high) * time.seconds],
        "bound": bound,
        "flops": time.flops,
        "bytes": time.bytes,
        "basis": BASES[int(kernels.basis_code(family, stored, sizes))],
        "launch_s": time.launch_s,
        "compute_s": time.compute_s,
        "memory_s": time.memory_s,
    }
    if family == "collective":
        prediction |= {"memory_s": 0.0, "transfer_s": time.memory_s, "link": link_of(op, row, profile)}
    return prediction


def _find(op: str) -> _Operation:
    if op not in _PREDICTED:
        raise ProfileError(f"no operation '{op}'{did_you_mean(op, _PREDICTED)} (one of {', '.join(_PREDICTED)})")
    return OPERATIONS[op]


def _read(op: str, operation: _Operation, values: Mapping[str, object]) -> dict[str, Any]:
    values, known = _with_new_columns(op, values, operation.columns), tuple(operation.columns)
    for key in values:
        if key not in known:
            raise ProfileError(f"{op}: no key '{key}'{did_you_mean(key, known)} (keys: {', '.join(known)})")
    needed, _ = operation_columns(op)
    missing = [key for key in needed if key not in values]
    if missing:
        raise ProfileError(f"{op}: {', '.join(missing)} missing (needs {', '.join(needed)})")
    defaults = {key: column.default for key, column in operation.columns.items()}
    return {**_ABSENT, **defaults, **{key: _value(op, key, operation.columns[key], values[key]) for key in values}}


def _with_new_columns(op: str, values: Mapping[str, object], columns: Collection[str]) -> dict[str, object]:
    """Rename earlier argument names to the trace's column names, with a warning."""
    renamed: dict[str, object] = {}
    for key, value in values.items():
        new, by_truth = _OLD_TRUTHS.get(key, (_OLD_NAMES.get(key, key), {}))
        if new == key or new not in columns:
            renamed[key] = value
            continue
        truth = _TRUTH.get(str(value).lower())
        if by_truth and truth is None:
            raise ProfileError(f"{op}: {key}={value}: true or false is needed")
        warn_renamed(f"{op} {key}", new)
        renamed[new] = by_truth[truth] if by_truth and truth is not None else value
    return renamed


def _value(op: str, key: str, column: _Column, value: Any) -> object:
    if key == "routing":
        read_routing(str(value))
        return str(value)
    if column.noun:
        text, allowed = str(value), column.allowed
        if allowed and text not in allowed:
            shown = ", ".join(filter(None, allowed))
            raise ProfileError(f"{op}: {key}: no {column.noun} '{text}'{did_you_mean(text, allowed)} (one of {shown})")
        return text
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ProfileError(f"{op}: {key}={value}: a number is needed") from None
    if not math.isfinite(number) or number < column.lowest:
        raise ProfileError(f"{op}: {key}={value}: must be a number >= {column.lowest}")
    if not column.whole:
        return number
    if number != int(number):
        raise ProfileError(f"{op}: {key}={value}: a whole number is needed")
    return int(number)
