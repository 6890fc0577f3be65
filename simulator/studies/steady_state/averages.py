"""Averages of one replica under a steady load; the formulas are described in ``estimate``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from forerun.arrays import FloatArray
from simulator.running.metrics.usage import BOUNDS
from simulator.serving import EngineLimits
from simulator.studies.steady_state.prices import GROUPS, RequestWork, StepPrices, request_work, steady_step_costs
from simulator.studies.steady_state.traffic import Traffic
from simulator.timing import EngineTimer

FULL = 0.999
"""Share of the highest rate above which a replica counts as saturated."""
LEAST_SHARE = 1e-3
"""Minimum share of a step that is left for decoding, however many prompts join."""
LEAST_BATCH = 1e-6
"""Number of decoding requests assumed for a closed loop in which prompts take all the time."""
ROUNDS = 30
"""Maximum iterations of the fixed point of step time and joining prompts."""
MOST_JOINING = 32
"""Maximum number of prompts per step in sums over their Poisson distribution."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Means of one replica's steady state; a mean is None without a steady state."""

    rate: float
    """Requests per second."""
    batch: float
    """Mean number of decoding requests."""
    in_system: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    step_s: float
    bounds: dict[str, float]
    """Share of time by bound, without idle."""
    saturated: bool = False


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Delay at the API server until the scheduler sees a request, and until the client sees its first token."""

    latency_s: float = 0.0
    work_s: float = 0.0
    """Mean seconds that the API server works on one request; requests are processed one after another."""
    work_square_s2: float = 0.0
    schedules_ahead: bool = False
    """True if a step is scheduled while the previous step runs, so that an arrival waits one step longer."""
    streaming_s: float = 0.0
    """Seconds that it works on the tokens of one request from one step, before any request that waits."""
    chunks: float = 0.0
    """Mean number of steps that give a request tokens."""

    @property
    def most_rate(self) -> float:
        """Requests per second at which the API server is always busy."""
        busy_s = self.work_s + self.chunks * self.streaming_s
        return 1.0 / busy_s if busy_s else math.inf

    def mean_s(self, rate: float, batch: float = 0.0) -> float:
        """Mean seconds until a request reaches the scheduler, and of its first token on the way back.

        An M/G/1 queue with two priorities: tokens of a step for ``batch`` requests, then requests.

        Source: A. Cobham, "Priority assignment in waiting line problems", Operations Research 2(1) (1954).
        """
        tokens, burst_s = rate * self.chunks * self.streaming_s, batch * self.streaming_s
        residual_s = (rate * self.work_square_s2 + tokens * burst_s) / 2
        first = max(1.0 - tokens, LEAST_SHARE)
        wait = residual_s / (first * max(1.0 - tokens - rate * self.work_s, LEAST_SHARE))
        back = residual_s / first + (burst_s + self.streaming_s) / 2 if self.streaming_s else 0.0
        return self.latency_s + self.work_s + wait + back


@dataclass(frozen=True)
class SteadyReplica:
    """One replica in steady state: step times, work per request and maximum batch."""

    traffic: Traffic
    work: RequestWork
    prices: StepPrices
    acceptance_length: float
    places: float
    """Mean number of decoding requests of a full replica."""
    limited_by: str
    """Limit of the batch: ``places``, ``kv`` or ``tokens``; ``api-server`` if that limits the rate before."""
    api_server: ApiServer = ApiServer()

    @property
    def most(self) -> int:
        return max(1, round(self.places))

    @cached_property
    def most_rate(self) -> float:
        """Requests per second above which there is no steady state: those of the best batch, or of the API server."""
        if not self.work.decode_steps:
            return min(self.api_server.most_rate, 1.0 / float(self._added_s(1.0 / self.prices.budget_share)[0]))
        inner = (self.prices.batches > 0) & (self.prices.batches < self.places)
        batches = np.append(self.prices.batches[inner], self.places)
        return min(self.api_server.most_rate, float(max(self._rate_with(batch) for batch in batches.tolist())))

    def open_loop(self, rate: float) -> Averages:
        """Averages at ``rate`` requests per second; saturated near and above the highest rate."""
        if rate < FULL * self.most_rate:
            return self._steady(rate)
        full = self._steady(FULL * self.most_rate)
        return replace(full, rate=self.most_rate, in_system=None, ttft_s=None, e2e_s=None, saturated=True)

    def closed_loop(self, outstanding: float) -> Averages:
        """Averages with a constant number of ``outstanding`` requests: decoding ones plus prompts in process.

        A request never waits for its own prompt: the prompts of other requests are (N - 1) / N of all prompts.
        """
        if not self.work.decode_steps:
            return self._prompts_only(outstanding)
        others = max(0.0, 1.0 - 1.0 / outstanding)

        def present(batch: float) -> float:
            rate = self._rate_with(batch, others)
            # Where there are no others, nothing asks how long their steps last.
            steps = self._step_s(rate)[0] if others else self.prices.decode_s
            joining = rate * others * steps
            before = float(self._own_steps_s(np.array([others * batch]), joining)[0])
            return batch + rate * (before + self._sight_s(rate, others, batch, steps))

        low, high = LEAST_BATCH, self.places
        if present(high) <= outstanding:
            low = high
        for _ in range(50 if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if present(middle) < outstanding else (low, middle)
        rate = min(self._rate_with(low, others), self.most_rate) if others else self._rate_with(low, others)
        decode_s = low / rate
        return self._averages(rate, np.array([low]), np.array([1.0]), decode_s, outstanding / rate - decode_s)

    def _sight_s(self, rate: float, others: float, batch: float, steps: FloatArray) -> float:
        """Seconds in a closed loop until a step can include a request that was just sent.

        A request sent when another ends arrives between two steps if nothing delays it; the API server makes it arrive
        in the middle of a step. If steps are scheduled ahead, it waits one more step.
        """
        server = self.api_server
        step = others * float(self._at(np.array([others * batch]), steps)[0])
        waited = step / 2 if server.latency_s or server.work_s else 0.0
        return server.mean_s(others * rate, batch) + waited + (step if server.schedules_ahead else 0.0)

    def _prompts_only(self, outstanding: float) -> Averages:
        """Averages of a closed loop of requests with one output token: steps of as many prompts as fit the budget."""
        together = np.minimum(outstanding, 1.0 / self.prices.budget_share)
        costs = [np.interp(max(n, 1.0), GROUPS, row) for n, row in zip(together, self.prices.joined_s, strict=True)]
        rate = max(1.0, float(together[0])) / float(costs[0])
        return self._averages(rate, np.zeros(1), np.ones(1), 0.0, outstanding / rate)

    def _steady(self, rate: float) -> Averages:
        batch = np.arange(self.most + 1, dtype=np.float64)
        mean, added = self._step_s(rate)
        arriving, excess = self._seen_by_arrivals(rate, mean, added)
        step = self._at(batch, mean)
        chances, queue = self._batch_distribution(rate, step, self._at(batch, mean + excess))
        decode_s = float(chances @ batch) / rate
        ttft = float(chances @ (self._residual_s(rate, batch, step) + self._own_steps_s(batch, rate * arriving)))
        ttft += self._budget_wait_s(rate, chances, batch) + queue / rate
        ttft += self.api_server.mean_s(rate, rate * decode_s)
        if self.api_server.schedules_ahead:
            ttft += float(chances @ np.where(batch > 0, step, rate * self._at(batch, added) ** 2))
        return self._averages(rate, batch, chances, decode_s, ttft)

    def _averages(
        self, rate: float, batch: FloatArray, chances: FloatArray, decode_s: float, ttft_s: float
    ) -> Averages:
        steps, outputs = self.work.steps_of, self.traffic.output_tokens
        several = outputs > 1
        tpot = None
        if several.any():
            tpot = decode_s / self.work.decode_steps * float((steps[several] / (outputs[several] - 1)).mean())
        step, added = (self._at(batch, values) for values in self._step_s(rate))
        decoding = batch > 0
        steps_per_s = float((chances[decoding] / step[decoding]).sum())
        return Averages(
            rate=rate,
            batch=float(chances @ batch),
            in_system=rate * (ttft_s + decode_s),
            ttft_s=ttft_s,
            tpot_s=tpot,
            e2e_s=ttft_s + decode_s,
            step_s=float(chances[decoding].sum()) / steps_per_s if steps_per_s else float(added[0]),
            bounds=self._bounds(rate, batch, chances),
        )

    def _seen_by_arrivals(self, rate: float, step: FloatArray, added: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps seen by arriving requests, per priced batch: mean step at arrival, and excess of decode steps.

        Steps are a branching process: ``S' = d + X_1 + ... + X_A`` with A Poisson of mean R S, so ``Var S = R E[S]
        E[X^2] / (1 - r^2)`` with r = R x. A request arrives in a step of length-biased mean E[S^2] / E[S], the next
        step also includes the request's own prompt, and the excess over the mean then decays by r in every decode step.
        """
        share = np.minimum(rate * added, 1.0 - LEAST_SHARE)
        square = self.prices.joined_square_s2 * np.divide(added, self.prices.joined_s[:, 0]) ** 2
        variance = rate * step * square / (1.0 - share**2)
        arriving = step + np.divide(variance, step, out=np.zeros_like(step), where=step > 0)
        first = added + share * (arriving - step)
        steps = max(self.work.decode_steps, 1.0)
        return arriving, first * share * (1.0 - share**steps) / ((1.0 - share) * steps)

    def _batch_distribution(self, rate: float, step: FloatArray, seen: FloatArray) -> tuple[FloatArray, float]:
        """Probability of each number of decoding requests, and the mean number of requests that wait for a place.
        ``step`` are step times by batch (the last for a full batch), ``seen`` the step times that requests see."""
        count = np.arange(1, self.most + 1)
        weights = np.concatenate(([0.0], np.cumsum(np.log(rate * self.work.decode_steps * seen[1:] / count + 1e-300))))
        chances = np.exp(weights - weights.max())
        load = min(rate * self.work.decode_steps * step[-1] / self.places, FULL)
        tail = chances[-1] * load / (1.0 - load)
        total = chances.sum() + tail
        queue = tail / (1.0 - load) / total * self._scatter()
        chances[-1] += tail
        return chances / total, float(queue)

    def _scatter(self) -> float:
        """Allen and Cunneen's factor: mean squared coefficient of variation of gaps and decode steps."""
        steps = self.work.steps_of
        mean = float(steps.mean())
        return (self.traffic.arrival_cv2 + (float(steps.var()) / mean**2 if mean else 0.0)) / 2

    def _rate_with(self, batch: float, others: float = 1.0) -> float:
        """Requests per second that a mean batch completes, given the share ``others`` of prompts of other requests. A
        batch below 1 is one request for part of the time."""
        steps = self.work.decode_steps
        share = float(self._at(np.array([batch]), self.prices.budget_share)[0])
        joining = min(others * batch / steps, 1.0 / share)
        priced = self._added_s(np.full(len(self.prices.batches), joining))
        # Prompts lengthen the steps that decode, in each of which there is at least one that does.
        added = float(self._at(np.array([others * max(batch, 1.0)]), priced)[0])
        decode = float(self._at(np.array([max(batch, 1.0)]), self.prices.decode_s)[0])
        return 1.0 / (steps * decode / batch + others * added)

    def _step_s(self, rate: float) -> tuple[FloatArray, FloatArray]:
        """Mean seconds of a step, and mean seconds that a prompt adds, per priced batch: ``s = d / (1 - R x(R s))``."""
        decode = self.prices.decode_s
        step = decode
        added = self.prices.joined_s[:, 0]
        for _ in range(ROUNDS):
            joining = np.minimum(rate * step, 1.0 / self.prices.budget_share)
            added = self._added_s(joining)
            before, step = step, decode / np.maximum(1.0 - rate * added, LEAST_SHARE)
            if np.array_equal(before, step):
                break
        return step, added

    def _added_s(self, joining: FloatArray) -> FloatArray:
        """Seconds that each prompt adds if a Poisson number of mean ``joining`` joins a step, per priced batch."""
        counts = np.arange(1, MOST_JOINING + 1)
        costs = self._group_costs
        few = np.maximum(np.minimum(joining, MOST_JOINING / 2), 1e-9)
        chances = _poisson(few, MOST_JOINING)[:, 1:]
        summed = (chances * costs).sum(axis=1) / (chances * counts).sum(axis=1)
        place = np.clip(joining, 1.0, MOST_JOINING)
        below = np.minimum(place.astype(np.int64), MOST_JOINING - 1)
        rows = np.arange(len(joining))
        start = costs[rows, below - 1]
        many = (start + (place - below) * (costs[rows, below] - start)) / place
        added: FloatArray = np.where(joining > MOST_JOINING / 2, many, summed)
        return added

    @cached_property
    def _group_costs(self) -> FloatArray:
        """Seconds that 1, 2, ... prompts add in total: [batch, 1..MOST_JOINING]."""
        counts = np.arange(1, MOST_JOINING + 1)
        largest = GROUPS[-1]
        rows = [np.interp(counts, GROUPS, row) for row in self.prices.joined_s]
        return np.stack(rows) * np.where(counts > largest, counts / largest, 1.0)

    def _own_steps_s(self, batch: FloatArray, joining: FloatArray) -> FloatArray:
        """Seconds of the steps that include a request's own prompt, with other prompts that join."""
        others = np.minimum(np.minimum(joining, 1.0 / self.prices.budget_share), MOST_JOINING / 2)
        chances = _poisson(others, MOST_JOINING)[:, :-1]
        chances = chances / chances.sum(axis=1, keepdims=True)
        seconds = self.prices.chunks * self.prices.chunk_s + (chances * self._group_costs).sum(axis=1)
        return self._at(batch, seconds)

    def _residual_s(self, rate: float, batch: FloatArray, step: FloatArray) -> FloatArray:
        """Remaining seconds of the step in which a request arrives, by number of decoding requests."""
        decode, chunk_s = self._at(batch, self.prices.decode_s), self._at(batch, self.prices.chunk_s)
        added = self._at(batch, self.prices.joined_s[:, 0])
        square = self._at(batch, self.prices.joined_square_s2)
        joined = -np.expm1(-rate * step)
        squares = decode**2 + joined * (2 * chunk_s * added + square)
        busy = np.divide(squares, 2 * step, out=np.zeros_like(step), where=step > 0)
        empty = rate * square / (2 * np.maximum(1.0 - rate * added, LEAST_SHARE))
        return np.where(batch > 0, busy, empty)

    def _budget_wait_s(self, rate: float, chances: FloatArray, batch: FloatArray) -> float:
        """Mean wait while earlier prompts fill the token budget (Pollaczek-Khinchine, scaled for bursty arrivals)."""
        mean = float(chances @ self._at(batch, self.prices.exclusive_s))
        square = float(chances @ self._at(batch, self.prices.exclusive_square_s2))
        burst = (self.traffic.arrival_cv2 + 1.0) / 2
        return burst * rate * square / (2 * max(1.0 - rate * mean, LEAST_SHARE))

    def _bounds(self, rate: float, batch: FloatArray, chances: FloatArray) -> dict[str, float]:
        """Share of time by bound, for the decoding and the prompt part of every step."""
        step, added = (self._at(batch, values) for values in self._step_s(rate))
        decode = self._at(batch, self.prices.decode_s)
        single_prompt_s = self._at(batch, self.prices.joined_s[:, 0])
        decoding = batch > 0
        part = np.divide(1.0, step, out=np.zeros_like(step), where=decoding)
        scale = np.divide(added, single_prompt_s, out=np.ones_like(added), where=single_prompt_s > 0) * rate
        prompts = np.where(decoding, np.minimum(rate * added, 1.0 - decode * part), np.minimum(rate * added, 1.0))
        wanted = scale * single_prompt_s
        prompts = np.divide(prompts, wanted, out=np.zeros_like(prompts), where=wanted > 0) * scale
        shares = {}
        for index, bound in enumerate(BOUNDS):
            time = self._at(batch, self.prices.decode_bounds[:, index]) * part
            time = time + self._at(batch, self.prices.joined_bounds[:, index]) * prompts
            shares[bound] = max(0.0, float(chances @ time))
        total = sum(shares.values())
        return {bound: share / max(total, 1.0) for bound, share in shares.items()}

    def _at(self, batch: FloatArray, values: FloatArray) -> FloatArray:
        """Interpolate values per priced batch at other batch sizes."""
        interpolated: FloatArray = np.interp(batch, self.prices.batches, values)
        return interpolated


def make_replica(
    timer: EngineTimer,
    limits: EngineLimits,
    traffic: Traffic,
    survival: FloatArray | None,
    *,
    groups: int,
    prefill_first: bool,
) -> SteadyReplica:
    """Price a replica's steps and compute how many requests it can run at once."""
    work = request_work(traffic, limits, timer.windows, survival)
    places = float(min(limits.max_num_seqs, max(1, limits.max_num_batched_tokens // limits.decode_tokens)))
    limited_by = "places"
    in_memory = (limits.num_blocks - limits.watermark_blocks) * limits.block_size / work.kv_tokens
    if in_memory < places:
        places, limited_by = max(1.0, in_memory), "kv"
    most = math.ceil(places)
    prices = steady_step_costs(timer, limits, traffic, work, most, groups=groups, prefill_first=prefill_first)
    # A place is also held while the prompt is computed.
    held = work.decode_steps / (work.decode_steps + float(prices.chunks[-1]))
    places = max(1.0, places * held)
    # A batch of B needs B / n prompts per step to stay full, and leaves T - B q tokens of the budget for them. Where
    # prompts are spread over several steps, that may hold less than one request on average.
    if not prefill_first and work.decode_steps:
        new_tokens = float(traffic.new_tokens.mean())
        fitting = limits.max_num_batched_tokens / (new_tokens / work.decode_steps + limits.decode_tokens)
        if fitting < places:
            places, limited_by = fitting, "tokens"
    length = 1.0 if survival is None else 1.0 + float(survival.sum())
    seen, chunks = limits.api_server_work(traffic.input_tokens), 1.0 + work.decode_steps
    server_s = (limits.api_server_s, float(seen.mean()), float((seen**2).mean()))
    api_server = ApiServer(*server_s, limits.schedules_ahead, limits.streaming_s, chunks)
    replica = SteadyReplica(traffic, work, prices, length, places, limited_by, api_server)
    return replace(replica, limited_by="api-server") if replica.most_rate == api_server.most_rate else replica


def _poisson(mean: FloatArray, most: int) -> FloatArray:
    """Poisson probabilities of 0 to ``most``: [mean, 0..most]."""
    counts = np.arange(most + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
    logs = counts[None] * np.log(np.maximum(mean, 1e-300))[:, None] - mean[:, None] - factorials[None]
    return np.asarray(np.exp(logs))
