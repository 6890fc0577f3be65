"""A kernel's operation from its name, for traces that hold no shapes."""

from __future__ import annotations

import re

_CLASSES = (
    ("collective", r"nccl|rccl|all_?reduce|allgather|reduce_?scatter|all_?to_?all|multimem"),
    ("attention", r"attention|attn|fmha|flash|mla_|scaled_?dot_?product|sdpa"),
    ("MoE", r"moe|topk|expert|grouped_?gemm"),
    ("GEMM", r"gemm|gemv|matmul|nvjet|cijk_|cublas|cutlass.*kernel|splitk|xmma|_mm_|wgrad|dgrad"),
    ("norm", r"norm"),
    ("rotary embedding", r"rotary|rope"),
    ("KV cache write", r"reshape_and_cache|store_kv|kv_?cache"),
    ("quantisation", r"quant|scaled_fp8|amax"),
    ("sampling", r"sampl|argmax|softmax|top_?p"),
    ("copy", r"memcpy|memset|copy|fill|cat_|transpose|permute|reshape"),
    ("elementwise", r"elementwise|triton_poi|silu|gelu|act_and_mul|binary|unary|reduce_kernel|triton_red|add|mul"),
)


def kernel_class(name: str) -> str:
    """The kind of kernel that ``name`` suggests, such as ``GEMM``; ``unknown`` where it suggests none."""
    lower = name.lower()
    return next((kind for kind, pattern in _CLASSES if re.search(pattern, lower)), "unknown")
