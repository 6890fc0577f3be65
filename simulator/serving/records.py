"""Records of a simulated run: one row per request, one row per engine step, and a few totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.document import LEFT_OUT
from forerun.tables import Table
from simulator.serving.clock import TICKS_PER_S

SCALARS = (*("replica", "start_s", "seconds", "output_tokens", "running", "waiting", "kv_blocks", "steps", "copies_s"),)
"""First columns of a step row. The numbers of its work (``StepWork.numbers``) follow, then the drafter's if a policy
controls it, then the work of the slowest attention group if there are several."""
Count = int | float
"""A number of one run, or its mean over several."""
MOST_GAPS = 1 << 18
"""Rows of a table of token gaps beyond which it is kept in bins."""
BIN_BITS = 17
"""Leading bits of a gap that determine its bin: bins are 8e-6 to 1.5e-5 of their gaps wide."""


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """One row per request in order of arrival. Times in seconds from the start of the run, NaN if never reached."""

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    scheduled_s: FloatArray
    """Start of the first engine step that the request took part in."""
    first_token_s: FloatArray
    finished_s: FloatArray
    replica: IntArray
    preemptions: IntArray
    cached_tokens: IntArray
    """Prompt tokens served from the prefix cache."""
    drafts: IntArray
    """Verify steps that carried draft tokens of this request."""
    draft_tokens: IntArray
    accepted_tokens: IntArray
    failed: BoolArray
    stage: IntArray | None = None
    """Stage of the load test; None without stages."""
    warm_up: BoolArray | None = None
    """True for requests that latencies and rates leave out; None without a warm-up."""

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def completed(self) -> BoolArray:
        """True for each request that received its last token and did not fail."""
        return np.asarray(~self.failed & np.isfinite(self.finished_s), dtype=np.bool_)

    @property
    def ttft_ms(self) -> FloatArray:
        """Milliseconds from arrival to the first token; NaN for requests that did not complete."""
        return self._of_completed(self.first_token_s - self.arrival_s)

    @property
    def tpot_ms(self) -> FloatArray:
        """Milliseconds per token after the first, ``(e2el - ttft) / (output_tokens - 1)``; NaN for a single token."""
        rest_s = (self.finished_s - self.arrival_s) - (self.first_token_s - self.arrival_s)
        rest_s /= np.maximum(self.output_tokens - 1, 1)
        rest_s[self.output_tokens <= 1] = np.nan
        return self._of_completed(rest_s)

    @property
    def e2el_ms(self) -> FloatArray:
        """Milliseconds from arrival to the last token; NaN for requests that did not complete."""
        return self._of_completed(self.finished_s - self.arrival_s)

    def _of_completed(self, seconds: FloatArray) -> FloatArray:
        """Milliseconds of completed requests; NaN for the others."""
        seconds[~self.completed] = np.nan
        seconds *= 1e3
        return seconds

    @property
    def measured(self) -> RequestRecords:
        """Records without those of the warm-up."""
        return self if self.warm_up is None else self.take(~self.warm_up)

    def take(self, rows: IntArray | BoolArray) -> RequestRecords:
        """Records of the chosen rows."""
        columns: dict[str, Any] = {name: values[rows] for name, values in self.columns().items()}
        return RequestRecords(**columns)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Column name to array, in declaration order."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in columns.items() if values is not None}

    def head(self, rows: int = 5) -> Table:
        """Records of the first ``rows`` requests."""
        columns = self.columns()
        first = zip(*(values[:rows].tolist() for values in columns.values()), strict=True)
        return Table("Requests", tuple(columns), [tuple(map(_cell, row)) for row in first])


def _cell(value: float | bool) -> float | str:
    return ("yes" if value else "no") if isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class StepRecords:
    """One row per engine step; in very long runs, per run of decode steps of one unchanged batch (see ``steps``).

    ``compute_s`` to ``host_s`` divide ``seconds`` by what bounded each kernel; ``flops`` and ``bytes`` are the useful
    work of the whole replica (all its chips).
    """

    replica: IntArray
    start_s: FloatArray
    seconds: FloatArray
    prefill_seqs: IntArray
    prefill_tokens: IntArray
    decode_seqs: IntArray
    query_len: IntArray
    """Tokens per decoding sequence: 1, or K+1 in a verify step."""
    decode_kv_tokens: IntArray
    """Sum of context lengths that the decoding sequences attend to."""
    output_tokens: IntArray
    running: IntArray
    waiting: IntArray
    kv_blocks: IntArray
    compute_s: FloatArray
    memory_s: FloatArray
    interconnect_s: FloatArray
    latency_s: FloatArray
    host_s: FloatArray
    calibrated_s: FloatArray
    """Seconds on the device of kernels fitted on the chip, at shapes within the fitted range."""
    extrapolated_s: FloatArray
    """Seconds on the device of kernels whose shapes or formats no fit covers."""
    datasheet_s: FloatArray
    """Seconds on the device of kernels that were never measured on the chip."""
    sol_s: FloatArray
    """Speed-of-light seconds of the kernels at the peak of their chip."""
    flops: FloatArray
    bytes: FloatArray
    steps: IntArray
    """Engine steps that the row stands for: 1, or more where decode steps share a row. Seconds, tokens, FLOPs and bytes
    are their sums, context lengths their mean."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.start_s)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Column name to array, in declaration order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def take(self, rows: IntArray) -> StepRecords:
        """Records of the chosen rows."""
        return StepRecords(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class GapCounts:
    """Pooled gaps between consecutive token deliveries of a request, as a weighted multiset.

    More than ``MOST_GAPS`` rows are kept in bins: of each bin its lower end, how many gaps it has and what they sum to
    beyond that end, in whole ticks of simulated time, so that neither depends on the order in which gaps were pooled.
    """

    floor_s: FloatArray
    """Gap of each row; for bins, the lower end."""
    count: IntArray
    excess_ticks: IntArray | None = None
    """Sum of (gap - lower end) over the gaps of each bin; None if rows are not bins."""

    @property
    def gap_s(self) -> FloatArray:
        """Gap of each row in seconds; for bins, the mean gap."""
        if self.excess_ticks is None:
            return self.floor_s
        return self.floor_s + self.excess_ticks / self.count / TICKS_PER_S

    @classmethod
    def pooled(cls, tables: Sequence[GapCounts]) -> GapCounts:
        """Gaps of several tables combined; binned if one table is, or if there are more than ``MOST_GAPS`` rows."""
        gap_s, count = (np.concatenate([getattr(table, name) for table in tables]) for name in ("floor_s", "count"))
        if len(gap_s) <= MOST_GAPS and all(table.excess_ticks is None for table in tables):
            return cls(gap_s, count)
        # The leading bits of a double are its exponent and the first bits of its mantissa: they number its bin.
        place = np.maximum(gap_s, 1.0 / TICKS_PER_S).view(np.int64) >> (53 - BIN_BITS)
        first = int(place.min())
        place -= first
        floor_s = ((np.arange(int(place.max()) + 1) + first) << (53 - BIN_BITS)).view(np.float64)
        kept = [np.zeros(len(one.count), np.int64) if one.excess_ticks is None else one.excess_ticks for one in tables]
        excess = np.concatenate(kept) + np.rint((gap_s - floor_s[place]) * TICKS_PER_S).astype(np.int64) * count
        counts, sums = np.zeros((2, len(floor_s)), dtype=np.int64)
        np.add.at(counts, place, count)
        np.add.at(sums, place, excess)
        bins = np.flatnonzero(counts)
        return cls(floor_s[bins], counts[bins], sums[bins])


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Work of one replica during a run."""

    replica: int
    pool: str
    chip: str
    requests: Count
    """Number of requests that the replica finished."""
    prompt_tokens: Count
    """Prompt tokens of the requests whose prompts the replica computed."""
    prefix_hit_tokens: Count | None
    """Prompt tokens found in the replica's prefix cache; None if no prefix cache is modelled."""
    prefix_hit_rate: float | None
    peak_use: float | None
    busy: float | None
    """Share of the run spent in engine steps."""
    api_server_busy: float | None = None
    """Share of the run that its API servers worked on requests and streamed tokens."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """KV that moved from prefill to decode replicas."""

    transfers: Count
    tokens: Count
    mean_s: float | None
    """Mean seconds from the end of a prompt to the arrival of its KV, waits included."""


@dataclass(frozen=True, slots=True)
class HostCacheReport:
    """Host memory behind the prefix caches: capacity per replica, and blocks copied out and back over all replicas."""

    num_blocks: int
    peak_blocks: Count
    """Peak blocks in use on the replica that uses most."""
    hit_tokens: Count | None
    """Prompt tokens loaded from host memory, part of ``prefix_hit_tokens``; None without a prefix cache."""
    offloaded_blocks: Count
    loaded_blocks: Count
    hit_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store behind the prefix caches: its size, and what was found in it and copied, over all replicas."""

    name: str
    medium: str
    num_blocks: int
    """KV blocks of each replica; of the fleet if replicas share the store."""
    peak_blocks: Count
    """Maximum of the peak blocks in use over the stores of this name."""
    hit_tokens: Count | None
    """Prompt tokens copied from here, part of ``prefix_hit_tokens``; None without a prefix cache."""
    hit_rate: float | None
    written_blocks: Count
    read_blocks: Count
    written_bytes: float
    read_bytes: float
    bytes: float
    """Size of all blocks."""
    peak_bytes: float
    """Size of ``peak_blocks``."""
    read_busy: float | None
    """Share of the run in which the lanes towards the chips carry copies; 1 also where copies outlast the run."""
    write_busy: float | None
    """Share of the run in which the lanes away from the chips carry copies; 1 also where copies outlast the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheReport:
    """KV capacity of one replica and how it was used; blocks and bytes per replica, maxima over replicas.

    With several pools, blocks and bytes are for the first pool that decodes; preemptions, hits and copies are for all
    pools.
    """

    num_blocks: int
    block_size: int
    page_tokens: int | None = field(default=None, metadata=LEFT_OUT)
    """Tokens for which blocks are allotted together, in hybrid models where they are more than a block's."""
    capacity_tokens: int
    peak_blocks: Count
    mean_blocks: float
    """Mean number of blocks in use, over engine time."""
    peak_use: float | None
    mean_use: float | None
    preemptions: Count
    swapped_blocks: Count | None = None
    """Blocks copied to host memory; None if sequences are recomputed instead."""
    prefix_hit_tokens: Count | None
    """Prompt tokens found in the prefix cache; None if no prefix cache is modelled."""
    prefix_hit_rate: float | None = None
    hit_rate_by_tier: dict[str, float | None] | None = field(default=None, metadata=LEFT_OUT)
    """Shares of prompt tokens by the memory that they came from: ``device``, then each store by its name."""
    hit_rate_over_time: dict[str, list[float | None]] | None = field(default=None, metadata=LEFT_OUT)
    """The same in equal parts of the run up to ``until_s``, by the start of each prompt; None without stores."""
    host: HostCacheReport | None = field(default=None, metadata=LEFT_OUT)
    """Host memory behind the prefix cache; None if evicted blocks are lost."""
    stores: tuple[StoreReport, ...] | None = field(default=None, metadata=LEFT_OUT)
    """Stores of ``engine.kv_stores`` and ``kv_store``, in order; None without them."""
    lane_bytes: dict[str, float] | None = field(default=None, metadata=LEFT_OUT)
    """Bytes that each kind of lane carried; None without ``engine.kv_stores`` and ``kv_store``."""
    bytes_per_token: float
    """KV bytes of one token over all layers and chips of a replica (drafter included)."""
    weights_bytes: float
    """Per chip."""
    draft_weights_bytes: float
    """Per chip."""
    activation_bytes: float
    """Bytes per chip for activations, captured graphs and workspace."""
    capacity_bytes: float
    """Memory of one chip, in bytes."""
    overridden: bool
    """True when ``engine.num_kv_blocks`` replaced the estimate."""
    per_chip_bytes: dict[str, float] | None = field(default=None, metadata=LEFT_OUT)
    """Memory of one chip by content, for models that keep more than KV: recurrent state, keys of an index."""


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """vLLM's speculative-decoding counters."""

    num_drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Counters of the simulation itself."""

    steps: int
    exact_steps: int
    """Engine steps that the interpreted oracle ran (``engine.stepping: exact-steps``)."""
    simulated_s: float
    cpu_s: float
    wall_s: float
