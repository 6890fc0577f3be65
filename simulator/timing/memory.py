"""Memory plan of one replica: number of KV blocks that fit with the weights."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forerun.errors import ForerunError
from hwprofiles import dtype_bytes
from hwprofiles.library import SCORE_BYTES
from simulator.llm.layers import MoeMlp
from simulator.llm.mixers import Recurrent
from simulator.llm.published_names import weight_dtypes
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.drafters import DraftMemory, RemoteDrafter
from simulator.timing.framework import LOCAL_FRAMEWORKS
from simulator.timing.kernels import LOGIT_BYTES

ANY = 1 << 40
"""Number of pages (practically unlimited) for a chip whose layers cache nothing."""
NEARLY_AS_MANY = 1.25
"""Maximum ratio of the two kinds' layer counts at which a group has the size of the larger count."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes in use on ONE chip of the pipeline stage with the least free memory, and the replica's KV blocks."""

    capacity_bytes: float
    weight_bytes: float
    draft_weight_bytes: float
    activation_bytes: float
    kv_bytes_per_token: float
    """KV bytes of one token on one chip, drafter included; without windowed layers if only some have a window."""
    replica_kv_bytes_per_token: float
    """KV bytes of one token on all chips of the replica together."""
    block_size: int
    num_blocks: int
    overridden: bool
    state_bytes: float = 0.0
    """Bytes of recurrent state reserved for the largest number of running sequences."""
    index_bytes_per_token: float = 0.0
    """Part of ``kv_bytes_per_token`` for the keys of indexers."""
    groups: int = 1
    """Number of attention groups, each on separate chips, over which the blocks are divided."""
    page_tokens: int = 0
    """Tokens of a page, for which blocks are allocated together; 0 = tokens of one block."""
    padding_bytes: float = 0.0
    """Unused bytes of key pages, which are padded to the size of a recurrent state."""
    window_blocks: float = 0.0
    """Blocks that the layers with a window take for each block of the others, without windows."""
    window_room: float = 0.0
    """Memory for windows of running requests, as a share of that of the blocks. Idle blocks fill what is free of it."""

    @property
    def split(self) -> dict[str, float] | None:
        """Bytes on that chip by content, for models that keep more than KV: recurrent state, keys of an index."""
        tokens = self.num_blocks // self.groups * self.block_size
        index = tokens * self.index_bytes_per_token
        parts = {
            "weights": self.weight_bytes,
            "draft_weights": self.draft_weight_bytes,
            "kv": tokens * self.kv_bytes_per_token - index + self.padding_bytes,
            "index": index,
            "state": self.state_bytes,
            "activations": self.activation_bytes,
        }
        return parts if parts["state"] or parts["index"] else None


class HybridPages(NamedTuple):
    """Page size for the keys and states of a hybrid model on ONE chip, as in vLLM's cache manager."""

    tokens: int
    """Number of tokens whose keys fit in one layer's page."""
    group_bytes: float
    """Bytes of a page in all layers of a group: one entry of a block table."""
    caching_groups: int
    """Number of groups of layers that cache keys: a sequence uses one page per group and ``tokens`` tokens."""
    state_groups: int
    """Number of groups of recurrent layers: a sequence uses one page per group, and one more per draft token."""


def hybrid_pages(deployment: Deployment, block_size: int) -> HybridPages | None:
    """Pages of a model with attention and recurrent layers; None if it lacks either, or for other engines than vLLM.

    A page of keys has the size of a state, in whole blocks, and a state is padded to it.

    Args:
        deployment: the model.
        block_size: tokens of a block.

    Source: vLLM v0.11, ``HybridAttentionMambaModelConfig``.
    """
    (caching, token_bytes), (recurrent, state_bytes) = deployment.caching_layers, deployment.recurrent_layers
    if not caching or not recurrent or deployment.framework.kernel_library != "vllm":
        return None
    tokens = block_size * max(1, math.ceil(state_bytes / (block_size * token_bytes)))
    layers = layers_per_group(caching, recurrent)
    groups = (math.ceil(caching / layers), math.ceil(recurrent / layers))
    return HybridPages(tokens, layers * tokens * token_bytes, *groups)


def layers_per_group(*counts: int) -> int:
    """Layers of a group of vLLM's cache manager, for layers of several kinds.

    The smallest number of layers of a kind counts, or the largest if it is less than a quarter more.

    Source: vLLM v0.11, ``_get_kv_cache_groups_uniform_page_size``.
    """
    return max(counts) if max(counts) < NEARLY_AS_MANY * min(counts) else min(counts)


def window_blocks(deployment: Deployment) -> float:
    """Size of the windowed layers' part of a block in vLLM's pool, in blocks of the layers without a window.

    Layers form groups of equal size, the last one of a kind padded, and each group has a page of a block.
    """
    kinds = deployment.caches_by_window
    if None not in kinds or len(kinds) == 1:
        return 0.0
    layers = layers_per_group(*(count for count, _ in kinds.values()))
    padded = {window: math.ceil(count / layers) * layers / count * size for window, (count, size) in kinds.items()}
    return (sum(padded.values()) - padded[None]) / padded[None]


def activation_bytes(deployment: Deployment, max_tokens: int, max_sampled: int, max_context: int = 0) -> float:
    """Peak bytes of activations, logits and reserved memory in the largest step, on one chip.

    The residual stream, its norm, the attention input and output (4 x hidden) live together with the widest MLP's gate,
    up and product (3 x intermediate / TP; routed experts get the tokens of every attention group, over all chips of the
    stage, and have an operand and an output of full width for each expert of a token), or, without FlashAttention, with
    the scores of one layer (heads / TP x tokens x ``max_context``, fp32, softmax in place), whichever is larger.
    Logits, on the last pipeline stage, are stored in fp32 together with their softmax, or with a sorted copy and its
    64-bit order. Limits apply to one attention group.

    Source of the scores: llama.cpp reserves its compute buffer for a graph of a whole ubatch over a full cache
    (``kq`` of ``build_attn_mha``; ``ggml_gallocr`` gives the softmax its operand's place); of the experts: vLLM
    v0.15, ``TritonExperts.workspace_shapes``.
    """
    architecture, framework = deployment.architecture, deployment.framework
    widest = 0.0
    for group in architecture.layer_groups:
        mlp = group.layer.feed_forward
        if mlp is None:
            continue
        rows = 0
        if isinstance(mlp, MoeMlp):
            width = mlp.experts_per_token * mlp.intermediate_size + mlp.shared_intermediate_size
            rows = 2 * mlp.experts_per_token * architecture.hidden_size
        else:
            width = mlp.intermediate_size
        widest = max(widest, 3 * width / deployment.tensor_parallel + rows)
    activations = widest * ACTIVATION_BYTES
    if not deployment.kernels.flash:
        mixers = [group.layer.mixer for group in architecture.layer_groups]
        heads = max((mixer.heads for mixer in mixers if mixer and not isinstance(mixer, Recurrent)), default=0)
        activations = max(activations, SCORE_BYTES * max_context * heads / deployment.tensor_parallel)
    at_once = min(max_tokens, framework.prefill_chunk_tokens or max_tokens)
    stream = at_once * (4 * architecture.hidden_size * ACTIVATION_BYTES + activations)
    sampled = max_sampled if deployment.last_stage else 0
    logits = framework.logit_copies * sampled * architecture.vocab_size * LOGIT_BYTES
    return stream + logits + framework.reserved_bytes


def fit_separate_processes(
    memory: MemoryPlan, drafter: RemoteDrafter, *, gpu_memory_utilization: float, max_tokens: int
) -> MemoryPlan:
    """Limit the plan to the number of blocks for which a drafter on its own chips has KV memory.

    Args:
        memory: plan of the target's chips.
        drafter: the drafter on its own chips.
        gpu_memory_utilization: share of the drafter's chip memory that the engine may use.
        max_tokens: maximum tokens of one pass.

    Raises:
        ForerunError: the drafter does not fit on its chips.
    """
    deployment, inner = drafter.deployment, drafter.inner
    budget = gpu_memory_utilization * deployment.chip.memory.capacity_bytes
    left = budget - inner.weight_bytes - activation_bytes(deployment, max_tokens, 0)
    block = inner.kv_bytes_per_token * memory.block_size
    # A drafter with a cache of fixed size holds it with its weights: it never limits how many blocks there are.
    blocks = (int(left // block) if block else memory.num_blocks) if left > 0 else 0
    if blocks < 1:
        raise ForerunError(
            f"chip: {deployment.architecture.name} does not fit {deployment.tensor_parallel} x {deployment.chip.name}: "
            f"{inner.weight_bytes / 1e9:.1f} GB weights against {budget / 1e9:.1f} GB per chip; raise its "
            f"tensor_parallel or choose a larger chip"
        )
    return replace(memory, num_blocks=min(memory.num_blocks, blocks), draft_weight_bytes=0.0)


def plan_memory(
    deployment: Deployment,
    draft: DraftMemory | None,
    *,
    gpu_memory_utilization: float,
    block_size: int,
    max_tokens: int,
    max_sampled: int,
    num_kv_blocks: int | None,
    pipeline_parallel: int = 1,
    max_num_seqs: int | None = None,
    drafted: int = 0,
    max_context: int = 0,
    usual_tokens: float = 0.0,
) -> MemoryPlan:
    """Blocks of ``block_size`` tokens that fit in ``gpu_memory_utilization`` of each chip's memory.

    The pipeline stage with the least free memory determines the number of blocks. The result is the total of all
    attention groups; limits, and a measured count, apply to one group, because each group logs its own count.

    Args:
        deployment: the whole model.
        draft: the drafter on the same chips (of the last stage), or None; its weights and its KV share the memory.
        max_sampled: maximum rows of logits in one step.
        num_kv_blocks: a measured block count that overrides the estimate.
        pipeline_parallel: stages that the layers are split into.
        max_num_seqs: maximum running sequences, for the windows and states that they store; default ``max_sampled``.
        drafted: draft tokens that a step verifies; a recurrent state is stored after each one, for rollback.
        max_context: longest context, for attention scores without FlashAttention.
        usual_tokens: tokens of a usual running sequence, by which layers with and without a window share the memory.

    Raises:
        DoesNotFit: weights and activations leave no memory for a single block.
    """
    stages = [
        _plan_stage(
            stage,
            draft if stage.last_stage else None,
            gpu_memory_utilization=gpu_memory_utilization,
            block_size=block_size,
            max_tokens=max_tokens,
            max_sampled=max_sampled,
            num_kv_blocks=num_kv_blocks,
            max_num_seqs=max_sampled if max_num_seqs is None else max_num_seqs,
            drafted=drafted,
            max_context=max_context,
            usual_tokens=usual_tokens,
        )
        for stage in (deployment.homes if deployment.other_devices else deployment.stages(pipeline_parallel))
    ]
    tightest = min(stages, key=lambda plan: (plan.num_blocks, -plan.weight_bytes - plan.draft_weight_bytes))
    per_token = sum(plan.replica_kv_bytes_per_token for plan in stages)
    return replace(tightest, replica_kv_bytes_per_token=per_token)


class DoesNotFit(ForerunError):
    """A model leaves no memory for KV on its chips."""


MOST_OF_MEMORY = 0.95
"""Highest ``gpu_memory_utilization`` that error messages recommend."""


def advice(unused: float, left: float, block: float, weights: float, draft_weights: float) -> str:
    """Advice on changes that make a model fit on its chips.

    Args:
        unused: bytes of the chip not used by weights, drafter, activations and states.
        left: the part of ``unused`` that the engine may use for KV blocks.
        block: bytes of one KV block.
        weights, draft_weights: bytes on a chip.
    """
    if left > 0:
        return f"lower engine.block_size: one block takes {block / 1e9:,.1f} GB and {left / 1e9:,.1f} GB are left"
    if unused > (1.0 - MOST_OF_MEMORY) * (unused + weights):
        return "raise engine.gpu_memory_utilization: the chip has the memory"
    if draft_weights > weights:
        return "choose a smaller drafter (speculation.draft.model) or put it on its own chips (speculation.draft.chip)"
    return (
        "raise hardware.tensor_parallel or pipeline_parallel, choose a narrower weights_dtype or lower "
        "engine.max_num_batched_tokens"
    )


def remedies(deployment: Deployment, draft: DraftMemory | None, least: int, limits: Mapping[str, Any]) -> str:
    """Values of fields of a scenario: each alone makes the model fit, with ``least`` tokens of KV.

    Args:
        limits: the keyword arguments of :func:`plan_memory` with which it does not fit.
    """

    def fits(limit: str, value: float | str) -> bool:
        changed = {**limits, limit: value}
        own = {"tensor_parallel": changed.pop("tensor_parallel", deployment.tensor_parallel)}
        if "weights_dtype" in changed:
            own["weight_dtypes"] = weight_dtypes(deployment.architecture, changed.pop("weights_dtype"))
        changed["max_sampled"] = min(changed["max_num_seqs"] * (changed["drafted"] + 1), changed["max_tokens"])
        with suppress(ForerunError):
            plan = plan_memory(replace(deployment, **own), draft, **changed)
            return plan.num_blocks * plan.block_size >= least
        return False

    seqs, share, tokens = limits["max_num_seqs"], limits["gpu_memory_utilization"], limits["max_tokens"]
    fewer = 1 + bisect_left(range(1, seqs), True, key=lambda less: fits("max_num_seqs", seqs - less))
    held = dtype_bytes(deployment.weight_dtypes["expert" if deployment.architecture.parameters().expert else "mlp"])
    local = deployment.framework.name in LOCAL_FRAMEWORKS
    formats = (
        ("q8_0", "q4_k_m") if local else ("fp8", "int4") if deployment.chip.math_dtype("fp8") == "fp8" else ("int4",)
    )
    tried: dict[str, tuple[str, Sequence[float | str]]] = {
        "engine.max_num_seqs": ("max_num_seqs", [seqs - fewer] if fewer < seqs else []),
        "engine.max_num_batched_tokens": ("max_tokens", [n for n in (8192, 4096, 2048, 1024) if n < tokens]),
        "engine.gpu_memory_utilization": (
            "gpu_memory_utilization",
            [n / 100 for n in range(90, 96) if n > 100 * share],
        ),
        "engine.block_size": ("block_size", [n for n in (16,) if n < limits["block_size"]]),
        "hardware.tensor_parallel": ("tensor_parallel", [n for n in (2, 4, 8, 16) if n > deployment.tensor_parallel]),
    }
    if held > dtype_bytes("q4_0"):
        tried["weights_dtype"] = ("weights_dtype", formats[held <= 1.1 and len(formats) > 1 :])
    enough = {field: next((n for n in values if fits(name, n)), None) for field, (name, values) in tried.items()}
    return " or ".join(f"{field}: {value}" for field, value in enough.items() if value is not None)


def _plan_stage(
    deployment: Deployment,
    draft: DraftMemory | None,
    *,
    gpu_memory_utilization: float,
    block_size: int,
    max_tokens: int,
    max_sampled: int,
    num_kv_blocks: int | None,
    max_num_seqs: int,
    drafted: int,
    max_context: int,
    usual_tokens: float,
) -> MemoryPlan:
    """Memory plan of one pipeline stage, with the number of blocks that the stage alone would allow."""
    budget = gpu_memory_utilization * deployment.chip.memory.capacity_bytes
    weights = deployment.weight_bytes
    draft_weights = draft.weight_bytes if draft else 0.0
    activations = activation_bytes(deployment, max_tokens, max_sampled, max_context)
    per_token = deployment.cached_kv_bytes_per_token + (draft.kv_bytes_per_token if draft else 0.0)
    left = budget - weights - draft_weights - activations
    if deployment.framework.kv_share_of == "free":
        left = (deployment.chip.memory.capacity_bytes - weights - draft_weights - activations) * gpu_memory_utilization
    elif deployment.framework.kv_share_of == "static":
        left = min(budget, deployment.chip.memory.capacity_bytes - activations) - weights - draft_weights
    states = max_num_seqs * deployment.state_bytes_per_sequence(drafted)
    page_tokens, page = block_size, per_token * block_size
    hybrid = hybrid_pages(deployment, block_size)
    if hybrid is not None:
        states = max_num_seqs * (1 + drafted) * hybrid.state_groups * hybrid.group_bytes
        page_tokens = hybrid.tokens
        page = hybrid.caching_groups * hybrid.group_bytes + (draft.kv_bytes_per_token if draft else 0.0) * page_tokens
    left -= states
    used = weights + draft_weights + activations + states
    windows = window_bytes(deployment, left, per_token, max_tokens, max_num_seqs, block_size, usual_tokens)
    left -= windows
    pages = (int(left // page) if page else ANY) if left > 0 else 0
    if num_kv_blocks is not None and weights + draft_weights < deployment.chip.memory.capacity_bytes:
        pages = num_kv_blocks * block_size // page_tokens
    elif deployment.framework.max_kv_tokens:
        pages = min(pages, deployment.framework.max_kv_tokens // page_tokens)
    blocks = deployment.attention_data_parallel * pages * (page_tokens // block_size)
    if blocks < 1:
        raise DoesNotFit(
            f"model: {deployment.architecture.name} does not fit {deployment.group_chips} x "
            f"{deployment.chip.name}{_stage_words(deployment)}: "
            f"per chip {weights / 1e9:.1f} GB weights + "
            f"{f'{draft_weights / 1e9:.1f} GB drafter + ' if draft else ''}"
            f"{_state_words(states, max_num_seqs)}{activations / 1e9:.1f} GB activations against {budget / 1e9:.1f} GB "
            f"({gpu_memory_utilization:.0%} of {deployment.chip.memory.capacity_bytes / 1e9:.0f} GB); "
            f"{advice(deployment.chip.memory.capacity_bytes - used, left, page, weights, draft_weights)}"
        )
    return MemoryPlan(
        capacity_bytes=deployment.chip.memory.capacity_bytes,
        weight_bytes=weights,
        draft_weight_bytes=draft_weights,
        activation_bytes=activations,
        kv_bytes_per_token=per_token,
        replica_kv_bytes_per_token=per_token * deployment.tensor_parallel,
        block_size=block_size,
        num_blocks=blocks,
        state_bytes=states,
        index_bytes_per_token=deployment.index_bytes_per_token,
        groups=deployment.attention_data_parallel,
        overridden=num_kv_blocks is not None,
        page_tokens=page_tokens,
        padding_bytes=pages * (page - page_tokens * per_token) if hybrid is not None else 0.0,
        window_blocks=window_blocks(deployment),
        window_room=windows / (pages * page) if windows and num_kv_blocks is None else 0.0,
    )


def window_bytes(
    deployment: Deployment,
    left: float,
    per_token: float,
    max_tokens: int,
    max_num_seqs: int,
    block_size: int,
    usual_tokens: float = 0.0,
) -> float:
    """KV bytes on one chip reserved for layers with a window.

    The maximum number of sequences counts. Every sequence stores its window and a partly filled block; the step's new
    tokens are stored until the step ends. The result is at most the windows' share for sequences of ``usual_tokens``,
    at least the widest window: shorter contexts drop no tokens, so they get as many blocks as without windows.

    Args:
        deployment: the model.
        left: bytes available for KV in total.
        per_token: KV bytes of a token in the layers without a window.
        max_tokens: maximum tokens of a step.
        max_num_seqs: maximum running sequences.
        block_size: tokens of a block.
        usual_tokens: tokens of a usual running sequence.
    """
    windows = deployment.windowed_kv_bytes
    if not windows or left <= 0:
        return 0.0
    longest = max(usual_tokens, *(window for window, _ in windows))
    sequence = sum(size * (window + block_size) for window, size in windows)
    step = min(max_tokens * sum(size for _, size in windows), 0.5 * left)
    share = left * sequence / (sequence + per_token * (longest + block_size))
    return float(min(max_num_seqs * sequence + step, share, left - per_token * block_size))


def _state_words(states: float, sequences: int) -> str:
    """Text about the recurrent state reserved for the maximum number of sequences; empty without state."""
    return f"{states / 1e9:.1f} GB state of {sequences} sequences (engine.max_num_seqs) + " if states else ""


def _stage_words(deployment: Deployment) -> str:
    """Name of the pipeline stage; empty for the whole model."""
    if deployment.first_stage and deployment.last_stage:
        return ""
    return f" (a pipeline stage of {deployment.architecture.num_layers} layers)"
