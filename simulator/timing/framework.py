"""Overheads of an inference engine beyond kernels: host time per step and draft, captured graphs, reserved memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from forerun.arrays import IntArray
from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged
from hwprofiles import Chip, Source
from simulator.llm.architecture import Architecture
from simulator.llm.layers import MoeMlp
from simulator.llm.mixers import CompressedAttention, SelectiveAttention

LOCAL_FRAMEWORKS = ("llama.cpp", "mlx")
"""Single-machine engines."""


class ElementwiseKernels(BaseModel):
    """Memory-bound kernels that an engine launches per layer and that the measured kernels do not include."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    rotary: int = Field(default=1, ge=0)
    qk_norm: int = Field(default=1, ge=0)
    """Kernels for norms of queries and keys, if an architecture has such norms."""
    latent_norm: int = Field(default=0, ge=0)
    """Kernels for norms of MLA's latents: the cached one, and the queries' if these are compressed."""
    kv_write: int = Field(default=0, ge=0)
    expert_choice: int = Field(default=0, ge=0)
    shared_sum: int = Field(default=0, ge=0)
    every_norm: bool = False
    """True if each norm of a layer is a kernel, not one for the mixer and one for the feed-forward."""


HOST_COSTS = (
    *("step_s", "per_sequence_s", "per_prompt_s", "rank_s", "overlapped_s", "overlapped_per_sequence_s"),
    *("api_server_s", "api_server_work_s", "tokenisation_per_token_s"),
    *("eager_launch_s", "uncompiled_launch_s", "eager_experts_s", "eager_mxfp4_experts_s", "eager_sparse_s"),
    "reserved_bytes",
)
"""Fields with host costs, which are not part of any kernel's price."""


WIDE = 4
"""Tensor-parallel size from which SGLang captures larger graphs."""


NORMS = 2
"""Norms of a layer that ``kernels_per_layer`` counts."""
TILE = 32
"""Minimum rows of a product and of an activation sent to other chips, on chips with matrix tiles."""


class Framework(BaseModel):
    """Host costs and graph capture of one engine; times in seconds, sizes in bytes or tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    step_s: float = Field(ge=0)
    per_sequence_s: float = Field(ge=0)
    kernels_per_layer: int = Field(ge=0)
    eager_experts_s: float = Field(default=0.0, ge=0)
    """Host time outside captured graphs that routed experts add to a layer's launches."""
    eager_mxfp4_experts_s: float = Field(default=0.0, ge=0)
    """The same for MXFP4 experts, for which a single call selects, runs and sums experts."""
    eager_sparse_s: float = Field(default=0.0, ge=0)
    """Host time outside captured graphs of a layer that chooses or compresses the keys which it reads."""
    fp8_experts_s: dict[str, float] = Field(default_factory=dict)
    """By chip name: seconds per layer and step of FP8 experts in addition to their products."""
    eager_launch_s: float = Field(ge=0)
    uncompiled_launch_s: float = Field(default=0.0, ge=0)
    """Host time per kernel if graphs, and so compilation, are switched off; used if longer than ``eager_launch_s``."""
    captured_sizes: tuple[tuple[int, int, int], ...]
    """Default sizes of captured graphs as ascending (first, last, step) ranges; empty if none is captured."""
    passes: ElementwiseKernels = Field(default_factory=ElementwiseKernels)
    norms_in_reductions: bool = False
    """True if an all-reduce adds the residual and takes the norm behind it in its own kernel."""
    mxfp8_experts: bool = False
    """True if MXFP4 experts take activations in MXFP8, on chips that multiply 4-bit floats."""
    joins_index_keys: bool = False
    """True if an index's keys and the weights of its heads are one product, widened to the model's own format."""
    shared_overlap_tokens: int = Field(default=0, ge=0)
    """Tokens up to which a step's shared experts run on their own stream, in parallel to routed ones; 0: after them."""
    captured_unit: Literal["tokens", "sequences"] = "tokens"
    """Unit of the captured sizes."""
    captured_steps: Literal["all", "decode"] = "all"
    """Steps that may replay a graph: all, or those without prompt chunks."""
    captured_by_memory: tuple[tuple[float, int, int], ...] = ()
    """Largest captured size on chips below a memory in GiB: with fewer than ``WIDE`` chips in tensor parallel, with
    more."""
    captured_per_seq: float = Field(default=0.0, ge=0)
    """Largest size over ``max_num_seqs`` (times the tokens of a verify step); 0 = no such limit."""
    captured: tuple[int, ...] = ()
    """Sizes in tokens under an engine's limits (``for_engine``); empty = the defaults."""
    reserved_bytes: float = Field(ge=0)
    library: str | None = None
    """Kernel library, if its name differs from the engine's."""
    reductions: str | None = None
    """Kernel library whose collectives the engine runs, if not its own."""
    rank_skew_s: float = Field(default=0.0, ge=0)
    """Seconds that every all-reduce waits for each further rank."""
    static_activation_scales: bool = False
    """True if its 8-bit checkpoints contain activation scales, so that no kernel computes them at run time."""
    kv_share_of: Literal["all", "free", "static"] = "all"
    """Base of ``engine.gpu_memory_utilization``: a chip's memory, activations inside or outside of it (static: SGLang's
    ``--mem-fraction-static``), or the memory that weights and activations leave."""
    per_prompt_s: float = Field(default=0.0, ge=0)
    rank_s: float = Field(default=0.0, ge=0)
    sorted_logit_s: float = Field(default=0.0, ge=0)
    overlapped_s: float = Field(default=0.0, ge=0)
    overlapped_per_sequence_s: float = Field(default=0.0, ge=0)
    api_server_s: float = Field(default=0.0, ge=0)
    api_server_work_s: float = Field(default=0.0, ge=0)
    tokenisation_per_token_s: float = Field(default=0.0, ge=0)
    first_batch_s: dict[str, float] = Field(default_factory=dict)
    """Delay of a benchmark's first prompts, sent several at once, by maker of the chip."""
    schedules_ahead: bool = False
    group_choice: Literal["fewest", "round-robin"] = "fewest"
    """Attention group that a request goes to: the one with the fewest waiting (four times) and running, or the next."""
    dp_wait_limit_steps: int = Field(default=0, ge=0)
    """Maximum steps that a prompt waits until every attention group has one."""
    divides_limits: bool = False
    """True if limits on sequences and tokens apply to all attention groups together."""
    scheduling_s: float = Field(default=0.0, ge=0)
    """Part of the host work of a step that asynchronous scheduling runs beside the device."""
    scheduling_per_sequence_s: float = Field(default=0.0, ge=0)
    tail_of_each_token: bool = False
    """True if a convolution keeps a tail for each token it verifies, not one that is longer by a token."""
    scores: Literal["queries", "sequences"] = "queries"
    """Verification of draft tokens: as several queries of one sequence, or each as a sequence. The latter reads the
    whole context again (vLLM's batch expansion of 2024)."""
    drafts: Literal["batched", "per-sequence"] = "batched"
    """Sequences of a draft pass: all together, or one each (slots of llama.cpp)."""
    recurrent_drafts: Literal["batched", "per-sequence"] = "batched"
    """Passes of a recurrent-state model that has a drafter: one for all sequences, or one each."""
    fixed_batch: bool = False
    """True if a decode step computes every one of ``max_num_seqs`` places of the batch, whichever are taken."""
    slots: int = Field(default=0, ge=0)
    """Places of a fixed batch under an engine's limits (``for_engine``)."""
    prompts: Literal["together", "sequential"] = "together"
    """Prompts of a step: computed together, or one after the other, padded to whole sizes."""
    host_rows: Literal["running", "slots"] = "running"
    """Sequences that the host handles after a decode step: those that run, or all places of a fixed batch."""
    reduced_bytes: float = Field(default=0.0, ge=0)
    """Bytes of an element on its way to other chips in an all-reduce; 0 = as it is computed."""
    eager_rank_s: float = Field(default=0.0, ge=0)
    """Host time of a launch outside captured graphs for each further tensor-parallel rank."""
    eager_read_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the memory bandwidth at which a step outside captured graphs reads the layers' weights, after its
    launches; 0 = as its kernels do."""
    samples_on: Literal["host", "device"] = "host"
    """Place of sampling on chips whose logits would otherwise go to the host (``Host.sequence_s``)."""
    prefill_chunk_tokens: int = Field(default=0, ge=0)
    """Prompt tokens held in activations at once; 0 = all tokens of a step."""
    max_kv_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of all sequences for which KV is allocated, per replica; 0 = as many as fit."""
    engine_defaults: dict[str, Any] = Field(default_factory=dict)
    """Fields of ``engine`` whose default differs from the scenario's usual default."""
    weights_dtype: dict[str, str] | None = None
    """Format of each part in which it stores weights where ``weights_dtype`` is not set; None: the checkpoint's."""
    kv_cache_dtype: str | None = None
    """Format of its KV cache where ``kv_cache_dtype`` is not set."""
    scored_row_s: float = Field(default=0.0, ge=0)
    """Host time for each verified draft token that is a sequence of its own."""
    source: Source

    @property
    def kernel_library(self) -> str:
        """Name of the library whose kernels the engine runs."""
        return self.library or self.name

    def runs_kernels_of(self, other: Framework) -> bool:
        """True if it launches the same kernels as ``other``: the two may differ only in ``HOST_COSTS``."""
        return self == other or self.model_copy(update={name: getattr(other, name) for name in HOST_COSTS}) == other

    def without_api_server(self) -> Framework:
        """The same engine driven by a program in its process: no server takes requests in or streams tokens out."""
        return self.model_copy(
            update={
                "api_server_s": 0.0,
                "api_server_work_s": 0.0,
                "tokenisation_per_token_s": 0.0,
                "per_prompt_s": 0.0,
                "overlapped_per_sequence_s": 0.0,
            }
        )

    def streaming_every(self, tokens: int) -> Framework:
        """The same engine when it streams several tokens at once."""
        if tokens == 1:
            return self
        return self.model_copy(update={"overlapped_per_sequence_s": self.overlapped_per_sequence_s / tokens})

    def launches_s(self, architecture: Architecture, experts: str, ranks: int = 1, graphs: bool = True) -> float:
        """Host time to launch every kernel of a step one by one, which a step outside captured graphs cannot beat.

        Args:
            architecture: the model.
            experts: dtype of its routed experts.
            ranks: tensor-parallel chips that the host launches each kernel on.
            graphs: whether other steps run captured graphs.
        """
        routed = expert_layers(architecture)
        launch_s = max(self.eager_launch_s, 0.0 if graphs else self.uncompiled_launch_s)
        launch_s += self.eager_rank_s * (ranks - 1)
        kernels = self.kernels_per_layer * architecture.num_layers
        if self.passes.every_norm:
            layers = ((group.layer, group.count) for group in architecture.layer_groups)
            kernels += sum(count * (layer.norms - NORMS) for layer, count in layers)
        dense = launch_s * kernels
        sparse = sum(
            group.count
            for group in architecture.layer_groups
            if isinstance(group.layer.mixer, SelectiveAttention | CompressedAttention)
        )
        experts_s = self.eager_mxfp4_experts_s if experts == "mxfp4" else self.eager_experts_s
        return dense + routed * experts_s + sparse * self.eager_sparse_s

    def with_experts(self, chip: str, architecture: Architecture, experts: str) -> Framework:
        """The engine with what its build adds to layers of FP8 experts on the chip of this name."""
        layer_s = self.fp8_experts_s.get(chip, 0.0) if experts.startswith("fp8") else 0.0
        return self.model_copy(update={"step_s": self.step_s + layer_s * expert_layers(architecture)})

    def sorting(self, vocabulary: int) -> Framework:
        """The same engine when it samples with top-p or top-k: the logits of every sequence are sorted.

        Args:
            vocabulary: logits of one sequence.
        """
        return self.model_copy(update={"per_sequence_s": self.per_sequence_s + vocabulary * self.sorted_logit_s})

    def scheduled(self, asynchronous: bool | None) -> Framework:
        """Variant with or without asynchronous scheduling; None: the engine's default. Asynchronous: a step lasts at
        least as long as its scheduling, and an arrival waits one step longer. Synchronous: every step waits for its
        scheduling.
        """
        if asynchronous is None or asynchronous == self.schedules_ahead:
            return self
        sign = -1.0 if asynchronous else 1.0
        return self.model_copy(
            update={
                "schedules_ahead": asynchronous,
                "step_s": max(0.0, self.step_s + sign * self.scheduling_s),
                "per_sequence_s": max(0.0, self.per_sequence_s + sign * self.scheduling_per_sequence_s),
                "overlapped_s": max(0.0, self.overlapped_s - sign * self.scheduling_s),
                "overlapped_per_sequence_s": max(
                    0.0, self.overlapped_per_sequence_s - sign * self.scheduling_per_sequence_s
                ),
            }
        )

    def for_engine(self, max_num_seqs: int, query_len: int = 1, sizes: Sequence[int] | None = None) -> Framework:
        """The framework with the graphs that it captures under an engine's limits.

        Sizes that count sequences become tokens of a decode or verify step; sizes that count tokens are rounded up to
        whole verify steps (vLLM's ``adjust_cudagraph_sizes_for_spec_decode``).

        Args:
            max_num_seqs: most sequences of a step.
            query_len: tokens per decoding sequence.
            sizes: what the user requests in place of the defaults; empty captures none.
        """
        if self.fixed_batch:
            rows = -(-max_num_seqs * query_len // TILE) * TILE
            return self.model_copy(update={"captured": (rows,), "slots": max_num_seqs})
        wanted = self._default_sizes() if sizes is None else sorted(set(sizes))
        if self.scores == "sequences":
            query_len = 1
        if self.captured_unit == "sequences":
            limit = float(max_num_seqs * query_len)
            tokens = [size * query_len for size in wanted]
        else:
            limit = self.captured_per_seq * max_num_seqs * query_len if sizes is None else 0.0
            tokens = [-(-size // query_len) * query_len for size in wanted]
        kept = tuple(dict.fromkeys(size for size in tokens if not limit or size <= limit)) if tokens else ()
        if self.captured_unit == "sequences" and sizes is None and tokens and kept[-1:] < (min(limit, tokens[-1]),):
            kept = (*kept, int(min(limit, tokens[-1])))  # the largest batch is captured too
        return self.model_copy(update={"captured": kept or (0,)})

    @property
    def max_captured_tokens(self) -> int:
        """Largest captured graph; steps of more tokens launch kernel by kernel."""
        return max(self._sizes(), default=0)

    def padded_tokens(self, tokens: IntArray, cuda_graphs: bool) -> IntArray:
        """Tokens that the linear layers really compute: padded to the next captured size where a graph is replayed."""
        if not cuda_graphs:
            return tokens
        sizes = np.array([0, *self._sizes()])
        return np.where(tokens <= sizes[-1], sizes[np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)], tokens)

    def padded_prompts(self, most: int) -> IntArray:
        """Tokens computed for a prompt alone, by its length up to ``most``: 128, else a power of two, or a multiple of
        2,048 where that is less.

        Source: tt-metal, ``get_padded_prefill_len`` of models/tt_transformers/tt/common.py.
        """
        lengths = np.maximum(1, np.arange(most + 1))
        powers = 1 << np.ceil(np.log2(lengths)).astype(np.int64)
        sizes = np.maximum(128, np.minimum(powers, -(-lengths // 2048) * 2048))
        padded: IntArray = np.maximum(lengths, np.minimum(sizes, most))
        return padded

    def _sizes(self) -> tuple[int, ...]:
        return self.captured or tuple(self._default_sizes())

    def _default_sizes(self) -> list[int]:
        return [size for first, last, step in self.captured_sizes for size in range(first, last + 1, step)]

    def on(self, chip: Chip, tensor_parallel: int = 1) -> Framework:
        """Variant of the engine for chips whose software adds host time, with the graphs that fit in their memory."""
        host, capacity = chip.host, chip.memory.capacity_bytes
        most = next((most for gib, *most in self.captured_by_memory if capacity < gib * (1 << 30)), None)
        sizes = self.captured_sizes
        if most is not None:
            limit = most[tensor_parallel >= WIDE]
            sizes = tuple((first, min(last, limit), step) for first, last, step in sizes if first <= limit)
        sampled = host.sequence_s if self.samples_on == "host" else 0.0
        times = {"step_s": self.step_s + host.step_s, "per_sequence_s": self.per_sequence_s + sampled}
        if self.prompts == "sequential":
            times["eager_launch_s"] = self.eager_launch_s + host.launch_s
        return self.model_copy(update={"captured_sizes": sizes, **times})


def expert_layers(architecture: Architecture) -> int:
    """Layers whose tokens are routed to experts."""
    return sum(group.count for group in architecture.layer_groups if isinstance(group.layer.feed_forward, MoeMlp))


@cache
def load_framework(name: str) -> Framework:
    """The catalogue's framework ``name``.

    Raises:
        ForerunError: no such framework.
    """
    known = packaged("simulator.timing", "frameworks.yaml")
    if name not in known:
        base, _, release = name.partition("-")
        versioned = base in known and re.fullmatch(r"v?\d+(\.\d+)+", release)
        hint = f"; write framework: {base} and release: {release}" if versioned else did_you_mean(name, known)
        raise ForerunError(f"engine.framework: no framework '{name}'{hint} (one of {', '.join(known)})")
    return Framework(name=name, **known[name])


def engine_defaults(name: str, chip: Chip | None = None, entry_point: str = "server") -> dict[str, Any]:
    """Fields of ``engine`` in which a framework's defaults on a chip differ from a scenario's; empty for an unknown
    framework."""
    fields = dict(packaged("simulator.timing", "frameworks.yaml").get(name, {}).get("engine_defaults", {}))
    gib = 0.0 if chip is None else chip.memory.capacity_bytes / 2**30
    for other in map(dict, fields.pop("where", ())):
        named = chip is not None and other.pop("but", " ") in chip.name
        if other.pop("from_gib", 0) <= gib and not named and other.pop("entry_point", entry_point) == entry_point:
            fields |= other
    return fields


class DraftOverhead(BaseModel):
    """Host seconds of one method in one engine that no kernel hides."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    step_s: float = Field(default=0.0, ge=0)
    """Per step that drafts."""
    pass_s: float = Field(default=0.0, ge=0)
    """Per sequential pass."""
    per_sequence_s: float = Field(default=0.0, ge=0)
    """Host seconds per drafting sequence and step; for a look-up on the host, the look-up's time."""
    sequence_pass_s: float = Field(default=0.0, ge=0)
    """Per drafting sequence and sequential pass: its token verified and sampled again where it is refused."""
    per_context_token_s: float = Field(default=0.0, ge=0)
    """Per context token scanned in each step: look-ups on the host."""
    gate_s: float = Field(default=0.0, ge=0)
    """Per sequential pass whose confidence is looked at, where a confidence threshold may end the draft (llama.cpp's
    p-min)."""
    policy_step_s: float = Field(default=0.0, ge=0)
    """Per step under a policy that may change K, whether or not the step drafts."""
    policy_sequence_s: float = Field(default=0.0, ge=0)
    """Host seconds per sequence of a step that a policy governs."""
    budget_step_s: float = Field(default=0.0, ge=0)
    """Per step whose draft tokens are chosen by their confidence."""
    source: Source


VLLM_2025 = "vllm-2025"
"""Catalogue entry for vLLM of July 2025, whose draft passes were not captured in graphs."""


@cache
def load_draft_overhead(framework: str, method: str) -> DraftOverhead:
    """The engine's entry for a method, or that of any engine.

    Raises:
        ForerunError: no such method.
    """
    entries = packaged("simulator.timing", "draft_overheads.yaml")
    row = entries.get(framework, {}).get(method, entries["default"].get(method))
    if row is None:
        known = list(entries["default"])
        raise ForerunError(
            f"speculation.method: no drafter '{method}'{did_you_mean(method, known)} (one of {', '.join(known)})"
        )
    return DraftOverhead.model_validate(row)
