"""torch.profiler (Kineto) Chrome traces: GPU kernels by name, with shapes where the operator recorded them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from forerun.yaml_files import packaged
from traces.errors import TraceError, shown
from traces.fields import SECONDS, Record, list_at, number_of, object_at, value_at
from traces.files import load_document
from traces.kernels.table import KernelTable, ShapedKernel, table_of_rows

FORMAT = "torch-profiler"
_Reader = Callable[[Sequence[Sequence[int]], Sequence[str], Sequence[object]], ShapedKernel | None]
_DTYPES: dict[str, str] = packaged("traces.kernels", "formats.yaml")[FORMAT]["dtypes"]


def read_torch_profiler(path: Path) -> KernelTable:
    """Kernels of a Chrome trace; ``ts`` and ``dur`` are microseconds.

    All kernels one operator call launched (a GEMM and its split-K reduction) are one row when the operator tells the
    shape, else every kernel is a row with its name. Only events are read: the file's metadata may hold secrets.
    """
    events, device = _events(path)
    operators, launches, kernels = _sorted(path, events)
    if not kernels:
        raise TraceError(f"{path}: no GPU kernels (events of category 'kernel'); profile with ProfilerActivity.CUDA")
    rows: list[ShapedKernel] = []
    calls: dict[int, ShapedKernel] = {}
    for event in kernels:
        seconds = _seconds(path, event)
        identity = _key(event, "args.External id") or launches.get(_key(event, "args.correlation"))
        operator = operators.get(identity)
        shaped = None if operator is None else _shaped(operator)
        texts = {"name": str(event.get("name", ""))[:200], "device": device}
        if shaped is None:
            rows.append(ShapedKernel("other", seconds, {}, texts))
        elif (known := calls.get(id(operator))) is None:
            calls[id(operator)] = shaped._replace(seconds=seconds, texts={**shaped.texts, **texts})
        else:
            calls[id(operator)] = known._replace(seconds=seconds + known.seconds)
    rows += calls.values()
    return table_of_rows(rows, str(path), FORMAT)


def _events(path: Path) -> tuple[list[object], str]:
    data = load_document(path)
    trace = data if isinstance(data, dict) else {"traceEvents": data}
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        raise TraceError(
            f"{path}: no 'traceEvents'; a Chrome trace of torch.profiler is needed (benchmark results: replay requests)"
        )
    devices = list_at(trace, "deviceProperties")
    return events, str(object_at({"first": devices[0]}, "first").get("name", "")) if devices else ""


def _sorted(
    path: Path, events: list[object]
) -> tuple[dict[str | None, Record], dict[str | None, str | None], list[Record]]:
    """Operators by external id, external ids by correlation of their launch, and the kernels."""
    operators: dict[str | None, Record] = {}
    launches: dict[str | None, str | None] = {}
    kernels: list[Record] = []
    for event in events:
        if not isinstance(event, dict):
            raise TraceError(f"{path}: traceEvents: {shown(event)} is not an event")
        category, arguments = event.get("cat"), event.get("args")
        if not isinstance(arguments, dict):
            continue
        if category == "kernel":
            kernels.append(event)
        elif category == "cpu_op" and "External id" in arguments:
            operators[_key(event, "args.External id")] = event
        elif category in ("cuda_runtime", "cuda_driver") and "correlation" in arguments:
            launches[_key(event, "args.correlation")] = _key(event, "args.External id")
    operators.pop(None, None)
    launches.pop(None, None)
    return operators, launches, kernels


def _key(event: Record, path: str) -> str | None:
    identity = value_at(event, path)
    return str(identity) if isinstance(identity, int | str) else None


def _seconds(path: Path, event: Record) -> float:
    duration = number_of(event.get("dur"))
    if duration is None or not math.isfinite(duration):
        raise TraceError(
            f"{path}: kernel {shown(event.get('name'))}: dur {shown(event.get('dur'))} is not a number of microseconds"
        )
    return float(duration) * SECONDS["us"]


def _shaped(operator: Record) -> ShapedKernel | None:
    arguments = object_at(operator, "args")
    dims, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    read = _OPERATORS.get(str(operator.get("name")))
    if read is None or not isinstance(dims, list) or not isinstance(kinds, list):
        return None
    try:
        shaped = read(dims, [_DTYPES.get(str(kind), "") for kind in kinds], list_at(arguments, "Concrete Inputs"))
        return shaped if shaped is not None and all(type(size) is int for size in shaped.sizes.values()) else None
    except (IndexError, TypeError, ValueError, KeyError):
        return None


def _product(first: int) -> _Reader:
    """Reader of a matrix product whose inputs are the operator's arguments ``first`` and ``first`` + 1."""

    def read(dims: Sequence[Sequence[int]], dtypes: Sequence[str], _: Sequence[object]) -> ShapedKernel | None:
        (m, k), (inner, n), dtype = dims[first], dims[first + 1], dtypes[first + 1]
        known = dtype and k == inner
        return ShapedKernel("gemm", 0.0, {"m": m, "n": n, "k": k}, {"dtype": dtype}) if known else None

    return read


def _attention(heads_axis: int) -> _Reader:
    """Reader of a fused attention operator whose head axis is ``heads_axis`` (1 or 2) of four."""

    def read(dims: Sequence[Sequence[int]], dtypes: Sequence[str], concrete: Sequence[object]) -> ShapedKernel | None:
        query, key = dims[0], dims[1]
        length_axis = 3 - heads_axis
        causal = next((text == "True" for text in concrete if text in ("True", "False")), False)
        q_len, kv_len = query[length_axis], key[length_axis]
        if not dtypes[0] or not (q_len == 1 or (causal and q_len == kv_len)):
            return None  # a mask that the canonical trace cannot express
        sizes = {
            "batch": query[0],
            "q_len": q_len,
            "kv_len": kv_len,
            "num_heads": query[heads_axis],
            "num_kv_heads": key[heads_axis],
            "head_dim": query[3],
        }
        texts = {"dtype": dtypes[0], "kv_dtype": dtypes[1]}
        return ShapedKernel("attention_decode" if q_len == 1 else "attention_prefill", 0.0, sizes, texts)

    return read


_OPERATORS: dict[str, _Reader] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::_flash_attention_forward": _attention(2),
    "aten::_scaled_dot_product_flash_attention": _attention(1),
    "aten::_scaled_dot_product_efficient_attention": _attention(1),
    "aten::_scaled_dot_product_cudnn_attention": _attention(1),
}
"""Readers for operators whose recorded inputs determine the kernel's shape."""
