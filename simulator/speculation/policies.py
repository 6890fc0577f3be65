"""Policies that choose the draft tokens of the next step from the batch, step times and acceptance so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import exp, inf, log, log2, sqrt
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forerun.dataclass import dataclass
from forerun.errors import ForerunError
from simulator.speculation.speculation_config import PolicyConfig

DISABLE_ABOVE = 32
"""Default ``batch`` of the policy ``disable-above-batch``: largest batch that drafts; assumed."""
DOCUMENTED_TABLE = ((1, 64, None), (65, 128, 1), (129, 512, 0))
"""Example table of vLLM's documentation (features/speculative_decoding/dynamic_speculative_decoding, v0.25); None is
``num_speculative_tokens``."""
SGLANG_CANDIDATES: Mapping[int, tuple[int, ...]] = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
SGLANG_SMALL_BATCH = 8
SGLANG_DOWN_HYSTERESIS = -0.25
"""Default for batches below ``SGLANG_SMALL_BATCH``; larger ones use 0. This and the candidates are SGLang's
``DEFAULT_ADAPTIVE_CONFIG`` (``python/sglang/srt/speculative/adaptive_spec_params.py``, 2026)."""
CONTEXT_CELL = 256
"""Width in tokens of the cells within which mean contexts have one price, as have prompt tokens of a step."""

StepSeconds = Callable[..., float]
"""Seconds of a step, drafting included, by (decoding sequences, draft tokens of each, mean context) and optionally
the prompt tokens that it computes."""


SwitchSeconds = Callable[[int, int], float]
"""Seconds that a change of K takes, by (sequences, total tokens that the drafter has not seen)."""
REMEMBERED, FORGET = 10.0, 30.0
"""Most drafts that the belief weighs while nothing is drafted, and steps after which 1/e of it is left: requests
that no drafts were made for replace those observed, so an idle controller has to try drafting again."""
MIX_STEPS = 20
"""Steps after which the observed mix of prompts and decoding has decayed to 1/e of its weight."""
MIX_TOKENS = 100.0
"""Decoded tokens added to the recent ones when prompts are related to them; matters at start and at light load. Set on
searched patterns of two seeds, and kept over 30 on those that are quoted."""
PRIOR_DRAFTS = 2.0
ENTROPY_WEIGHT = 0.4
SWITCH_SHARE = 0.2
"""Share of the cost of a switch by which the present K must lie behind before it is replaced."""
MARGIN = 0.02
"""Share of expected tokens deducted per draft token, beyond its price in a decode step: steps with prompts pay
for it in full, and requests whose drafts fail are in the batch longer than they are in the mean."""
LEAST_SWITCH_S = 1e-4
"""Least cost assumed for a change of K, in seconds, so that noise alone causes no switch."""


class Batch(NamedTuple):
    """State of the engine when a step is planned."""

    seqs: int
    """Requests in the step, those in prefill included; their draft tokens are verified in the next step."""
    context_tokens: int
    """Tokens in the KV cache of all requests in the step, before it runs."""
    prompt_tokens: int = 0
    """Prompt tokens that the step computes."""
    waiting: int = 0
    """Requests queued for a place in the batch, swapped-out ones included."""


@runtime_checkable
class DraftPolicy(Protocol):
    """Extension point: chooses the draft tokens of each step of one replica. ``check_policy`` validates custom ones.

    Called while a step is planned, as vLLM's scheduler looks its table up: the drafter proposes as many tokens at the
    end of that step, and the next step verifies them.
    """

    @property
    def by_batch_alone(self) -> bool:
        """Whether the choice depends only on ``Batch.seqs``; then it is made once for each number, and nothing is
        observed."""

    def choose(self, batch: Batch) -> int:
        """Number of draft tokens for every sequence, from 0 to the scenario's maximum."""

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Record a verify step: ``drafted`` tokens per decoding sequence, and the number accepted of each."""


PolicyFactory = Callable[[], DraftPolicy]
"""Factory of the policy of one replica."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Draft tokens by batch size, and nothing else: ``fixed``, ``disable-above-batch`` and ``batch-table``."""

    tokens: tuple[int, ...]
    """Draft tokens for batches of 0, 1, 2, ... requests; larger batches use the last entry."""
    by_batch_alone: bool = field(init=False, default=True)

    def choose(self, batch: Batch) -> int:
        return self.tokens[min(batch.seqs, len(self.tokens) - 1)]

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def batch_table(table: Sequence[Sequence[int]], most: int) -> BatchTable:
    """vLLM's ``num_speculative_tokens_per_batch_size``: [first batch, last batch, draft tokens], both ends included.

    A gap between two ranges takes the K of the range before it, and so do batches beyond the last; no K exceeds
    ``most``.

    Source: ``build_dynamic_sd_schedule_lookup`` in ``vllm/v1/spec_decode/dynamic/utils.py``, vLLM 0.25 to 0.28.
    """
    tokens = [min(most, sorted(map(tuple, table))[0][2])]
    for first, last, drafted in sorted(map(tuple, table)):
        tokens += [tokens[-1]] * (first - len(tokens))
        tokens += [min(most, drafted)] * (last + 1 - len(tokens))
    return BatchTable(tuple(tokens))


def priced(step_seconds: StepSeconds, batch: Batch, most: int, prompt_tokens: int = 0) -> list[float]:
    """Seconds of a step of a batch for 0 to ``most`` draft tokens, its mean context at the centre of its
    ``CONTEXT_CELL``."""
    context = batch.context_tokens // (batch.seqs * CONTEXT_CELL) * CONTEXT_CELL + CONTEXT_CELL // 2
    prompts = (-(-prompt_tokens // CONTEXT_CELL) * CONTEXT_CELL,) if prompt_tokens else ()
    return [step_seconds(batch.seqs, tokens, context, *prompts) for tokens in range(most + 1)]


def accepted_at_least(accepted: Sequence[int], most: int) -> list[int]:
    """Drafts of which at least 0, 1, ..., ``most`` tokens were accepted.

    >>> accepted_at_least([0, 2, 1, 2], 3)
    [4, 3, 2, 0]
    """
    reached = [len(accepted)]
    for tokens in range(most):
        reached.append(reached[-1] - accepted.count(tokens))
    return reached


@dataclass(slots=True)
class Goodput:
    """The K with the most expected tokens per second, from the acceptance seen and the timing model.

    Tokens of a step are ``seqs (1 + a + ... + a^K)`` with the acceptance rate ``a`` of all positions, estimated from
    accepted over tried tokens; both counts lose weight as they age and start from the prior, so a long time without
    drafts leads back to it and the drafter is tried again.

    Source: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (SmartSpec,
    later TurboSpec), 2024, arXiv:2406.14066, sections 3 and 4.
    """

    most: int
    step_seconds: StepSeconds
    prior: float = 0.7
    window: int = 100
    hysteresis: float = 0.02
    interval: int = 1
    by_batch_alone: bool = field(init=False, default=False)
    _accepted: float = field(init=False)
    _tried: float = field(init=False)
    _present: int = field(init=False)
    _decisions: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._tried = float(self._prior_weight)
        self._accepted = self.prior * self._tried
        self._present = self.most

    @property
    def _prior_weight(self) -> float:
        return max(1.0, self.window / 10)

    @property
    def acceptance(self) -> float:
        """Estimated chance that a draft token is accepted, given that those before it were."""
        return self._accepted / self._tried

    def choose(self, batch: Batch) -> int:
        self._decisions += 1
        if batch.seqs and self._decisions % self.interval == 0:
            rate, expected, rates = self.acceptance, 0.0, []
            for tokens, seconds in enumerate(priced(self.step_seconds, batch, self.most)):
                expected += rate**tokens
                rates.append(batch.seqs * expected / seconds)
            best = rates.index(max(rates))
            if rates[best] > rates[self._present] * (1.0 + self.hysteresis):
                self._present = best
        return self._present

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Age the counts and add the step's: each sequence tried its accepted tokens and the first rejected one."""
        kept = exp(-1.0 / self.window)
        weight = self._prior_weight
        self._accepted = weight * self.prior + kept * (self._accepted - weight * self.prior)
        self._tried = weight + kept * (self._tried - weight)
        if drafted:
            total = sum(accepted)
            self._accepted += total
            self._tried += total + len(accepted) - accepted.count(drafted)


@dataclass(slots=True)
class PositionRates:
    """Chance that each draft position is accepted given those before it, from verify steps that lose weight with age.

    Older observations form a belief of small weight; without drafts the estimate returns to it.
    """

    most: int
    prior: float = 0.5
    window: int = 20
    """Verify steps after which an observation has decayed to 1/e of its weight; twenty times as many for the belief."""
    carried: bool = False
    """Whether an untried position takes the estimate of the position before it, instead of ``prior``."""
    _recent: list[list[float]] = field(init=False)
    """(accepted, tried) drafts of each position, decayed by age."""
    _belief: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._recent = [[0.0, 0.0] for _ in range(self.most)]
        drafts = 0.0 if self.carried else PRIOR_DRAFTS
        self._belief = [[self.prior * drafts, drafts] for _ in range(self.most)]

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Decay the counts and add the drafts of a step."""
        if not drafted:
            self._forget()
        reached = accepted_at_least(accepted, drafted)
        for counts, kept in ((self._recent, exp(-1.0 / self.window)), (self._belief, exp(-0.05 / self.window))):
            for place, count in enumerate(counts):
                count[0] *= kept
                count[1] *= kept
                if place < drafted:
                    count[0] += reached[place + 1]
                    count[1] += reached[place]

    def _forget(self) -> None:
        """Decay the belief after a step without drafts, as new requests replace those that it was observed on."""
        for count in self._belief:
            kept = min(1.0, REMEMBERED / count[1]) * exp(-1.0 / FORGET) if count[1] > 0 else 1.0
            count[0] *= kept
            count[1] *= kept

    def conditional(self) -> list[float]:
        """Estimated rates by position: the belief of each, scaled by one level that the latest drafts show.

        Positions that are currently not drafted thus follow those that are: all rates scale together.
        """
        beliefs, prior, weight = [], self.prior, 1.0 + (PRIOR_DRAFTS if self.carried else 0.0)
        for accepted, tried in self._belief:
            beliefs.append((accepted + prior * weight) / (tried + weight))
            prior = beliefs[-1] if self.carried else prior
        accepted = sum(count[0] for count in self._recent) + PRIOR_DRAFTS
        expected = sum(count[1] * one for count, one in zip(self._recent, beliefs, strict=True)) + PRIOR_DRAFTS
        return [min(1.0, one * accepted / expected) for one in beliefs]

    def tokens(self) -> list[float]:
        """Expected tokens of one sequence's verify step, bonus token included, for 0 to ``most`` draft tokens."""
        reached, expected = 1.0, [1.0]
        for rate in self.conditional():
            reached *= rate
            expected.append(expected[-1] + reached)
        return expected


@dataclass(slots=True)
class Gate:
    """Drafts up to the depth at which the acceptance rate falls below ``least``; at least one token.

    Batch form of a drafter that stops at low confidence: it uses observed rates, not the confidence of each token.

    Source: ``--spec-draft-p-min`` of llama.cpp.
    """

    rates: PositionRates
    least: float
    by_batch_alone: bool = field(init=False, default=False)

    def choose(self, batch: Batch) -> int:
        depth = 0
        for rate in self.rates.conditional():
            if self.bound(rate) < self.least:
                break
            depth += 1
        return max(1, depth)

    def bound(self, rate: float) -> float:
        return rate

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        self.rates.observe(drafted, accepted)


@dataclass(slots=True)
class EntropyGate(Gate):
    """``Gate`` on AdaEDL's lower bound of acceptance from the drafter's entropy, ``1 - sqrt(ENTROPY_WEIGHT * H)``.

    There are no token distributions: ``H`` is the binary entropy of the rate, continued below one half so that
    it rises as the rate falls.

    Source: Agrawal et al., "AdaEDL: Early Draft Stopping for Speculative Decoding", 2024, arXiv:2410.18351.
    """

    def bound(self, rate: float) -> float:
        p = min(max(rate, 1e-9), 1.0 - 1e-9)
        entropy = -p * log(p) - (1.0 - p) * log(1.0 - p)
        return 1.0 - sqrt(ENTROPY_WEIGHT * (entropy if p >= 0.5 else 2.0 * log(2.0) - entropy))


LEAST_BOUND: Mapping[type, float] = {Gate: 0.5, EntropyGate: 0.3}
"""Default of the confidence threshold; assumed (llama.cpp's example servers run 0.5 to 0.9)."""


@dataclass(slots=True)
class Forerun:
    """Switches K when the loss of keeping it reaches ``SWITCH_SHARE`` of the cost of a switch: a work function over K.

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
    step_seconds: StepSeconds
    switch_seconds: SwitchSeconds
    by_batch_alone: bool = field(init=False, default=False)
    _present: int = field(init=False)
    _behind: list[float] = field(init=False)
    """Accumulated seconds by which each K lies behind the best one."""
    _skipped: int = field(init=False, default=0)
    """Tokens that the drafter has not seen while it was idle."""
    _context: int = field(init=False, default=0)
    _prompts: float = field(init=False, default=0.0)
    _mixed: float = field(init=False, default=0.0)
    _decoded: float = field(init=False, default=0.0)
    """Recent prompt tokens, steps with prompts, and decoded tokens, with exponential decay."""

    def __post_init__(self) -> None:
        self._present = self.rates.most
        self._behind = [0.0] * (self.rates.most + 1)

    def choose(self, batch: Batch) -> int:
        """The present K, or the best K once the present lies behind by ``SWITCH_SHARE`` of the cost of a switch."""
        grown, self._context = max(0, batch.context_tokens - self._context), batch.context_tokens
        if not batch.seqs:
            return self._present
        self._skipped = 0 if self._present else min(self._skipped + max(grown, batch.seqs), batch.context_tokens)
        expected = [one * (1.0 - MARGIN * k) for k, one in enumerate(self.rates.tokens())]
        seconds = self._seconds(batch, expected)
        worth = min(one / tokens for one, tokens in zip(seconds, expected, strict=True))
        cost = self._cost(batch.seqs)
        lost = [one - worth * tokens for one, tokens in zip(seconds, expected, strict=True)]
        behind = [was + one for was, one in zip(self._behind, lost, strict=True)]
        ahead = min(behind)
        self._behind = [min(one - ahead, cost) for one in behind]
        if self._behind[self._present] >= SWITCH_SHARE * cost:
            self._present = self._behind.index(0.0)
        return self._present

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        kept = exp(-1.0 / MIX_STEPS)
        self._prompts, self._mixed = kept * self._prompts, kept * self._mixed
        self._decoded = kept * self._decoded + len(accepted) + sum(accepted)
        self.rates.observe(drafted, accepted)

    def _seconds(self, batch: Batch, expected: Sequence[float]) -> list[float]:
        """Seconds of a step by draft tokens, including its share of steps that compute prompts of new requests."""
        if batch.prompt_tokens:
            self._prompts += batch.prompt_tokens
            self._mixed += 1.0
        alone = priced(self.step_seconds, batch, self.rates.most)
        if not self._mixed:
            return alone
        mixed = priced(self.step_seconds, batch, self.rates.most, round(self._prompts / self._mixed))
        each = batch.seqs * self._mixed / (self._decoded + MIX_TOKENS)
        # While requests wait, prompts are what steps hold, not what arrives: no more steps than all can have some.
        most = 1.0 if batch.waiting else inf
        shares = [min(most, each * one) for one in expected]
        return [max(0.0, 1.0 - s) * a + s * m for s, a, m in zip(shares, alone, mixed, strict=True)]

    def _cost(self, seqs: int) -> float:
        """Seconds that a change of K takes now; skipped tokens are rounded to a quarter doubling."""
        skipped = 0 if not self._skipped else round(2.0 ** (round(4 * log2(self._skipped)) / 4))
        return max(LEAST_SWITCH_S, self.switch_seconds(seqs, skipped))


@dataclass(slots=True)
class MovingAverageSlot:
    """One batch range of ``ema``: a moving average of accepted tokens, and the K that follows it."""

    candidates: tuple[int, ...]
    """Numbers of draft tokens to choose from, in ascending order."""
    present: int
    alpha: float
    update_interval: int
    warmup: int
    up: float
    down: float
    average: float = field(init=False)
    _batches: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.present not in self.candidates:
            self.present = self.candidates[len(self.candidates) // 2]
        self.average = self.present - 1.0

    def observe(self, accepted: Sequence[int]) -> None:
        """Update the average with a step; choose K anew every ``update_interval`` steps after the warm-up."""
        if self.present:
            self.average += self.alpha * (sum(accepted) / len(accepted) - self.average)
        self._batches += 1
        past = self._batches - self.warmup
        if past > 0 and past % self.update_interval == 0:
            self._decide()

    def _decide(self) -> None:
        place = self.candidates.index(self.present)
        if self.present == 0:
            self.present = self.candidates[min(place + 1, len(self.candidates) - 1)]
            if self.average < 0.0:
                self.average = self.present - 1.0
            return
        lower = place  # fewer suffice up to half a token below their number, or half a token for none
        while lower and self.average <= abs(self.candidates[lower - 1] - 0.5) + self.down:
            lower -= 1
        if lower == place:
            while lower < len(self.candidates) - 1 and self.average > self.candidates[lower] - 0.5 + self.up:
                lower += 1
        self.present = self.candidates[lower]


@dataclass(slots=True)
class MovingAverage:
    """SGLang's adaptive speculation: K follows a moving average of the accepted tokens, in slots by batch size.

    Differs from SGLang in that batches are not padded to captured sizes before the slot is found, and that a step's
    acceptance takes effect one step later (the next K is fixed when a step is planned, as the drafter runs in it).

    Source: ``AdaptiveStepSlot`` and ``AdaptiveStepRouter`` in SGLang's ``adaptive_spec_params.py`` (2026).
    """

    slots: Mapping[int, MovingAverageSlot]
    by_batch_alone: bool = field(init=False, default=False)
    _sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = sorted(self.slots)

    def choose(self, batch: Batch) -> int:
        return self._slot(batch.seqs).present

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        if accepted:
            self._slot(len(accepted)).observe(accepted)

    def _slot(self, seqs: int) -> MovingAverageSlot:
        return self.slots[self._sizes[max(0, bisect_right(self._sizes, seqs) - 1)]]


POLICIES: dict[str, Callable[[int], DraftPolicy]] = {}
"""Registered policies by name; each is called with the draft tokens of a full proposal, once per replica."""


def policy_factory(
    config: PolicyConfig,
    most: int,
    step_seconds: StepSeconds,
    switch_seconds: SwitchSeconds = lambda seqs, skipped: 0.0,
) -> PolicyFactory | None:
    """Factory of the policy that a scenario names; None if K never changes.

    Args:
        config: policy section of the scenario.
        most: draft tokens of a full proposal.
        step_seconds, switch_seconds: functions of the timing model, for policies that use them.

    Raises:
        ForerunError: no candidate of ``ema`` is at most ``most``.
    """
    if config.name == "fixed":
        return None
    if config.name in POLICIES:
        return partial(POLICIES[config.name], most)
    if config.name == "disable-above-batch":
        # vLLM's speculative_disable_by_batch_size (vllm-project/vllm#4592), by the requests in the step.
        above = BatchTable((most,) * ((DISABLE_ABOVE if config.batch is None else config.batch) + 1) + (0,))
        return lambda: above
    if config.name == "batch-table":
        documented = [[first, last, most if tokens is None else tokens] for first, last, tokens in DOCUMENTED_TABLE]
        table = batch_table(documented if config.table is None else config.table, most)
        return lambda: table
    if config.name == "goodput":
        return partial(Goodput, most, step_seconds, **_given(config, "prior", "window", "hysteresis", "interval"))
    if config.name == "ema":
        slots = _slots(config, most)
        return lambda: MovingAverage(slots())

    rates = partial(PositionRates, most, **_given(config, "prior", "window"))
    if config.name == "forerun":
        return lambda: Forerun(rates(carried=True), step_seconds, switch_seconds)
    gate = Gate if config.name == "p-min" else EntropyGate
    return lambda: gate(rates(), LEAST_BOUND[gate] if config.least is None else config.least)


def _given(config: PolicyConfig, *names: str) -> dict[str, Any]:
    """Those parameters that the scenario gives; the others take the policy's default."""
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _slots(config: PolicyConfig, most: int) -> Callable[[], dict[int, MovingAverageSlot]]:
    by_batch: Mapping[int, Sequence[int]] = SGLANG_CANDIDATES
    if config.candidates is not None:
        by_batch = config.candidates if isinstance(config.candidates, dict) else {1: config.candidates}
    slots = {}
    for size, tokens in by_batch.items():
        candidates = tuple(sorted({k for k in tokens if k <= most}))
        if not candidates:
            raise ForerunError(
                f"speculation.policy.candidates: none of {list(tokens)} for batches from {size} is at most the {most} "
                f"draft tokens of the scenario"
            )
        down = SGLANG_DOWN_HYSTERESIS if size < SGLANG_SMALL_BATCH else 0.0
        slots[size] = partial(
            MovingAverageSlot,
            candidates,
            most,
            alpha=0.2 if config.ema_alpha is None else config.ema_alpha,
            update_interval=config.update_interval or 5,
            warmup=10 if config.warmup_batches is None else config.warmup_batches,
            up=config.up_hysteresis or 0.0,
            down=down if config.down_hysteresis is None else config.down_hysteresis,
        )
    return lambda: {size: make() for size, make in slots.items()}


def check_policy(make_policy: PolicyFactory, most: int, max_seqs: int = 64) -> None:
    """Check a policy against the engine's requirements, on a short history of random acceptance.

    Checked are: that every choice is a whole number from 0 to ``most``, that two policies with the same history choose
    alike (runs are reproducible), and that a policy with ``by_batch_alone`` ignores contexts and history.

    Raises:
        ForerunError: the first rule that is broken, in one line.
    """
    one, other = make_policy(), make_policy()
    name = type(one).__name__
    if not isinstance(one, DraftPolicy):
        raise ForerunError(f"{name} lacks something that simulator.speculation.DraftPolicy requires")
    first_choices: dict[int, int] = {}
    state = 1
    for step in range(200):
        state = (state * 1103515245 + 12345) % 2**31
        seqs = 1 + state // 7 % max_seqs
        batch = Batch(seqs, seqs * (100 + 50 * step))
        chosen = one.choose(batch)
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen <= most:
            raise ForerunError(f"{name}: chose {chosen!r} draft tokens, not a whole number from 0 to {most}")
        again = other.choose(batch)
        if again != chosen:
            raise ForerunError(f"{name}: chose {chosen} and then {again} draft tokens after the same history")
        if one.by_batch_alone and first_choices.setdefault(seqs, chosen) != chosen:
            raise ForerunError(
                f"{name}: says by_batch_alone, but chose {first_choices[seqs]} and later {chosen} for {seqs} requests"
            )
        accepted = [(state >> (i % 16)) % (chosen + 1) for i in range(seqs)]
        one.observe(chosen, accepted)
        other.observe(chosen, list(accepted))
