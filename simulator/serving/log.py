"""Log of a running simulation: request columns, step rows, token gaps."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from simulator.serving.records import SCALARS, GapCounts
from simulator.timing import DraftStep, StepWork
from simulator.timing.work import DRAFT_SCALARS, WORK_SCALARS, work_numbers
from simulator.workload import RequestStream

if TYPE_CHECKING:
    from simulator.serving.engine import HolderIndex, Lane, Output, Store, Tier
    from simulator.serving.kv_stores import EvictionFacts


FULL_ROWS = 1 << 17
"""Maximum number of rows with one engine step each, divided equally among replicas."""
CONDENSED_AT = 1 << 17
"""Number of rows at which a log passes them to ``condense`` and drops them, if it has such a callback."""
Condense = Callable[["StepLog"], None]
"""Callback that processes the rows of a log."""


class StepLog:
    """One row of floats per engine step, in a growing table.

    Past ``full_rows`` rows of a replica, its decode steps of one unchanged batch share rows, at most 64 to a row:
    seconds and tokens are summed, keys and waiting requests averaged, blocks as of the last step.
    """

    def __init__(
        self,
        windows: int,
        full_rows: int = FULL_ROWS,
        drafting: bool = False,
        condense: Condense | None = None,
        grouped: bool = False,
        kept: bool = True,
    ) -> None:
        self._windows = windows
        self.full_rows = full_rows
        self.condense = condense
        self.kept = kept
        """False if nobody reads the rows; engines then write none."""
        self._draft_at = len(SCALARS) + work_numbers(windows) if drafting else None
        """Index of the first drafter column; None unless a policy chooses the draft tokens."""
        self.group_at = len(SCALARS) + work_numbers(windows) + (DRAFT_SCALARS + 2 * windows if drafting else 0)
        """Index of the first column of the slowest attention group."""
        self.grouped = grouped
        self.width = self.group_at + (work_numbers(windows) if grouped else 0)
        """Number of columns."""
        self._table = np.empty((self.width, 1024))
        self._rows = 0
        self.dropped = 0
        """Number of rows that were removed from the log."""

    def __len__(self) -> int:
        return self._rows

    def forget(self) -> None:
        """Drop all rows."""
        self.dropped += self._rows
        self._rows = 0

    def extend(self, rows: FloatArray) -> None:
        """Append rows, with the columns that ``SCALARS`` describes."""
        while self.condense is not None and self._rows + len(rows) > CONDENSED_AT:
            part = CONDENSED_AT - self._rows  # as many rows to a part, however many come at a time
            self._append(rows[:part])
            rows = rows[part:]
            self.condense(self)
            self.forget()
        self._append(rows)

    def _append(self, rows: FloatArray) -> None:
        count = self._rows + len(rows)
        if count > self._table.shape[1]:
            table = np.empty((self.width, max(2 * self._table.shape[1], count)))
            table[:, : self._rows] = self._table[:, : self._rows]
            self._table = table
        self._table[:, self._rows : count] = rows.T
        self._rows = count

    def rows(self) -> FloatArray:
        """All rows, in the layout that ``extend`` accepts."""
        return np.ascontiguousarray(self._table[:, : self._rows].T)

    def column(self, name: str) -> FloatArray:
        """One scalar column, of the step or of its work."""
        return self._table[(*SCALARS, *WORK_SCALARS).index(name), : self._rows]

    @property
    def decode_kv_tokens(self) -> IntArray:
        """Keys that decoding sequences of all groups read in layers with the first window."""
        first = len(SCALARS) + work_numbers(self._windows) - self._windows
        return self._table[first, : self._rows].astype(np.int64)

    def integers(self, name: str) -> IntArray:
        """One scalar column that counts something."""
        return self.column(name).astype(np.int64)

    def work(self, chosen: slice | IntArray) -> StepWork[IntArray]:
        """The work of the chosen steps; with several attention groups, the slowest group's work."""
        first = self.group_at if self.grouped else len(SCALARS)
        table = self._table[first : first + work_numbers(self._windows), : self._rows][:, chosen]
        work = StepWork.of_numbers(list(table.astype(np.int64)))
        tail_kv, dp_imbalance = (table[WORK_SCALARS.index(name)] for name in ("tail_kv", "dp_imbalance"))
        return work._replace(tail_kv=tail_kv, dp_imbalance=dp_imbalance if self.grouped else 0.0)

    def draft(self, chosen: slice | IntArray) -> DraftStep[IntArray] | None:
        """Work of the drafter in the chosen steps; None unless a policy chooses the draft tokens."""
        if self._draft_at is None:
            return None
        columns = self._table[self._draft_at : self.group_at, : self._rows][:, chosen].astype(np.int64)
        return DraftStep.of_numbers(list(columns))


COUNTED = (
    *("replica", "prompt_replica", "preemptions", "drafts", "accepted_tokens", "draft_tokens", "failed"),
    "cached_tokens",
)
TIMES = ("scheduled_s", "first_token_s", "finished_s")


def _own(column: NDArray[Any], dtype: type = np.int64) -> memoryview[Any]:
    """A writable memoryview of a column; the array is copied only if dtype, order or flags require it."""
    return np.require(column, dtype, ["C", "W"]).data


@dataclass(slots=True)
class ScalingLog:
    """History of an autoscaler: replica counts over time and rented replica-seconds."""

    changes: list[tuple[float, int, int, int]] = field(default_factory=list)
    """(time in seconds, replicas starting, on, draining) after each change."""
    rented_s: float = 0.0
    """Replica-seconds rented up to the latest change."""
    scale_ups: int = 0
    scale_downs: int = 0

    def until(self, end_s: float) -> float:
        """Replica-seconds rented from the start up to ``end_s``, at or after the latest change."""
        at_s, *counts = self.changes[-1]
        return self.rented_s + (end_s - at_s) * sum(counts)

    def note(self, now: float, starting: int, on: int, draining: int) -> None:
        """Record the replica counts that hold from ``now`` on."""
        if self.changes:
            self.rented_s = self.until(now)
        self.changes.append((now, starting, on, draining))


class Span(NamedTuple):
    """Timeline entry of a replica other than an engine step: a KV transfer to it, or a failure."""

    name: str
    replica: int
    start_s: float
    end_s: float


MOST_SPANS = 10_000
"""Largest number of spans kept for a run's timeline."""


@dataclass(slots=True)
class RunLog:
    """All records of a run; one log per simulation, shared by its replicas."""

    stream: RequestStream
    steps: StepLog
    positions: int
    """Draft positions whose acceptance is counted, K."""
    progress: Callable[[int, int], None] | None = None
    seed: int = 0
    endless: ClassVar[bool] = False
    """True if requests arrive for as long as the process runs."""
    input_tokens: memoryview[int] = field(init=False)
    output_tokens: memoryview[int] = field(init=False)
    arrival_s: memoryview[float] = field(init=False)
    scheduled_s: memoryview[float] = field(init=False)
    first_token_s: memoryview[float] = field(init=False)
    finished_s: memoryview[float] = field(init=False)
    replica: memoryview[int] = field(init=False)
    preemptions: memoryview[int] = field(init=False)
    drafts: memoryview[int] = field(init=False)
    accepted_tokens: memoryview[int] = field(init=False)
    draft_tokens: memoryview[int] = field(init=False)
    """Tokens drafted for each request; kept only where a policy changes their number, else drafts times K."""
    failed: memoryview[int] = field(init=False)
    cached_tokens: memoryview[int] = field(init=False)
    prompt_replica: memoryview[int] = field(init=False)
    """Replica that computed the prompt first."""
    restarts: memoryview[int] = field(init=False)
    """Times that a request started again because its replica failed."""
    accepted_counts: IntArray = field(init=False)
    """Verify steps by number of accepted tokens, 0..K."""
    refusals: Counter[str] = field(init=False)
    ended: array[int] = field(default_factory=lambda: array("q", [0]))
    """Number of ended requests, refused requests included, as an array of one element."""
    tier_tokens: dict[int, dict[str, int]] = field(default_factory=dict)
    """Prompt tokens of requests that came from stores behind the chips, among ``cached_tokens``, by name of the
    store."""
    tiers: list[Tier] = field(default_factory=list)
    """Stores behind the prefix caches, one per cache and store (a failed replica starts others)."""
    lanes: list[tuple[str, Lane]] = field(default_factory=list)
    """Lanes that carry KV, with their names."""
    shared_store: tuple[Store, Lane, Lane] | None = None
    """The store that all servers share, and its lanes towards the chips and back."""
    eviction_facts: EvictionFacts | None = None
    """Facts of the requests that eviction policies share."""
    reference: RunLog | None = None
    """Run under LRU on the same random numbers; None unless a policy is clairvoyant."""
    holders: HolderIndex | None = None
    """Index of the prefixes that each replica caches; None unless a router needs it."""
    swapped_blocks: int = 0
    """KV blocks copied to host memory."""
    transfers: int = 0
    """Prompts whose KV went to another replica."""
    transferred_tokens: int = 0
    transfer_s: float = 0.0
    """Sum over transfers of the seconds from the end of the prompt to the arrival of its KV."""
    spans: list[Span] = field(default_factory=list)
    """The first ``MOST_SPANS`` KV transfers and failures that ended."""
    exact_steps: int = 0
    blocks_left: int = 0
    """KV blocks still allocated after the last request ended."""
    stage_busy_s: float = 0.0
    """Busy seconds summed over all pipeline stages."""
    stage_open_s: float = 0.0
    """Seconds of all pipeline stages while any batch was in flight."""
    scaling: ScalingLog | None = None
    """History of the autoscaler; None without one."""
    outputs: dict[str, Output] = field(default_factory=dict)
    """Output not yet written, by engine module (its ``SOURCE``)."""
    gap_tables: list[GapCounts] = field(default_factory=list)
    """Token gaps of buffers that were full, and of worker processes."""

    def reference_order(self, replica: int | None) -> list[int]:
        """Requests of a replica, or of all, in the order in which the reference run began with them."""
        assert self.reference is not None
        begun_s, of, prompt = (
            np.asarray(getattr(self.reference, name)) for name in ("scheduled_s", "replica", "prompt_replica")
        )
        chosen = ~np.isnan(begun_s) & (True if replica is None else (of == replica) | (prompt == replica))
        requests = np.flatnonzero(chosen)
        return requests[np.argsort(begun_s[requests], kind="stable")].tolist()  # type: ignore[no-any-return]

    def span(self, name: str, replica: int, start_s: float, end_s: float) -> None:
        """Record a span for the timeline, up to ``MOST_SPANS``."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append(Span(name, replica, start_s, end_s))

    @property
    def tier_hit_tokens(self) -> Counter[str]:
        """``tier_tokens`` of all requests."""
        hits: Counter[str] = Counter()
        for tokens in self.tier_tokens.values():
            hits.update(tokens)
        return hits

    def __post_init__(self) -> None:
        count = len(self.stream)
        # Columns that nothing is written to take no memory: the system gives zeros when a page is first touched.
        self.input_tokens, self.output_tokens = _own(self.stream.input_tokens), _own(self.stream.output_tokens)
        moves = self.stream.times_depend or self.stream.max_concurrency is not None
        self.arrival_s = _own(self.stream.arrival_s.copy() if moves else self.stream.arrival_s, np.float64)
        for name in TIMES:
            setattr(self, name, np.full(count, np.nan).data)
        for name in (*COUNTED, "restarts"):
            setattr(self, name, np.zeros(count, dtype=np.int64).data)
        self.accepted_counts = np.zeros(self.positions + 1, dtype=np.int64)
        self.refusals = Counter()

    @property
    def completed(self) -> int:
        """Requests that have ended, refused ones included."""
        return self.ended[0]

    def admit(self, refusal: Callable[[int, int], str | None]) -> Sequence[int]:
        """Refuse the requests that can never be served; returns the others, in order of arrival.

        Args:
            refusal: returns why a request of (prompt, output) tokens can never be served, or None if it can; if it
                accepts a request, it also accepts shorter ones.
        """
        if not refusal(int(self.stream.input_tokens.max(initial=0)), int(self.stream.output_tokens.max(initial=0))):
            return range(len(self.stream))
        served = []
        for request, (prompt, output) in enumerate(zip(self.input_tokens, self.output_tokens, strict=True)):
            reason = refusal(prompt, output)
            if reason is None:
                served.append(request)
            else:
                self.refuse(request, reason)
        return served

    def refuse(self, request: int, reason: str) -> None:
        """Record a request as refused: this deployment can never serve it."""
        self.failed[request] = 1
        self.refusals[reason] += 1
        self.ended[0] += 1
        if not self.completed % 256:
            self.tell()

    def tell(self) -> None:
        """Call the progress callback, if there is one."""
        if self.progress is not None:
            self.progress(self.completed, len(self.stream))

    def gaps(self) -> GapCounts:
        """Gaps between token deliveries, and how many requests saw each."""
        buffered = [GapCounts(*output.gaps.table()) for output in self.outputs.values()]
        return GapCounts.pooled([*buffered, *self.gap_tables])

    def pool_gaps(self, gap_s: FloatArray, count: IntArray) -> None:
        """Take the token gaps of a full buffer."""
        self.gap_tables = [GapCounts.pooled([GapCounts(gap_s, count), *self.gap_tables])]

    def settle(self) -> None:
        """Write the step rows that are still buffered, at the end of a run."""
        for output in self.outputs.values():
            output.rows.flush()
