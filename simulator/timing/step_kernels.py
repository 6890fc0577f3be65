"""The kernels of one engine step of the target model, by name, with the time and work of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hwprofiles import KernelTime
from simulator.llm import MoeMlp
from simulator.llm.layers import Layer
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.experts import alike_tokens
from simulator.timing.step import LOGIT_BYTES, LOGIT_PASSES, NORM_PASSES, StepTimer
from simulator.timing.work import StepWork


class StepKernel(NamedTuple):
    """Equal kernels of one step on one chip; times in seconds, each runs ``times`` over."""

    name: str
    family: str
    """gemm, attention, moe, elementwise or collective."""
    dtype: str
    """Of the stored operand; empty where there is none."""
    times: int
    seconds: float
    """Of one of them."""
    flops: float
    bytes: float
    bound: str


def step_kernels(timer: StepTimer, work: StepWork[int]) -> list[StepKernel]:
    """The kernels of ``work`` in the order in which they run, layer kinds one after the other.

    Host work and the drafter are left out. ``times x seconds`` over all kernels is the device time that
    ``StepTimer.costs`` gives the same step.
    """
    deployment = timer.deployment
    tokens = int(work.prefill_tokens + work.decode_seqs * work.query_len)
    captured = deployment.framework.padded_tokens(np.array([tokens]), deployment.cuda_graphs)
    padded = int(captured[0])
    hidden = deployment.architecture.hidden_size
    rows = padded * hidden * ACTIVATION_BYTES
    found = [_kernel("embedding", "elementwise", "", 1, deployment.kernels.elementwise(2 * rows))]
    found += _collective("embedding all-reduce", deployment, "all_reduce", rows, 1)
    for group in deployment.architecture.layer_groups:
        for kernel in _layer(deployment, group.layer, padded, timer.together(work)):
            found.append(kernel._replace(times=kernel.times * group.count))
        found += _attention(timer, group.layer, group.count, work)
        found += _collective("layer all-reduce", deployment, "all_reduce", rows, 2 * group.count)
    sampled = int(work.decode_seqs * work.query_len + work.sampled_prefills)
    return [kernel for kernel in (*found, *_head(deployment, sampled)) if kernel.times]


def _layer(deployment: Deployment, layer: Layer, tokens: int, query_len: int) -> Iterator[StepKernel]:
    """Kernels of one layer apart from attention itself, as ``StepTimer`` prices them."""
    kernels, tp = deployment.kernels, deployment.tensor_parallel
    hidden = deployment.architecture.hidden_size
    for gemm in deployment.gemms(layer):
        yield _kernel(gemm.name, "gemm", gemm.dtype, 1, kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype))
    attention, mlp = layer.attention, layer.mlp
    rotated = (attention.num_heads + attention.num_kv_heads) * attention.head_dim / tp
    passes = 2 * NORM_PASSES * hidden + 2 * rotated * (2 if attention.qk_norm else 1)
    launches = 4 if attention.qk_norm else 3
    if isinstance(mlp, MoeMlp):
        dtype = deployment.weight_dtypes["expert"]
        time = kernels.moe(
            tokens=tokens,
            num_experts=mlp.num_experts,
            experts_per_token=mlp.experts_per_token,
            hidden=hidden,
            intermediate=mlp.intermediate_size,
            dtype=dtype,
            tensor_parallel=tp,
            gated=mlp.gated,
            alike=alike_tokens(query_len),
        )
        yield _kernel("experts", "moe", dtype, 1, time)
        activated = mlp.shared_intermediate_size / tp
    else:
        activated = mlp.intermediate_size / tp
    if activated:
        passes += (3 if mlp.gated else 2) * activated
        launches += 1
    moved = tokens * passes * ACTIVATION_BYTES
    yield _kernel("norms, rotary, activation", "elementwise", "", 1, kernels.elementwise(moved, launches=launches))


def _attention(timer: StepTimer, layer: Layer, count: int, work: StepWork[int]) -> Iterator[StepKernel]:
    shape = timer.deployment.attention_shape(layer.attention)
    window = timer.windows.index(layer.attention.window)
    kernels = timer.deployment.kernels
    if work.decode_seqs:
        time = kernels.attention_decode(
            shape,
            seqs=int(work.decode_seqs),
            q_len=int(work.query_len),
            kv_tokens=int(work.decode_kv_tokens[window]),
        )
        yield _kernel("decode attention", "attention", shape.dtype, count, time)
    if work.prefill_seqs:
        time = kernels.attention_prefill(
            shape,
            seqs=int(work.prefill_seqs),
            q_tokens=int(work.prefill_tokens),
            pairs=int(work.prefill_pairs[window]),
            kv_tokens=int(work.prefill_kv_tokens[window]),
        )
        yield _kernel("prefill attention", "attention", shape.dtype, count, time)


def _head(deployment: Deployment, sampled: int) -> Iterator[StepKernel]:
    if not sampled:
        return
    architecture, kernels = deployment.architecture, deployment.kernels
    vocabulary = -(-architecture.vocab_size // deployment.tensor_parallel)
    dtype = deployment.weight_dtypes["embedding" if architecture.tie_word_embeddings else "lm_head"]
    time = kernels.gemm(sampled, vocabulary, architecture.hidden_size, dtype)
    yield _kernel("LM head", "gemm", dtype, 1, time)
    norm = NORM_PASSES * architecture.hidden_size * ACTIVATION_BYTES
    logits = LOGIT_PASSES * architecture.vocab_size * LOGIT_BYTES
    yield _kernel("sampling", "elementwise", "", 1, kernels.elementwise(sampled * (norm + logits), launches=3))
    gathered = sampled * architecture.vocab_size * ACTIVATION_BYTES
    yield from _collective("logits all-gather", deployment, "all_gather", gathered, 1)


def _kernel(name: str, family: str, dtype: str, count: int, time: KernelTime) -> StepKernel:
    return StepKernel(
        name, family, dtype, count, float(time.seconds), float(time.flops), float(time.bytes), str(time.bound)
    )


def _collective(name: str, deployment: Deployment, op: str, message_bytes: float, count: int) -> list[StepKernel]:
    if deployment.tensor_parallel == 1 or deployment.link is None:
        return []
    time = deployment.kernels.collective(op, message_bytes, deployment.tensor_parallel, deployment.link)
    return [StepKernel(name, "collective", "", count, float(time.seconds), 0.0, message_bytes, "interconnect")]
