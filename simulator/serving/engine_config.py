"""The ``engine`` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.errors import with_new_names
from forerun.types import PositiveBytes, PositiveInt, Section, Share, Tabulated
from hwprofiles.library import CORRECTED
from simulator.serving.kv_stores import EvictionSetting
from simulator.serving.rules import SCHEDULERS, RoutingName, SchedulerFacts, SchedulerName
from simulator.serving.store_config import Eviction, KvStoreConfig, eviction_setting


def has_several_api_servers(framework: str, entry_point: str) -> bool:
    """True if an engine may have several API servers in front of it: vLLM and SGLang have them."""
    return framework.startswith(("vllm", "sglang")) and entry_point == "server"


class EngineConfig(Section):
    """The serving engine: its kernels and host costs, its scheduler and its limits."""

    framework: str = "vllm"
    """Kernel library and host costs: vllm, sglang, trtllm, tt-metal, llama.cpp, mlx or generic. Default: tt-metal on
    Tenstorrent chips, with its own limits and formats (``forerun catalogue``), else vllm."""
    release: str | None = None
    """Release that runs, such as ``0.11.0``; default: one that the constants were fitted on. It chooses the engine's
    parameter set and defaults, and widens the intervals where the fits do not know it, or where it came out too soon
    after the model."""
    scheduler: SchedulerName = "vllm-v1"
    """``vllm-v1``: one token budget shared by decoding and chunked prefill. ``prefill-first``: whole prompts before any
    decoding. ``sglang``: prompts first, cut where a step's budget ends. ``guaranteed-no-evict``: as ``vllm-v1``, and a
    request waits until the KV cache holds all of it. ``static``: a batch runs until all of its requests are done.
    Default: ``sglang`` under SGLang, ``guaranteed-no-evict`` under TensorRT-LLM, ``prefill-first`` under vllm-2024 and
    tt-metal, else ``vllm-v1``; also ``vllm-v1`` in a pipeline and with ``preemption: swap``, which the others lack."""
    stepping: Literal["fast", "exact-steps"] = "fast"
    """``fast`` runs the compiled engine if it is built; ``exact-steps`` the interpreted one, every step priced by
    formula (the oracle). Results are the same."""
    num_scheduler_steps: Annotated[int, Field(ge=1, le=1024)] = 1
    """Decode steps per scheduling round (vLLM V0's ``--num-scheduler-steps``). A sequence that ends early is padded to
    the end of the round, and arrivals wait for that end."""
    max_num_seqs: PositiveInt = 256
    """Maximum requests in a step; default under vLLM: 1024 on chips with at least 70 GiB except the A100, else 256;
    2048 under SGLang (of each attention group) and TensorRT-LLM."""
    max_num_batched_tokens: Tabulated = 8192
    """Most tokens in a step; default: 8192; under vLLM 2048 on chips of less than 70 GiB and the A100, more without a
    server; under SGLang 2048, 4096, 8192 or 16384, from 35, 60 and 160 GiB on."""
    max_model_len: PositiveInt | None = None
    """Maximum length of prompt plus output; default: the model's trained context."""
    block_size: Tabulated = 16
    """Tokens per KV block."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of each chip's memory that the engine may use. Default: under SGLang by its own rule; 1 on Tenstorrent;
    0.92 under vLLM from 0.20 on; else 0.9."""
    num_kv_blocks: PositiveInt | None = None
    """A measured block count; overrides the estimate from memory."""
    kv_watermark: Share = 0.0
    """Share of the blocks that admission leaves free (vLLM V1 has none; V0 kept 0.01)."""
    scheduler_reserve_full_isl: bool = False
    """vLLM: True if a request joins the batch only when free blocks hold its whole prompt, not just its first chunk.
    Default: True under vLLM from 0.19 on."""
    enable_chunked_prefill: bool = True
    """True if a prompt may be computed in parts over several steps; default: False under TensorRT-LLM."""
    enable_prefix_caching: bool = True
    """True if blocks of equal content are shared between requests and stay cached after a request ends."""
    prefix_cache: Literal["blocks", "radix"] = "blocks"
    """``blocks``: KV is allocated and shared in blocks of ``block_size`` (vLLM). ``radix``: token by token, whatever
    the block size (SGLang's RadixAttention at its default page size of 1)."""
    prefix_cache_eviction: Eviction = "lru"
    """Policy by which unused blocks leave the prefix cache. ``lru``: least recently used (vLLM, SGLang). ``{name: ttl,
    seconds: 10}``: every block is kept for the seconds after its last use; new requests wait rather than take its room,
    and then it leaves as under LRU. ``{name: pin, seconds: 60}``: only blocks of a session whose tool runs are kept,
    until it comes back or the seconds are over, and only new sessions wait. ``session-aware``: blocks that no session
    will come back to, then LRU. ``largest-first``, ``smallest-first``: the ends of the longest prefixes, or the
    shortest prompts. ``belady``: the block whose next use is furthest, by the order of a run under LRU on the same
    random numbers."""
    async_scheduling: bool | None = None
    """True if a step is scheduled while the one before it runs (an arrival then waits one step longer). Default: the
    framework's own default."""
    scheduler_recv_interval: PositiveInt = 1
    """SGLang: decode steps between two polls for new requests (``--scheduler-recv-interval``). The scheduler also polls
    after every step with prompts and whenever it is idle."""
    batch_wait_timeout_iters: Annotated[int, Field(ge=0, le=10**6)] = 0
    """TensorRT-LLM: maximum decode steps that prompts wait (``batch_wait_timeout_iters``), so that more prompts are
    computed together. Prompts do not wait if nothing decodes."""
    batch_wait_max_tokens_ratio: Share = 0.0
    """TensorRT-LLM: prompts stop waiting once prompts and decoding sequences fill this share of
    ``max_num_batched_tokens`` (``batch_wait_max_tokens_ratio``)."""
    stream_interval: PositiveInt = 1
    """Tokens that a server sends at once (``--stream-interval`` of SGLang and vLLM, ``stream_interval`` of
    TensorRT-LLM). The first token of an answer is sent alone. Divides the host's work per streamed token."""
    api_server_count: PositiveInt = 1
    """API servers in front of an engine, or of each of its attention groups (``--api-server-count`` of vLLM,
    ``--tokenizer-worker-num`` of SGLang). They share the work on requests and streamed tokens, as one server that is as
    many times as fast."""
    cuda_graphs: bool = True
    """True if steps of decoding are captured and launched as one; off, every kernel is launched by the host."""
    cuda_graph_sizes: tuple[PositiveInt, ...] | None = Field(default=None, strict=False)
    """Sizes of captured graphs, counted as the framework counts them (vLLM: tokens; SGLang and TensorRT-LLM:
    sequences); default: the framework's own."""
    flash_decoding: bool = True
    """True if decode attention may split a sequence's KV cache over several work items (FlashDecoding). If off, there
    is one work item per sequence and KV head."""
    flash_attention: bool = True
    """True if llama.cpp keeps attention scores on the chip; ``--flash-attn off`` moves them through memory."""
    backend: Literal["rocm", "vulkan"] | None = None
    """llama.cpp: the back end that it was built for, where a card has two; default: between them."""
    kernel_correction: bool = CORRECTED
    """True if kernel times include the chip profile's learned correction, or follow the physical model alone. It is
    learned from kernels that a benchmark repeats; ``replay kernels`` and ``predict`` have the same default."""
    moe_backend: Literal["auto", "marlin", "triton", "mxfp8"] = "auto"
    """Kernels of experts stored in 4 bits. ``marlin``: weight-only kernels that widen them to 16 bits. ``triton``: what
    the profile was fitted on for their format. ``mxfp8``: MXFP4 experts with activations in MXFP8, on chips with FP4
    arithmetic (vLLM's ``VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1``). ``auto``: those where TensorRT-LLM or SGLang run on
    such chips; Marlin where vLLM runs MXFP4 experts on NVIDIA chips before Hopper, and up to 0.11 on Hopper; else the
    profile's (vLLM brings triton_kernels along since 0.12; InferenceX sets VLLM_MXFP4_USE_MARLIN=1). The engine's
    log says which."""
    sampling: Literal["greedy", "top-p"] = "greedy"
    """``top-p``: every sequence's logits are sorted (top-p or top-k sampling). Many checkpoints' generation settings
    ask for it, and servers do it by default."""
    samples_on: Literal["host", "device"] | None = None
    """Device that samples, on chips whose logits go to the host by default; default: as the framework does."""
    entry_point: Literal["server", "offline"] = "server"
    """``server``: requests come over HTTP and tokens are streamed back. ``offline``: a program calls the engine itself,
    as throughput benchmarks do."""
    routing: RoutingName = "round-robin"
    """Routing of requests over ``hardware.replicas``. Round robin, at random (a Kubernetes Service), by load, by the
    prefixes sent to each, or by those in each KV cache."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """Restoration of a preempted sequence's KV: recomputed later, or swapped to host memory and back."""
    swap_space_bytes: PositiveBytes = 4 * 1024.0**3
    """Host memory per chip for preempted sequences (vLLM V0's ``--swap-space``, 4 GiB)."""
    kv_offloading_bytes: PositiveBytes | None = None
    """Host memory per chip for blocks that the prefix cache evicts (vLLM's ``--kv-offloading-size``, which is for all
    ranks). Blocks found there are copied back over ``host_link`` instead of recomputed. None: evicted KV is lost.
    Short form of ``kv_stores`` with one host store."""
    kv_stores: Annotated[tuple[KvStoreConfig, ...], Field(max_length=4, strict=False)] = ()
    """Stores of each server behind the chips' prefix cache, in the order in which a prefix is looked for."""
    host_link: str | None = None
    """Link between each chip and its host: catalogue name or path; default: the chip's own."""

    @property
    def eviction(self) -> EvictionSetting:
        """Eviction policy of the prefix cache."""
        return eviction_setting(self.prefix_cache_eviction)

    @model_validator(mode="after")
    def _stores_differ(self) -> EngineConfig:
        if self.kv_stores and self.kv_offloading_bytes is not None:
            raise ValueError("kv_offloading_bytes: short form of kv_stores; give one of the two")
        labels = [store.label for store in self.kv_stores]
        if len(set(labels)) < len(labels):
            raise ValueError(f"kv_stores: give each store a name of its own (got {', '.join(labels)})")
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, data: Any) -> Any:
        return with_new_names(data, {"front_end": "entry_point"})

    @property
    def rules(self) -> SchedulerFacts:
        """Capabilities of the configured scheduler."""
        return SCHEDULERS[self.scheduler]

    @property
    def page_tokens(self) -> int:
        """Tokens per unit in which KV is allocated and shared: ``block_size``, or 1 with the radix cache."""
        return 1 if self.prefix_cache == "radix" else self.block_size

    @property
    def measured_pages(self) -> int | None:
        """``num_kv_blocks`` in pages of ``page_tokens``."""
        return None if self.num_kv_blocks is None else self.num_kv_blocks * self.block_size // self.page_tokens
