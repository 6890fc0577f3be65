"""Draft policies that learn: draft tokens of the next step from step times and the acceptance so far."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from simulator.serving.engine.acceptance import StepCurve
from simulator.serving.engine.common import TO_WHOLE, cython, exp, log, log2, pow, sqrt
from simulator.speculation import Batch

CONTEXT_CELL = cython.declare(cython.longlong, 256)
"""Mean contexts, and prompt tokens of a step, are rounded to cells of this width before pricing."""
EXACT_TOKENS = cython.declare(cython.longlong, 32)
REMEMBERED = cython.declare(cython.double, 10.0)
FORGET = cython.declare(cython.double, 30.0)
"""Cap on the belief's weight (in drafts) while nothing is drafted, and steps after which 1/e of it remains. New
requests without drafts replace the observed ones, so an idle controller has to try drafting again."""
MIX_STEPS = cython.declare(cython.double, 20.0)
"""Steps after which the observed mix of prompts and decoding has decayed to 1/e of its weight."""
MIX_TOKENS = cython.declare(cython.double, 100.0)
"""Decoded tokens added before dividing recent prompts by them; matters at start and at light load. Set on searched
patterns of two seeds, and kept over 30 on the quoted patterns."""
PRIOR_DRAFTS = cython.declare(cython.double, 2.0)
ENTROPY_WEIGHT = cython.declare(cython.double, 0.4)
SWITCH_SHARE = cython.declare(cython.double, 0.2)
"""K is replaced once it lags the best K by this share of the cost of a switch."""
MARGIN = cython.declare(cython.double, 0.02)
"""Share of expected tokens deducted per draft token, beyond its price in a decode step. Steps with prompts pay that
price in full, and requests whose drafts fail stay in the batch longer than average."""
MOST_MARGIN = cython.declare(cython.double, 0.5)
LEAST_SWITCH_S = cython.declare(cython.double, 1e-4)
"""Least cost assumed for a change of K, in seconds, so that noise alone causes no switch."""


@cython.exceptval(-1, check=True)
@cython.ccall
def after_margin(tokens: cython.longlong) -> cython.double:
    """Factor on expected tokens, by draft tokens: ``MARGIN`` less for each, and at least half."""
    return 1.0 - min(MOST_MARGIN, MARGIN * tokens)


@cython.cclass
class LearningPolicy:
    """A ``DraftPolicy`` that learns; the engine calls ``choose_for`` and ``learn`` in place of its two methods."""

    by_batch_alone = cython.declare(cython.bint, visibility="public")
    seqs: cython.longlong
    context_tokens: cython.longlong
    prompt_tokens: cython.longlong
    waiting: cython.longlong
    """Fields of the batch that is decided on, as in ``Batch``."""

    def choose(self, batch: Batch) -> int:
        return self.choose_for(batch.seqs, batch.context_tokens, batch.prompt_tokens, batch.waiting)

    def observe(self, drafted: int, accepted: Any) -> None:
        counts = array("q", [0]) * (drafted + 1)
        for taken in accepted:
            counts[taken] += 1
        self.learn(drafted, counts)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def choose_for(
        self,
        seqs: cython.longlong,
        context_tokens: cython.longlong,
        prompt_tokens: cython.longlong,
        waiting: cython.longlong,
    ) -> cython.longlong:
        """``DraftPolicy.choose`` for the fields of a ``Batch``."""
        self.seqs, self.context_tokens = seqs, context_tokens
        self.prompt_tokens, self.waiting = prompt_tokens, waiting
        return self.decide()

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def decide(self) -> cython.longlong:
        """Draft tokens of the next step, from the fields of its batch."""
        raise NotImplementedError

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        """``DraftPolicy.observe`` for the sequences that accepted 0, 1, ..., ``drafted`` tokens."""
        raise NotImplementedError


@cython.final
@cython.cclass
class StepCurves:
    """Seconds of a step for 0 to ``most`` draft tokens, at the centre of the ``CONTEXT_CELL`` of its mean context."""

    step_seconds: Any
    counts: Any
    """Every count of draft tokens."""
    priced: list[int]
    """Priced token counts: all up to ``EXACT_TOKENS``, then in steps of a sixteenth; others are interpolated."""
    known: dict[Any, Any]

    def __init__(self, step_seconds: Any, most: int) -> None:
        self.step_seconds, self.counts, self.known = step_seconds, np.arange(most + 1), {}
        last: int = min(most, EXACT_TOKENS)
        self.priced = list(range(last + 1))
        while last < most:
            last = min(most, last + last // 16)
            self.priced.append(last)

    @cython.cfunc
    def of(self, seqs: cython.longlong, context_tokens: cython.longlong, prompt_tokens: cython.longlong) -> StepCurve:
        context: cython.longlong = context_tokens // (seqs * CONTEXT_CELL)
        prompt: cython.longlong = (prompt_tokens + CONTEXT_CELL - 1) // CONTEXT_CELL
        key = ((prompt << 20) + context << 20) + seqs
        curve = self.known.get(key)
        if curve is None:
            cells = (context * CONTEXT_CELL + CONTEXT_CELL // 2, *((prompt * CONTEXT_CELL,) if prompt else ()))
            seconds = [self.step_seconds(seqs, tokens, *cells) for tokens in self.priced]
            curve = StepCurve(np.interp(self.counts, self.priced, seconds))
            self.known[key] = curve
        return curve


@cython.final
@cython.cclass
class Goodput(LearningPolicy):
    """The K with the most expected tokens per second, from the acceptance seen and the timing model.

    Tokens of a step are ``seqs (1 + a + ... + a^K)`` with the acceptance rate ``a`` of all positions, estimated from
    accepted over tried tokens; both counts lose weight as they age and start from the prior, so a long time without
    drafts leads back to it and the drafter is tried again.

    Source: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (SmartSpec,
    later TurboSpec), 2024, arXiv:2406.14066, sections 3 and 4.
    """

    curves: StepCurves
    prior: cython.double
    kept: cython.double
    hysteresis: cython.double
    interval: cython.longlong
    prior_weight: cython.double
    accepted: cython.double
    tried: cython.double
    present: cython.longlong
    decisions: cython.longlong

    def __init__(
        self,
        most: int,
        step_seconds: Any,
        prior: float = 0.7,
        window: int = 100,
        hysteresis: float = 0.02,
        interval: int = 1,
    ) -> None:
        self.by_batch_alone = False
        self.curves = StepCurves(step_seconds, most)
        self.prior, self.hysteresis, self.interval = prior, hysteresis, interval
        self.kept = exp(-1.0 / window)
        self.prior_weight = self.tried = max(1.0, window / 10)
        self.accepted = prior * self.tried
        self.present, self.decisions = most, 0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def decide(self) -> cython.longlong:
        tokens: cython.longlong
        best: cython.longlong = 0
        expected: cython.double = 0.0
        best_speed: cython.double = -1.0
        present_speed: cython.double = 0.0
        speed: cython.double
        rate: cython.double = self.acceptance()
        self.decisions += 1
        if not self.seqs or self.decisions % self.interval:
            return self.present
        curve: StepCurve = self.curves.of(self.seqs, self.context_tokens, 0)
        seconds: cython.double[::1] = curve.seconds
        for tokens in range(len(seconds)):
            expected += pow(rate, tokens)
            speed = self.seqs * expected / seconds[tokens]
            if speed > best_speed:
                best, best_speed = tokens, speed
            if tokens == self.present:
                present_speed = speed
        if best_speed > present_speed * (1.0 + self.hysteresis):
            self.present = best
        return self.present

    @cython.ccall
    def acceptance(self) -> cython.double:
        """Estimated chance that a draft token is accepted, given that all earlier ones were."""
        return self.accepted / self.tried

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        """Age the counts and add the step's: each sequence tried its accepted tokens and the first rejected one."""
        place: cython.longlong
        total: cython.longlong = 0
        rejected: cython.longlong = 0
        weight: cython.double = self.prior_weight
        self.accepted = weight * self.prior + self.kept * (self.accepted - weight * self.prior)
        self.tried = weight + self.kept * (self.tried - weight)
        for place in range(drafted):
            total += place * counts[place]
            rejected += counts[place]
        total += drafted * counts[drafted]
        self.accepted += total
        self.tried += total + rejected


@cython.final
@cython.cclass
class PositionRates:
    """Chance that each draft position is accepted given those before it, from verify steps that lose weight with age.

    Older observations form a belief of small weight; without drafts the estimate returns to it.

    Args:
        most: positions.
        prior: estimate without observations.
        window: verify steps after which an observation has decayed to 1/e of its weight; twenty times as many for the
            belief.
        carried: whether an untried position takes the estimate of the position before it, instead of ``prior``.
    """

    most = cython.declare(cython.longlong, visibility="public")
    prior: cython.double
    carried: cython.bint
    recent_kept: cython.double
    belief_kept: cython.double
    recent_accepted: cython.double[::1]
    recent_tried: cython.double[::1]
    belief_accepted: cython.double[::1]
    belief_tried: cython.double[::1]
    rates: cython.double[::1]
    expected: cython.double[::1]

    def __init__(self, most: int, prior: float = 0.5, window: int = 20, carried: bool = False) -> None:
        self.most, self.prior, self.carried = most, prior, carried
        self.recent_kept, self.belief_kept = exp(-1.0 / window), exp(-0.05 / window)
        drafts = 0.0 if carried else PRIOR_DRAFTS
        self.recent_accepted, self.recent_tried = array("d", [0.0]) * most, array("d", [0.0]) * most
        self.belief_accepted, self.belief_tried = array("d", [prior * drafts]) * most, array("d", [drafts]) * most
        self.rates, self.expected = array("d", [0.0]) * most, array("d", [0.0]) * (most + 1)

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        """Decay the counts and add the drafts of a step."""
        place: cython.longlong
        tried: cython.longlong = 0
        accepted: cython.longlong
        if not drafted:
            self._forget()
        for place in range(drafted + 1):
            tried += counts[place]
        for place in range(self.most):
            self.recent_accepted[place] *= self.recent_kept
            self.recent_tried[place] *= self.recent_kept
            self.belief_accepted[place] *= self.belief_kept
            self.belief_tried[place] *= self.belief_kept
            if place < drafted:
                accepted = tried - counts[place]
                self.recent_accepted[place] += accepted
                self.recent_tried[place] += tried
                self.belief_accepted[place] += accepted
                self.belief_tried[place] += tried
                tried = accepted

    @cython.cfunc
    def _forget(self) -> None:
        """Decay the belief after a step without drafts, as new requests replace the observed ones."""
        place: cython.longlong
        kept: cython.double
        for place in range(self.most):
            if self.belief_tried[place] > 0:
                kept = min(1.0, REMEMBERED / self.belief_tried[place]) * exp(-1.0 / FORGET)
                self.belief_accepted[place] *= kept
                self.belief_tried[place] *= kept

    @cython.ccall
    def conditional(self) -> cython.double[::1]:
        """Estimated rates by position: the long-term belief per position, scaled by one level from the latest drafts.

        Positions that are currently not drafted follow the drafted ones: all rates scale together.
        """
        place: cython.longlong
        prior: cython.double = self.prior
        weight: cython.double = 1.0 + (PRIOR_DRAFTS if self.carried else 0.0)
        accepted: cython.double = 0.0
        expected: cython.double = 0.0
        rates: cython.double[::1] = self.rates
        for place in range(self.most):
            rates[place] = (self.belief_accepted[place] + prior * weight) / (self.belief_tried[place] + weight)
            if self.carried:
                prior = rates[place]
            accepted += self.recent_accepted[place]
            expected += self.recent_tried[place] * rates[place]
        accepted += PRIOR_DRAFTS
        expected += PRIOR_DRAFTS
        for place in range(self.most):
            rates[place] = min(1.0, rates[place] * accepted / expected)
        return rates

    @cython.ccall
    def tokens(self) -> cython.double[::1]:
        """Expected tokens of one sequence's verify step, bonus token included, for 0 to ``most`` draft tokens."""
        place: cython.longlong
        reached: cython.double = 1.0
        rates: cython.double[::1] = self.conditional()
        self.expected[0] = 1.0
        for place in range(self.most):
            reached *= rates[place]
            self.expected[place + 1] = self.expected[place] + reached
        return self.expected


@cython.cclass
class Gate(LearningPolicy):
    """Drafts up to the depth at which the acceptance rate falls below ``least``; at least one token.

    Batch form of a drafter that stops at low confidence: it uses observed rates, not the confidence of each token.

    Source: ``--spec-draft-p-min`` of llama.cpp.
    """

    rates: PositionRates
    least: cython.double

    def __init__(self, rates: PositionRates, least: float = 0.5) -> None:
        self.by_batch_alone = False
        self.rates, self.least = rates, least

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def decide(self) -> cython.longlong:
        depth: cython.longlong = 0
        rates: cython.double[::1] = self.rates.conditional()
        while depth < len(rates) and self.bound(rates[depth]) >= self.least:
            depth += 1
        return max(1, depth)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def bound(self, rate: cython.double) -> cython.double:
        return rate

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        self.rates.learn(drafted, counts)


@cython.final
@cython.cclass
class EntropyGate(Gate):
    """``Gate`` on AdaEDL's lower bound of acceptance from the drafter's entropy, ``1 - sqrt(ENTROPY_WEIGHT * H)``.

    The simulator has no token distributions: ``H`` is the binary entropy of the acceptance rate, continued below one
    half so that it rises as the rate falls.

    Source: Agrawal et al., "AdaEDL: Early Draft Stopping for Speculative Decoding", 2024, arXiv:2410.18351.
    """

    def __init__(self, rates: PositionRates, least: float = 0.3) -> None:
        Gate.__init__(self, rates, least)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def bound(self, rate: cython.double) -> cython.double:
        p: cython.double = min(max(rate, 1e-9), 1.0 - 1e-9)
        entropy: cython.double = -p * log(p) - (1.0 - p) * log(1.0 - p)
        return 1.0 - sqrt(ENTROPY_WEIGHT * (entropy if p >= 0.5 else 2.0 * log(2.0) - entropy))


@cython.final
@cython.cclass
class Forerun(LearningPolicy):
    """Switches K when the loss of keeping it reaches ``SWITCH_SHARE`` of a switch's cost: a work function over K.

    For every K, each step adds the time that K loses to the best one, by the observed acceptance rates and the
    timing model. K is rated by how fast requests finish: by Little's law, mean latency is the number of requests
    in the engine over that rate. So the prompts of the requests that replace finished ones count: what drafts save
    in decoding may be lost in the drafter's pass over prompts. The loss of a K is capped at the cost of a switch
    (CUDA graphs of another size, drafter catch-up); at ``SWITCH_SHARE`` of it, the best K replaces the present one. So
    the cost of switches stays in proportion to that loss, even if the load oscillates around a threshold.

    Source: the work function algorithm for metrical task systems; A. Borodin, N. Linial, M. Saks, "An optimal on-line
    algorithm for metrical task system", Journal of the ACM 39 (1992), doi:10.1145/146585.146588.
    """

    rates: PositionRates
    curves: StepCurves
    switch_seconds: Any
    present: cython.longlong
    seconds: cython.double[::1]
    expected: cython.double[::1]
    behind: cython.double[::1]
    """Accumulated seconds by which each K lags the best K."""
    skipped: cython.longlong
    """Tokens that the idle drafter has not seen."""
    context: cython.longlong
    prompts: cython.double
    mixed: cython.double
    decoded: cython.double
    """Recent prompt tokens, steps with prompts, and decoded tokens, with exponential decay."""
    kept: cython.double

    def __init__(self, rates: PositionRates, step_seconds: Any, switch_seconds: Any) -> None:
        self.by_batch_alone = False
        self.rates, self.switch_seconds = rates, switch_seconds
        self.curves = StepCurves(step_seconds, rates.most)
        self.present = rates.most
        none = array("d", [0.0]) * (rates.most + 1)
        self.seconds, self.expected, self.behind = none, none[:], none[:]
        self.skipped = self.context = 0
        self.prompts = self.mixed = self.decoded = 0.0
        self.kept = exp(-1.0 / MIX_STEPS)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def decide(self) -> cython.longlong:
        """The present K; the best K once the present one lags by ``SWITCH_SHARE`` of the cost of a switch."""
        tokens: cython.longlong
        grown: cython.longlong = max(0, self.context_tokens - self.context)
        expected: cython.double[::1] = self.expected
        seconds: cython.double[::1] = self.seconds
        behind: cython.double[::1] = self.behind
        self.context = self.context_tokens
        if not self.seqs:
            return self.present
        self.skipped = 0 if self.present else min(self.skipped + max(grown, self.seqs), self.context_tokens)
        plain: cython.double[::1] = self.rates.tokens()
        for tokens in range(len(expected)):
            expected[tokens] = plain[tokens] * after_margin(tokens)
        self._price()
        worth: cython.double = seconds[0] / expected[0]
        for tokens in range(1, len(expected)):
            worth = min(worth, seconds[tokens] / expected[tokens])
        cost: cython.double = self._cost()
        ahead: cython.double = 0.0
        for tokens in range(len(expected)):
            behind[tokens] += seconds[tokens] - worth * expected[tokens]
            ahead = behind[tokens] if not tokens else min(ahead, behind[tokens])
        for tokens in range(len(expected)):
            behind[tokens] = min(behind[tokens] - ahead, cost)
        if behind[self.present] >= SWITCH_SHARE * cost:
            for tokens in range(len(expected)):
                if behind[tokens] == 0.0:
                    self.present = tokens
                    break
        return self.present

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        place: cython.longlong
        delivered: cython.longlong = 0
        for place in range(drafted + 1):
            delivered += (place + 1) * counts[place]
        self.prompts, self.mixed = self.kept * self.prompts, self.kept * self.mixed
        self.decoded = self.kept * self.decoded + delivered
        self.rates.learn(drafted, counts)

    @cython.cfunc
    def _price(self) -> None:
        """Set the seconds of a step by draft tokens, including its share of steps that compute prompts of new
        requests."""
        tokens: cython.longlong
        each: cython.double
        share: cython.double
        if self.prompt_tokens:
            self.prompts += self.prompt_tokens
            self.mixed += 1.0
        curve: StepCurve = self.curves.of(self.seqs, self.context_tokens, 0)
        alone: cython.double[::1] = curve.seconds
        if not self.mixed:
            for tokens in range(len(alone)):
                self.seconds[tokens] = alone[tokens]
            return
        mean: cython.double = self.prompts / self.mixed + TO_WHOLE - TO_WHOLE
        curve = self.curves.of(self.seqs, self.context_tokens, cython.cast(cython.longlong, mean))
        with_prompts: cython.double[::1] = curve.seconds
        each = self.seqs * self.mixed / (self.decoded + MIX_TOKENS)
        for tokens in range(len(alone)):
            share = each * self.expected[tokens]
            if self.waiting:  # prompts are what steps hold, not what arrives: no more steps than all can have some
                share = min(1.0, share)
            self.seconds[tokens] = max(0.0, 1.0 - share) * alone[tokens] + share * with_prompts[tokens]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _cost(self) -> cython.double:
        """Seconds that a change of K takes now; skipped tokens are rounded to a quarter doubling."""
        quarters: cython.double
        skipped: cython.double = 0.0
        if self.skipped:
            quarters = 4 * log2(self.skipped) + TO_WHOLE - TO_WHOLE
            skipped = pow(2.0, quarters / 4) + TO_WHOLE - TO_WHOLE
        cost: cython.double = self.switch_seconds(self.seqs, int(skipped))
        return max(LEAST_SWITCH_S, cost)


@cython.final
@cython.cclass
class MovingAverageSlot:
    """One batch range of ``ema``: a moving average of accepted tokens, and the K that follows it.

    Args:
        candidates: numbers of draft tokens to choose from, in ascending order.
    """

    candidates: tuple[int, ...]
    present = cython.declare(cython.longlong, visibility="public")
    alpha: cython.double
    update_interval: cython.longlong
    warmup: cython.longlong
    up: cython.double
    down: cython.double
    average = cython.declare(cython.double, visibility="public")
    batches: cython.longlong

    def __init__(
        self,
        candidates: tuple[int, ...],
        present: int,
        alpha: float,
        update_interval: int,
        warmup: int,
        up: float,
        down: float,
    ) -> None:
        self.candidates = candidates
        self.present = present if present in candidates else candidates[len(candidates) // 2]
        self.alpha, self.update_interval, self.warmup, self.up, self.down = alpha, update_interval, warmup, up, down
        self.average = self.present - 1.0
        self.batches = 0

    @cython.ccall
    def observe(self, accepted: cython.double) -> None:
        """Update the average with a step's mean; choose K anew every ``update_interval`` steps after the warm-up."""
        past: cython.longlong
        if self.present:
            self.average += self.alpha * (accepted - self.average)
        self.batches += 1
        past = self.batches - self.warmup
        if past > 0 and past % self.update_interval == 0:
            self._decide()

    @cython.cfunc
    def _decide(self) -> None:
        candidates = self.candidates
        place: cython.longlong = candidates.index(self.present)
        if self.present == 0:
            self.present = candidates[min(place + 1, len(candidates) - 1)]
            if self.average < 0.0:
                self.average = self.present - 1.0
            return
        lower: cython.longlong = place  # fewer suffice up to half a token below their number, or half a token for none
        while lower and self.average <= abs(candidates[lower - 1] - 0.5) + self.down:
            lower -= 1
        if lower == place:
            while lower < len(candidates) - 1 and self.average > candidates[lower] - 0.5 + self.up:
                lower += 1
        self.present = candidates[lower]


@cython.final
@cython.cclass
class MovingAverage(LearningPolicy):
    """SGLang's adaptive speculation: K follows a moving average of the accepted tokens, in slots by batch size.

    Differs from SGLang in that batches are not padded to captured sizes before the slot is found, and that a step's
    acceptance takes effect one step later (the next K is fixed when a step is planned, as the drafter runs in it).

    Source: ``AdaptiveStepSlot`` and ``AdaptiveStepRouter`` in SGLang's ``adaptive_spec_params.py`` (2026).
    """

    sizes: cython.longlong[::1]
    slots: list[Any]
    """Smallest batch of each entry of ``sizes``, in the same order."""

    def __init__(self, slots: dict[int, MovingAverageSlot]) -> None:
        self.by_batch_alone = False
        self.sizes = array("q", sorted(slots))
        self.slots = [slots[size] for size in sorted(slots)]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def decide(self) -> cython.longlong:
        return self._slot(self.seqs).present

    @cython.ccall
    def learn(self, drafted: cython.longlong, counts: cython.longlong[::1]) -> None:
        place: cython.longlong
        seqs: cython.longlong = 0
        total: cython.longlong = 0
        for place in range(drafted + 1):
            seqs += counts[place]
            total += place * counts[place]
        if seqs:
            self._slot(seqs).observe(cython.cast(cython.double, total) / seqs)

    @cython.cfunc
    def _slot(self, seqs: cython.longlong) -> MovingAverageSlot:
        place: cython.longlong = len(self.sizes) - 1
        while place and self.sizes[place] > seqs:
            place -= 1
        return self.slots[place]
