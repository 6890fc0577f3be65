"""Prediction of a single kernel from its operation name and the columns of a kernel trace."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hwprofiles.catalogue import load_chip
from hwprofiles.choice import BASES
from hwprofiles.dtypes import DTYPES, dtype_bytes
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import SCALAR, AttentionShape, KernelTime
from hwprofiles.kernels.attention import attention_pairs, windowed_length
from hwprofiles.kernels.moe import read_routing
from hwprofiles.kernels.movement import OPERATIONS
from hwprofiles.kernels.recurrent import RecurrentShape
from hwprofiles.library import CORRECTED, KernelLibrary
from hwprofiles.schema import Chip


class _Operation(NamedTuple):
    family: str
    required: tuple[str, ...]
    optional: Mapping[str, Any]


_ATTENTION = {"dtype": "bf16", "kv_dtype": None, "window": 0}
_RECURRENT = {"dtype": "bf16", "v_head_dim": 0, "name": "gdn"}
_RULES = {"gdn": "", "kda": "@kda", "mamba2": "@mamba2"}
"""Suffix of the parameter set for each rule of recurrent layers, by the rule's name in traces."""
_OPERATIONS: dict[str, _Operation] = {
    "gemm": _Operation("gemm", ("m", "n", "k"), {"dtype": "bf16"}),
    "attention_prefill": _Operation(
        "attention_prefill", ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"), _ATTENTION
    ),
    "attention_decode": _Operation(
        "attention_decode",
        ("batch", "kv_len", "num_heads", "num_kv_heads", "head_dim"),
        {"q_len": 1, **_ATTENTION, "warm": False},
    ),
    "moe": _Operation(
        "moe",
        ("tokens", "num_experts", "experts_per_token", "hidden", "intermediate"),
        {
            "dtype": "bf16",
            "expert_parallel": 1,
            "tensor_parallel": 1,
            "gated": True,
            "active_experts": None,
            "routing": "uniform",
        },
    ),
    "recurrent_prefill": _Operation(
        "recurrent_prefill", ("batch", "q_len", "num_heads", "num_kv_heads", "head_dim"), _RECURRENT
    ),
    "recurrent_decode": _Operation(
        "recurrent_decode", ("batch", "num_heads", "num_kv_heads", "head_dim"), {"q_len": 1, **_RECURRENT}
    ),
    "elementwise": _Operation("elementwise", ("bytes_moved",), {"launches": 1}),
    **{name: _Operation("collective", ("message_bytes", "world_size"), {"link": None}) for name in OPERATIONS},
}
_TEXT = {"dtype", "kv_dtype", "link", "routing", "name"}
_TRUTH = {"warm": False, "gated": True}
_MAY_BE_ZERO = {"window", "v_head_dim"}
_WHOLE_OR_NOT = {"bytes_moved", "message_bytes", "active_experts"}


def operation_names() -> tuple[str, ...]:
    """Return the operations ``predict_kernel`` knows."""
    return tuple(_OPERATIONS)


def operation_columns(op: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the required and the optional keys of an operation.

    Raises:
        ProfileError: no such operation.
    """
    operation = _find(op)
    return operation.required, tuple(operation.optional)


def predict_kernel(
    chip: Chip | str, op: str, values: Mapping[str, Any], library: str = "generic", corrected: bool = CORRECTED
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
    read = _read(op, operation, values)
    kernels = KernelLibrary(profile, library, corrected=corrected)
    head = {"op": op, "chip": profile.name, "library": library}
    if operation.family == "collective":
        return {**head, **_collective(kernels, op, read)}
    time, dtype = _PREDICTORS[operation.family](kernels, read)
    return {
        **head,
        "seconds": time.seconds,
        "interval": _interval(kernels, operation.family, dtype, read, time.seconds, time.bound),
        "bound": time.bound,
        "flops": time.flops,
        "bytes": time.bytes,
        "basis": _basis(kernels, operation.family, dtype, read),
        "launch_s": time.launch_s,
        "compute_s": time.compute_s,
        "memory_s": time.memory_s,
    }


def _sizes(read: dict[str, Any]) -> dict[str, Any]:
    """Sizes of a kernel, by the names in the ranges of fits."""
    sizes = {name: value for name, value in read.items() if isinstance(value, int | float)}
    return sizes | {"projections": 0 if read.get("gated", True) else 2}


def _basis(kernels: KernelLibrary, family: str, dtype: str, read: dict[str, Any]) -> str:
    """Evidence level of one kernel's time; calibrated only if the shape is inside the fitted ranges."""
    return BASES[int(kernels.basis_code(family, dtype, _sizes(read)))]


def _interval(
    kernels: KernelLibrary, family: str, dtype: str, read: dict[str, Any], seconds: float, bound: str
) -> list[float]:
    """Bounds of the 90 % interval of one kernel's time, in seconds."""
    return [float(end) * seconds for end in kernels.interval(family, dtype, _sizes(read), bound, assumed=True)]


def _find(op: str) -> _Operation:
    if op not in _OPERATIONS:
        raise ProfileError(f"no operation '{op}'{did_you_mean(op, _OPERATIONS)} (one of {', '.join(_OPERATIONS)})")
    return _OPERATIONS[op]


def _read(op: str, operation: _Operation, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the column names and convert text to numbers."""
    known = (*operation.required, *operation.optional)
    for key in values:
        if key not in known:
            raise ProfileError(f"{op}: no key '{key}'{did_you_mean(key, known)} (keys: {', '.join(known)})")
    missing = [key for key in operation.required if key not in values]
    if missing:
        raise ProfileError(f"{op}: {', '.join(missing)} missing (needs {', '.join(operation.required)})")
    return {**operation.optional, **{key: _value(op, key, value) for key, value in values.items()}}


def _value(op: str, key: str, value: Any) -> Any:
    if key in _TEXT:
        text = str(value)
        if key == "routing":
            read_routing(text)
        elif key == "name":
            if text not in _RULES:
                raise ProfileError(f"{op}: no rule '{text}'{did_you_mean(text, _RULES)} (one of {', '.join(_RULES)})")
        elif key != "link" and text not in DTYPES:
            raise ProfileError(
                f"{op}: {key}: no dtype '{text}'{did_you_mean(text, DTYPES)} (one of {', '.join(DTYPES)})"
            )
        return text
    if key in _TRUTH:
        truth = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(str(value).lower())
        if truth is None:
            raise ProfileError(f"{op}: {key}={value}: true or false is needed")
        return truth
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ProfileError(f"{op}: {key}={value}: a number is needed") from None
    lowest = 0 if key in _MAY_BE_ZERO else 2 if key == "world_size" else 1
    if not math.isfinite(number) or number < lowest:
        raise ProfileError(f"{op}: {key}={value}: must be a number >= {lowest}")
    if key in _WHOLE_OR_NOT:
        return number
    if number != int(number):
        raise ProfileError(f"{op}: {key}={value}: a whole number is needed")
    return int(number)


def _gemm(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    return kernels.gemm(read["m"], read["n"], read["k"], read["dtype"]), read["dtype"]


def _shape(kernels: KernelLibrary, op: str, read: dict[str, Any]) -> AttentionShape:
    heads, kv_heads, dim = read["num_heads"], read["num_kv_heads"], read["head_dim"]
    if heads % kv_heads:
        raise ProfileError(f"{op}: num_heads={heads} is not a multiple of num_kv_heads={kv_heads}")
    if read["q_len"] > read["kv_len"]:
        raise ProfileError(
            f"{op}: kv_len={read['kv_len']} is below q_len={read['q_len']}; it counts cached and new tokens"
        )
    dtype = read["kv_dtype"] or read["dtype"]
    kernels.chip.math_dtype(dtype)
    stored = 2.0 * kv_heads * dim * dtype_bytes(dtype)
    return AttentionShape(heads, kv_heads, dim, dim, stored, dtype, windowed=read["window"] > 0)


def _prefill(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    shape = _shape(kernels, "attention_prefill", read)
    batch, q_len, kv_len, window = read["batch"], read["q_len"], read["kv_len"], read["window"]
    time = kernels.attention_prefill(
        shape,
        seqs=batch,
        q_tokens=batch * q_len,
        pairs=batch * attention_pairs(SCALAR, q_len, kv_len, window),
        kv_tokens=batch * windowed_length(SCALAR, q_len, kv_len, window),
    )
    return time, shape.kernel


def _decode(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    shape = _shape(kernels, "attention_decode", read)
    length = windowed_length(SCALAR, read["q_len"], read["kv_len"], read["window"])
    batch = read["batch"]
    time = kernels.attention_decode(shape, seqs=batch, q_len=read["q_len"], kv_tokens=batch * length, warm=read["warm"])
    return time, shape.kernel


def _moe(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    experts, chosen, parallel = read["num_experts"], read["experts_per_token"], read["expert_parallel"]
    if chosen > experts:
        raise ProfileError(f"moe: experts_per_token={chosen} exceeds num_experts={experts}")
    if experts % parallel:
        raise ProfileError(f"moe: num_experts={experts} is not a multiple of expert_parallel={parallel}")
    if read["active_experts"] is not None and read["active_experts"] > experts:
        raise ProfileError(f"moe: active_experts={read['active_experts']} exceeds num_experts={experts}")
    return kernels.moe(**read), read["dtype"]


def _recurrent_shape(kernels: KernelLibrary, op: str, read: dict[str, Any]) -> RecurrentShape:
    heads, keys = read["num_heads"], read["num_kv_heads"]
    if heads % keys:
        raise ProfileError(f"{op}: num_heads={heads} is not a multiple of num_kv_heads={keys}")
    kernels.chip.math_dtype(read["dtype"])
    read["v_head_dim"] = read["v_head_dim"] or read["head_dim"]
    return RecurrentShape(keys, heads, read["head_dim"], read["v_head_dim"], f"{read['dtype']}{_RULES[read['name']]}")


def _scan(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    shape = _recurrent_shape(kernels, "recurrent_prefill", read)
    return kernels.recurrent_prefill(shape, seqs=read["batch"], q_tokens=read["batch"] * read["q_len"]), shape.dtype


def _update(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    shape = _recurrent_shape(kernels, "recurrent_decode", read)
    return kernels.recurrent_decode(shape, seqs=read["batch"], q_len=read["q_len"]), shape.dtype


def _elementwise(kernels: KernelLibrary, read: dict[str, Any]) -> tuple[KernelTime, str]:
    return kernels.elementwise(read["bytes_moved"], read["launches"]), "any"


def _collective(kernels: KernelLibrary, op: str, read: dict[str, Any]) -> dict[str, Any]:
    link = read["link"] or kernels.chip.links.scale_up
    if link is None:
        raise ProfileError(f"{op}: chip '{kernels.chip.name}' has no scale-up link; give link=NAME")
    time = kernels.collective(op, read["message_bytes"], read["world_size"], link)
    bound = "latency" if time.latency_s >= time.transfer_s else "interconnect"
    return {
        "seconds": time.seconds,
        "interval": _interval(kernels, "collective", "any", read, time.seconds, bound),
        "bound": bound,
        "flops": 0.0,
        "bytes": read["message_bytes"],
        "basis": _basis(kernels, "collective", "any", read),
        "launch_s": time.latency_s,
        "compute_s": 0.0,
        "memory_s": 0.0,
        "transfer_s": time.transfer_s,
        "link": link,
    }


_PREDICTORS: dict[str, Callable[[KernelLibrary, dict[str, Any]], tuple[KernelTime, str]]] = {
    "gemm": _gemm,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "moe": _moe,
    "recurrent_prefill": _scan,
    "recurrent_decode": _update,
    "elementwise": _elementwise,
}
