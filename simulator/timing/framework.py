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
from simulator.llm.layers import Attention, MoeMlp
from simulator.timing.releases import reaches

LOCAL_FRAMEWORKS = ("llama.cpp", "mlx")
"""Single-machine engines."""


class ElementwiseKernels(BaseModel):
    """Memory-bound kernels that an engine launches per layer and that the measured kernels do not include."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    rotary: int = Field(default=1, ge=0)
    qk_norm: int = Field(default=1, ge=0)
    """Number of kernels for norms of queries and keys, if an architecture has such norms."""
    latent_norm: int = Field(default=0, ge=0)
    """Number of kernels for norms of MLA's latents: of the cache, and of queries if they are compressed."""
    kv_write: int = Field(default=0, ge=0)
    expert_choice: int = Field(default=0, ge=0)
    shared_sum: int = Field(default=0, ge=0)
    every_norm: bool = False
    """True if each norm of a layer is a separate kernel; else mixer and feed-forward have one each."""


HOST_COSTS = (
    *("step_s", "per_sequence_s", "per_prompt_s", "rank_s", "overlapped_s", "overlapped_per_sequence_s"),
    *("api_server_s", "api_server_work_s", "tokenisation_per_token_s", "streaming_s", "transfer_setup_s"),
    *("eager_launch_s", "uncompiled_launch_s", "eager_experts_s", "eager_mxfp4_experts_s", "eager_latent_s"),
    *("eager_sparse_s", "eager_recurrent_s", "sink_launches"),
    "reserved_bytes",
)
"""Fields with host costs, which are not part of any kernel's price."""


WIDE = 4
"""Minimum tensor-parallel size at which SGLang captures larger graphs."""
HOST_LOGITS = 128256
"""Vocabulary of Llama 3, on which the host time per sequence of a chip (``Host.sequence_s``) was fitted."""


NORMS = 2
"""Number of norms of a layer that ``kernels_per_layer`` includes."""
SORTED_COPIES = 10.0
"""Memory of logits that are sorted, in units of their fp32 form.

Source: 5 GiB for 1,024 rows of 131,072 (vllm-project/vllm#33538)."""
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
    """Same host time for MXFP4 experts: a single call selects, runs and sums experts."""
    triton_experts: str | None = None
    """Release from which MXFP4 experts run in Triton's kernels on Hopper; earlier ones run in Marlin kernels."""
    eager_latent_s: float = Field(default=0.0, ge=0)
    """Host time outside captured graphs that latent attention (MLA) adds to a layer's launches."""
    eager_sparse_s: float = Field(default=0.0, ge=0)
    """Host time outside captured graphs of a layer with selective or compressed attention."""
    eager_recurrent_s: float = Field(default=0.0, ge=0)
    """Host time outside captured graphs that a layer with a recurrent state adds to its launches."""
    fp8_experts_s: dict[str, float] = Field(default_factory=dict)
    """Seconds per layer and step of FP8 experts in addition to their products, by chip name."""
    eager_launch_s: float = Field(ge=0)
    uncompiled_launch_s: float = Field(default=0.0, ge=0)
    """Host time per kernel if graphs, and so compilation, are switched off; used if longer than ``eager_launch_s``."""
    sink_launches: int = Field(default=0, ge=0)
    """Launches of a layer's attention with sinks outside captured graphs, before Hopper and ``sinks_captured``."""
    sinks_captured: str | None = None
    """Release from which captured graphs contain attention in Triton's kernels."""
    captured_sizes: tuple[tuple[int, int, int], ...]
    """Default sizes of captured graphs as ascending (first, last, step) ranges; empty if none is captured."""
    passes: ElementwiseKernels = Field(default_factory=ElementwiseKernels)
    joins_attention: bool = False
    """True if FlashAttention-3 attends for prompt chunks and decoding sequences of a mixed batch in one launch."""
    norms_in_reductions: bool = False
    """True if the all-reduce kernel also adds the residual and computes the following norm."""
    logit_copies: float = Field(default=2.0, ge=0)
    """Memory of the sampled logits in units of their fp32 form; more if the sampler sorts them."""
    broadcasts_until: str | None = None
    """Release from which the broadcast to several ranks runs beside the device, so that ``rank_s`` is 0."""
    sorts_logits_until: str | None = None
    """Release from which the sampler no longer sorts logits, which takes ``SORTED_COPIES`` of them."""
    wide_tiles_until: str | None = None
    """Release from which FP8 experts have tiles for few tokens on Hopper without a file of tuned ones."""
    window_blocks_until: str | None = None
    """Release from which blocks that a window has passed leave the prefix cache; None: they never stay in it."""
    mxfp4_tile: int = Field(default=1, ge=0)
    """Multiple to which the stored hidden size of MXFP4 experts is padded."""
    mxfp8_experts: bool = False
    """True if MXFP4 experts take activations in MXFP8, on chips that multiply 4-bit floats."""
    joins_index_keys: bool = False
    """True if the key and head-weight projections of an index are one product, in the model's own format."""
    shared_overlap_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of a step whose shared experts run on a stream parallel to routed experts; 0 = after them."""
    captured_unit: Literal["tokens", "sequences"] = "tokens"
    """Unit of the captured sizes."""
    captured_steps: Literal["all", "decode"] = "all"
    """Steps that may replay a graph: all, or those without prompt chunks."""
    captured_by_memory: tuple[tuple[float, int, int], ...] = ()
    """Largest captured sizes by chip memory: (memory limit in GiB, size below ``WIDE`` tensor-parallel chips, size from
    ``WIDE`` on)."""
    captured_per_seq: float = Field(default=0.0, ge=0)
    """Largest captured size relative to ``max_num_seqs`` (times the tokens of a verify step); 0 = no such limit."""
    captured: tuple[int, ...] = ()
    """Captured sizes in tokens under an engine's limits (``for_engine``); empty = the defaults."""
    reserved_bytes: float = Field(ge=0)
    library: str | None = None
    """Kernel library, if its name differs from the engine's."""
    reductions: str | None = None
    """Kernel library whose collectives the engine runs, if it differs from ``library``."""
    rank_skew_s: float = Field(default=0.0, ge=0)
    """Seconds that every all-reduce waits for each further rank."""
    static_activation_scales: bool = False
    """True if the engine's 8-bit checkpoints contain activation scales, so that no kernel computes scales."""
    kv_share_of: Literal["all", "free", "static"] = "all"
    """Base of ``engine.gpu_memory_utilization``: a chip's memory, with activations inside the share (all) or outside of
    it (static: SGLang's ``--mem-fraction-static``), or the memory left by weights and activations (free)."""
    per_prompt_s: float = Field(default=0.0, ge=0)
    rank_s: float = Field(default=0.0, ge=0)
    sorted_logit_s: float = Field(default=0.0, ge=0)
    overlapped_s: float = Field(default=0.0, ge=0)
    overlapped_per_sequence_s: float = Field(default=0.0, ge=0)
    api_server_s: float = Field(default=0.0, ge=0)
    api_server_work_s: float = Field(default=0.0, ge=0)
    tokenisation_per_token_s: float = Field(default=0.0, ge=0)
    streaming_s: float = Field(default=0.0, ge=0)
    transfer_setup_s: float = Field(default=0.0, ge=0)
    first_batch_s: dict[str, float] = Field(default_factory=dict)
    """Delay in seconds of a benchmark's first prompts, sent several at once, by chip vendor."""
    schedules_ahead: bool = False
    group_choice: Literal["fewest", "round-robin"] = "fewest"
    """Choice of a request's attention group: lowest load (running plus four times waiting requests), or round robin."""
    dp_wait_limit_steps: int = Field(default=0, ge=0)
    """Maximum steps that a prompt waits until every attention group has a prompt."""
    divides_limits: bool = False
    """True if limits on sequences and tokens apply to all attention groups together."""
    scheduling_s: float = Field(default=0.0, ge=0)
    """Part of the host seconds of a step that asynchronous scheduling overlaps with the device."""
    scheduling_per_sequence_s: float = Field(default=0.0, ge=0)
    tail_of_each_token: bool = False
    """True if a convolution stores a tail per verified token, not one tail that is longer by a token."""
    scores: Literal["queries", "sequences"] = "queries"
    """Verification of draft tokens: as several queries of one sequence, or each token as a sequence. The latter reads
    the whole context per token (vLLM's batch expansion of 2024)."""
    drafts: Literal["batched", "per-sequence"] = "batched"
    """Draft passes: one for all sequences, or one per sequence (slots of llama.cpp)."""
    recurrent_drafts: Literal["batched", "per-sequence"] = "batched"
    """Passes of a recurrent-state model that has a drafter: one for all sequences, or one per sequence."""
    fixed_batch: bool = False
    """True if a decode step computes all ``max_num_seqs`` slots of the batch, occupied or not."""
    slots: int = Field(default=0, ge=0)
    """Slots of a fixed batch under an engine's limits (``for_engine``)."""
    prompts: Literal["together", "sequential"] = "together"
    """Computation of a step's prompts: together, or one after the other, padded to fixed sizes."""
    host_rows: Literal["running", "slots"] = "running"
    """Rows that the host processes after a decode step: running sequences, or all slots of a fixed batch."""
    reduced_bytes: float = Field(default=0.0, ge=0)
    """Bytes per element that an all-reduce sends; 0 = bytes of the activation format."""
    eager_rank_s: float = Field(default=0.0, ge=0)
    """Host time of a launch outside captured graphs for each further tensor-parallel rank."""
    eager_read_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the memory bandwidth at which a step outside captured graphs reads the layers' weights, after its
    launches; 0 = as in captured graphs."""
    samples_on: Literal["host", "device"] = "host"
    """Sampling on host or device, for chips with host time per sequence for logits (``Host.sequence_s``)."""
    device_logits: int = Field(default=0, ge=0)
    """Maximum logits per chip that chips sample; 0 = no limit. The host samples all slots above it. A lone chip samples
    in two parts."""
    wide_attention: tuple[str, ...] = ()
    """Beginnings of names of models whose attention and KV cache default to bf16, and their MLP to bfp8."""
    prefill_chunk_tokens: int = Field(default=0, ge=0)
    """Maximum prompt tokens whose activations are in memory at once; 0 = all tokens of a step."""
    max_kv_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of all sequences for which KV is allocated, per replica; 0 = no limit but the memory."""
    engine_defaults: dict[str, Any] = Field(default_factory=dict)
    """Fields of ``engine`` whose default differs from the scenario's usual default."""
    weights_dtype: dict[str, str] | None = None
    """Default weight format of each part if the scenario has no ``weights_dtype``; None = the checkpoint's formats."""
    kv_cache_dtype: str | None = None
    """Default KV cache format if the scenario has no ``kv_cache_dtype``."""
    scored_row_s: float = Field(default=0.0, ge=0)
    """Host seconds per verified draft token that is a separate sequence."""
    source: Source

    @property
    def kernel_library(self) -> str:
        """Name of the library whose kernels the engine runs."""
        return self.library or self.name

    def runs_kernels_of(self, other: Framework) -> bool:
        """True if both engines launch the same kernels: they differ at most in ``HOST_COSTS``."""
        return self == other or self.model_copy(update={name: getattr(other, name) for name in HOST_COSTS}) == other

    def without_api_server(self) -> Framework:
        """Variant of the engine that a program drives in-process, without costs of an API server."""
        return self.model_copy(
            update={
                "api_server_s": 0.0,
                "api_server_work_s": 0.0,
                "tokenisation_per_token_s": 0.0,
                "streaming_s": 0.0,
                "per_prompt_s": 0.0,
                "overlapped_per_sequence_s": 0.0,
            }
        )

    def streaming_every(self, tokens: int) -> Framework:
        """Variant of the engine that streams ``tokens`` tokens at once."""
        if tokens == 1:
            return self
        costs = ("overlapped_per_sequence_s", "streaming_s")
        return self.model_copy(update={name: getattr(self, name) / tokens for name in costs})

    def launches_s(self, architecture: Architecture, experts: str, ranks: int = 1, graphs: bool = True) -> float:
        """Host time to launch every kernel of a step one by one, which a step outside captured graphs cannot beat.

        Args:
            architecture: the model.
            experts: dtype of the model's routed experts.
            ranks: tensor-parallel chips that the host launches each kernel on.
            graphs: whether other steps run captured graphs.
        """
        from simulator.llm.mixers import CompressedAttention, Recurrent, SelectiveAttention

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
        recurrent = sum(g.count for g in architecture.layer_groups if isinstance(g.layer.mixer, Recurrent))
        mixers = ((g.layer.mixer, g.count) for g in architecture.layer_groups)
        latent = sum(count for mixer, count in mixers if isinstance(mixer, Attention) and mixer.kind == "mla")
        experts_s = self.eager_mxfp4_experts_s if experts == "mxfp4" else self.eager_experts_s
        others = sparse * self.eager_sparse_s + recurrent * self.eager_recurrent_s + latent * self.eager_latent_s
        return dense + routed * experts_s + others

    def padded(self, hidden_size: int) -> int:
        """Hidden size that MXFP4 experts are stored with."""
        tile = max(1, self.mxfp4_tile)
        return -(-hidden_size // tile) * tile

    def sinks_s(self, architecture: Architecture) -> float:
        """Host time outside captured graphs of attention with sinks, which a step in a graph cannot beat either."""
        mixers = ((group.layer.mixer, group.count) for group in architecture.layer_groups)
        layers = sum(count for mixer, count in mixers if isinstance(mixer, Attention) and mixer.sinks)
        return self.sink_launches * self.uncompiled_launch_s * layers

    def with_experts(self, chip: str, architecture: Architecture, experts: str) -> Framework:
        """Variant of the engine with the extra time of layers of FP8 experts on the chip of this name."""
        layer_s = self.fp8_experts_s.get(chip, 0.0) if experts.startswith("fp8") else 0.0
        return self.model_copy(update={"step_s": self.step_s + layer_s * expert_layers(architecture)})

    def sorting(self, vocabulary: int) -> Framework:
        """Variant of the engine that samples with top-p or top-k: the logits of every sequence are sorted.

        Args:
            vocabulary: number of logits of one sequence.
        """
        return self.model_copy(update={"per_sequence_s": self.per_sequence_s + vocabulary * self.sorted_logit_s})

    def scheduled(self, asynchronous: bool | None) -> Framework:
        """Variant with or without asynchronous scheduling; None = the engine's default. Asynchronous: a step lasts at
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
        """Variant of the framework with the graph sizes captured under an engine's limits.

        Sizes that count sequences become tokens of a decode or verify step; sizes that count tokens are rounded up to
        whole verify steps (vLLM's ``adjust_cudagraph_sizes_for_spec_decode``).

        Args:
            max_num_seqs: maximum sequences of a step.
            query_len: tokens per decoding sequence.
            sizes: captured sizes set by the user in place of the defaults; empty = no captured graphs.
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
        """Tokens of the largest captured graph; steps with more tokens launch kernel by kernel."""
        return max(self._sizes(), default=0)

    def padded_tokens(self, tokens: IntArray, cuda_graphs: bool) -> IntArray:
        """Tokens that the linear layers compute, padded to the next captured size if a graph is replayed."""
        if not cuda_graphs:
            return tokens
        sizes = np.array([0, *self._sizes()])
        return np.where(tokens <= sizes[-1], sizes[np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)], tokens)

    def padded_prompts(self, most: int) -> IntArray:
        """Tokens computed for a single prompt, by its length up to ``most``. They are at least 128, padded to a power
        of two or to a multiple of 2,048, whichever is smaller.

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

    def on(self, chip: Chip, tensor_parallel: int = 1, vocabulary: int = HOST_LOGITS) -> Framework:
        """Variant of the engine for chips whose software adds host time, with the graphs that fit in their memory.
        Sampling on the host takes time in proportion to ``vocabulary``."""
        host, capacity = chip.host, chip.memory.capacity_bytes
        most = next((most for gib, *most in self.captured_by_memory if capacity < gib * (1 << 30)), None)
        sizes = self.captured_sizes
        if most is not None:
            limit = most[tensor_parallel >= WIDE]
            sizes = tuple((first, min(last, limit), step) for first, last, step in sizes if first <= limit)
        wide = 0 < self.device_logits < vocabulary // (tensor_parallel if tensor_parallel > 1 else 2)
        rows = "slots" if wide else self.host_rows
        sampled = host.sequence_s * vocabulary / HOST_LOGITS if wide or self.samples_on == "host" else 0.0
        times = {"step_s": self.step_s + host.step_s, "per_sequence_s": self.per_sequence_s + sampled}
        if self.prompts == "sequential":
            times["eager_launch_s"] = self.eager_launch_s + host.launch_s
        return self.model_copy(update={"captured_sizes": sizes, "host_rows": rows, **times})


def expert_layers(architecture: Architecture) -> int:
    """Number of layers whose tokens are routed to experts."""
    return sum(group.count for group in architecture.layer_groups if isinstance(group.layer.feed_forward, MoeMlp))


@cache
def load_framework(name: str) -> Framework:
    """Load the framework ``name`` from the catalogue.

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


def older_sets(name: str) -> list[str]:
    """Other parameter sets of a framework's engine that are named after a release or a year.

    >>> older_sets("sglang"), older_sets("tt-metal-0.56")
    (['sglang-0.5.10'], [])
    """
    engine = re.escape(re.sub(r"-[\d.]+$", "", name))
    known = packaged("simulator.timing", "frameworks.yaml")
    return [one for one in known if one != name and re.fullmatch(rf"{engine}-[\d.]+", one)]


def engine_defaults(
    name: str,
    chip: Chip | None = None,
    entry_point: str = "server",
    release: str | None = None,
    model: str = "",
    drafts: bool = False,
) -> dict[str, Any]:
    """Fields of ``engine`` in which a release's defaults on a chip differ from a scenario's; empty for an unknown
    framework."""
    fields = dict(packaged("simulator.timing", "frameworks.yaml").get(name, {}).get("engine_defaults", {}))
    gib = 0.0 if chip is None else chip.memory.capacity_bytes / 2**30
    for other in map(dict, fields.pop("where", ())):
        named = chip is not None and other.pop("but", " ") in chip.name
        known = reaches(name, release, other.pop("since", "0"))
        here = other.pop("entry_point", entry_point) == entry_point and model.startswith(other.pop("model", ""))
        here &= drafts or not other.pop("drafts", False)
        if other.pop("from_gib", 0) <= gib and not named and known and here:
            fields |= other
    return fields


class DraftOverhead(BaseModel):
    """Exposed host seconds of one speculation method in one engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    step_s: float = Field(default=0.0, ge=0)
    """Host seconds per step that drafts."""
    pass_s: float = Field(default=0.0, ge=0)
    """Host seconds per sequential pass."""
    per_sequence_s: float = Field(default=0.0, ge=0)
    """Host seconds per drafting sequence and step; for text look-ups, the time of a look-up."""
    sequence_pass_s: float = Field(default=0.0, ge=0)
    """Host seconds per drafting sequence and sequential pass: verify a token, and resample if it is rejected."""
    per_context_token_s: float = Field(default=0.0, ge=0)
    """Host seconds per context token that a text look-up scans in each step."""
    gate_s: float = Field(default=0.0, ge=0)
    """Host seconds per sequential pass whose confidence is compared with a draft confidence threshold (llama.cpp's
    p-min)."""
    policy_step_s: float = Field(default=0.0, ge=0)
    """Host seconds per step under a policy that may change K, whether or not the step drafts."""
    policy_sequence_s: float = Field(default=0.0, ge=0)
    """Host seconds per sequence of a step that a policy governs."""
    budget_step_s: float = Field(default=0.0, ge=0)
    """Host seconds per step whose draft tokens are chosen by confidence."""
    source: Source


VLLM_2025 = "vllm-2025"
"""Catalogue entry for vLLM of July 2025, whose draft passes were not captured in graphs."""


@cache
def load_draft_overhead(framework: str, method: str) -> DraftOverhead:
    """Load the engine's entry for a method, else the generic entry of the method.

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
