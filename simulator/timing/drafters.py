"""Drafters and their costs per step: on the target's chips, on the host or on separate chips.

A drafter lists its parts, each a model pass, a table lookup or host seconds; its kernels and its costs in one step or
in many steps all follow from that list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from forerun.arrays import IntArray
from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, Link, dtype_bytes
from hwprofiles.formulas import Num
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.kernels import (
    LOGIT_BYTES,
    LOGIT_KERNELS,
    Call,
    Costs,
    CostTable,
    Kernel,
    collective,
    other_device_kernel,
    price,
)
from simulator.timing.step import StepTimer
from simulator.timing.work import DraftStep, StepWork, decode_work, mean_sequence, slowest_group, some_steps

TOKEN_BYTES = 4.0
"""Bytes of a token id in a message (int32)."""


class DraftTable:
    """Kernels that depend on a single count, with tabulated costs; the kernel list is built on demand."""

    def __init__(self, library: KernelLibrary, calls: Any, most: int) -> None:
        self._library, self._calls = library, calls
        self.table = CostTable(self.priced, most)

    def priced(self, counts: IntArray) -> Costs:
        """Costs at many counts, by formula."""
        return Costs.of(self.kernels(counts), len(counts))

    def kernels(self, counts: IntArray) -> Iterator[Kernel]:
        """The kernels for each of many counts."""
        for call in self._calls(counts):
            yield price(call, self._library)

    def seconds(self, count: int) -> float:
        """Device seconds at ``count``."""
        return self.table.seconds(count)

    def costs(self, counts: IntArray) -> Costs:
        """Costs at many counts."""
        return self.table.rows(counts)


class Part(NamedTuple):
    """Part of a drafter's work in one step, or in each of many steps (with arrays as numbers)."""

    times: Num
    """Number of runs of the part in a step; 0 = none."""
    source: StepTimer | DraftTable | None
    """Timer of a model pass, or a table; None = the seconds are in ``arguments``."""
    arguments: tuple[Num, ...]
    """Arguments of ``source``: a step's work and its rows of logits, or a count. Without a source, the seconds."""
    kind: Literal["device", "host", "link"] = "device"
    """Place where the seconds are spent if ``source`` is None."""
    on_other_device: bool = False
    """True if the part runs on other chips than the target; its FLOPs and bytes are then not counted."""

    def seconds(self) -> Num:
        """Seconds of the part in one step."""
        if self.source is None:
            return self.times * self.arguments[0]
        return self.times * self.source.seconds(*self.arguments) if self.times else 0.0

    def kernels(self) -> Iterator[Kernel]:
        """Kernels of the part in many steps; waits for launches outside captured graphs are not included."""
        if self.source is None:
            family = {"host": "host", "link": "collective", "device": "elementwise"}[self.kind]
            yield other_device_kernel(f"draft: {self.kind}", family, self.arguments[0], self.times)
            return
        for kernel in self.source.kernels(*self.arguments):
            time = kernel.time._replace(flops=0.0, bytes=0.0) if self.on_other_device else kernel.time
            sol_s = 0.0 if self.on_other_device else kernel.sol_s
            times = kernel.times * self.times
            yield kernel._replace(name=f"draft: {kernel.name}", times=times, time=time, sol_s=sol_s)

    def add_to(self, total: Costs) -> None:
        """Add the part's costs in many steps to ``total``."""
        if self.source is None:
            for kernel in self.kernels():
                total.add_kernel(kernel)
            return
        costs = self.source.costs(*self.arguments)
        if self.on_other_device:
            for part in (costs.flops, costs.bytes, costs.sol_s):
                part[:] = 0.0
        total.add(costs, self.times)


def host_part(seconds: Num, times: Num = 1) -> Part:
    """Part for host work of the given seconds, during which the chips wait."""
    return Part(times, None, (seconds,), "host")


def drafting_seconds(parts: Iterator[Part]) -> Num:
    """Seconds of a drafter's parts in one step; an array if ``decode_kv_tokens`` contains arrays."""
    total: Num = 0.0
    for part in parts:
        total = total + part.seconds()
    return total


def drafting_costs(parts: Iterator[Part], steps: int) -> Costs:
    """Costs of a drafter's parts in each of many steps."""
    total = Costs.zeros(steps)
    for part in parts:
        part.add_to(total)
    return total


@runtime_checkable
class DraftMemory(Protocol):
    """Memory that a drafter takes on every chip of the target."""

    @property
    def weight_bytes(self) -> float:
        """Weight bytes on ONE chip, without tensors shared with the target."""

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token on ONE chip."""


@runtime_checkable
class Drafter(DraftMemory, Protocol):
    """Extension point: cost model of a method that proposes draft tokens. ``check_drafter`` validates custom drafters.

    The engine verifies all proposed tokens in one target pass; then the drafter runs over the tokens of that step
    (prompt chunks included) and proposes for every sequence that will decode next. This order is that of vLLM V1:
    ``propose`` runs after the target's forward pass.
    """

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention windows that the drafter's costs depend on, in the order of its ``StepWork``."""

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Sequential passes of a step, each with the tokens it computes per decoding sequence; empty on the host."""

    @property
    def runs_on(self) -> Literal["device", "host"]:
        """``device``: the target's chips; ``host``: the CPU, while the chips wait."""

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """Parts that the drafter runs in one step, or in each of many. The list is the same for numbers and for arrays.
        ``work`` is the target's step: ``query_len`` counts the draft tokens and the last accepted token.
        """


@runtime_checkable
class AdjustableDrafter(Drafter, Protocol):
    """A drafter that a policy can run for fewer tokens, and that can catch up after idle steps."""

    def with_tokens(self, count: int) -> Drafter:
        """Variant of the drafter that proposes ``count`` tokens in a chain, at most its own number."""

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """Parts that compute the skipped tokens into the drafter's KV cache; empty if the drafter has no cache."""


def drafting_sequences(work: StepWork[Num]) -> Num:
    """Number of sequences that get draft tokens at the end of a step: decoding ones and completed prompts."""
    return work.decode_seqs + work.sampled_prefills


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Host time that a drafter adds to a step and that no kernel hides, in seconds."""

    step_s: float = 0.0
    """Host seconds per step that drafts."""
    pass_s: float = 0.0
    """Host seconds per sequential pass."""
    per_sequence_s: float = 0.0
    """Host seconds per drafting sequence and step."""
    sequence_pass_s: float = 0.0
    """Host seconds for each pass of each drafting sequence."""

    def part(self, drafting: Num, forwards: Num) -> Part:
        """Host work of ``forwards`` passes in a step in which ``drafting`` sequences draft (an array for many
        steps)."""
        each_s = self.per_sequence_s + forwards * self.sequence_pass_s
        return host_part(self.step_s + forwards * self.pass_s + each_s * drafting, drafting > 0)


NO_OVERHEAD = HostOverhead()


def fusion_table(deployment: Deployment, hidden_states: int, max_tokens: int) -> DraftTable:
    """Costs of projecting ``hidden_states`` hidden states to one, by number of tokens; replicated on every chip.
    Callers with equal arguments share a table, such as the points of a study."""
    hidden, dtype = deployment.architecture.hidden_size, deployment.weight_dtypes["attention"]
    return _fusion(deployment.kernels, hidden, hidden_states * hidden, dtype, max_tokens)


@lru_cache(maxsize=16)
def _fusion(library: KernelLibrary, width: int, inputs: int, dtype: str, max_tokens: int) -> DraftTable:
    def calls(tokens: IntArray) -> Iterator[Call]:
        yield Call("fusion", "gemm", {"m": tokens, "n": width, "k": inputs, "dtype": dtype})

    return DraftTable(library, calls, max_tokens)


def markov_table(deployment: Deployment, rank: int, max_seqs: int) -> DraftTable:
    """Costs of one position of a sequential head, by number of drafting sequences; replicated on every chip.

    The head adds ``W2 W1[previous token]`` to the logits of a block, W1 of (vocabulary, rank) and W2 of (rank, draft
    vocabulary), and draws one position after the other (DSpark's vanilla Markov head; replicated in vLLM since
    vllm-project/vllm#49731). Sampling is priced in the block's own pass; the table adds the read and sum of logits and
    bias.
    """
    vocabulary, dtype = deployment.architecture.vocab_size, deployment.weight_dtypes["lm_head"]

    def calls(seqs: IntArray) -> Iterator[Call]:
        yield Call("sequential head", "gemm", {"m": seqs, "n": vocabulary, "k": rank, "dtype": dtype})
        moved = seqs * (2 * rank * dtype_bytes(dtype) + 3 * vocabulary * LOGIT_BYTES)
        yield Call("logit bias", "elementwise", {"bytes_moved": moved, "launches": 2 * np.minimum(seqs, 1)})

    return DraftTable(deployment.kernels, calls, max_seqs)


def markov_weight_bytes(deployment: Deployment, target_vocabulary: int, rank: int) -> float:
    """Bytes of a sequential head's two matrices on one chip."""
    rows = target_vocabulary + deployment.architecture.vocab_size
    return rows * rank * dtype_bytes(deployment.weight_dtypes["lm_head"])


def layer_weight_bytes(deployment: Deployment, own_lm_head: bool, fused_hidden_states: int = 0) -> float:
    """Bytes on one chip of a drafter that shares the target's embedding.

    Args:
        deployment: deployment of the drafter.
        own_lm_head: whether the drafter has a separate LM head.
        fused_hidden_states: number of hidden states that a projection combines into one; 0 = no projection.
    """
    architecture = deployment.architecture
    total = deployment.layer_weight_bytes
    if own_lm_head:
        head = architecture.vocab_size * architecture.hidden_size / deployment.tensor_parallel
        total += head * dtype_bytes(deployment.weight_dtypes["lm_head"])
    fused = fused_hidden_states * architecture.hidden_size**2
    return total + fused * dtype_bytes(deployment.weight_dtypes["attention"])


def skipped_parts(step: StepTimer, fusion: DraftTable | None, draft: DraftStep[Num], modules: int) -> Iterator[Part]:
    """Prefill of the tokens that a drafter has skipped, in passes as large as the largest step.

    Args:
        step: timer of the drafter's model.
        fusion: costs of projecting the target's hidden states, by tokens.
        draft: the skipped tokens.
        modules: number of modules with a separate KV cache.
    """
    zero = 0 * draft.skipped_tokens
    none = (zero,) * len(step.windows)
    skipped = StepWork(
        prefill_seqs=draft.skipped_seqs,
        prefill_tokens=draft.skipped_tokens,
        prefill_pairs=draft.skipped_pairs,
        prefill_kv_tokens=draft.skipped_kv_tokens,
        sampled_prefills=zero,
        sampled_kv_tokens=none,
        decode_seqs=zero,
        query_len=zero + 1,
        decode_kv_tokens=none,
    )
    skipped = slowest_group(skipped, step.deployment.attention_data_parallel)
    tokens, most = skipped.prefill_tokens, step.max_tokens
    if fusion is not None:
        most = min(most, fusion.table.most)
    full = (tokens - (tokens > 0)) // most
    last = skipped._replace(prefill_tokens=tokens - full * most)
    whole = skipped._replace(prefill_seqs=zero, prefill_tokens=zero + most, prefill_pairs=none, prefill_kv_tokens=none)
    for work, times in ((last, modules * (tokens > 0)), (whole, modules * full)):
        yield Part(times, step, (work, zero))
        if fusion is not None:
            yield Part(times, fusion, (work.prefill_tokens,))


@dataclass(slots=True)
class SequentialDrafter:
    """A model that drafts depth by depth: a draft model, an EAGLE head, an MTP module.

    The first pass computes the step's tokens, at most ``depth + 1`` per sequence (the longest accepted path and the
    next token), and proposes depth 1. One pass for each further depth computes ``pass_widths`` tokens per sequence: 1
    in a chain, the expanded nodes of a layer in a tree. Separate modules (DeepSeek-V3's MTP as published) have separate
    caches, so each module computes all tokens of the step.
    """

    step: StepTimer
    depth: int
    """Maximum draft tokens that one step can accept."""
    pass_widths: tuple[int, ...]
    """Tokens per sequence of each pass after the first."""
    weight_bytes: float
    kv_bytes_per_token: float
    overhead: HostOverhead = NO_OVERHEAD
    fusion: DraftTable | None = None
    """Costs of projecting the target's hidden states, by tokens of the first pass."""
    separate_modules: bool = False
    longest_accepted: int | None = None
    """Maximum draft tokens that the present step can accept; default: ``depth``."""
    fused_hidden_states: int = 0
    """Number of hidden states of the target, from layers spread over its depth, that ``fusion`` projects."""
    reads_target_cache: bool = False
    """True if the target drafts with part of its own KV. The drafter then needs no prefill and no catching up, only
    ``depth`` passes over one token each."""
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)
    pass_groups: tuple[tuple[int, int, int], ...] = field(init=False)
    """Groups of passes of equal width: (width, number of passes, tokens drafted up to the middle pass)."""

    def __post_init__(self) -> None:
        self.windows = self.step.windows
        drafted = list(accumulate(self.pass_widths))
        groups = []
        for width in dict.fromkeys(self.pass_widths):
            of_width = [total for total, w in zip(drafted, self.pass_widths, strict=True) if w == width]
            groups.append((width, len(of_width), sum(of_width) // len(of_width)))
        self.pass_groups = tuple(groups)

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens per decoding sequence of every pass."""
        if self.reads_target_cache:
            return (1,) * self.depth
        caught_up = (self.longest_path + 1,)
        return caught_up * self.modules if self.separate_modules else caught_up + self.pass_widths

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """Draft passes of a step, and the host work around them."""
        drafting = drafting_sequences(work)
        present = drafting > 0
        if self.reads_target_cache:
            if self.depth:
                one = self._pass(work, drafting, 1, (self.depth - 1) // 2)
                yield Part(self.depth * present, self.step, (one, drafting))
                yield self.overhead.part(drafting, self.depth)
            return
        seen = self._caught_up(work)
        first = 1 + (self.modules - 1) * present
        yield Part(first, self.step, (seen, drafting if self.depth else 0 * drafting))
        if self.fusion is not None:
            yield Part(first, self.fusion, (seen.tokens,))
        drafted_separately = self.step.deployment.framework.drafts == "per-sequence"
        if not self.separate_modules:
            for width, forwards, grown in self.pass_groups:
                one = self._pass(seen, drafting, width, grown)
                if drafted_separately:
                    one = mean_sequence(one, present)
                yield Part(
                    forwards * (drafting if drafted_separately else present),
                    self.step,
                    (one, (present if drafted_separately else drafting) * width),
                )
        forwards = 1 + (len(self.pass_tokens) - 1) * (drafting if drafted_separately else 1)
        yield self.overhead.part(drafting, forwards)

    def with_tokens(self, count: int) -> SequentialDrafter:
        """Drafter of a chain of ``count`` tokens; for 0 it only computes the step's tokens into its KV cache."""
        return replace(self, depth=count, pass_widths=(1,) * (count - 1), longest_accepted=self.longest_path)

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """Passes over the tokens skipped while the drafter was idle, in every module."""
        if not self.reads_target_cache:
            yield from skipped_parts(self.step, self.fusion, draft, self.modules)

    @property
    def longest_path(self) -> int:
        """Maximum draft tokens that the present step can accept."""
        return self.depth if self.longest_accepted is None else self.longest_accepted

    @property
    def modules(self) -> int:
        """Number of modules with a separate KV cache."""
        return max(1, self.depth) if self.separate_modules else 1

    def _caught_up(self, work: StepWork[Num]) -> StepWork[Num]:
        """Work of the step without verified tokens beyond the longest accepted path."""
        query_len = work.query_len
        longest = self.longest_path + 1
        if isinstance(query_len, np.ndarray):
            kept: Num = np.minimum(query_len, longest)
        else:
            kept = min(query_len, longest)
            if kept == query_len:
                return work
        rejected = work.decode_seqs * (query_len - kept)
        return work._replace(
            query_len=kept,
            decode_kv_tokens=tuple(
                keys - rejected if window is None else keys
                for keys, window in zip(work.decode_kv_tokens, self.windows, strict=True)
            ),
        )

    def _pass(self, seen: StepWork[Num], drafting: Num, width: int, drafted: int) -> StepWork[Num]:
        """Work of one pass over ``width`` tokens of each drafting sequence, after ``drafted`` draft tokens."""
        grown = drafting * drafted
        zero = 0 * drafting
        contexts = tuple(
            decoding + sampled + (grown if window is None else zero)
            for decoding, sampled, window in zip(
                seen.decode_kv_tokens, seen.sampled_kv_tokens, self.windows, strict=True
            )
        )
        step = decode_work(drafting, width, contexts)
        return step._replace(dp_imbalance=seen.dp_imbalance)


@dataclass(slots=True)
class ParallelDrafter:
    """A model that fills ``num_speculative_tokens`` masked positions in the same pass that computes the step's tokens.
    A semi-autoregressive drafter then corrects the positions one after the other in a sequential head."""

    step: StepTimer
    num_speculative_tokens: int
    weight_bytes: float
    kv_bytes_per_token: float
    overhead: HostOverhead = NO_OVERHEAD
    fusion: DraftTable | None = None
    sequential_head: DraftTable | None = None
    """Costs of one position of the sequential head, by number of drafting sequences; None = no such head."""
    fused_hidden_states: int = 0
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.windows = self.step.windows

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens of the single pass: K + 1 tokens of the step and K - 1 masked positions."""
        return (2 * self.num_speculative_tokens,)

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """The draft pass of a step, the positions of the sequential head, and the host work around them."""
        drafting = drafting_sequences(work)
        yield Part(1, self.step, (self._masked(work), drafting * self.num_speculative_tokens))
        if self.fusion is not None:
            yield Part(1, self.fusion, (work.tokens,))
        if self.sequential_head is not None:
            yield Part(self.num_speculative_tokens * (drafting > 0), self.sequential_head, (drafting,))
        yield self.overhead.part(drafting, 1)

    def with_tokens(self, count: int) -> ParallelDrafter:
        """Drafter of ``count`` tokens; for 0 it only computes the step's tokens into its KV cache."""
        return replace(self, num_speculative_tokens=count)

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """Passes over the tokens skipped while the drafter was idle."""
        yield from skipped_parts(self.step, self.fusion, draft, 1)

    def _masked(self, work: StepWork[Num]) -> StepWork[Num]:
        """Work of the step with masked positions appended to every drafting sequence; their attention is causal."""
        masked = max(0, self.num_speculative_tokens - 1)
        sampled, decoding = work.sampled_prefills, work.decode_seqs
        added = sampled * masked
        among = sampled * (masked * (masked - 1) // 2)
        return work._replace(
            prefill_tokens=work.prefill_tokens + added,
            prefill_pairs=tuple(
                pairs + masked * keys + among
                for pairs, keys in zip(work.prefill_pairs, work.sampled_kv_tokens, strict=True)
            ),
            prefill_kv_tokens=tuple(keys + added for keys in work.prefill_kv_tokens),
            query_len=work.query_len + masked,
            decode_kv_tokens=tuple(keys + decoding * masked for keys in work.decode_kv_tokens),
        )


@dataclass(slots=True)
class HeadsDrafter:
    """Medusa: heads that each predict a further token from the target's last hidden state, all in one pass.

    A head is ``residual_blocks`` blocks (one hidden x hidden linear with SiLU, replicated on every chip) and a separate
    LM head, split over the chips (Cai et al., "Medusa", 2024, arXiv:2401.10774, section 2.1.1).
    """

    target: Deployment
    num_heads: int
    max_seqs: int
    """Maximum number of sequences that draft in one step."""
    residual_blocks: int = 1
    dtype: str = "bf16"
    overhead: HostOverhead = NO_OVERHEAD
    windows: tuple[int | None, ...] = field(init=False, default=())
    pass_tokens: tuple[int, ...] = field(init=False, default=(1,))
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    kv_bytes_per_token: float = field(init=False, default=0.0)
    table: DraftTable = field(init=False, compare=False)
    """Costs of all heads, by number of drafting sequences."""

    def __post_init__(self) -> None:
        self.table = DraftTable(self.target.kernels, self._head_calls, self.max_seqs)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all heads on one chip."""
        architecture = self.target.architecture
        hidden = architecture.hidden_size
        head = hidden * (self.residual_blocks * hidden + architecture.vocab_size / self.target.tensor_parallel)
        return self.num_heads * head * dtype_bytes(self.dtype)

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """The pass of all heads in a step, and the host work around it."""
        drafting = drafting_sequences(work)
        yield Part(drafting > 0, self.table, (drafting,))
        yield self.overhead.part(drafting, 1)

    def with_tokens(self, count: int) -> HeadsDrafter:
        """Drafter with only the first ``count`` heads."""
        return replace(self, num_heads=count, overhead=self.overhead if count else NO_OVERHEAD)

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """Empty: heads use only the last hidden state, so skipped tokens cost nothing."""
        yield from ()

    def _head_calls(self, seqs: IntArray) -> Iterator[Call]:
        deployment, times = self.target, self.num_heads
        hidden, vocabulary = deployment.architecture.hidden_size, deployment.architecture.vocab_size
        product = {"m": seqs, "k": hidden, "dtype": self.dtype}
        yield Call("residual block", "gemm", product | {"n": hidden}, times * self.residual_blocks)
        yield Call("LM head", "gemm", product | {"n": -(-vocabulary // deployment.tensor_parallel)}, times)
        moved = 3 * self.residual_blocks * hidden * ACTIVATION_BYTES + LOGIT_KERNELS * vocabulary * LOGIT_BYTES
        launches = (self.residual_blocks + 1) * np.minimum(seqs, 1)
        yield Call("activation, sampling", "elementwise", {"bytes_moved": seqs * moved, "launches": launches}, times)
        for call in collective("logits all-gather", deployment, "all_gather", seqs * vocabulary * ACTIVATION_BYTES):
            yield call._replace(times=times, wait_s=0.0)


@dataclass(frozen=True, slots=True)
class HostDrafter:
    """Look-up of draft tokens on the host between steps, without weights: n-gram (prompt lookup) or suffix decoding."""

    step_s: float
    per_sequence_s: float
    per_context_token_s: float = 0.0
    """Host seconds per context token, for methods that scan the whole context in every step."""
    windows: tuple[int | None, ...] = field(init=False, default=(None,))
    pass_tokens: tuple[int, ...] = field(init=False, default=())
    runs_on: Literal["device", "host"] = field(init=False, default="host")
    weight_bytes: float = field(init=False, default=0.0)
    kv_bytes_per_token: float = field(init=False, default=0.0)

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """Host time of the look-up in a step."""
        drafting = drafting_sequences(work)
        scanned = work.decode_kv_tokens[0] + work.sampled_kv_tokens[0]
        seconds = self.step_s + self.per_sequence_s * drafting + self.per_context_token_s * scanned
        yield host_part(seconds, drafting > 0)

    def with_tokens(self, count: int) -> HostDrafter:
        """The same drafter, because the cost of a look-up does not depend on ``count``; without cost for 0 tokens."""
        return self if count else HostDrafter(0.0, 0.0)

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """No cost: the context is on the host."""
        yield from ()


@dataclass(slots=True)
class RemoteDrafter:
    """A draft model or head on other chips, with one message each way per step. A step sends its token ids, plus
    ``state_bytes`` of hidden states per token if the drafter reads the target's hidden states; the drafter returns the
    ids of its proposal. Draft probabilities are not sent (greedy drafts, as in vLLM and SGLang). FLOPs and bytes of the
    drafter's kernels are not counted, because they run on other chips.
    """

    inner: SequentialDrafter | ParallelDrafter
    link: Link
    state_bytes: float = 0.0
    """Bytes of hidden states per token that a step sends."""
    overlap: float = 0.0
    """Share of the drafting that runs while the target verifies, 0 to 1: ``drafting - overlap min(drafting, target)``
    is the time that drafting adds to a step."""
    weight_bytes: float = field(init=False, default=0.0)
    kv_bytes_per_token: float = field(init=False, default=0.0)
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.windows = self.inner.windows

    @property
    def deployment(self) -> Deployment:
        """Deployment of the drafter's model on its own chips."""
        return self.inner.step.deployment

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens per decoding sequence of every pass."""
        return self.inner.pass_tokens

    @property
    def proposed(self) -> int:
        """Number of draft tokens proposed per sequence."""
        inner = self.inner
        if isinstance(inner, ParallelDrafter):
            return inner.num_speculative_tokens
        return sum(inner.pass_widths, start=min(1, inner.depth))

    def parts(self, work: StepWork[Num]) -> Iterator[Part]:
        """Draft passes on the drafter's chips, and the message each way; overlap is not subtracted."""
        tokens = work.tokens
        for part in self.inner.parts(work):
            yield part._replace(times=part.times * (tokens > 0), on_other_device=True)
        yield Part(tokens > 0, None, (self.there_s(work) + self.back_s(work),), "link")

    def there_s(self, work: StepWork[Num]) -> Num:
        """Seconds of the message with a step's tokens."""
        tokens = work.tokens
        return self._message_s(tokens * (TOKEN_BYTES + self.state_bytes))

    def back_s(self, work: StepWork[Num]) -> Num:
        """Seconds of the message with the draft tokens that follow a step."""
        return self._message_s(drafting_sequences(work) * (self.proposed * TOKEN_BYTES))

    def with_tokens(self, count: int) -> RemoteDrafter:
        """Variant of the drafter for a chain of ``count`` tokens."""
        return replace(self, inner=self.inner.with_tokens(count))

    def catch_up(self, draft: DraftStep[Num]) -> Iterator[Part]:
        """Passes over the skipped tokens, which are sent to the drafter's chips in one message."""
        for part in self.inner.catch_up(draft):
            yield part._replace(on_other_device=True)
        skipped = draft.skipped_tokens
        yield Part(skipped > 0, None, (self._message_s(skipped * (TOKEN_BYTES + self.state_bytes)),), "link")

    def _message_s(self, size_bytes: Num) -> Num:
        return self.link.latency_s + size_bytes / self.link.bandwidth_bytes_per_s


@dataclass(slots=True)
class AdjustedDrafter:
    """Costs of a drafter in steps whose number of draft tokens a policy chooses.

    Args:
        drafter: the drafter, which proposes ``most`` tokens.
        most: draft tokens of the drafter's full proposal (for a tree, the depth).
        follows: whether the drafter also processes the tokens of steps without drafts, so that its cache is up to date.
        switch_s: host seconds of each change of the number of draft tokens.
        step_s: host seconds of every step that the policy governs, whether or not it drafts.
        per_sequence_s: host seconds per sequence of every such step.
        look_s: host seconds to compare the confidence after one pass with a threshold; the last compared pass may have
            ended the draft. None = no threshold.
    """

    drafter: Drafter
    most: int
    follows: bool = False
    switch_s: float = 0.0
    step_s: float = 0.0
    per_sequence_s: float = 0.0
    look_s: float | None = None
    _by_tokens: dict[int, Drafter | None] = field(init=False, default_factory=dict)

    def parts(self, work: StepWork[Num], draft: DraftStep[Num], tokens: int) -> Iterator[Part]:
        """Parts of one step, or of each of many steps, for which the policy requests ``tokens`` draft tokens."""
        forwards = tokens if self.look_s is None else min(tokens + 1, self.most)
        drafter = self._proposing(forwards)
        if drafter is not None:
            yield from drafter.parts(work)
        if self.look_s is not None:
            drafting = drafting_sequences(work)
            yield host_part(self.look_s * forwards * drafting, drafting > 0)
        if np.any(draft.skipped_tokens):
            yield from self._adjustable().catch_up(draft)
        yield host_part(self.switch_s, draft.switched)
        if self.step_s or self.per_sequence_s:
            drafting = drafting_sequences(work)
            yield host_part(self.step_s + self.per_sequence_s * drafting, drafting > 0)

    def seconds(self, work: StepWork[Num], draft: DraftStep[int]) -> Num:
        """Seconds that drafting adds to one step, or to each of many equal steps; windows in the drafter's order."""
        return drafting_seconds(self.parts(work, draft, int(draft.tokens)))

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray]) -> Costs:
        """Costs that drafting adds to each of many steps, by bound."""
        total = Costs.zeros(len(draft.tokens))
        for tokens in np.unique(draft.tokens).tolist():
            rows = np.flatnonzero(draft.tokens == tokens)
            parts = self.parts(some_steps(work, rows), some_steps(draft, rows), tokens)
            total.put(rows, drafting_costs(parts, len(rows)))
        return total

    def _proposing(self, tokens: int) -> Drafter | None:
        """Drafter that proposes ``tokens`` tokens; None if the drafter is idle."""
        if tokens == self.most:
            return self.drafter
        if tokens not in self._by_tokens:
            rests = tokens == 0 and not self.follows
            self._by_tokens[tokens] = None if rests else self._adjustable().with_tokens(tokens)
        return self._by_tokens[tokens]

    def _adjustable(self) -> AdjustableDrafter:
        if not isinstance(self.drafter, AdjustableDrafter):
            raise ForerunError(
                f"speculation.policy: {type(self.drafter).__name__} drafts all its tokens or none; give it what "
                f"simulator.timing.AdjustableDrafter requires, or choose policy fixed"
            )
        return self.drafter
