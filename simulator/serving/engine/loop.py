"""The step loop of one replica."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.acceptance import Budget, Draws
from simulator.serving.engine.caching.stores import Copies
from simulator.serving.engine.common import INFINITE, _by_clock, _on_grid, cython, exp, isnan
from simulator.serving.engine.drafting import Drafting, DraftWork
from simulator.serving.engine.prices import Prices, Repeated
from simulator.serving.engine.rows import Arrivals, Output
from simulator.serving.engine.schedulers.grouped import GroupedScheduler
from simulator.serving.engine.schedulers.prefill_first import PrefillFirstScheduler
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.schedulers.sglang import SglangScheduler
from simulator.serving.engine.schedulers.unified import NoEvictScheduler, UnifiedScheduler
from simulator.serving.engine.sequence import Sequence, StepPlan
from simulator.serving.engine.steady import Steady
from simulator.serving.engine.work import DECODE_SEQS, QUERY_LEN, TRIMMED, WORK_COUNT, Work
from simulator.serving.records import SCALARS

REPLICA = cython.declare(cython.longlong, SCALARS.index("replica"))
START = cython.declare(cython.longlong, SCALARS.index("start_s"))
SECONDS = cython.declare(cython.longlong, SCALARS.index("seconds"))
OUTPUT_TOKENS = cython.declare(cython.longlong, SCALARS.index("output_tokens"))
RUNNING = cython.declare(cython.longlong, SCALARS.index("running"))
WAITING = cython.declare(cython.longlong, SCALARS.index("waiting"))
KV_BLOCKS = cython.declare(cython.longlong, SCALARS.index("kv_blocks"))
STEPS = cython.declare(cython.longlong, SCALARS.index("steps"))
COPIES = cython.declare(cython.longlong, SCALARS.index("copies_s"))
WORK_AT = cython.declare(cython.longlong, len(SCALARS))
MERGED_STEPS = cython.declare(cython.longlong, 64)
"""Maximum decode steps of one unchanged batch that share a row, if there are many rows."""
COUNTING = (UnifiedScheduler, NoEvictScheduler, PrefillFirstScheduler, SglangScheduler)
"""Schedulers that may count sequences which decode in every step instead of listing them."""
PROGRESS_EVERY = cython.declare(cython.longlong, 256)
"""Finished requests between two progress calls."""


@cython.cclass
class Engine:
    """An engine that plans, prices and commits one step after the other.

    Args:
        index: index of the replica.
        source: where its requests come from.
        scheduler: the batching rule, with empty caches.
        prices: seconds of a step.
        output: where its results go.
        draws: accepted draft tokens, or None without speculation.
        budget: how many draft tokens of each sequence a step verifies, or None if all are.
        drafting: the policy that chooses the draft tokens of each step, or None where their number never changes.
        resumed: requests that start again after a failure, as they were in the replica that failed.
        kv_transfers: the transfer from prefill to decode replicas, where pools are disaggregated.
        prefill_only: whether finished prompts go to ``kv_transfers`` instead of being decoded here.
        copies: lanes of swap space and of the stores behind the prefix cache, or None.
        step_factors: on the seconds of steps with prompt chunks, and of the others.
        step_more_s: seconds that every step takes more than that, or less.
    """

    index = cython.declare(cython.longlong, visibility="public")
    scheduler = cython.declare(Scheduler, visibility="public")
    work = cython.declare(Work, visibility="public")
    """Work of the planned step."""
    now = cython.declare(cython.double, visibility="public")
    """Time of the next step."""
    seen = cython.declare(cython.double, visibility="public")
    """Time up to which the engine has seen arrivals."""
    start = cython.declare(cython.double, visibility="public")
    """When the latest planned step begins."""
    end = cython.declare(cython.double, visibility="public")
    planned = cython.declare(cython.bint, visibility="public")
    """True if a step is planned, to be committed at ``end``."""
    source: Any
    prices = cython.declare(Prices, visibility="public")
    _with_prompts: cython.double
    _without_prompts: cython.double
    _more_s: cython.double
    priorities: Any
    draws: Draws
    budget: Budget
    output: Output
    log: Any
    longest: cython.longlong
    """Number of longest decoding sequences whose contexts are kept for timing."""
    counting = cython.declare(cython.bint, visibility="public")
    """True if the scheduler may count sequences: a step gives one token to each, and no part needs single ones."""
    drafting: Drafting
    resumed: Any
    kv_transfers: Any
    prefill_only: cython.bint
    copies: Copies | None
    ahead: cython.bint
    _recv_interval: cython.longlong
    _unseen_steps: cython.longlong
    """Decode steps since the last poll for requests; a prompt or a pause makes the next poll due."""
    client_s = cython.declare(cython.double, visibility="public")
    """Time at which clients get the tokens of the latest step with tokens, after the API server's work."""
    _given_s: cython.double
    """End of that step."""
    _gap_s: cython.double
    """Seconds between the tokens of the latest step and those of the step before it, as clients see them."""
    _streaming_s: cython.double
    sent_s: cython.double[::1]
    free_s: cython.double[::1]
    """One number each: when the next request that waits for the API server was sent, and when that becomes idle."""
    arrivals: Arrivals | None
    """Arrivals where all requests are known in advance, in place of the source."""
    coming_s: cython.double[::1]
    """One number: time at which the next request is seen, if the source is polled."""
    _plan: StepPlan
    _draft: DraftWork | None
    _drafting: list[Sequence]
    """Sequences for which the policy chose the number of draft tokens."""
    _seconds: cython.double
    _copies_s: cython.double
    _blocks: cython.longlong
    _running: cython.longlong
    _waiting: cython.longlong
    _gaps: cython.longlong
    """Tokens of this step for requests whose previous token came at the start of this step."""
    _ended: cython.bint
    """True if a request ended in the present step."""
    _row: cython.longlong
    """Index of the latest row if later steps may share it; else -1."""
    _row_draft: DraftWork | None
    """Work of the drafter in it."""
    _rows: cython.longlong
    """Rows so far."""
    _repeated: Repeated
    """Prices of the latest steps, as long as only the number of keys changes."""
    _plain: cython.bint
    """True if a step has no copies of preempted sequences and every step is scheduled."""
    _round: cython.longlong
    _merged: cython.longlong
    """Number of steps in the merged row, and sums for the columns that hold means."""
    _merged_waiting: cython.longlong
    _merged_keys: cython.longlong[::1]

    def __init__(
        self,
        index: int,
        source: Any,
        scheduler: Scheduler,
        prices: Prices,
        output: Output,
        draws: Any = None,
        budget: Any = None,
        drafting: Any = None,
        resumed: Any = None,
        kv_transfers: Any = None,
        prefill_only: bool = False,
        copies: Copies | None = None,
        step_factors: tuple[float, float] = (1.0, 1.0),
        step_more_s: float = 0.0,
    ) -> None:
        self.index = index
        self.source = source
        self.scheduler = scheduler
        self.prices = prices
        self._with_prompts, self._without_prompts = step_factors
        self._more_s = step_more_s
        self.output = output
        self.log = output.log
        self.draws = draws
        self.budget = budget
        self.longest = 0 if draws is not None else prices.longest
        visited = output.exact or draws is not None or drafting is not None or self.longest
        groups = scheduler.groups if isinstance(scheduler, GroupedScheduler) else [scheduler]
        self.counting = type(groups[0]) in COUNTING and not visited
        self.drafting = drafting
        self.resumed = resumed
        self.kv_transfers = kv_transfers
        self.prefill_only = prefill_only
        self.copies = copies
        self.ahead = scheduler.limits.schedules_ahead
        self._recv_interval = self._unseen_steps = scheduler.limits.recv_interval
        self.work = Work(prices.timer.windows)
        self._repeated = Repeated()
        self._plain = scheduler.swap is None and scheduler.limits.scheduler_steps == 1
        self._plan = StepPlan()
        self._merged_keys = array("q", [0]) * self.work.kinds
        self.now = self.seen = self.start = self.end = 0.0
        self.planned = False
        self.coming_s, self.sent_s, self.free_s = source.coming_s, source.sent_s, source.free_s
        self._streaming_s = _on_grid(scheduler.limits.streaming_s)
        self.client_s = self._given_s = self._gap_s = 0.0
        latency_s: cython.double = _on_grid(scheduler.limits.api_server_s)
        self.arrivals = Arrivals(source.known, source.free_s, latency_s) if source.known else None
        self.priorities = output.log.stream.priorities
        self._draft = self._row_draft = None
        self._drafting = []
        self._seconds = self._copies_s = 0.0
        self._blocks = self._running = self._waiting = self._gaps = 0
        self._ended = False
        self._row = -1
        self._rows = 0

    def run(self) -> None:
        """Run all steps of an independent replica until no further request can come."""
        while True:
            self.collect(self.seen)
            if self.begin(self.now):
                self.commit()
            elif self.seen < self.now:
                # No step runs over which the next one was decided.
                self.seen = self.now
            else:
                next_s: cython.double = self.source.next_s() if self.arrivals is None else self.arrivals.next_s()
                next_s = min(next_s, self.scheduler.loaded_s())
                self.now = self.seen = max(self.now, next_s)
                if self.now == INFINITE:
                    return

    @cython.ccall
    def collect(self, seen: cython.double) -> None:
        """Collect arrivals up to ``seen``, when the next step is planned, if a poll is due."""
        request: cython.longlong
        self.scheduler.seen_s = seen
        if self._recv_interval > 1:
            if self._unseen_steps < self._recv_interval:
                return
            self._unseen_steps = 0
        if self.arrivals is None:
            if self.coming_s[0] <= seen:
                for request in self.source.take(seen):
                    self.scheduler.add(self.sequence(request))
        else:
            while self.arrivals.due(seen):
                self.scheduler.add(self.sequence(self.arrivals.take()))

    @cython.ccall
    def sequence(self, request: cython.longlong) -> Sequence:
        """Make the sequence of a request that joins the queue."""
        if self.output.replica[request] != self.index:  # a page of zeros takes no memory until it is written to
            self.output.replica[request] = self.index
        resumed = self.resumed.pop(request, None) if self.resumed else None
        if resumed is not None:
            return self.again(resumed)
        priority: cython.longlong = 0 if self.priorities is None else self.priorities[request]
        output: Output = self.output
        made: Sequence = Sequence.__new__(Sequence)
        tokens: cython.longlong = output.input_tokens[request]
        made.begin(request, tokens, output.output_tokens[request], priority, output.arrival_s[request])
        return made

    @cython.ccall
    def again(self, earlier: Any) -> Sequence:
        """Restart a request: it keeps its delivered tokens, but its cache is empty and all of it is computed again."""
        made: Sequence = Sequence(
            earlier.index, earlier.input_tokens, earlier.output_tokens, earlier.priority, earlier.arrival_s
        )
        made.generated_tokens = earlier.generated_tokens
        made.cached_tokens = earlier.cached_tokens
        made.last_token_s = earlier.last_token_s
        made.verify_steps = earlier.verify_steps
        return made

    @cython.ccall
    def begin(self, now: cython.double) -> cython.bint:
        """Plan and price the step at ``now``; False if there is nothing to do."""
        scheduler: Scheduler = self.scheduler
        victim: Sequence
        plan: StepPlan
        seconds: cython.double = 0.0
        copies_s: cython.double = 0.0
        self.planned = False
        if not scheduler._works():
            self._unseen_steps = self._recv_interval
            return False
        if self.copies is not None:
            self.copies.clock[0] = now
        if self.counting and self._plain and scheduler.repeat(self._plan):
            self.work.measure_keys(self._plan)
            seconds = self._with_more(self.prices.seconds_again(self.work, self._repeated) * self._without_prompts)
            self._planned(now, _by_clock(now, _on_grid(seconds)), 0.0)
            return True
        self._repeated.usable = False
        drafting: Drafting = self.drafting
        if drafting is not None:
            scheduler.query_len = drafting.query_len()
        if self.counting:
            scheduler.count(self.work.windows)
        plan = scheduler.plan()
        works: cython.bint = plan.steady > 0 or len(plan.chunks) > 0 or len(plan.decodes) > 0 or len(plan.padding) > 0
        if not works and not scheduler.preempted:
            self._unseen_steps = self._recv_interval
            return False
        for victim in scheduler.preempted:
            self.log.preemptions[victim.index] += 1
        self.work.measure(plan, scheduler.query_len, self.longest)
        if self.budget is not None and plan.decodes:
            self.work.trim(self.budget.choose(plan.decodes, self.work.prefill_tokens, plan.cut))
        self._draft = None if drafting is None else self._choose(plan)
        if works:
            seconds = self.prices.seconds(self.work, self._draft) * self._factor(self.work)
            seconds = _on_grid(self._with_more(seconds))
        if self.copies is not None:
            copies_s = self.copies.exposed_s(now, seconds, plan.blocks_out, plan.blocks_in)
            seconds += copies_s
            self.log.swapped_blocks += plan.blocks_out
        self._plan = plan
        self._planned(now, _by_clock(now, seconds), copies_s)
        return True

    @cython.cfunc
    @cython.inline
    def _with_more(self, seconds: cython.double) -> cython.double:
        """Seconds of a step with what every step takes more, or less, down to half of it."""
        return max(seconds + self._more_s, seconds / 2) if self._more_s else seconds

    @cython.cfunc
    def _factor(self, work: Work) -> cython.double:
        """Factor on the seconds of a step: 1, unless the run studies errors of prices or was measured."""
        return self._with_prompts if work.prefill_seqs else self._without_prompts

    @cython.cfunc
    @cython.inline
    def _planned(self, now: cython.double, seconds: cython.double, copies_s: cython.double) -> None:
        """The step at ``now`` is decided."""
        scheduler: Scheduler = self.scheduler
        self._seconds, self._copies_s = seconds, copies_s
        self._blocks = scheduler._used()
        self._running = len(scheduler.running)
        self._waiting = scheduler._queued()
        self.start, self.end = now, now + seconds
        self.planned = True

    @cython.ccall
    def commit(self) -> None:
        """Hand out the tokens of the step that is planned."""
        sequence: Sequence
        self.planned = False
        self.now = self.end
        self.seen = self.start if self.ahead else self.end
        if self.copies is not None:
            self.copies.clock[0] = self.end
            self.scheduler.save()
        self._unseen_steps += self._recv_interval if self._plan.chunks else 1
        delivered: cython.longlong = self.deliver(self._plan, self.start, self.end)
        if self.output.rows.kept:
            self._record(delivered)
        if self._gaps:
            self.output.gaps.add(self._gap_s if self._streaming_s else self._seconds, self._gaps)
        if self.output.exact:
            self.log.exact_steps += 1
        if self.kv_transfers is not None and self.kv_transfers.full:
            self.kv_transfers.call()
        if self._draft is not None:
            self.drafting.tokens = self._draft.tokens
            if self.drafting.recovery_tokens:
                self._starve(self.drafting.rests(self._draft.tokens), self.drafting.recovery_tokens)
            elif not self.drafting.rests(self._draft.tokens):
                for sequence in self._drafting:
                    sequence.drafter_tokens = sequence.computed_tokens

    @cython.cfunc
    def _starve(self, rests: cython.bint, recovery_tokens: cython.double) -> None:
        """Record whether the drafter sees this step's tokens or skips them for good."""
        sequence: Sequence
        kept: cython.double
        for sequence in self._drafting:
            if sequence.drafter_tokens > sequence.computed_tokens:  # its cache was dropped in between
                sequence.drafter_tokens, sequence.starved = 0, 0.0
            kept = exp((sequence.drafter_tokens - sequence.computed_tokens) / recovery_tokens)
            sequence.starved = sequence.starved * kept + (1.0 - kept if rests else 0.0)
            sequence.drafter_tokens = sequence.computed_tokens

    @cython.ccall
    def deliver(self, plan: StepPlan, start: cython.double, now: cython.double) -> cython.longlong:
        """Hand out the tokens of a plan that ran from ``start`` to ``now``; returns how many."""
        sequence: Sequence
        group: Scheduler
        place: cython.longlong
        tokens: cython.longlong
        last: cython.longlong = len(plan.decodes) - 1
        delivered: cython.longlong = 0
        self._gaps = 0
        self._ended = False
        begun: cython.double = start
        if self._streaming_s:
            if start == self._given_s:
                start = self.client_s
            now = self._stream(plan, now)
            self._gap_s = now - start
        for sequence, tokens in plan.chunks:
            if isnan(self.output.scheduled_s[sequence.index]):
                self._schedule_first(sequence, begun)
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.input_tokens + sequence.generated_tokens:
                continue
            if self.prefill_only:
                delivered += self._finish_prefill(sequence, start, now)
                continue
            sequence.decoding = True
            delivered += self._deliver(sequence, 1, start, now)
        if self.drafting is not None:
            return delivered + self._deliver_drafted(plan, start, now)
        if self.draws is None:
            if not plan.parts:
                return delivered + self._deliver_single(plan, self.scheduler.steady, start, now)
            for place in range(len(plan.parts)):
                group = self.scheduler.groups[place]
                delivered += self._deliver_single(plan.parts[place], group.steady, start, now)
            return delivered
        for place in range(len(plan.decodes)):
            sequence = cython.cast(Sequence, plan.decodes[place])
            tokens = self.scheduler.query_len - 1
            if self.budget is not None:
                tokens = sequence.verified
            elif place == last:
                tokens -= plan.cut
            tokens = 1 + self._verify(sequence, tokens)
            sequence.computed_tokens += tokens
            tokens = min(tokens, sequence.output_tokens - sequence.generated_tokens)
            delivered += self._deliver(sequence, tokens, start, now)
        return delivered

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _stream(self, plan: StepPlan, now: cython.double) -> cython.double:
        """Pass the tokens of a step that ends at ``now`` through the API server; returns when clients have them. Each
        sequence's tokens are one chunk, and all come when the middle one does."""
        sequence: Sequence
        tokens: cython.longlong
        chunks: cython.longlong = plan.steady + len(plan.decodes)
        if not self.prefill_only:
            for sequence, tokens in plan.chunks:
                chunks += sequence.computed_tokens + tokens >= sequence.input_tokens + sequence.generated_tokens
        if not chunks:
            return now
        if self.arrivals is not None:
            self.arrivals.join(now)
        elif self.sent_s[0] <= now and self.free_s[0] <= now:
            self.source.join(now)
        begin_s: cython.double = max(self.free_s[0], now)
        self.free_s[0] = begin_s + chunks * self._streaming_s
        self._given_s, self.client_s = now, begin_s + (chunks + 1) * self._streaming_s / 2
        return self.client_s

    @cython.cfunc
    def _schedule_first(self, sequence: Sequence, start: cython.double) -> None:
        """Record when and where a request first joins a batch, and how much of its prompt was cached."""
        self.output.scheduled_s[sequence.index] = start
        if self.output.prompt_replica[sequence.index] != self.index:
            self.output.prompt_replica[sequence.index] = self.index
        if sequence.cached_tokens > 0:
            self.output.cached_tokens[sequence.index] = sequence.cached_tokens
            if sequence.tier_tokens is not None:
                self.log.tier_tokens[sequence.index] = sequence.tier_tokens
            elif self.log.tier_tokens:
                self.log.tier_tokens.pop(sequence.index, None)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _deliver_single(
        self, plan: StepPlan, steady: Steady, start: cython.double, now: cython.double
    ) -> cython.longlong:
        """Hand out a token of each decoding sequence, first of those that are counted; returns how many."""
        sequence: Sequence
        place: cython.longlong
        if plan.steady:
            if steady.latest_s == start:
                self._gaps += plan.steady
            else:
                self.output.gaps.add(now - steady.latest_s, plan.steady)
            ended = steady.advance(now)
            if ended is not None:
                for sequence in ended:
                    self._finish(sequence, now)
        for place in range(len(plan.decodes)):
            sequence = cython.cast(Sequence, plan.decodes[place])
            sequence.computed_tokens += 1
            self._deliver(sequence, 1, start, now)
        return plan.steady + len(plan.decodes)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _verify(self, sequence: Sequence, tokens: cython.longlong) -> cython.longlong:
        """The next verify step of a sequence: the number of accepted draft tokens."""
        index: cython.longlong = sequence.index
        taken: cython.longlong = self.draws.accepted(index, sequence.verify_steps, sequence.computed_tokens)
        taken = min(taken, tokens)
        if sequence.starved > 0.0:
            taken = min(taken, self.draws.sustained(index, sequence.verify_steps, 1.0 - sequence.starved))
        self.output.drafts[index] += 1
        self.output.draft_tokens[index] += tokens
        self.output.accepted_tokens[index] += taken
        self.output.accepted_counts[taken] += 1
        sequence.verify_steps += 1
        return taken

    @cython.cfunc
    def _deliver_drafted(self, plan: StepPlan, start: cython.double, now: cython.double) -> cython.longlong:
        """Deliver the accepted tokens of the decoding sequences under a draft policy; returns their number."""
        sequence: Sequence
        place: cython.longlong
        taken: cython.longlong
        delivered: cython.longlong = 0
        drafted: cython.longlong = self.drafting.tokens
        nodes: cython.longlong = self.drafting.query_len() - 1
        drafting: Drafting = self.drafting
        accepted: list[Any] | None = [] if drafting.learns and drafting.learner is None else None
        counts: cython.longlong[::1] = drafting.counts
        last: cython.longlong = len(plan.decodes) - 1
        for taken in range(drafted + 1):
            counts[taken] = 0
        for place in range(len(plan.decodes)):
            sequence = cython.cast(Sequence, plan.decodes[place])
            taken = 0
            if drafted:
                taken = self._verify(sequence, nodes - plan.cut if place == last else nodes)
            else:
                sequence.verify_steps += 1
            sequence.computed_tokens += taken + 1
            counts[taken] += 1
            if accepted is not None:
                accepted.append(taken)
            taken = min(taken + 1, sequence.output_tokens - sequence.generated_tokens)
            delivered += self._deliver(sequence, taken, start, now)
        if accepted:
            drafting.policy.observe(drafted, accepted)
        elif drafting.learner is not None and last >= 0:
            drafting.learner.learn(drafted, counts)
        return delivered

    @cython.cfunc
    def _finish_prefill(self, sequence: Sequence, start: cython.double, now: cython.double) -> cython.longlong:
        """Finish a prompt: send its KV on, with the first token if that is sampled here.

        Clients have that token from the first step over there: the decode engine streams it once the request has a
        place in its batch.
        """
        tokens: cython.longlong = self.kv_transfers.samples_first
        if tokens and sequence.generated_tokens + 1 == sequence.output_tokens:
            return self._deliver(sequence, 1, start, now)
        sequence.generated_tokens += tokens
        self.scheduler.hold(sequence)
        self.kv_transfers.prompt_done(self, sequence)
        return tokens

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    @cython.inline
    def _deliver(
        self, sequence: Sequence, tokens: cython.longlong, start: cython.double, now: cython.double
    ) -> cython.longlong:
        """Hand out tokens of a sequence."""
        if sequence.last_token_s == start:
            self._gaps += 1
        else:
            self._after_a_pause(sequence, now)
        sequence.last_token_s = now
        sequence.generated_tokens += tokens
        if sequence.generated_tokens == sequence.output_tokens:
            self._finish(sequence, now)
        return tokens

    @cython.cfunc
    def _after_a_pause(self, sequence: Sequence, now: cython.double) -> None:
        """Tokens that are the first, or that did not follow within a step."""
        if isnan(sequence.last_token_s):
            self.output.first_token_s[sequence.index] = now
        else:
            self.output.gaps.add(now - sequence.last_token_s, 1)

    @cython.cfunc
    def _finish(self, sequence: Sequence, now: cython.double) -> None:
        """A request has its last token."""
        self._ended = True
        self.scheduler.release(sequence)
        self.output.finished_s[sequence.index] = now
        self.output.completed[0] += 1
        if not self.output.completed[0] % PROGRESS_EVERY:
            self.log.tell()
        if self.arrivals is None:
            self.source.finished(sequence.index, now)

    @cython.ccall
    def tells(self) -> cython.bint:
        """True if the router or other replicas may react to the planned step. It then finishes an answer or a prompt,
        or frees room for prompts that wait at another replica."""
        if self.kv_transfers is not None and (self._plan.chunks or self._plan.blocks_in or self.scheduler.preempted):
            # Prompts are done, or other prompts may find room.
            return True
        return self._ends(self._plan)

    @cython.cfunc
    def _ends(self, plan: StepPlan) -> cython.bint:
        """True if a plan may have the last token of a request."""
        sequence: Sequence
        ends: cython.bint = plan.least <= (1 if self.draws is None else self.draws.positions + 1)
        for sequence, _ in plan.chunks:
            ends |= sequence.output_tokens - sequence.generated_tokens <= 1
        return ends

    @cython.cfunc
    def _choose(self, plan: StepPlan) -> DraftWork:
        """Work of the drafter at the end of the planned step, skipped tokens included."""
        drafting: Drafting = self.drafting
        batch = self._drafting = self.scheduler.in_step(plan)
        if not batch:
            return drafting.work(drafting.tokens, batch)
        return drafting.work(drafting.choose(batch, self.work.prefill_tokens, self.scheduler._queued()), batch)

    @cython.cfunc
    def _record(self, delivered: cython.longlong) -> None:
        """Write down the step; past a number of rows, one row for several steps of an unchanged batch."""
        plan: StepPlan = self._plan
        work: Work = self.work
        alike: cython.bint = self._draft is self._row_draft  # a drafter that makes up for tokens has work of its own
        shares: cython.bint = alike and not (plan.chunks or self.scheduler.preempted or self._copies_s)
        row: cython.longlong = self._row
        w: cython.longlong
        table: cython.double[:, ::1] = self.output.rows.table
        if row >= 0 and (
            self._round != self.output.rows.rounds or table[row, WORK_AT + DECODE_SEQS] != work.decode_seqs
        ):
            row = -1  # prompts that arrive in a decode pool join the batch without a chunk
        if row >= 0 and (
            table[row, WORK_AT + QUERY_LEN] != work.query_len or table[row, WORK_AT + TRIMMED] != work.trimmed
        ):
            row = -1  # a budget verifies other numbers of tokens
        if row >= 0 and shares and self._merged < MERGED_STEPS:
            self._merged += 1
            self._merged_waiting += self._waiting
            table[row, SECONDS] += self._seconds
            table[row, OUTPUT_TOKENS] += delivered
            table[row, WAITING] = self._merged_waiting // self._merged
            table[row, KV_BLOCKS] = self._blocks
            table[row, STEPS] = self._merged
            for w in range(work.kinds):
                self._merged_keys[w] += work.decode_kv_tokens[w]
                table[row, WORK_AT + WORK_COUNT + 3 * work.kinds + w] = self._merged_keys[w] // self._merged
            if self.output.rows.grouped:
                self._slowest().put(table[row], self.output.rows.group_at)
        else:
            row = self._new_row(delivered)
            if self._rows > self.output.rows.full_rows:
                self._merged, self._merged_waiting = 1, self._waiting
                self._merged_keys[:] = work.decode_kv_tokens
            else:
                shares = False
        self._row = row if shares and not self._ended else -1
        self._row_draft = self._draft
        self._round = self.output.rows.rounds

    @cython.cfunc
    def _new_row(self, delivered: cython.longlong) -> cython.longlong:
        """Write a row of the log (``simulator.serving.records.SCALARS``)."""
        row: cython.longlong = self.output.rows.new()
        self._rows += 1
        table: cython.double[:, ::1] = self.output.rows.table
        table[row, REPLICA] = self.index
        table[row, START] = self.start
        table[row, SECONDS] = self._seconds
        table[row, OUTPUT_TOKENS] = delivered
        table[row, RUNNING] = self._running
        table[row, WAITING] = self._waiting
        table[row, KV_BLOCKS] = self._blocks
        table[row, STEPS] = 1.0
        table[row, COPIES] = self._copies_s
        self.work.put(table[row], WORK_AT)
        if self._draft is not None:
            self._draft.put(table[row], WORK_AT + WORK_COUNT + 4 * self.work.kinds)
        if self.output.rows.grouped:
            self._slowest().put(table[row], self.output.rows.group_at)
        return row

    @cython.cfunc
    def _slowest(self) -> Work:
        """Work of the slowest attention group."""
        return self.work if self.work.slowest is None else self.work.slowest
