"""One model's part of an engine step: its kernels, their sum, and fast tables of the sum for single steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from math import isnan, prod
from typing import NamedTuple, Protocol

import numpy as np

from forerun.arrays import FloatArray, IntArray
from hwprofiles import AttentionShape
from hwprofiles.formulas import Num, functions_of, look_up
from hwprofiles.library import MixingShape
from simulator.llm import Architecture
from simulator.llm.layers import Layer, MoeMlp
from simulator.timing.deployment import Deployment
from simulator.timing.kernels import (
    ByCount,
    Call,
    Costs,
    CostTable,
    Kernel,
    MixingCalls,
    MixingKind,
    between_cells,
    cell_tokens,
    decode_calls,
    embedding_calls,
    equal_neighbours,
    head_calls,
    layer_calls,
    mixed_calls,
    mixing_calls,
    mixing_kinds,
    other_device_kernel,
    p2p_send,
    price,
    prompt_calls,
    reduction_calls,
    seconds_of,
    shared_expert_calls,
)
from simulator.timing.work import (
    StepWork,
    causal_pairs,
    context_parallel_part,
    decode_work,
    mean_sequence,
    slowest_group,
)

BLOCK_CELLS = 64
"""Cells of a ``DecodeTable`` that are priced together."""
ROWS_TOGETHER = 32
STEPS_PER_BLOCK = 128
"""Minimum steps per block at which many steps are priced by a ``DecodeTable``. A new block costs as much as 1,000
steps."""
EXTRAPOLATED = 1


class DecodeOverlap(Protocol):
    """Decode attention that overlaps the rest of its layer: seconds that it adds to a decode-only step.

    ``window`` is the attention window of the layers, None for full attention.
    """

    @property
    def prompt_groups(self) -> int:
        """Number of groups that share the computation of each prompt; 1 = each group computes whole prompts."""

    def exchange_s(self, shape: AttentionShape, tokens: Num) -> Num:
        """Seconds in which each group sends one layer's KV of its ``tokens`` prompt tokens to all other groups."""

    def exposed(self, shape: AttentionShape, window: int | None) -> Callable[[Num, Num, Num], Num]:
        """Exposed seconds of all such layers, as a function of (sequences, queries per sequence, total keys)."""

    def exposed_parts(
        self, shape: AttentionShape, window: int | None, seqs: IntArray, query_len: IntArray, keys: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Exposed seconds of many steps, split into attention and link."""


class DecodeTable:
    """Seconds of one decode attention kernel by sequences, queries per sequence and total keys read.

    For each pair (sequences, queries) the formula is evaluated at the ends of cells (``cell_tokens``), a block of cells
    on its first request, and interpolated linearly, as ``between_cells`` does for many steps.

    Args:
        formula: function of (sequences, queries, keys) that returns seconds; keys may be an array.
    """

    def __init__(self, formula: Callable[[Num, Num, Num], Num]) -> None:
        self._formula = formula
        self._rows: dict[tuple[int, int], tuple[int, FloatArray]] = {}
        """Cell width, and values at the cell ends (NaN if not requested), by sequences and queries."""
        self._blocks: dict[tuple[int, int, int], FloatArray] = {}
        """Values at the ends of a block's cells for ``ROWS_TOGETHER`` consecutive batches, by first batch, queries and
        block."""

    def __call__(self, seqs: int, query_len: int, keys: Num) -> Num:
        """Seconds for ``keys`` total keys: a number, or an array for an array."""
        if isinstance(keys, np.ndarray):
            width = int(cell_tokens(seqs))
            cells = keys // width
            blocks, lows, highs = cells // BLOCK_CELLS, np.empty(keys.shape), np.empty(keys.shape)
            for block in np.unique(blocks).tolist():
                here = blocks == block
                _, values = self.row(seqs, query_len, block * BLOCK_CELLS * width)
                lows[here], highs[here] = values[cells[here]], values[cells[here] + 1]
            return lows + (keys - cells * width) * ((highs - lows) / width)
        width, values = self.row(seqs, query_len, keys)
        cell = keys // width
        low = values.item(cell)
        return low + (keys - cell * width) * ((values.item(cell + 1) - low) / width)

    def row(self, seqs: int, query_len: int, keys: int) -> tuple[int, FloatArray]:
        """Cell width and values at the cell ends of a batch: known around ``keys``, and NaN if not requested.

        Values requested later may be added to the same array.
        """
        row = self._rows.get((seqs, query_len))
        if row is not None:
            width, values = row
            cell = keys // width
            if cell + 1 < len(values) and not (isnan(values.item(cell)) or isnan(values.item(cell + 1))):
                return row
        # Rows of like batches are soon requested too, and cost little more together than one of them alone.
        first = (seqs - 1) // ROWS_TOGETHER * ROWS_TOGETHER + 1
        block = int(keys // int(cell_tokens(seqs))) // BLOCK_CELLS
        costs = self._block(first, query_len, block)
        kept = [self._keep(batch, query_len, block, one) for batch, one in enumerate(costs, first)]
        return kept[seqs - first]

    def ends(self, seqs: IntArray, query_len: Num, cells: IntArray) -> tuple[FloatArray, FloatArray] | None:
        """Values at both ends of the cell of each step; None if these steps would need too many blocks."""
        batch, of_batch = np.divmod(seqs - 1, ROWS_TOGETHER)
        block, of_block = np.divmod(cells, BLOCK_CELLS)
        sizes = int(np.max(query_len)) + 1, int(batch.max(initial=0)) + 1, int(block.max(initial=0)) + 1
        if prod(sizes) > max(len(cells), STEPS_PER_BLOCK):
            return None
        label = (query_len * sizes[1] + batch) * sizes[2] + block
        used = np.flatnonzero(np.bincount(label, minlength=prod(sizes)))
        if len(used) * STEPS_PER_BLOCK > len(cells):
            return None
        queries, batches, blocks = (part.tolist() for part in np.unravel_index(used, sizes))
        known = [
            self._block(batch * ROWS_TOGETHER + 1, query_len, block)
            for query_len, batch, block in zip(queries, batches, blocks, strict=True)
        ]
        place = np.zeros(prod(sizes), dtype=np.int64)
        place[used] = np.arange(len(used))
        at = (place[label] * ROWS_TOGETHER + of_batch) * (BLOCK_CELLS + 1) + of_block
        values = np.concatenate([one.ravel() for one in known])
        return values[at], values[at + 1]

    def _block(self, first: int, query_len: int, block: int) -> FloatArray:
        """Values at the cell ends of a block: array of batches x cell ends."""
        known = self._blocks.get((first, query_len, block))
        if known is None:
            batches = np.arange(first, first + ROWS_TOGETHER)
            ends = np.arange(block * BLOCK_CELLS, (block + 1) * BLOCK_CELLS + 1)
            points = np.asarray(ends * cell_tokens(batches)[:, None], dtype=np.float64)
            if block == 0:
                points[:, 0] = 1.0
            known = np.broadcast_to(self._formula(batches[:, None], query_len, points), points.shape)
            self._blocks[first, query_len, block] = known
        return known

    def _keep(self, seqs: int, query_len: int, block: int, costs: FloatArray) -> tuple[int, FloatArray]:
        """Return the row with the values of a block added; a row from another thread may lack these values."""
        width, values = self._rows.get((seqs, query_len), (int(cell_tokens(seqs)), np.empty(0)))
        begin, end = block * BLOCK_CELLS, (block + 1) * BLOCK_CELLS + 1
        if len(values) < end:
            longer = np.full(max(end, 2 * len(values)), np.nan)
            longer[: len(values)] = values
            self._rows[seqs, query_len] = width, longer
            values = longer
        values[begin:end] = costs
        return width, values


class MixingPrices:
    """Seconds of one kind of token mixing in single steps: a table for decoding, formulas for prompts.

    Args:
        kind: the layers.
        max_tokens: tokens of the longest prompt chunk.
        decode: existing table of the same decode kernels, or None.
    """

    def __init__(self, kind: MixingKind, max_tokens: int, decode: DecodeTable | None) -> None:
        self.kind, self.max_tokens = kind, max_tokens
        self.decode = decode or DecodeTable(seconds_of(decode_calls, kind))
        self.formulas = {calls: seconds_of(calls, kind) for calls in (prompt_calls, mixed_calls)}
        full = kind.full_attention
        self.has_tail = full is not None and bool(kind.kernels.tail_seconds(full, np.inf))
        """True if the longest sequences of a batch finish last, with most cores idle."""
        self.tail_s = cache(self._tail_s)

    @cached_property
    def fresh(self) -> ByCount:
        """Seconds of one layer for one uncached prompt, by its length."""
        return self._fresh()

    @cached_property
    def joined(self) -> ByCount:
        """The same in the launch of decode attention."""
        return self._fresh(1.0)

    def _fresh(self, *joined: float) -> ByCount:
        tokens, window = np.arange(1, self.max_tokens + 1, dtype=np.float64), self.kind.window
        growing = tokens if window is None else np.minimum(tokens, window)
        pairs = growing * (growing + 1) / 2 + (tokens - growing) * (window or 0)
        return ByCount(np.append(0.0, self.formulas[prompt_calls](1.0, tokens, pairs, tokens, *joined)))

    def seconds(self, calls: MixingCalls, sizes: tuple[Num, ...]) -> Num:
        """Seconds of all layers for some of their kernels (``kernels.mixing_calls``) in one step."""
        layers = self.kind.layers
        if calls is decode_calls:
            *batch, tail_kv = sizes
            decode = layers * look_up(self.decode, *batch)
            return tail_kv * look_up(self.tail_s, *batch[:2]) + decode if self.has_tail and tail_kv else decode
        if calls is prompt_calls:
            seqs, tokens, pairs, keys, *joined = sizes
            # One of several groups may stand for a share of two prompts, whose pairs are more than one's.
            if seqs == 1 and keys == tokens and pairs == causal_pairs(tokens, 0, self.kind.window):
                return layers * look_up(self.joined if joined and joined[0] else self.fresh, tokens)
        return layers * self.formulas[calls](*sizes)

    def _tail_s(self, seqs: int, query_len: int) -> float:
        """Seconds of all layers per key of ``StepWork.tail_kv``."""
        shape = self.kind.full_attention
        assert shape is not None
        return self.kind.layers * float(self.kind.kernels.tail_seconds(shape, seqs, query_len))


class CallBlock(NamedTuple):
    """Calls on one chip that run ``times`` times in a step, before and after the token mixing of a layer."""

    home: Deployment
    calls: Iterable[Call]
    times: int = 1
    mixing: Sequence[MixingPrices] = ()
    after: Iterable[Call] = ()


class GroupStep(NamedTuple):
    """Work of a step in the slowest attention group."""

    work: StepWork[Num]
    tokens: Num
    logit_rows: Num
    turns: Num
    """Number of prompts computed one after the other; ``work`` is then for the mean prompt."""
    all_group_tokens: Num
    """Tokens of all groups together if groups share experts; else 0."""
    expert_tokens: Num
    """Tokens that the experts shared by the groups compute, padding included; 0 without such experts."""


def attention_windows(architecture: Architecture) -> tuple[int | None, ...]:
    """Distinct attention windows of a model, full attention first."""
    mixers = (group.layer.mixer for group in architecture.layer_groups)
    windows = {window for mixer in mixers if mixer is not None for window in mixer.windows} or {None}
    return tuple(sorted(windows, key=lambda window: -1 if window is None else window))


@dataclass(slots=True)
class StepTimer:
    """Prices engine steps of one model on one replica.

    ``kernels`` lists the kernels, ``costs`` is their sum for many steps. ``seconds`` is the sum for one step, from
    tables: ``CostTable`` for parts that depend on a token count alone (layers, head, shared experts), ``DecodeTable``
    for decode attention.
    """

    deployment: Deployment
    max_tokens: int
    """Largest number of tokens in a step."""
    windows: tuple[int | None, ...] = ()
    """Attention windows of the work to price; default: the model's windows (a pipeline stage may lack some)."""
    like: StepTimer | None = None
    """Timer of the same kernels with different host costs or maximum tokens, whose tables are reused."""
    tracked_windows: tuple[int | None, ...] = field(init=False, compare=False)
    _most: int = field(init=False, compare=False)
    """Largest number of tokens that a step computes, padding of prompts included."""
    tracked_longest: int = field(init=False, compare=False)
    """Number of longest decoding sequences whose individual contexts the step time depends on."""
    _homes: tuple[Deployment, ...] = field(init=False, compare=False)
    """Deployments of the model's layers, one per chip that runs some of them."""
    _mixing: list[MixingPrices] = field(init=False, compare=False)
    """Prices of each kind of layer."""
    _layers: dict[int, CostTable] = field(init=False, compare=False)
    """Cost tables of layers by tokens, keyed by the number of consecutive tokens per sequence."""
    _head: CostTable = field(init=False, compare=False)
    _experts: CostTable | None = field(init=False, compare=False, default=None)
    """Costs of experts that attention groups share, by the tokens of all groups; None without such experts."""
    _padded: ByCount = field(init=False, compare=False)
    """Tokens that shared experts compute if the slowest group replays a graph, by the tokens of that group."""
    _routed: bool = field(init=False, compare=False)
    """True if expert costs depend on the tokens per sequence: there are routed experts and one attention group."""
    _overlap: DecodeOverlap | None = field(init=False, compare=False, default=None)
    _overlapped: dict[MixingPrices, DecodeTable] = field(init=False, compare=False, default_factory=dict)
    """Exposed seconds of decode attention in steps without prompts, for all layers of each kind."""
    _plain: StepTimer | None = field(init=False, compare=False, default=None)
    """Timer without overlap from which this timer was copied; None if it is no copy."""
    _eager: ByCount = field(init=False, compare=False)
    """True for counts of tokens whose steps run outside captured graphs."""
    _decode_graphs: bool = field(init=False, compare=False)
    """True if steps with prompt chunks run outside captured graphs, whatever their size."""
    _prompt_sizes: ByCount | None = field(init=False, compare=False, default=None)
    """Tokens computed for a prompt, padding included, by its length; None if prompts are computed together."""
    _by_sequence: StepTimer | None = field(init=False, compare=False, default=None)
    _floor_s: float = field(init=False, compare=False)
    _sinks_s: float = field(init=False, compare=False)
    """Minimum seconds of an uncaptured step, for launching every kernel one by one. It includes the read of the weights
    if that is slower than in a captured step."""

    def __post_init__(self) -> None:
        deployment, framework = self.deployment, self.deployment.framework
        architecture = deployment.architecture
        self._homes = deployment.homes
        self.tracked_windows = self.windows
        self.windows = self.windows or attention_windows(architecture)
        kinds, same = mixing_kinds(deployment, self.windows), self._same_tables
        tables = [None] * len(kinds) if self.like is None else [one.decode for one in self.like._mixing]
        self._mixing = (
            [MixingPrices(kind, self.max_tokens, table) for kind, table in zip(kinds, tables, strict=True)]
            if same is None
            else same._mixing
        )
        full = [(shape, kind.kernels) for kind in kinds if (shape := kind.full_attention) is not None]
        self.tracked_longest = (
            max(1, round(max(float(library.tail_sequences(shape)) for shape, library in full)))
            if any(one.has_tail for one in self._mixing)
            else int(any(kind.one_pass for kind in kinds))
        )
        self._most = self.max_tokens
        if framework.prompts == "sequential":
            self._prompt_sizes = ByCount(framework.padded_prompts(self.max_tokens))
            self._most += int(self._prompt_sizes.values[-1])
        tokens = np.arange(self._most + 1, dtype=np.int64)
        captured = (tokens <= framework.max_captured_tokens) & deployment.cuda_graphs
        self._eager = ByCount(~captured)
        self._decode_graphs = framework.captured_steps == "decode"
        self._floor_s = framework.launches_s(
            architecture, deployment.weight_dtypes["expert"], deployment.tensor_parallel, deployment.cuda_graphs
        )
        in_graphs = deployment.chip.compute.asynchronous or not deployment.cuda_graphs
        self._sinks_s = 0.0 if in_graphs else framework.sinks_s(architecture)
        if framework.eager_read_share:
            bandwidth = framework.eager_read_share * deployment.chip.memory.bandwidth_bytes_per_s
            self._floor_s += deployment.layer_weight_bytes / bandwidth
        routed = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
        groups = deployment.attention_data_parallel
        self._routed = routed and groups == 1
        self._layers = {}
        self._layer_table(1)
        self._head = (
            CostTable(
                lambda rows: _summed([self._head_block(rows)], len(rows)),
                self._most,
                None if self.like is None else self.like._head,
            )
            if same is None
            else same._head
        )
        self._padded = ByCount(np.empty(0))
        if groups > 1:
            padded = np.where(captured, groups * framework.padded_tokens(tokens, deployment.cuda_graphs), 0)
            self._padded = ByCount(padded)
            self._experts = CostTable(
                lambda tokens: _summed(self._expert_blocks(tokens), len(tokens)),
                max(groups * self._most, int(padded.max())),
            )

    def kernels(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Iterator[Kernel]:
        """Kernels of many steps in execution order, layer kinds one after the other.

        Host work and drafters are not included. With several attention groups, these are the slowest group's kernels
        with the mean group's useful work.

        Args:
            work: the steps, as arrays of equal length.
            logit_rows: rows of logits computed; default: every verified token and every completed prompt.
        """
        step, deployment = self._of_group(work, logit_rows), self.deployment
        mixing = {one: list(self._mixing_kernels(one, step.work)) for one in self._mixing}

        def running(blocks: Iterable[CallBlock]) -> Iterator[Kernel]:
            for home, calls, times, kinds, after in blocks:
                mixed = chain.from_iterable(mixing[kind] for kind in kinds)
                for kernel in chain(_priced(calls, home), mixed, _priced(after, home)):
                    yield kernel._replace(times=times * step.turns * kernel.times)

        padded = deployment.framework.padded_tokens(step.tokens, deployment.cuda_graphs)
        even = self._even(step)
        layers = [self._layer_blocks(home, padded, self._together(step.work)) for home in self._homes]
        for kernel in running([*chain.from_iterable(layers), self._head_block(step.logit_rows)]):
            if even is None:
                yield kernel
            else:
                time = kernel.time._replace(flops=kernel.flops * even, bytes=kernel.bytes * even)
                yield kernel._replace(time=time, sol_s=kernel.sol_s * even)
        if self._experts is not None:
            yield from running(self._expert_blocks(step.expert_tokens))

    def costs(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Costs:
        """Sum of the kernels of many steps; ``host_s`` is the wait for launches outside captured graphs.

        Args:
            work: the steps, as arrays of equal length.
            logit_rows: rows of logits, as in ``kernels``.
        """
        step = self._of_group(work, logit_rows)
        tokens, together = step.tokens, self._together(step.work)
        first, times = equal_neighbours(tokens, together, step.logit_rows)
        total = self._layer_rows(tokens[first], together[first])
        total.add(self._head.rows(step.logit_rows[first]))
        total = total.repeated(times)
        for one in self._mixing:
            for kernel in self._mixing_kernels(one, step.work):
                total.add_kernel(kernel._replace(times=one.kind.layers))
        even = self._even(step)
        if even is not None and self._experts is not None:
            for part in (total.flops, total.bytes, total.sol_s):
                part *= even
            total.add(self._experts.rows(step.expert_tokens))
        uncaptured = self._eager(tokens) | ((step.work.prefill_seqs > 0) & self._decode_graphs)
        floor_s = np.where(uncaptured, self._floor_s, (tokens > 0) * self._sinks_s)
        total.host_s += np.maximum(0.0, floor_s - total.device_s)
        if self._prompt_sizes is None:
            return total
        every = Costs.zeros(len(tokens))
        every.add(total, step.turns)
        return every

    def seconds(self, work: StepWork[Num], logit_rows: int | None = None) -> Num:
        """Device seconds of one step, and the wait for launches outside captured graphs.

        Args:
            work: one step. Without prompts, ``decode_kv_tokens`` may contain arrays; the result is then an array.
            logit_rows: rows of logits, as in ``kernels``.
        """
        step = self._of_group(work, logit_rows)
        prefilling = step.work.prefill_seqs
        layers = self._layer_table(int(self._together(step.work)))
        total: Num = layers.seconds(step.tokens) + self._head.seconds(step.logit_rows)
        total += self._mixing_seconds(step.work)
        if self._experts is not None:
            total += self._experts.seconds(step.expert_tokens)
        if look_up(self._eager, step.tokens) or (prefilling and self._decode_graphs):
            total = functions_of(total).maximum(total, self._floor_s)
        elif self._sinks_s and step.tokens:
            total = functions_of(total).maximum(total, self._sinks_s)
        return total if self._prompt_sizes is None else step.turns * total

    def layer_costs(self, layer: Layer, tokens: IntArray) -> Costs:
        """Costs of one layer without token mixing, for each token count in ``tokens``. Collectives are included;
        experts are not if attention groups share them."""
        home = self.deployment
        block = CallBlock(home, layer_calls(home, layer, tokens), after=reduction_calls(home, layer, tokens))
        return _summed([block], len(tokens))

    def by_sequence(self) -> StepTimer:
        """Timer of steps that compute decoding sequences one after the other and prompts together."""
        if self._by_sequence is None:
            self._by_sequence = BySequence(self.deployment, self.max_tokens, windows=self.tracked_windows, like=self)
        return self._by_sequence

    def beside(self, overlap: DecodeOverlap) -> StepTimer:
        """Copy of the timer with the given overlap of decode attention; unaffected tables are shared."""
        other = copy(self)
        other._overlap, other._plain, other._overlapped = overlap, self._plain or self, {}
        for one in self._mixing:
            assert isinstance(one.kind.shape, AttentionShape)
            other._overlapped[one] = DecodeTable(overlap.exposed(one.kind.shape, one.kind.window))
        return other

    @property
    def _same_tables(self) -> StepTimer | None:
        """Timer ``like`` if it has the same maximum tokens, so that its tables are shared unchanged; else None."""
        return self.like if self.like is not None and self.like.max_tokens == self.max_tokens else None

    @property
    def shapes(self) -> list[MixingShape]:
        """Shapes of the model's token-mixing kernels."""
        return [one.kind.shape for one in self._mixing]

    @property
    def origin(self) -> StepTimer:
        """Timer whose tables this timer reuses; the timer itself if it reuses none."""
        plain = self._plain or self
        return plain.like or plain

    @property
    def overlap(self) -> DecodeOverlap | None:
        """Pricing of decode attention that overlaps the rest of its layer; None without overlap."""
        return self._overlap

    @property
    def shares_prompts(self) -> bool:
        """True if groups compute prompts together."""
        return self._overlap is not None and self._overlap.prompt_groups > 1

    def _of_group(self, work: StepWork[Num], logit_rows: Num = None) -> GroupStep:
        """Work of a step in the slowest attention group."""
        deployment = self.deployment
        turns, work = self._one_prompt(work)
        seen = slowest_group(work, deployment.attention_data_parallel)
        if logit_rows is None:
            logit_rows = seen.decode_tokens + seen.sampled_prefills
        elif seen is not work:
            logit_rows = -(-logit_rows // deployment.attention_data_parallel)
        everyone = expert_tokens = 0 if self._experts is None else seen.all_group_tokens
        if self.shares_prompts:
            assert self._overlap is not None
            seen = context_parallel_part(seen, self._overlap.prompt_groups)
        tokens = seen.tokens
        if self._experts is not None:
            expert_tokens = functions_of(tokens).maximum(everyone, look_up(self._padded, tokens))
        return GroupStep(seen, tokens, logit_rows, turns, everyone, expert_tokens)

    def _one_prompt(self, work: StepWork[Num]) -> tuple[Num, StepWork[Num]]:
        """Number of prompts computed one after the other, and the step's work with the mean prompt, padded. If prompts
        are computed together: 1 and the unchanged step."""
        count, tokens = work.prefill_seqs, work.prefill_tokens
        many = isinstance(count, np.ndarray)
        if self._prompt_sizes is None or not (many or count):
            return 1, work
        turns = np.maximum(1, count) if many else count
        mean = tokens // turns
        padded = look_up(self._prompt_sizes, mean) * (count > 0 if many else 1)
        ratio = padded / (np.maximum(1, mean) if many else mean)
        windows = zip(self.windows, work.prefill_pairs, strict=False)  # after them those of a drafter alone
        return turns, work._replace(
            prefill_seqs=np.minimum(1, count) if many else 1,
            prefill_tokens=padded,
            prefill_pairs=tuple(
                pairs * ratio * (ratio if window is None else 1.0) / turns for window, pairs in windows
            ),
            prefill_kv_tokens=tuple(keys * ratio / turns for keys in work.prefill_kv_tokens),
            sampled_prefills=work.sampled_prefills // turns,
        )

    def _even(self, step: GroupStep) -> FloatArray | None:
        """Ratio of the mean attention group's work to the slowest group's work; None for a single group."""
        groups, tokens = self.deployment.attention_data_parallel, step.tokens
        if groups == 1:
            return None
        even: FloatArray = np.divide(step.all_group_tokens, groups * tokens, out=np.ones(len(tokens)), where=tokens > 0)
        return even

    def _layer_blocks(self, home: Deployment, tokens: IntArray, query_len: Num) -> Iterator[CallBlock]:
        """Embedding, layers, and the transfer of activations to the chip that runs the next layers.

        Args:
            home: deployment of the layers of one chip.
            tokens: token counts, padded to captured graphs.
            query_len: consecutive tokens per sequence, from ``_together``.
        """
        yield CallBlock(home, embedding_calls(home, tokens))
        prices = {(one.kind.shape, one.kind.window): one for one in self._mixing if one.kind.kernels is home.kernels}
        for group in home.architecture.layer_groups:
            layer, mixer = group.layer, group.layer.mixer
            mixing = [] if mixer is None else [prices[kind] for kind in home.mixing(mixer)]
            calls = layer_calls(home, layer, tokens, query_len)
            yield CallBlock(home, calls, group.count, mixing, reduction_calls(home, layer, tokens))
        if home is not self._homes[-1] and home.link is not None:
            yield CallBlock(home, [p2p_send(home, tokens, home.link)])

    def _head_block(self, logit_rows: IntArray) -> CallBlock:
        return CallBlock(self.deployment, head_calls(self.deployment, logit_rows))

    def _expert_blocks(self, tokens: IntArray) -> Iterator[CallBlock]:
        """Calls of experts that attention groups share, for ``tokens`` tokens."""
        for group in self.deployment.architecture.layer_groups:
            if isinstance(group.layer.feed_forward, MoeMlp):
                calls = shared_expert_calls(self.deployment, group.layer.feed_forward, tokens)
                yield CallBlock(self.deployment, calls, group.count)

    def _layer_table(self, query_len: int) -> CostTable:
        """Costs of embedding and layers by tokens."""

        def costs(tokens: IntArray) -> Costs:
            padded = self.deployment.framework.padded_tokens(tokens, self.deployment.cuda_graphs)
            distinct, inverse = np.unique(padded, return_inverse=True)
            blocks: list[CallBlock] = []
            for home in self._homes:
                embedding, *others = self._layer_blocks(home, distinct, query_len)
                others.insert(len(home.architecture.layer_groups), embedding)  # summed after the layers
                blocks += others
            return _summed(blocks, len(distinct)).rows(inverse)

        if query_len not in self._layers:
            like = None if self.like is None else self.like._layer_table(query_len)
            if like is None or self._same_tables is None:
                like = CostTable(costs, self._most, like)
            self._layers[query_len] = like
        return self._layers[query_len]

    def _together(self, work: StepWork[Num]) -> Num:
        """Consecutive tokens per sequence for routed experts: the verified tokens in steps without prompts, else 1."""
        decoding, prefilling = work.decode_seqs, work.prefill_seqs
        if isinstance(decoding, np.ndarray):
            return np.where((decoding > 0) & (prefilling == 0) & self._routed, work.query_len, 1)
        return work.query_len if self._routed and decoding and not prefilling else 1

    def _layer_rows(self, tokens: IntArray, lengths: IntArray) -> Costs:
        """Costs of embedding and layers of many steps; ``lengths`` from ``_together``."""
        distinct = sorted(set(lengths.tolist()))
        if len(distinct) <= 1:
            return self._layer_table(*distinct or [1]).rows(tokens)
        total = Costs.zeros(len(tokens))
        for length in distinct:
            rows = np.flatnonzero(lengths == length)
            total.put(rows, self._layer_table(length).rows(tokens[rows]))
        return total

    def _mixing_kernels(self, prices: MixingPrices, work: StepWork[IntArray]) -> Iterator[Kernel]:
        """Token-mixing kernels of one layer of a kind, without the part hidden behind the rest of the layer."""
        kind = prices.kind
        calls = [calls(kind, *sizes) for calls, sizes in mixing_calls(kind, work)]
        for call in chain.from_iterable(zip(*calls, strict=True)):
            kernel = price(call, kind.kernels, prices.decode)
            if self._overlap is not None and call.op == "attention_decode":
                yield from self._exposed(kernel, kind, work)
            else:
                yield kernel
        if self.shares_prompts:
            exchange = other_device_kernel("KV exchange", "collective", self._exchange_s(kind, work.prefill_tokens))
            yield exchange._replace(basis=EXTRAPOLATED)

    def _mixing_seconds(self, work: StepWork[Num]) -> Num:
        """Seconds of the token-mixing kernels of all layers in one step."""
        total: Num = 0.0
        for prices in self._mixing:
            for calls, sizes in mixing_calls(prices.kind, work):
                if self._overlap is not None and calls is decode_calls and not work.prefill_seqs:
                    total += look_up(self._overlapped[prices], *sizes[:3])
                else:
                    total += prices.seconds(calls, sizes)
            if self.shares_prompts and work.prefill_seqs:
                total += prices.kind.layers * self._exchange_s(prices.kind, work.prefill_tokens)
        return total

    def _exposed(self, kernel: Kernel, kind: MixingKind, work: StepWork[IntArray]) -> Iterator[Kernel]:
        """Exposed decode attention of decode-only steps, and transfers over the link between the groups;
        both are extrapolated."""
        assert self._overlap is not None
        assert isinstance(kind.shape, AttentionShape)
        keys = work.decode_kv_tokens[kind.place]
        rows = np.flatnonzero((work.prefill_seqs == 0) & (work.decode_seqs > 0))
        seqs, query_len = work.decode_seqs[rows], np.broadcast_to(work.query_len, work.decode_seqs.shape)[rows]
        attention_s, link_s = self._overlap.exposed_parts(kind.shape, kind.window, seqs, query_len, keys[rows])
        formula = self._overlap.exposed(kind.shape, kind.window)
        total_s = between_cells(lambda ends: [formula(seqs, query_len, one) for one in ends], seqs, keys[rows])
        scale = total_s / (attention_s + link_s) / kind.layers
        exposed, link = np.ones(len(keys)), np.zeros(len(keys))
        exposed[rows] = attention_s * scale / np.asarray(kernel.seconds)[rows]
        link[rows] = link_s * scale
        basis = np.broadcast_to(kernel.basis, keys.shape).copy()
        basis[rows] = np.maximum(basis[rows], EXTRAPOLATED)
        yield kernel._replace(exposed=exposed, basis=basis)
        yield other_device_kernel("p2p-send", "collective", link)._replace(basis=EXTRAPOLATED)

    def _exchange_s(self, kind: MixingKind, prompt_tokens: Num) -> Num:
        """Seconds to exchange keys and values of one layer between groups that compute prompts together."""
        assert self._overlap is not None
        assert isinstance(kind.shape, AttentionShape)
        return self._overlap.exchange_s(kind.shape, prompt_tokens)


@dataclass(slots=True)
class BySequence(StepTimer):
    """Prices steps in which each decoding sequence has a separate pass."""

    def kernels(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Iterator[Kernel]:
        for times, part in self._passes(work):
            for kernel in StepTimer.kernels(self, part):
                yield kernel._replace(times=times * kernel.times)

    def costs(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Costs:
        total = Costs.zeros(len(work.decode_seqs))
        for times, part in self._passes(work):
            total.add(StepTimer.costs(self, part), times)
        return total

    def seconds(self, work: StepWork[Num], logit_rows: int | None = None) -> Num:
        total: Num = 0.0
        for times, part in self._passes(work):
            if times:
                total = total + times * StepTimer.seconds(self, part)
        return total

    @staticmethod
    def _passes(work: StepWork[Num]) -> tuple[tuple[Num, StepWork[Num]], tuple[Num, StepWork[Num]]]:
        """Number and work of both kinds of passes: one per decoding sequence, and one for all prompts."""
        decodes = decode_work(work.decode_seqs, work.query_len, work.decode_kv_tokens)
        prompts = work._replace(
            decode_seqs=0 * work.decode_seqs,
            decode_kv_tokens=tuple(0 * keys for keys in work.decode_kv_tokens),
            longest_kv=0 * work.longest_kv,
            tail_kv=0 * work.tail_kv,
            trimmed=0 * work.trimmed,
        )
        several = (work.decode_seqs, mean_sequence(decodes, work.decode_seqs > 0))
        return several, (1 * (work.prefill_seqs > 0), prompts)


def step_timer(deployment: Deployment, max_tokens: int, windows: tuple[int | None, ...] = ()) -> StepTimer:
    """Timer of a deployment. An existing timer with its tables is returned if an equal deployment was timed recently
    (replicas, replications, points of a study).

    Args:
        deployment: model and chips.
        max_tokens: largest number of tokens in a step.
        windows: attention windows, as in ``StepTimer``.
    """
    like = None
    for timer in list(_LATELY):
        if timer.tracked_windows == windows and deployment.runs_kernels_of(timer.deployment):
            if timer.max_tokens == max_tokens and timer.deployment == deployment:
                return timer
            like = timer.like or timer  # no chains, which would keep every timer that there ever was
    timer = StepTimer(deployment, max_tokens, windows=windows, like=like)
    _LATELY.appendleft(timer)
    return timer


_LATELY: deque[StepTimer] = deque(maxlen=64)
"""Recently used timers, searched linearly: a chip contains mappings and has no hash, which ``RecentResults`` needs."""


def _priced(calls: Iterable[Call], home: Deployment) -> Iterator[Kernel]:
    return (price(call, home.kernels) for call in calls)


def _summed(blocks: Iterable[CallBlock], size: int) -> Costs:
    """Sum of the costs of blocks, without token mixing, for each of ``size`` counts."""
    total = Costs.zeros(size)
    for home, calls, times, _, after in blocks:
        one = Costs.of(_priced(calls, home), size)
        one.add(Costs.of(_priced(after, home), size))
        total.add(one, times)
    return total
