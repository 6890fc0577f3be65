"""The timed kernels themselves, as torch calls on operands made beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.replay.measure.shapes import HEAD_DIM, NORM_WIDTH, KernelShape

Call = Callable[[], Any]

KERNEL_NAMES = {
    "gemm": "torch.mm",
    "attention_prefill": "sdpa causal",
    "attention_decode": "sdpa",
    "attention_verify": "sdpa masked",
    "norm": "layer_norm",
    "memcpy": "copy_",
}
"""Kernel that runs for each operation, for the ``name`` column."""


def make_call(torch: Any, shape: KernelShape, device: str, generator: Any) -> Call:
    """Function that runs the kernel once on its own operands.

    Weights lie as engines keep them, ``[n, k]``. Query heads that share a KV head are packed into rows, as in decode
    kernels of engines, so that K and V are read once; a verify step masks what its first queries may not see.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[shape.dtype]

    def values(*sizes: int) -> Any:
        return torch.rand(sizes, generator=generator, device=device, dtype=torch.float32).sub_(0.5).to(dtype)

    if shape.op == "gemm":
        return _gemm(torch, shape, values)
    if shape.op == "elementwise":
        return _pass(torch, shape, values)
    if shape.op == "attention_prefill":
        return _prefill(torch, shape, values)
    return _decode(torch, shape, values, dtype, device)


def _gemm(torch: Any, shape: KernelShape, values: Callable[..., Any]) -> Call:
    m, n, k = (shape.sizes[name] for name in ("m", "n", "k"))
    x, weight, y = values(m, k), values(n, k).t(), values(m, n)
    return lambda: torch.mm(x, weight, out=y)


def _pass(torch: Any, shape: KernelShape, values: Callable[..., Any]) -> Call:
    width = 4 if shape.dtype == "fp32" else 2
    elements = shape.sizes["bytes_moved"] // (2 * width)
    if shape.family == "memcpy":
        source, target = values(elements), values(elements)
        return lambda: target.copy_(source)
    row = min(NORM_WIDTH, elements)
    x, scale, shift = values(elements // row, row), values(row), values(row)
    return lambda: torch.nn.functional.layer_norm(x, (row,), scale, shift)


def _prefill(torch: Any, shape: KernelShape, values: Callable[..., Any]) -> Call:
    size = shape.sizes
    q = values(size["batch"], size["num_heads"], size["q_len"], HEAD_DIM)
    k, v = (values(size["batch"], size["num_kv_heads"], size["kv_len"], HEAD_DIM) for _ in range(2))
    grouped = size["num_heads"] != size["num_kv_heads"]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=True, enable_gqa=grouped)


def _decode(torch: Any, shape: KernelShape, values: Callable[..., Any], dtype: Any, device: str) -> Call:
    size = shape.sizes
    group, q_len, kv_len = size["num_heads"] // size["num_kv_heads"], size["q_len"], size["kv_len"]
    q = values(size["batch"], size["num_kv_heads"], group * q_len, HEAD_DIM)
    k, v = (values(size["batch"], size["num_kv_heads"], kv_len, HEAD_DIM) for _ in range(2))
    mask = None
    if q_len > 1:
        seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)
        mask = torch.zeros(q_len, kv_len, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
        mask = mask.repeat(group, 1)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, attn_mask=mask)
