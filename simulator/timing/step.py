"""One model's part of an engine step: its kernels, their sum, and the same sum looked up for single steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from math import isnan, prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from forerun.arrays import FloatArray, IntArray
from hwprofiles import AttentionShape
from hwprofiles.formulas import look_up
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
"""Steps for each block of a ``DecodeTable`` from which many steps are priced by it: one block costs as much as 1,000 of
them, unless single steps were priced by it before."""
EXTRAPOLATED = 1


class DecodeOverlap(Protocol):
    """Decode attention that overlaps the rest of its layer: seconds that it adds to a decode-only step.

    ``window`` is the attention window of the layers meant, None for full attention.
    """

    @property
    def prompt_groups(self) -> int:
        """Number of groups that share the computation of each prompt; 1: each computes whole prompts."""

    def exchange_s(self, shape: AttentionShape, tokens: Any) -> Any:
        """Seconds in which each group sends one layer's KV of its ``tokens`` prompt tokens to the others."""

    def exposed(self, shape: AttentionShape, window: int | None) -> Callable[[Any, Any, Any], Any]:
        """Exposed seconds of all layers of that kind, by (sequences, queries per sequence, total keys)."""

    def exposed_parts(
        self, shape: AttentionShape, window: int | None, seqs: IntArray, query_len: IntArray, keys: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Exposed seconds of many steps, split into attention and link."""


class DecodeTable:
    """Seconds of one decode attention kernel by sequences, queries per sequence and total keys read.

    For each pair (sequences, queries) the formula is evaluated at the ends of cells (``cell_tokens``), a block of cells
    when a key in it is first requested, and interpolated linearly, as ``between_cells`` does for many steps.

    Args:
        formula: seconds of (sequences, queries, keys); keys may be an array.
    """

    def __init__(self, formula: Callable[[Any, Any, Any], Any]) -> None:
        self._formula = formula
        self._rows: dict[tuple[int, int], tuple[int, FloatArray]] = {}
        """Cell width, and values at the cell ends: NaN where none was requested."""
        self._blocks: dict[tuple[int, int, int], FloatArray] = {}
        """Values at the ends of a block's cells for ``ROWS_TOGETHER`` like batches, by the first of these, queries and
        block."""

    def __call__(self, seqs: int, query_len: int, keys: Any) -> Any:
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
        """Cell width and values at the cell ends of a batch, known around ``keys`` and NaN where not requested.

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

    def ends(self, seqs: IntArray, query_len: Any, cells: IntArray) -> tuple[FloatArray, FloatArray] | None:
        """Values at both ends of the cell of each step; None where its blocks would be larger than the steps."""
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
        """Values at the ends of the cells of a block, batches x ends."""
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
        """The row with the values of a block added; the table may hold another thread's row, which lacks them."""
        width, values = self._rows.get((seqs, query_len), (int(cell_tokens(seqs)), np.empty(0)))
        begin, end = block * BLOCK_CELLS, (block + 1) * BLOCK_CELLS + 1
        if len(values) < end:
            longer = np.full(max(end, 2 * len(values)), np.nan)
            longer[: len(values)] = values
            self._rows[seqs, query_len] = width, longer
            values = longer
        values[begin:end] = costs
        return width, values


def fresh_prompt_seconds(formula: Callable[[Any, Any, Any, Any], Any], window: int | None, max_tokens: int) -> ByCount:
    """Seconds of prefill attention for one prompt without anything cached, for 0 to ``max_tokens`` tokens.

    Args:
        formula: seconds of (sequences, new tokens, (query, key) pairs, keys).
        window: sliding window in tokens, or None.
        max_tokens: longest prompt chunk.
    """
    tokens = np.arange(1, max_tokens + 1, dtype=np.float64)
    growing = tokens if window is None else np.minimum(tokens, window)
    pairs = growing * (growing + 1) / 2 + (tokens - growing) * (window or 0)
    return ByCount([0.0, *np.asarray(formula(1.0, tokens, pairs, tokens)).tolist()])


class AttentionPrices(NamedTuple):
    """Seconds of one kind of attention in single steps."""

    decode: DecodeTable
    prefill: Callable[..., Any]
    """Seconds of (sequences, new tokens, pairs, keys)."""
    mixed: Callable[..., Any] | None
    """Seconds of a mixed batch in one kernel: arguments of ``prefill``, then (decoding sequences, their keys, most
    keys of one); None where prompts and decoding run in separate kernels."""
    fresh: ByCount
    """Seconds of one fresh prompt by its length."""
    window: int
    """Index of the attention window among those of a step's work."""
    layers: int
    overlapped: DecodeTable | None = None
    """Exposed seconds of decode attention in steps without prompts, all layers; None if nothing is overlapped."""


def attention_windows(architecture: Architecture) -> tuple[int | None, ...]:
    """Distinct attention windows of a model, full attention first."""
    mixers = (group.layer.mixer for group in architecture.layer_groups)
    windows = {window for mixer in mixers if mixer is not None for window in mixer.windows} or {None}
    return tuple(sorted(windows, key=lambda window: -1 if window is None else window))


@dataclass(slots=True)
class StepTimer:
    """Prices engine steps of one model on one replica.

    ``kernels`` lists what runs, ``costs`` is its sum for many steps. ``seconds`` is the same sum for one step, looked
    up: what depends on a count of tokens alone (layers, head, shared experts) in tables of the same calls, decode
    attention in a ``DecodeTable``.
    """

    deployment: Deployment
    max_tokens: int
    """Largest number of tokens in a step."""
    windows: tuple[int | None, ...] = ()
    """Attention windows of the work to price; default: those of the model (a pipeline stage may lack some)."""
    like: StepTimer | None = None
    """Timer of the same kernels whose host costs or largest steps may differ; its tables are reused as far as they
    go."""
    tracked_windows: tuple[int | None, ...] = field(init=False)
    _most: int = field(init=False)
    """Largest number of tokens that a step computes, the padding of its prompts included."""
    tracked_longest: int = field(init=False)
    """How many of the longest decoding sequences a step's time depends on."""
    _homes: tuple[Deployment, ...] = field(init=False)
    """The model's layers by the chip that runs them."""
    _kinds: list[MixingKind] = field(init=False)
    _decode: list[DecodeTable] = field(init=False)
    """Seconds of decode attention of each kind of layer."""
    _attention: list[AttentionPrices] = field(init=False, default_factory=list)
    """Attention prices of each kind of layer; computed when a single step is first priced."""
    _layers: dict[int, CostTable] = field(init=False)
    """Costs of layers by tokens, for each number of consecutive tokens per sequence that experts process."""
    _head: CostTable = field(init=False)
    _experts: CostTable | None = field(init=False, default=None)
    """Experts that attention groups share, by the tokens of all groups."""
    _padded: ByCount = field(init=False)
    """Tokens of all groups that the experts compute when the slowest group replays a graph, by that group's tokens."""
    _routed: bool = field(init=False)
    """Whether expert costs depend on the tokens per sequence: there are routed experts and one attention group."""
    _tail_s: Callable[[int, int], float] = field(init=False)
    """Seconds of all layers per key of ``StepWork.tail_kv``, by sequences and queries of each."""
    _overlap: DecodeOverlap | None = field(init=False, default=None)
    _plain: StepTimer | None = field(init=False, default=None)
    """The timer without overlap that this is a copy of."""
    _eager: ByCount = field(init=False)
    """Whether a step of so many tokens runs outside captured graphs."""
    _decode_graphs: bool = field(init=False)
    """Whether steps with prompt chunks run outside captured graphs, whatever their size."""
    _prompt_sizes: ByCount | None = field(init=False, default=None)
    """Tokens computed for a prompt, by its length, where they are computed one after the other."""
    _by_sequence: StepTimer | None = field(init=False, default=None)
    _floor_s: float = field(init=False)
    """Host time to launch every kernel of a step one by one, and to read the weights where that is slower than in a
    captured step; an uncaptured step cannot beat it."""

    def __post_init__(self) -> None:
        deployment, framework = self.deployment, self.deployment.framework
        architecture = deployment.architecture
        self._homes = deployment.homes
        self.tracked_windows = self.windows
        self.windows = self.windows or attention_windows(architecture)
        self._kinds = mixing_kinds(deployment, self.windows)
        tables = [DecodeTable(seconds_of(decode_calls, kind)) for kind in self._kinds]
        self._decode = tables if self.like is None else self.like._decode
        full = [
            (one.shape, one.kernels)
            for one in self._kinds
            if one.window is None and isinstance(one.shape, AttentionShape)
        ]
        has_tail = any(library.tail_seconds(shape, np.inf) for shape, library in full)
        self.tracked_longest = (
            max(1, round(max(float(library.tail_sequences(shape)) for shape, library in full)))
            if has_tail
            else int(any(kind.one_pass for kind in self._kinds))
        )
        self._most = self.max_tokens
        if framework.prompts == "sequential":
            self._prompt_sizes = ByCount(framework.padded_prompts(self.max_tokens).tolist())
            self._most += int(self._prompt_sizes.values[-1])
        tokens = np.arange(self._most + 1, dtype=np.int64)
        captured = (tokens <= framework.max_captured_tokens) & deployment.cuda_graphs
        self._eager = ByCount((~captured).tolist())
        self._tail_s = cache(self._seconds_per_tail_key)
        self._decode_graphs = framework.captured_steps == "decode"
        self._floor_s = framework.launches_s(
            architecture, deployment.weight_dtypes["expert"], deployment.tensor_parallel, deployment.cuda_graphs
        )
        if framework.eager_read_share:
            bandwidth = framework.eager_read_share * deployment.chip.memory.bandwidth_bytes_per_s
            self._floor_s += deployment.layer_weight_bytes / bandwidth
        routed = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
        groups = deployment.attention_data_parallel
        self._routed = routed and groups == 1
        self._layers = {}
        self._layer_table(1)
        if self._same_tables is not None:
            self._head = self._same_tables._head
        else:
            self._head = CostTable(
                lambda rows: _sum(head_calls(deployment, rows), deployment, len(rows)),
                self._most,
                None if self.like is None else self.like._head,
            )
        self._padded = ByCount([])
        if groups > 1:
            padded = np.where(captured, groups * framework.padded_tokens(tokens, deployment.cuda_graphs), 0)
            self._padded = ByCount(padded.tolist())
            self._experts = CostTable(self._expert_costs, max(groups * self._most, int(padded.max())))

    def kernels(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Iterator[Kernel]:
        """The kernels of many steps in the order in which they run, layer kinds one after the other.

        Host work and drafters are left out. Of several attention groups the slowest is meant, with the useful work of
        the mean one.

        Args:
            work: the steps, as arrays of equal length.
            logit_rows: rows of logits computed; default: every verified token and every completed prompt.
        """
        deployment = self.deployment
        turns, work = self._one_prompt(work)
        seen, all_group_tokens, logit_rows = self._seen(work, logit_rows)
        tokens = seen.tokens
        padded = deployment.framework.padded_tokens(tokens, deployment.cuda_graphs)
        together = self._together(seen)

        def priced(calls: Iterable[Call], home: Deployment, times: int = 1) -> Iterator[Kernel]:
            for call in calls:
                yield price(call, home.kernels)._replace(times=times * turns * call.times)

        def listed() -> Iterator[Kernel]:
            for home in self._homes:
                kinds = [kind for kind in self._kinds if kind.kernels is home.kernels]
                mixing = {(kind.shape, kind.window): list(self._mixing_kernels(kind, seen)) for kind in kinds}
                yield from priced(embedding_calls(home, padded), home)
                for group in home.architecture.layer_groups:
                    layer = group.layer
                    yield from priced(layer_calls(home, layer, padded, together), home, group.count)
                    for kind in () if layer.mixer is None else home.mixing(layer.mixer):
                        for kernel in mixing[kind]:
                            yield kernel._replace(times=group.count * turns)
                    yield from priced(reduction_calls(home, layer, padded), home, group.count)
                yield from priced(self._leaving(home, padded), home)
            yield from priced(head_calls(deployment, logit_rows), deployment)

        even = self._even(all_group_tokens, tokens)
        for kernel in listed():
            time = kernel.time
            if even is not None:
                time = time._replace(flops=time.flops * even, bytes=time.bytes * even)
            yield kernel._replace(time=time, sol_s=kernel.sol_s if even is None else kernel.sol_s * even)
        if self._experts is not None:
            shared = np.maximum(all_group_tokens, np.asarray(self._padded.values)[tokens])
            for group in deployment.architecture.layer_groups:
                if isinstance(group.layer.feed_forward, MoeMlp):
                    calls = shared_expert_calls(deployment, group.layer.feed_forward, shared)
                    yield from priced(calls, deployment, group.count)

    def costs(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Costs:
        """The sum of the kernels of many steps; ``host_s`` holds the wait for launches outside captured graphs.

        Args:
            work: the steps, as arrays of equal length.
            logit_rows: as ``kernels`` takes them.
        """
        turns, work = self._one_prompt(work)
        seen, all_group_tokens, logit_rows = self._seen(work, logit_rows)
        tokens = seen.tokens
        together = self._together(seen)
        first, times = equal_neighbours(tokens, together, logit_rows)
        total = self._layer_rows(tokens[first], together[first])
        total.add(self._head.rows(logit_rows[first]))
        total = total.repeated(times)
        for kind in self._kinds:
            for kernel in self._mixing_kernels(kind, seen):
                total.add_kernel(kernel._replace(times=kind.layers))
        even = self._even(all_group_tokens, tokens)
        if even is not None and self._experts is not None:
            for part in (total.flops, total.bytes, total.sol_s):
                part *= even
            total.add(self._experts.rows(np.maximum(all_group_tokens, np.asarray(self._padded.values)[tokens])))
        uncaptured = np.asarray(self._eager.values)[tokens] | ((seen.prefill_seqs > 0) & self._decode_graphs)
        total.host_s += np.where(uncaptured, np.maximum(0.0, self._floor_s - total.device_s), 0.0)
        if self._prompt_sizes is None:
            return total
        every = Costs.zeros(len(tokens))
        every.add(total, turns)
        return every

    def seconds(self, work: StepWork[Any], logit_rows: int | None = None) -> Any:
        """Device seconds of one step, and the wait for launches outside captured graphs.

        Args:
            work: one step; where nothing is prefilled ``decode_kv_tokens`` may hold arrays, and so does the result.
            logit_rows: as ``kernels`` takes them.
        """
        turns, work = self._one_prompt(work)
        seen, all_group_tokens = work, 0
        if self._experts is not None or self.shares_prompts:
            seen, all_group_tokens, logit_rows = self._seen(work, logit_rows)
        decoding, prefilling = seen.decode_seqs, seen.prefill_seqs
        tokens = seen.tokens
        if logit_rows is None:
            logit_rows = seen.decode_tokens + seen.sampled_prefills
        together = self._routed and decoding and not prefilling and seen.query_len > 1
        layers = self._layer_table(int(seen.query_len)) if together else self._layers[1]
        total: Any = layers.seconds(tokens) + self._head.seconds(logit_rows)
        total += self._attention_seconds(seen)
        if self._experts is not None:
            total += self._experts.seconds(max(all_group_tokens, look_up(self._padded, tokens)))
        if not (look_up(self._eager, tokens) or (prefilling and self._decode_graphs)):
            return total
        longest = np.maximum(total, self._floor_s) if isinstance(total, np.ndarray) else max(total, self._floor_s)
        return turns * longest

    def layer_costs(self, layer: Layer, tokens: IntArray, query_len: int = 1, home: Deployment | None = None) -> Costs:
        """One layer without attention itself, for each token count in ``tokens``, collectives included; no experts
        where attention groups share them. ``home``: the part of the model that it belongs to."""
        home = home or self.deployment
        one = _sum(layer_calls(home, layer, tokens, query_len), home, len(tokens))
        one.add(_sum(reduction_calls(home, layer, tokens), home, len(tokens)))
        return one

    def _leaving(self, home: Deployment, tokens: IntArray) -> Iterator[Call]:
        """Transfer of activations to the chip that runs the next layers."""
        if home is not self._homes[-1] and home.link is not None:
            yield p2p_send(home, tokens, home.link)

    def by_sequence(self) -> StepTimer:
        """A timer of steps whose decoding sequences run one after the other, and their prompts together."""
        if self._by_sequence is None:
            self._by_sequence = BySequence(self.deployment, self.max_tokens, windows=self.tracked_windows, like=self)
        return self._by_sequence

    def beside(self, overlap: DecodeOverlap) -> StepTimer:
        """Copy of the timer with another overlap of decode attention; unaffected tables are shared."""
        other = copy(self)
        other._overlap, other._attention, other._plain = overlap, [], self._plain or self
        return other

    @property
    def _same_tables(self) -> StepTimer | None:
        """The timer whose tables are as long as this one's, and so are shared whole."""
        return self.like if self.like is not None and self.like.max_tokens == self.max_tokens else None

    @property
    def shapes(self) -> list[MixingShape]:
        """Shapes of the model's token-mixing kernels."""
        return [kind.shape for kind in self._kinds]

    @property
    def origin(self) -> StepTimer:
        """The timer of the same kernels whose tables this one reuses; itself where it reuses none."""
        plain = self._plain or self
        return plain.like or plain

    @property
    def overlap(self) -> DecodeOverlap | None:
        """Pricing of decode attention that overlaps the rest of its layer; None without overlap."""
        return self._overlap

    @property
    def shares_prompts(self) -> bool:
        """Whether groups compute prompts together."""
        return self._overlap is not None and self._overlap.prompt_groups > 1

    def _one_prompt(self, work: StepWork[Any]) -> tuple[Any, StepWork[Any]]:
        """How many prompts of a step are computed one after the other, and the work of the mean one, padded; the step
        as it is where prompts are computed together."""
        count, tokens = work.prefill_seqs, work.prefill_tokens
        if self._prompt_sizes is None or (not isinstance(count, np.ndarray) and not count):
            return 1, work
        many = np.maximum(1, count) if isinstance(count, np.ndarray) else count
        mean = tokens // many
        if isinstance(count, np.ndarray):
            padded = np.where(count > 0, np.asarray(self._prompt_sizes.values)[mean], 0)
        else:
            padded = look_up(self._prompt_sizes, mean)
        ratio = padded / np.maximum(1, mean) if isinstance(count, np.ndarray) else padded / mean
        windows = zip(self.windows, work.prefill_pairs, strict=False)  # after them those of a drafter alone
        return many, work._replace(
            prefill_seqs=np.minimum(1, count) if isinstance(count, np.ndarray) else 1,
            prefill_tokens=padded,
            prefill_pairs=tuple(pairs * ratio * (ratio if window is None else 1.0) / many for window, pairs in windows),
            prefill_kv_tokens=tuple(keys * ratio / many for keys in work.prefill_kv_tokens),
            sampled_prefills=work.sampled_prefills // many,
        )

    def _seen(self, work: StepWork[Any], logit_rows: Any) -> tuple[StepWork[Any], Any, Any]:
        """The part of a step that the slowest attention group does, the tokens of all groups, its rows of logits."""
        seen = slowest_group(work, self.deployment.attention_data_parallel)
        if logit_rows is None:
            logit_rows = seen.decode_tokens + seen.sampled_prefills
        elif seen is not work:
            logit_rows = -(-logit_rows // self.deployment.attention_data_parallel)
        all_group_tokens = seen.all_group_tokens
        if self.shares_prompts:
            assert self._overlap is not None
            seen = context_parallel_part(seen, self._overlap.prompt_groups)
        return seen, all_group_tokens, logit_rows

    def _even(self, all_group_tokens: IntArray, group_tokens: IntArray) -> FloatArray | None:
        """Work of the mean attention group over that of the slowest; None where there is one."""
        groups = self.deployment.attention_data_parallel
        return (
            np.divide(all_group_tokens, groups * group_tokens, out=np.ones(len(group_tokens)), where=group_tokens > 0)
            if groups > 1
            else None
        )

    def _layer_costs(self, query_len: int) -> Callable[[IntArray], Costs]:
        """Costs of embedding and layers by tokens, padded to captured graphs."""

        def costs(tokens: IntArray) -> Costs:
            deployment = self.deployment
            padded = deployment.framework.padded_tokens(tokens, deployment.cuda_graphs)
            distinct, inverse = np.unique(padded, return_inverse=True)
            total = Costs.zeros(len(distinct))
            for home in self._homes:
                for group in home.architecture.layer_groups:
                    total.add(self.layer_costs(group.layer, distinct, query_len, home), group.count)
                for calls in (embedding_calls(home, distinct), self._leaving(home, distinct)):
                    total.add(_sum(calls, home, len(distinct)))
            return total.rows(inverse)

        return costs

    def _expert_costs(self, tokens: IntArray) -> Costs:
        total = Costs.zeros(len(tokens))
        for group in self.deployment.architecture.layer_groups:
            if isinstance(group.layer.feed_forward, MoeMlp):
                calls = shared_expert_calls(self.deployment, group.layer.feed_forward, tokens)
                total.add(_sum(calls, self.deployment, len(tokens)), group.count)
        return total

    def _layer_table(self, query_len: int) -> CostTable:
        if query_len not in self._layers:
            like = None if self.like is None else self.like._layer_table(query_len)
            if like is None or self._same_tables is None:
                like = CostTable(self._layer_costs(query_len), self._most, like)
            self._layers[query_len] = like
        return self._layers[query_len]

    def _together(self, work: StepWork[IntArray]) -> IntArray:
        """Consecutive tokens per sequence for routed experts: the verified ones in steps without prompts, else 1."""
        decode_only = (work.decode_seqs > 0) & (work.prefill_seqs == 0) & self._routed
        return np.where(decode_only, work.query_len, 1)

    def _layer_rows(self, tokens: IntArray, lengths: IntArray) -> Costs:
        """Costs of embedding and layers of many steps; ``lengths`` as ``_together`` gives them."""
        distinct = sorted(set(lengths.tolist()))
        if len(distinct) <= 1:
            return self._layer_table(*distinct or [1]).rows(tokens)
        total = Costs.zeros(len(tokens))
        for length in distinct:
            rows = np.flatnonzero(lengths == length)
            total.put(rows, self._layer_table(length).rows(tokens[rows]))
        return total

    def _mixing_kernels(self, kind: MixingKind, work: StepWork[IntArray]) -> Iterator[Kernel]:
        """Token-mixing kernels of one layer of a kind, as far as they are not hidden behind the rest of the layer."""
        for call in mixing_calls(kind, work):
            kernel = price(call, kind.kernels, self._decode[self._kinds.index(kind)])
            if self._overlap is not None and call.op == "attention_decode":
                yield from self._exposed(kernel, kind, work)
            else:
                yield kernel
        if self.shares_prompts:
            exchange = other_device_kernel("KV exchange", "collective", self._exchange_s(kind, work.prefill_tokens))
            yield exchange._replace(basis=EXTRAPOLATED)

    def _exposed(self, kernel: Kernel, kind: MixingKind, work: StepWork[IntArray]) -> Iterator[Kernel]:
        """Exposed decode attention of decode-only steps, and transfers over the link between the groups;
        nothing of it was measured."""
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

    def _attention_prices(self) -> list[AttentionPrices]:
        """Functions and tables of every kind of attention."""
        if not self._attention:
            self._attention = list(self._overlapped() if self._plain is not None else self._serial())
        return self._attention

    def _overlapped(self) -> Iterator[AttentionPrices]:
        assert self._plain is not None
        assert self._overlap is not None
        for kind, one in zip(self._kinds, self._plain._attention_prices(), strict=True):
            assert isinstance(kind.shape, AttentionShape)
            yield one._replace(overlapped=DecodeTable(self._overlap.exposed(kind.shape, kind.window)))

    def _serial(self) -> Iterator[AttentionPrices]:
        """Attention prices without overlap; those of the timer whose tables are reused where it has them."""
        known = [] if self.like is None else self.like._attention_prices()
        for place, kind in enumerate(self._kinds):
            if known and self._same_tables is not None:
                yield known[place]
                continue
            prefill = seconds_of(prompt_calls, kind)
            fresh = fresh_prompt_seconds(prefill, kind.window, self.max_tokens)
            mixed = seconds_of(mixed_calls, kind) if kind.one_pass else None
            yield AttentionPrices(self._decode[place], prefill, mixed, fresh, kind.place, kind.layers)

    def _attention_seconds(self, work: StepWork[Any]) -> Any:
        prices = self._attention or self._attention_prices()
        decoding, prefilling, prompt = work.decode_seqs, work.prefill_seqs, work.prefill_tokens
        total: Any = 0.0
        together = bool(decoding and prefilling and work.query_len == 1) and any(one.mixed for one in prices)
        for kind, one in zip(self._kinds, prices, strict=True):
            if together and one.mixed is not None:
                chunks = (prefilling, prompt, work.prefill_pairs[kind.place], work.prefill_kv_tokens[kind.place])
                longest = work.longest_kv if kind.window is None else 0
                singles = (decoding, work.decode_kv_tokens[kind.place], longest)
                total += kind.layers * one.mixed(*chunks, *singles)
        if self._overlap is not None and decoding and not prefilling:
            for one in prices:
                assert one.overlapped is not None
                total += look_up(one.overlapped, decoding, work.query_len, work.decode_kv_tokens[one.window])
            decoding = 0
        if decoding and self.tracked_longest and not together and work.tail_kv:
            total += work.tail_kv * look_up(self._tail_s, decoding, work.query_len)
        for kind, (decode, prefill, mixed, fresh, window, layers, _) in zip(self._kinds, prices, strict=True):
            if together and mixed is not None:
                continue
            if decoding:
                total += layers * look_up(decode, decoding, work.query_len, work.decode_kv_tokens[window])
            if prefilling:
                keys = work.prefill_kv_tokens[window]
                # One of several groups may stand for a share of two prompts, whose pairs are more than one's.
                whole = prefilling == 1 and keys == prompt
                if whole and work.prefill_pairs[window] == causal_pairs(prompt, 0, kind.window):
                    total += layers * look_up(fresh, prompt)
                else:
                    total += layers * prefill(prefilling, prompt, work.prefill_pairs[window], keys)
        if prefilling and self.shares_prompts:
            total += sum(kind.layers * self._exchange_s(kind, prompt) for kind in self._kinds)
        return total

    def _exchange_s(self, kind: MixingKind, prompt_tokens: Any) -> Any:
        """Seconds to exchange keys and values of one layer between groups that compute prompts together."""
        assert self._overlap is not None
        assert isinstance(kind.shape, AttentionShape)
        return self._overlap.exchange_s(kind.shape, prompt_tokens)

    def _seconds_per_tail_key(self, seqs: int, query_len: int) -> float:
        return sum(
            kind.layers * float(kind.kernels.tail_seconds(kind.shape, seqs, query_len))
            for kind in self._kinds
            if kind.window is None and isinstance(kind.shape, AttentionShape)
        )


@dataclass(slots=True)
class BySequence(StepTimer):
    """Prices steps in which each decoding sequence has a pass of its own."""

    def kernels(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Iterator[Kernel]:
        for times, part in self._passes(work):
            for kernel in StepTimer.kernels(self, part):
                yield kernel._replace(times=times * kernel.times)

    def costs(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Costs:
        total = Costs.zeros(len(work.decode_seqs))
        for times, part in self._passes(work):
            total.add(StepTimer.costs(self, part), times)
        return total

    def seconds(self, work: StepWork[Any], logit_rows: int | None = None) -> Any:
        total: Any = 0.0
        for times, part in self._passes(work):
            if times:
                total = total + times * StepTimer.seconds(self, part)
        return total

    @staticmethod
    def _passes(work: StepWork[Any]) -> tuple[tuple[Any, StepWork[Any]], tuple[Any, StepWork[Any]]]:
        """How often each of two passes runs, and its work: a sequence that decodes, and all prompts."""
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
    """Timer of a deployment: an existing one with its tables if an equal deployment was
    timed recently (replicas, replications, points of a study), else a new one.

    Args:
        deployment: model and chips.
        max_tokens: largest number of tokens in a step.
        windows: as ``StepTimer`` takes them.
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
"""Timers used lately, found by comparing: a chip holds mappings and has no hash, which ``RecentResults`` needs."""


def _sum(calls: Iterator[Call], deployment: Deployment, size: int) -> Costs:
    """Costs of a list of calls for each of ``size`` counts."""
    return Costs.of((price(call, deployment.kernels) for call in calls), size)
