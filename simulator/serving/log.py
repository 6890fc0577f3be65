"""Where a running simulation writes: request columns, step rows, token gaps."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.serving.host_cache import HostCache
from simulator.serving.prefix_cache import HolderIndex
from simulator.timing import DraftStep, StepWork
from simulator.workload import RequestStream

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NAN = float("nan")

SCALARS = (
    "replica",
    "start_s",
    "seconds",
    "output_tokens",
    "running",
    "waiting",
    "kv_blocks",
    "steps",
    "prefill_seqs",
    "prefill_tokens",
    "sampled_prefills",
    "decode_seqs",
    "query_len",
    "copies_s",
    "longest_kv",
    "beyond_kv",
)
"""Columns of a step row; four more follow for each attention window."""

DRAFT_SCALARS = 4
"""Counts of a ``DraftStep`` before those by window."""

COUNTED_TOGETHER = 4096
"""Requests whose drafts are counted at once."""


FULL_ROWS = 1_000_000
"""Rows up to which every engine step has its own."""
MERGED_STEPS = 64
"""Beyond, so many consecutive decode steps of one unchanged batch share a row."""
CONDENSED_AT = 1 << 17
"""Rows at which they are handed over where none are to be kept."""
Condense = Callable[["StepLog"], None]
"""Takes the rows of a log, which then forgets them."""


class StepLog:
    """One row of floats per engine step, in a growing table.

    Past ``full_rows`` rows, decode steps of one unchanged batch share rows, at most ``MERGED_STEPS`` to a row: seconds
    and tokens are summed, keys and waiting requests averaged, blocks as of the last step.
    """

    def __init__(
        self, windows: int, full_rows: int = FULL_ROWS, drafting: bool = False, condense: Condense | None = None
    ) -> None:
        self._windows = windows
        self._drafts = np.empty((1024, DRAFT_SCALARS + 2 * windows), dtype=np.int64) if drafting else None
        """What the drafter did in each row's steps, where a policy decides it."""
        self._full_rows = full_rows
        self._condense = condense
        self._table = np.empty((1024, len(SCALARS) + 4 * windows))
        self._rows = 0
        self._merged: list[tuple[FloatArray, int]] = []
        """Seconds of the steps that share rows, and the requests that decoded in each."""
        self.spans = 0
        """Calls that wrote: advances of simulated time."""

    def __len__(self) -> int:
        return self._rows

    def forget(self) -> None:
        """Drop all rows."""
        self._rows = 0
        self._merged = []

    def step(
        self,
        replica: int,
        start_s: float,
        seconds: float,
        output_tokens: int,
        running: int,
        waiting: int,
        kv_blocks: int,
        work: StepWork[int],
        draft: DraftStep[int] | None = None,
        copies_s: float = 0.0,
    ) -> None:
        """Append one step; ``copies_s`` of its seconds went into copies between chips and host."""
        if self._condense is not None and self._rows >= CONDENSED_AT:
            self._condense(self)
        if self._rows == len(self._table):
            self._grow(1)
        if draft is not None:
            self._note_draft(draft, 1)
        prefill_seqs, prefill_tokens, pairs, prefill_kv, sampled, sampled_kv = work[:6]
        decode_seqs, query_len, decode_kv, longest_kv, beyond_kv = work[6:]
        self._table[self._rows] = (
            replica,
            start_s,
            seconds,
            output_tokens,
            running,
            waiting,
            kv_blocks,
            1,
            prefill_seqs,
            prefill_tokens,
            sampled,
            decode_seqs,
            query_len,
            copies_s,
            longest_kv,
            beyond_kv,
            *pairs,
            *prefill_kv,
            *sampled_kv,
            *decode_kv,
        )
        self._rows += 1
        self.spans += 1

    def span(
        self,
        replica: int,
        start_s: FloatArray,
        seconds: FloatArray,
        output_tokens: Any,
        running: int,
        waiting: IntArray,
        kv_blocks: IntArray,
        decode_seqs: int,
        query_len: int,
        decode_kv: tuple[IntArray, ...],
        draft: DraftStep[int] | None = None,
        longest_kv: int = 0,
        beyond_kv: float = 0.0,
    ) -> None:
        """Append a run of pure decode steps of one batch, the first with that longest context (0 = not told)."""
        longest = longest_kv + np.arange(len(seconds)) if longest_kv else np.zeros(len(seconds), dtype=np.int64)
        if self._condense is not None and self._rows >= CONDENSED_AT:
            self._condense(self)
        count = len(seconds)
        self.spans += 1
        steps: Any = 1
        if self._rows + count > self._full_rows and count > 1:
            firsts = np.arange(0, count, MERGED_STEPS)
            steps = np.diff(np.append(firsts, count))
            self._merged.append((seconds[:-1] if steps[-1] == 1 else seconds, decode_seqs))
            output_tokens = np.add.reduceat(np.broadcast_to(output_tokens, count), firsts)
            start_s, seconds = start_s[firsts], np.add.reduceat(seconds, firsts)
            waiting, kv_blocks = np.add.reduceat(waiting, firsts) // steps, kv_blocks[firsts + steps - 1]
            decode_kv = tuple(np.add.reduceat(keys, firsts) // steps for keys in decode_kv)
            longest = longest[firsts]
            count = len(firsts)
        if self._rows + count > len(self._table):
            self._grow(count)
        if draft is not None:
            self._note_draft(draft, count)
        rows = self._table[self._rows : self._rows + count]
        rows[:] = 0.0
        rows[:, 0] = replica
        rows[:, 1] = start_s
        rows[:, 2] = seconds
        rows[:, 3] = output_tokens
        rows[:, 4] = running
        rows[:, 5] = waiting
        rows[:, 6] = kv_blocks
        rows[:, 7] = steps
        rows[:, 11] = decode_seqs
        rows[:, 12] = query_len
        rows[:, SCALARS.index("longest_kv")] = longest
        rows[:, SCALARS.index("beyond_kv")] = beyond_kv
        for window, keys in enumerate(decode_kv):
            rows[:, len(SCALARS) + 3 * self._windows + window] = keys
        self._rows += count

    def column(self, name: str) -> FloatArray:
        """One scalar column."""
        return self._table[: self._rows, SCALARS.index(name)]

    def integers(self, name: str) -> IntArray:
        """One scalar column that counts something."""
        return self.column(name).astype(np.int64)

    def merged_gaps(self) -> tuple[FloatArray, IntArray]:
        """Seconds of each of the steps that share rows, and the requests that decoded in it."""
        counts = [np.full(len(seconds), seqs) for seconds, seqs in self._merged]
        empty = np.zeros(0)
        seconds = np.concatenate([empty, *(seconds for seconds, _ in self._merged)])
        return seconds, np.concatenate([empty.astype(np.int64), *counts])

    def work(self, chosen: slice | IntArray) -> StepWork[IntArray]:
        """The work of the chosen steps."""
        rows = self._table[: self._rows][chosen]
        keys = rows[:, len(SCALARS) :].astype(np.int64).reshape(len(rows), 4, self._windows)
        by_window = [tuple(keys[:, kind, w] for w in range(self._windows)) for kind in range(4)]
        count = {name: rows[:, SCALARS.index(name)].astype(np.int64) for name in SCALARS[8:13]}
        return StepWork(
            count["prefill_seqs"],
            count["prefill_tokens"],
            by_window[0],
            by_window[1],
            count["sampled_prefills"],
            by_window[2],
            count["decode_seqs"],
            count["query_len"],
            by_window[3],
            rows[:, SCALARS.index("longest_kv")].astype(np.int64),
            rows[:, SCALARS.index("beyond_kv")],
        )

    def draft(self, chosen: slice | IntArray) -> DraftStep[IntArray] | None:
        """What the drafter did in the chosen steps; None where no policy decides it."""
        if self._drafts is None:
            return None
        columns = self._drafts[: self._rows][chosen].T
        by_window = columns[DRAFT_SCALARS:].reshape(2, self._windows, -1)
        tokens, switched, seqs, skipped = columns[:DRAFT_SCALARS]
        return DraftStep(tokens, switched, seqs, skipped, tuple(by_window[0]), tuple(by_window[1]))

    def _note_draft(self, draft: DraftStep[int], count: int) -> None:
        """What the drafter does in the next ``count`` rows."""
        assert self._drafts is not None
        if self._rows + count > len(self._drafts):
            table = np.empty((max(2 * len(self._drafts), self._rows + count), self._drafts.shape[1]), dtype=np.int64)
            table[: self._rows] = self._drafts[: self._rows]
            self._drafts = table
        self._drafts[self._rows : self._rows + count] = (*draft[:4], *draft.skipped_pairs, *draft.skipped_kv_tokens)

    def _grow(self, count: int) -> None:
        table = np.empty((max(2 * len(self._table), self._rows + count), self._table.shape[1]))
        table[: self._rows] = self._table[: self._rows]
        self._table = table


COUNTED = ("replica", "preemptions", "drafts", "accepted_tokens", "draft_tokens", "failed", "cached_tokens")


@dataclass(slots=True)
class RunLog:
    """Everything a run writes down; one per simulation, shared by its replicas."""

    stream: RequestStream
    steps: StepLog
    positions: int
    """Draft positions whose acceptance is counted, K."""
    progress: Callable[[int, int], None] | None = None
    input_tokens: list[int] = field(init=False)
    output_tokens: list[int] = field(init=False)
    arrival_s: array[float] = field(init=False)
    scheduled_s: array[float] = field(init=False)
    first_token_s: array[float] = field(init=False)
    finished_s: array[float] = field(init=False)
    replica: array[int] = field(init=False)
    preemptions: array[int] = field(init=False)
    drafts: array[int] = field(init=False)
    accepted_tokens: array[int] = field(init=False)
    draft_tokens: array[int] = field(init=False)
    """Tokens drafted for each request; kept only where a policy changes their number, else drafts times K."""
    failed: array[int] = field(init=False)
    cached_tokens: array[int] = field(init=False)
    prompt_replica: array[int] = field(init=False)
    """Replica that computed the prompt first; -1 where it is the one that served the request."""
    restarts: array[int] = field(init=False)
    """Times that a request started again because its replica failed."""
    gaps_s: array[float] = field(init=False)
    """Gaps between token deliveries written one by one: all of them by the step-by-step path; by the fast path only
    those that span more than one engine step, the others being the steps themselves."""
    accepted_counts: IntArray = field(init=False)
    """Verify steps by number of accepted tokens, 0..K."""
    refusals: Counter[str] = field(init=False)
    completed: int = 0
    """Requests that have ended, refused ones included."""
    host_hit_tokens: int = 0
    """Prompt tokens that came from host memory, among ``cached_tokens``."""
    host_caches: list[HostCache] = field(default_factory=list)
    """Host memory behind the prefix caches, one per replica (a failed replica starts another)."""
    holders: HolderIndex | None = None
    """Which replicas hold which prefixes, where a router asks."""
    swapped_blocks: int = 0
    """KV blocks copied to host memory."""
    transfers: int = 0
    """Prompts whose KV went to another replica."""
    transferred_tokens: int = 0
    transfer_s: float = 0.0
    """Sum over transfers of the seconds from the end of the prompt to the arrival of its KV."""
    exact_steps: int = 0
    blocks_left: int = 0
    """KV blocks that requests still held when the last of them had ended."""
    stage_busy_s: float = 0.0
    """Seconds that pipeline stages worked, over all stages."""
    stage_open_s: float = 0.0
    """Seconds of all pipeline stages while any batch was in flight."""
    _drafting: list[int] = field(default_factory=list)
    _accepted: list[IntArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.stream)
        self.input_tokens = self.stream.input_tokens.tolist()
        self.output_tokens = self.stream.output_tokens.tolist()
        self.arrival_s = array("d", self.stream.arrival_s.astype(np.float64).tobytes())
        self.scheduled_s = array("d", [NAN]) * count
        self.first_token_s = array("d", [NAN]) * count
        self.finished_s = array("d", [NAN]) * count
        for name in COUNTED:
            setattr(self, name, array("q", [0]) * count)
        self.restarts = array("q", [0]) * count
        self.prompt_replica = array("q", [-1]) * count
        self.gaps_s = array("d")
        self.accepted_counts = np.zeros(self.positions + 1, dtype=np.int64)
        self.refusals = Counter()

    def admit(self, refusal: Callable[[int, int], str | None]) -> list[int]:
        """Refuse the requests that can never be served; returns the others, in order of arrival.

        Args:
            refusal: why a request of (prompt, output) tokens can never be served, or None when it can.
        """
        served = []
        for request, (prompt, output) in enumerate(zip(self.input_tokens, self.output_tokens, strict=True)):
            reason = refusal(prompt, output)
            if reason is None:
                served.append(request)
            else:
                self.refuse(request, reason)
        return served

    def refuse(self, request: int, reason: str) -> None:
        """A request that this deployment can never serve."""
        self.failed[request] = 1
        self.refusals[reason] += 1
        self._ended()

    def finish(self, request: int, now: float) -> None:
        """A request has its last token."""
        self.finished_s[request] = now
        self._ended()

    def count_drafts(self, request: int, accepted: IntArray) -> None:
        """Verify steps of a request and how many draft tokens each accepted."""
        self._drafting.append(request)
        self._accepted.append(accepted)
        if len(self._drafting) >= COUNTED_TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Count the verify steps noted since the last time."""
        if not self._drafting:
            return
        lengths = np.array([len(steps) for steps in self._accepted])
        accepted = np.concatenate(self._accepted)
        requests = np.array(self._drafting)
        np.add.at(np.frombuffer(self.drafts, dtype=np.int64), requests, lengths)
        starts = np.cumsum(lengths) - lengths
        totals = np.add.reduceat(np.append(accepted, 0), starts) * (lengths > 0)
        np.add.at(np.frombuffer(self.accepted_tokens, dtype=np.int64), requests, totals)
        self.accepted_counts += np.bincount(accepted, minlength=self.positions + 1)
        self._drafting, self._accepted = [], []

    def _ended(self) -> None:
        self.completed += 1
        if self.progress is not None and not self.completed % 256:
            self.progress(self.completed, len(self.stream))
