"""Drafters on the target's chips: sequential passes of a small model, one parallel pass, or heads on the last token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwprofiles import dtype_bytes
from simulator.timing.costs import Costs
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.draft_parts import NO_OVERHEAD, HostOverhead, TokenTable, skipped_costs
from simulator.timing.drafter import DraftStep, drafting_sequences
from simulator.timing.step import LOGIT_BYTES, LOGIT_PASSES, StepTimer
from simulator.timing.work import StepWork

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class SequentialDrafter:
    """A model that drafts depth by depth: a draft model, an EAGLE head, an MTP module.

    The first pass catches up on the step's tokens, at most ``depth + 1`` per sequence (the longest accepted path and
    the token after it), and proposes depth 1. One pass for each further depth computes ``pass_widths`` tokens per
    sequence: 1 in a chain, the expanded nodes of a layer in a tree. Separate modules (DeepSeek-V3's MTP as published)
    each keep a cache of their own, so each catches up on all of the step's tokens.
    """

    step: StepTimer
    depth: int
    """Longest path that can be accepted."""
    pass_widths: tuple[int, ...]
    """Tokens per sequence of each pass after the first."""
    weight_bytes: float
    kv_bytes_per_token: float
    overhead: HostOverhead = NO_OVERHEAD
    fusion: TokenTable | None = None
    """Projection of the target's hidden states, by tokens of the first pass."""
    separate_modules: bool = False
    longest_accepted: int | None = None
    """Draft tokens that the step itself can have accepted; default: as many as are proposed."""
    reads_target_cache: bool = False
    """The target drafts for itself with a part of its own KV: nothing to prefill or to catch up on, ``depth`` passes
    over one token each."""
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)
    _groups: tuple[tuple[int, int, int], ...] = field(init=False)
    """Passes of equal width: (width, passes, tokens drafted before and in the middle one)."""

    def __post_init__(self) -> None:
        self.windows = self.step.windows
        drafted = list(accumulate(self.pass_widths))
        groups = []
        for width in dict.fromkeys(self.pass_widths):
            of_width = [total for total, w in zip(drafted, self.pass_widths, strict=True) if w == width]
            groups.append((width, len(of_width), sum(of_width) // len(of_width)))
        self._groups = tuple(groups)

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens per decoding sequence of every pass."""
        if self.reads_target_cache:
            return (1,) * self.depth
        caught_up = (self._longest + 1,)
        return caught_up * self._modules if self.separate_modules else caught_up + self.pass_widths

    def seconds(self, work: StepWork[Any]) -> Any:
        """Seconds that drafting adds to one step."""
        drafting = drafting_sequences(work)
        if self.reads_target_cache:
            if not drafting or not self.depth:
                return 0.0
            one = self.step.seconds(self._pass(work, drafting, 1, (self.depth - 1) // 2), drafting)
            return self.depth * one + self.overhead.seconds(drafting, self.depth)
        seen = self._caught_up(work)
        first = self.step.seconds(seen, drafting if self.depth else 0)
        if self.fusion is not None:
            first = first + self.fusion.seconds(seen.prefill_tokens + seen.decode_seqs * seen.query_len)
        if not drafting:
            return first
        overhead = self.overhead.seconds(drafting, len(self.pass_tokens))
        if self.separate_modules:
            return self._modules * first + overhead
        total = first
        for width, passes, grown in self._groups:
            total = total + passes * self.step.seconds(self._pass(seen, drafting, width, grown), drafting * width)
        return total + overhead

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """Costs of many steps."""
        drafting = drafting_sequences(work)
        present = np.where(drafting > 0, 1.0, 0.0)
        if self.reads_target_cache:
            total = Costs.zeros(len(drafting))
            if self.depth:
                one = self.step.costs(self._pass(work, drafting, 1, (self.depth - 1) // 2), drafting)
                total.add(one, present * self.depth)
                total.host_s += present * self.overhead.seconds(drafting, self.depth)
            return total
        seen = self._caught_up(work)
        first = self.step.costs(seen, drafting if self.depth else 0 * drafting)
        if self.fusion is not None:
            first.add(self.fusion.rows(seen.prefill_tokens + seen.decode_seqs * seen.query_len))
        total = Costs.zeros(len(drafting))
        total.add(first)
        if self.separate_modules:
            total.add(first, present * (self._modules - 1.0))
        else:
            for width, passes, grown in self._groups:
                one = self.step.costs(self._pass(seen, drafting, width, grown), drafting * width)
                total.add(one, present * passes)
        total.host_s += present * self.overhead.seconds(drafting, len(self.pass_tokens))
        return total

    def with_tokens(self, count: int) -> SequentialDrafter:
        """The same drafter for a chain of ``count`` tokens; for 0 it only puts the step's tokens into its cache."""
        return replace(self, depth=count, pass_widths=(1,) * (count - 1), longest_accepted=self._longest)

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Costs of the tokens skipped while it rested, in every module."""
        total = Costs.zeros(len(draft.skipped_tokens))
        if self.reads_target_cache:
            return total
        total.add(skipped_costs(self.step, self.fusion, draft), float(self._modules))
        return total

    @property
    def _longest(self) -> int:
        return self.depth if self.longest_accepted is None else self.longest_accepted

    @property
    def _modules(self) -> int:
        """Modules that keep a cache of their own."""
        return max(1, self.depth) if self.separate_modules else 1

    def _caught_up(self, work: StepWork[Any]) -> StepWork[Any]:
        """The step without the verified tokens that no accepted path can hold."""
        query_len = work.query_len
        longest = self._longest + 1
        if isinstance(query_len, np.ndarray):
            kept: Any = np.minimum(query_len, longest)
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

    def _pass(self, seen: StepWork[Any], drafting: Any, width: int, drafted: int) -> StepWork[Any]:
        """One pass over ``width`` tokens of each drafting sequence, ``drafted`` tokens after the step's own."""
        grown = drafting * drafted
        zero = 0 * drafting
        contexts = tuple(
            decoding + sampled + (grown if window is None else zero)
            for decoding, sampled, window in zip(
                seen.decode_kv_tokens, seen.sampled_kv_tokens, self.windows, strict=True
            )
        )
        empty = (zero,) * len(contexts)
        return StepWork(zero, zero, empty, empty, zero, empty, drafting, zero + width, contexts)


@dataclass(slots=True)
class ParallelDrafter:
    """A model that fills ``num_speculative_tokens`` masked positions in one pass, while it catches up on the step."""

    step: StepTimer
    num_speculative_tokens: int
    weight_bytes: float
    kv_bytes_per_token: float
    overhead: HostOverhead = NO_OVERHEAD
    fusion: TokenTable | None = None
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.windows = self.step.windows

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """One pass: the step's K + 1 tokens and K - 1 masked ones after the last."""
        return (2 * self.num_speculative_tokens,)

    def seconds(self, work: StepWork[Any]) -> Any:
        """Seconds that drafting adds to one step."""
        drafting = drafting_sequences(work)
        total = self.step.seconds(self._masked(work), drafting * self.num_speculative_tokens)
        if self.fusion is not None:
            total = total + self.fusion.seconds(work.prefill_tokens + work.decode_seqs * work.query_len)
        return total + (self.overhead.seconds(drafting, 1) if drafting else 0.0)

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """Costs of many steps."""
        drafting = drafting_sequences(work)
        total = self.step.costs(self._masked(work), drafting * self.num_speculative_tokens)
        if self.fusion is not None:
            total.add(self.fusion.rows(work.prefill_tokens + work.decode_seqs * work.query_len))
        total.host_s += np.where(drafting > 0, self.overhead.seconds(drafting, 1), 0.0)
        return total

    def with_tokens(self, count: int) -> ParallelDrafter:
        """The same drafter for ``count`` tokens; for 0 it only puts the step's tokens into its cache."""
        return replace(self, num_speculative_tokens=count)

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Costs of the tokens skipped while it rested."""
        return skipped_costs(self.step, self.fusion, draft)

    def _masked(self, work: StepWork[Any]) -> StepWork[Any]:
        """The step with the masked positions behind every sequence that drafts; they see each other causally."""
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

    A head is ``residual_blocks`` blocks (one hidden x hidden linear with SiLU, replicated on every chip) and an LM head
    of its own, split over the chips (Cai et al., "Medusa", 2024, arXiv:2401.10774, section 2.1.1).
    """

    target: Deployment
    num_heads: int
    max_seqs: int
    """Most sequences that draft in one step."""
    residual_blocks: int = 1
    dtype: str = "bf16"
    overhead: HostOverhead = NO_OVERHEAD
    windows: tuple[int | None, ...] = field(init=False, default=())
    pass_tokens: tuple[int, ...] = field(init=False, default=(1,))
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    kv_bytes_per_token: float = field(init=False, default=0.0)
    _table: TokenTable = field(init=False)

    def __post_init__(self) -> None:
        self._table = TokenTable(self._head_costs(np.arange(self.max_seqs + 1, dtype=np.int64)))

    @property
    def weight_bytes(self) -> float:
        """Bytes of all heads on one chip."""
        architecture = self.target.architecture
        hidden = architecture.hidden_size
        head = hidden * (self.residual_blocks * hidden + architecture.vocab_size / self.target.tensor_parallel)
        return self.num_heads * head * dtype_bytes(self.dtype)

    def seconds(self, work: StepWork[Any]) -> Any:
        """Seconds that drafting adds to one step."""
        drafting = drafting_sequences(work)
        if not drafting:
            return 0.0
        return self._table.seconds(drafting) + self.overhead.seconds(drafting, 1)

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """Costs of many steps."""
        drafting = drafting_sequences(work)
        total = self._table.rows(drafting)
        total.host_s += np.where(drafting > 0, self.overhead.seconds(drafting, 1), 0.0)
        return total

    def with_tokens(self, count: int) -> HeadsDrafter:
        """The first ``count`` heads."""
        return replace(self, num_heads=count, overhead=self.overhead if count else NO_OVERHEAD)

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Nothing: heads look at the last hidden state alone."""
        return Costs.zeros(len(draft.skipped_tokens))

    def _head_costs(self, seqs: IntArray) -> Costs:
        deployment = self.target
        kernels = deployment.kernels
        hidden, vocabulary = deployment.architecture.hidden_size, deployment.architecture.vocab_size
        one = Costs.zeros(len(seqs))
        for _ in range(self.residual_blocks):
            one.add_kernel(kernels.gemm(seqs, hidden, hidden, self.dtype))
        one.add_kernel(kernels.gemm(seqs, -(-vocabulary // deployment.tensor_parallel), hidden, self.dtype))
        moved = 3 * self.residual_blocks * hidden * ACTIVATION_BYTES + LOGIT_PASSES * vocabulary * LOGIT_BYTES
        one.add_kernel(kernels.elementwise(seqs * moved, launches=(self.residual_blocks + 1) * np.minimum(seqs, 1)))
        if deployment.tensor_parallel > 1 and deployment.link is not None:
            message = seqs * vocabulary * ACTIVATION_BYTES
            time = kernels.collective("all_gather", message, deployment.tensor_parallel, deployment.link)
            one.interconnect_s += np.where(message > 0, time.seconds, 0.0)
        total = Costs.zeros(len(seqs))
        total.add(one, float(self.num_heads))
        return total


@dataclass(frozen=True, slots=True)
class HostDrafter:
    """A look-up on the host between two steps, without weights: n-gram (prompt lookup) or suffix decoding."""

    step_s: float
    per_sequence_s: float
    per_context_token_s: float = 0.0
    """For methods that scan the whole context in every step."""
    windows: tuple[int | None, ...] = field(init=False, default=(None,))
    pass_tokens: tuple[int, ...] = field(init=False, default=())
    runs_on: Literal["device", "host"] = field(init=False, default="host")
    weight_bytes: float = field(init=False, default=0.0)
    kv_bytes_per_token: float = field(init=False, default=0.0)

    def seconds(self, work: StepWork[Any]) -> Any:
        """Host seconds that drafting adds to one step."""
        drafting = drafting_sequences(work)
        if not drafting:
            return 0.0
        scanned = work.decode_kv_tokens[0] + work.sampled_kv_tokens[0]
        return self.step_s + self.per_sequence_s * drafting + self.per_context_token_s * scanned

    def with_tokens(self, count: int) -> HostDrafter:
        """The same look-up, whatever it proposes; none where it proposes nothing."""
        return self if count else HostDrafter(0.0, 0.0)

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Nothing: the context lies on the host."""
        return Costs.zeros(len(draft.skipped_tokens))

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """Costs of many steps."""
        drafting = drafting_sequences(work)
        scanned = work.decode_kv_tokens[0] + work.sampled_kv_tokens[0]
        total = Costs.zeros(len(drafting))
        total.host_s += np.where(
            drafting > 0, self.step_s + self.per_sequence_s * drafting + self.per_context_token_s * scanned, 0.0
        )
        return total
