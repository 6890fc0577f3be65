"""The kernels of one engine step of the target model, by name, with the time and work of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hwprofiles import KernelTime
from simulator.llm import MoeMlp
from simulator.llm.layers import Layer
from simulator.timing.deployment import Deployment
from simulator.timing.experts import exchange_seconds, expert_kernel, fullest_group
from simulator.timing.step import LOGIT_BYTES, LOGIT_PASSES, NORM_PASSES, StepTimer, layer_passes
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
    ``StepTimer.costs`` gives the same step. Of several attention groups the fullest is meant.
    """
    deployment = timer.deployment
    groups = deployment.attention_data_parallel
    everyone = int(work.prefill_tokens + work.decode_seqs * work.query_len)
    if groups > 1:
        work = fullest_group(work, groups)
    tokens = int(work.prefill_tokens + work.decode_seqs * work.query_len)
    captured = deployment.framework.padded_tokens(np.array([tokens]), deployment.cuda_graphs)
    padded = int(captured[0])
    routed = padded if groups == 1 else timer.expert_tokens(everyone, tokens)
    hidden = deployment.architecture.hidden_size
    rows = padded * hidden * deployment.activation_bytes
    found = []
    if deployment.first_stage:
        found.append(_kernel("embedding", "elementwise", "", 1, deployment.kernels.elementwise(2 * rows)))
        found += _collective("embedding all-reduce", deployment, "all_reduce", rows, 1)
    for group in deployment.architecture.layer_groups:
        for kernel in _layer(deployment, group.layer, padded, routed, timer.together(work)):
            found.append(kernel._replace(times=kernel.times * group.count))
        found += _attention(timer, group.layer, group.count, work)
        reductions = timer.reductions(group.layer)
        found += _collective("layer all-reduce", deployment, "all_reduce", rows, reductions * group.count)
    sampled = int(work.decode_seqs * work.query_len + work.sampled_prefills)
    return [kernel for kernel in (*found, *_head(deployment, sampled)) if kernel.times]


def _layer(deployment: Deployment, layer: Layer, tokens: int, routed: int, query_len: int) -> Iterator[StepKernel]:
    """Kernels of one layer apart from attention itself, as ``StepTimer`` prices them; ``routed``: tokens of experts."""
    kernels, tp = deployment.kernels, deployment.tensor_parallel
    hidden = deployment.architecture.hidden_size
    for gemm in deployment.gemms(layer):
        yield _kernel(gemm.name, "gemm", gemm.dtype, 1, kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype))
    mlp = layer.mlp
    if isinstance(mlp, MoeMlp):
        dtype = deployment.weight_dtypes["expert"]
        experts = expert_kernel(deployment, mlp, np.array([routed]), query_len)
        time = KernelTime(*(float(np.atleast_1d(part)[0]) for part in experts))
        yield _kernel("experts", "moe", dtype, 1, time)
        if deployment.attention_data_parallel > 1:
            seconds = float(exchange_seconds(deployment, mlp, np.array([routed]))[0])
            yield StepKernel("expert exchange", "collective", "", 1, seconds, 0.0, 0.0, "interconnect")
    names = ("norms", "rotary", "activation")
    for name, (elements, launches) in zip(names, layer_passes(layer, hidden, tp), strict=False):
        moved = tokens * elements * deployment.activation_bytes
        yield _kernel(name, "elementwise", "", 1, kernels.elementwise(moved, launches=launches))


def _attention(timer: StepTimer, layer: Layer, count: int, work: StepWork[int]) -> Iterator[StepKernel]:
    shape = timer.deployment.attention_shape(layer.attention)
    window = timer.windows.index(layer.attention.window)
    kernels = timer.deployment.kernels
    if work.decode_seqs and work.prefill_seqs and work.query_len == 1 and kernels.mixed_seconds(shape) is not None:
        time = kernels.attention_mixed(
            shape,
            seqs=int(work.prefill_seqs),
            q_tokens=int(work.prefill_tokens),
            pairs=int(work.prefill_pairs[window]),
            kv_tokens=int(work.prefill_kv_tokens[window]),
            decode_seqs=int(work.decode_seqs),
            decode_kv_tokens=int(work.decode_kv_tokens[window]),
        )
        yield _kernel("mixed attention", "attention", shape.dtype, count, time)
        return
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
    if not sampled or not deployment.last_stage:
        return
    architecture, kernels = deployment.architecture, deployment.kernels
    vocabulary = -(-architecture.vocab_size // deployment.tensor_parallel)
    dtype = deployment.weight_dtypes["embedding" if architecture.tie_word_embeddings else "lm_head"]
    time = kernels.gemm(sampled, vocabulary, architecture.hidden_size, dtype)
    yield _kernel("LM head", "gemm", dtype, 1, time)
    norm = NORM_PASSES * architecture.hidden_size * deployment.activation_bytes
    logits = LOGIT_PASSES * architecture.vocab_size * LOGIT_BYTES
    yield _kernel("sampling", "elementwise", "", 1, kernels.elementwise(sampled * (norm + logits), launches=3))
    gathered = sampled * architecture.vocab_size * deployment.activation_bytes
    yield from _collective("logits all-gather", deployment, "all_gather", gathered, 1)


def _kernel(name: str, family: str, dtype: str, count: int, time: KernelTime) -> StepKernel:
    return StepKernel(
        name, family, dtype, count, float(time.seconds), float(time.flops), float(time.bytes), str(time.bound)
    )


def _collective(name: str, deployment: Deployment, op: str, message_bytes: float, count: int) -> list[StepKernel]:
    if deployment.tensor_parallel == 1 or deployment.link is None:
        return []
    time = deployment.kernels.collective(op, message_bytes, deployment.tensor_parallel, deployment.link)
    seconds = float(time.seconds) + deployment.skew_s
    return [StepKernel(name, "collective", "", count, seconds, 0.0, message_bytes, "interconnect")]
