"""Policies: how many tokens to draft for the next step, from the batch, the clock and what was accepted so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, log, log2, sqrt
from typing import Protocol, runtime_checkable

from simulator.errors import ForerunError
from simulator.speculation.speculation_config import PolicyConfig, check_table

DISABLE_ABOVE = 32
"""Largest batch that drafts where a scenario names ``disable-above-batch`` alone; assumed."""
DOCUMENTED_TABLE = ((1, 64, None), (65, 128, 1), (129, 512, 0))
"""The example of vLLM's documentation (features/speculative_decoding/dynamic_speculative_decoding, v0.25); None stands
for ``num_speculative_tokens``."""
SGLANG_CANDIDATES: Mapping[int, tuple[int, ...]] = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
SGLANG_SMALL_BATCH = 8
SGLANG_DOWN_HYSTERESIS = -0.25
"""Of batches below ``SGLANG_SMALL_BATCH``; 0 from there on. As the candidates by smallest batch, SGLang's
``DEFAULT_ADAPTIVE_CONFIG`` (``python/sglang/srt/speculative/adaptive_spec_params.py``, 2026)."""
CONTEXT_CELL = 256
"""Mean contexts within so many tokens are priced alike, and so are prompts in a step."""

StepSeconds = Callable[..., float]
"""Seconds of a step by (sequences that decode, draft tokens of each, mean context) and, if there are any, the tokens of
prompts that it computes; drafting included."""


SwitchSeconds = Callable[[int, int], float]
"""Seconds of a change of K by (sequences, tokens in all that the drafter has not seen)."""
REMEMBERED, FORGET = 10.0, 30.0
"""Drafts that a belief counts for at most while nothing is drafted, and steps after which 1/e of it is left: requests
that nobody drafted for take the place of those that were seen, and a controller at rest has to look again."""
MIX_STEPS = 20
"""Steps after which what a controller has seen of prompts beside decoding has lost 1/e of its weight."""
MIX_TOKENS = 100.0
"""Decoded tokens that prompts are held against beside those seen of late: before any is seen, and at light load. Set on
searched patterns of two seeds, and kept over 30 on those that are quoted."""
PRIOR_DRAFTS = 2.0
"""Drafts that a belief counts for beside those seen."""
ENTROPY_WEIGHT = 0.4
SWITCH_SHARE = 0.2
"""Share of what a change costs by which the present K must have fallen behind."""
MARGIN = 0.02
"""Share of the tokens that each draft token must gain beyond its price in a decode step: steps that compute prompts pay
for it in full, and requests whose drafts fail are in the batch longer than they are in the mean."""
LEAST_SWITCH_S = 1e-4
"""A change of K that costs nothing still waits for so much to be gained: noise alone moves nothing."""


@dataclass(frozen=True, slots=True)
class Batch:
    """State of the engine when a step is planned."""

    seqs: int
    """Requests in the step, those in prefill included; what they draft is verified in the next step."""
    context_tokens: int
    """Tokens in the KV cache of all of them before the step."""
    prompt_tokens: int = 0
    """Of prompts that the step computes."""
    waiting: int = 0
    """Requests that found no place in the step, nor in those before it."""


@runtime_checkable
class DraftPolicy(Protocol):
    """A plug-in point: chooses the draft tokens of each step of one replica. ``check_policy`` tries an own one.

    Called while a step is planned, as vLLM's scheduler looks its table up: the drafter proposes as many tokens at the
    end of that step, and the next step verifies them.
    """

    @property
    def by_batch_alone(self) -> bool:
        """Whether the choice depends only on ``Batch.seqs``; only then may equal steps be merged."""

    def choose(self, batch: Batch) -> int:
        """Draft tokens for every sequence, 0 to what the scenario drafts at most."""

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """A step has verified ``drafted`` tokens for each decoding sequence and accepted so many of them."""


PolicyFactory = Callable[[], DraftPolicy]
"""Makes the policy of one replica."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Draft tokens by batch size, and nothing else: ``fixed``, ``disable-above-batch`` and ``batch-table``."""

    tokens: tuple[int, ...]
    """For 0, 1, 2, ... requests; larger batches as the last."""
    by_batch_alone: bool = field(init=False, default=True)

    def choose(self, batch: Batch) -> int:
        """Look the batch up."""
        return self.tokens[min(batch.seqs, len(self.tokens) - 1)]

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def disable_above(batch: int, most: int) -> BatchTable:
    """``most`` draft tokens in steps of at most ``batch`` requests, none in larger ones.

    Source: vLLM's ``speculative_disable_by_batch_size`` (vllm-project/vllm#4592), by the requests in the step.
    """
    return BatchTable((most,) * (batch + 1) + (0,))


def batch_table(table: Sequence[Sequence[int]], most: int) -> BatchTable:
    """vLLM's ``num_speculative_tokens_per_batch_size``: [first batch, last batch, draft tokens], both ends included.

    A gap between two ranges takes the K of the range before it, and so do batches beyond the last; no K exceeds
    ``most``.

    Raises:
        ValueError: a table that vLLM refuses.

    Source: ``build_dynamic_sd_schedule_lookup`` in ``vllm/v1/spec_decode/dynamic/utils.py``, vLLM 0.25 to 0.28.
    """
    check_table(table)
    tokens = [min(most, sorted(map(tuple, table))[0][2])]
    for first, last, drafted in sorted(map(tuple, table)):
        tokens += [tokens[-1]] * (first - len(tokens))
        tokens += [min(most, drafted)] * (last + 1 - len(tokens))
    return BatchTable(tuple(tokens))


def priced(step_seconds: StepSeconds, batch: Batch, tokens: int, prompt_tokens: int = 0) -> float:
    """Seconds of a step of a batch, with the mean context at the centre of its ``CONTEXT_CELL``."""
    cell = batch.context_tokens // (batch.seqs * CONTEXT_CELL)
    prompts = (-(-prompt_tokens // CONTEXT_CELL) * CONTEXT_CELL,) if prompt_tokens else ()
    return step_seconds(batch.seqs, tokens, cell * CONTEXT_CELL + CONTEXT_CELL // 2, *prompts)


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
        """Tried tokens that the prior counts for: a tenth of a window of one sequence."""
        return max(1.0, self.window / 10)

    @property
    def acceptance(self) -> float:
        """Estimated chance that a draft token is accepted, given that those before it were."""
        return self._accepted / self._tried

    def choose(self, batch: Batch) -> int:
        """The best K, if it beats the present one by more than the hysteresis."""
        self._decisions += 1
        if batch.seqs and self._decisions % self.interval == 0:
            rates = [self._goodput(batch, tokens) for tokens in range(self.most + 1)]
            best = max(range(self.most + 1), key=lambda tokens: rates[tokens])
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
            self._tried += total + sum(1 for tokens in accepted if tokens < drafted)

    def _goodput(self, batch: Batch, tokens: int) -> float:
        rate = self.acceptance
        expected = sum(rate**i for i in range(tokens + 1))
        return batch.seqs * expected / priced(self.step_seconds, batch, tokens)


@dataclass(slots=True)
class PositionRates:
    """Chance that each draft position is accepted given those before it, from verify steps that lose weight with age.

    What was seen long ago stays as a belief that weighs little: without drafts the estimate goes back to it.
    """

    most: int
    prior: float = 0.5
    window: int = 20
    """Verify steps after which an observation has lost 1/e of its weight; twenty times as many for the belief."""
    carried: bool = False
    """Whether a position is taken to be as the one before it until it is tried, instead of as ``prior``."""
    _recent: list[list[float]] = field(init=False)
    """Accepted and tried drafts of each position."""
    _belief: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._recent = [[0.0, 0.0] for _ in range(self.most)]
        drafts = 0.0 if self.carried else PRIOR_DRAFTS
        self._belief = [[self.prior * drafts, drafts] for _ in range(self.most)]

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Age what is known and add a step's drafts."""
        if not drafted:
            self._forget()
        for counts, kept in ((self._recent, exp(-1.0 / self.window)), (self._belief, exp(-0.05 / self.window))):
            for place, count in enumerate(counts):
                count[0] *= kept
                count[1] *= kept
                if place < drafted:
                    count[0] += sum(1 for tokens in accepted if tokens > place)
                    count[1] += sum(1 for tokens in accepted if tokens >= place)

    def _forget(self) -> None:
        """Requests that nobody drafted for take the place of those that were seen: a belief comes to weigh less."""
        for count in self._belief:
            kept = min(1.0, REMEMBERED / count[1]) * exp(-1.0 / FORGET) if count[1] > 0 else 1.0
            count[0] *= kept
            count[1] *= kept

    def conditional(self) -> list[float]:
        """The estimates, first position first: the belief of each, all times what the latest drafts say of its level.

        So positions that are not drafted now follow those that are: rates fall by level, not by position.
        """
        beliefs, prior, weight = [], self.prior, 1.0 + (PRIOR_DRAFTS if self.carried else 0.0)
        for accepted, tried in self._belief:
            beliefs.append((accepted + prior * weight) / (tried + weight))
            prior = beliefs[-1] if self.carried else prior
        accepted = sum(count[0] for count in self._recent) + PRIOR_DRAFTS
        expected = sum(count[1] * one for count, one in zip(self._recent, beliefs, strict=True)) + PRIOR_DRAFTS
        return [min(1.0, one * accepted / expected) for one in beliefs]

    def tokens(self) -> list[float]:
        """Expected tokens of a verify step of one sequence by draft tokens, 0 to all; the bonus token included."""
        reached, expected = 1.0, [1.0]
        for rate in self.conditional():
            reached *= rate
            expected.append(expected[-1] + reached)
        return expected


@dataclass(slots=True)
class Gate:
    """Drafts as deep as a position's chance of being accepted stays at or above ``least``; at least one token.

    The batch form of a drafter that stops where its confidence falls: the rates are those seen, not those of a token.

    Source: ``--spec-draft-p-min`` of llama.cpp.
    """

    rates: PositionRates
    least: float
    by_batch_alone: bool = field(init=False, default=False)

    def choose(self, batch: Batch) -> int:
        """The depth up to which every position passes."""
        depth = 0
        for rate in self.rates.conditional():
            if self.bound(rate) < self.least:
                break
            depth += 1
        return max(1, depth)

    def bound(self, rate: float) -> float:
        """What is held against ``least``."""
        return rate

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Learn from a step."""
        self.rates.observe(drafted, accepted)


@dataclass(slots=True)
class EntropyGate(Gate):
    """The same by AdaEDL's lower bound of acceptance from the drafter's entropy, ``1 - sqrt(ENTROPY_WEIGHT * H)``.

    No distribution is seen here: ``H`` is the entropy of accepted against rejected, continued beyond one half so that
    it rises as the rate falls.

    Source: Agrawal et al., "AdaEDL: Early Draft Stopping for Speculative Decoding", 2024, arXiv:2410.18351.
    """

    def bound(self, rate: float) -> float:
        """The lower bound."""
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
    """Seconds by which each K lies behind the leader."""
    _skipped: int = field(init=False, default=0)
    """Tokens that the drafter has not seen while it rested."""
    _context: int = field(init=False, default=0)
    _prompts: float = field(init=False, default=0.0)
    _mixed: float = field(init=False, default=0.0)
    _decoded: float = field(init=False, default=0.0)
    """Of late: tokens of prompts, steps that computed some, and tokens decoded."""

    def __post_init__(self) -> None:
        self._present = self.rates.most
        self._behind = [0.0] * (self.rates.most + 1)

    def choose(self, batch: Batch) -> int:
        """The present K, or the leader once the present one lies behind it by what the change costs."""
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
        """Learn from a step."""
        kept = exp(-1.0 / MIX_STEPS)
        self._prompts, self._mixed = kept * self._prompts, kept * self._mixed
        self._decoded = kept * self._decoded + len(accepted) + sum(accepted)
        self.rates.observe(drafted, accepted)

    def _seconds(self, batch: Batch, expected: Sequence[float]) -> list[float]:
        """Seconds of a step by draft tokens, with its share of the steps that compute the prompts of those to come."""
        if batch.prompt_tokens:
            self._prompts += batch.prompt_tokens
            self._mixed += 1.0
        alone = [priced(self.step_seconds, batch, tokens) for tokens in range(len(expected))]
        if not self._mixed:
            return alone
        prompt = round(self._prompts / self._mixed)
        mixed = [priced(self.step_seconds, batch, tokens, prompt) for tokens in range(len(expected))]
        each = batch.seqs * self._mixed / (self._decoded + MIX_TOKENS)
        # While requests wait, prompts are what steps hold, not what arrives: no more steps than all can have some.
        most = 1.0 if batch.waiting else inf
        shares = [min(most, each * one) for one in expected]
        return [max(0.0, 1.0 - s) * a + s * m for s, a, m in zip(shares, alone, mixed, strict=True)]

    def _cost(self, seqs: int) -> float:
        """Seconds of a change of K now; skipped tokens in steps of a quarter doubling."""
        skipped = 0 if not self._skipped else round(2.0 ** (round(4 * log2(self._skipped)) / 4))
        return max(LEAST_SWITCH_S, self.switch_seconds(seqs, skipped))


@dataclass(slots=True)
class MovingAverageSlot:
    """One batch range of ``ema``: a moving average of accepted tokens, and the K that follows it."""

    candidates: tuple[int, ...]
    """Ascending."""
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
        """Average a step in; decide anew once in ``update_interval`` steps after the warm-up."""
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
        lower = place
        while lower and self.average <= self._floor(self.candidates[lower - 1]) + self.down:
            lower -= 1
        if lower == place:
            while lower < len(self.candidates) - 1 and self.average > self.candidates[lower] - 0.5 + self.up:
                lower += 1
        self.present = self.candidates[lower]

    @staticmethod
    def _floor(tokens: int) -> float:
        """Average at or below which ``tokens`` are enough."""
        return 0.5 if tokens == 0 else tokens - 0.5


@dataclass(slots=True)
class MovingAverage:
    """SGLang's adaptive speculation: K follows a moving average of the accepted tokens, in slots by batch size.

    Differs from SGLang in that batches are not padded to captured sizes before the slot is found, and that a step's
    acceptance takes effect one step later (the next K is fixed when a step is planned, as the drafter runs in it).

    Source: ``AdaptiveStepSlot`` and ``AdaptiveStepRouter`` in SGLang's ``adaptive_spec_params.py`` (2026).
    """

    slots: Mapping[int, MovingAverageSlot]
    """By smallest batch."""
    by_batch_alone: bool = field(init=False, default=False)
    _sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = sorted(self.slots)

    def choose(self, batch: Batch) -> int:
        """The present K of the batch's slot."""
        return self._slot(batch.seqs).present

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Let the slot of the verified batch learn."""
        if accepted:
            self._slot(len(accepted)).observe(accepted)

    def _slot(self, seqs: int) -> MovingAverageSlot:
        return self.slots[self._sizes[max(0, bisect_right(self._sizes, seqs) - 1)]]


def free_switch(seqs: int, skipped: int) -> float:
    """A change of K that takes no time."""
    return 0.0


POLICIES: dict[str, Callable[[int], DraftPolicy]] = {}
"""Registered policies by name; each is called with the draft tokens of a full proposal, once per replica."""


def policy_factory(
    config: PolicyConfig, most: int, step_seconds: StepSeconds, switch_seconds: SwitchSeconds = free_switch
) -> PolicyFactory | None:
    """What makes the policy that a scenario names; None where K never changes.

    Args:
        config: the policy.
        most: draft tokens of a full proposal.
        step_seconds, switch_seconds: the timing model, for policies that ask it.

    Raises:
        ForerunError: no candidate of ``ema`` is at most ``most``.
    """
    if config.name == "fixed":
        return None
    if config.name in POLICIES:
        return partial(POLICIES[config.name], most)
    if config.name == "disable-above-batch":
        above = disable_above(DISABLE_ABOVE if config.batch is None else config.batch, most)
        return lambda: above
    if config.name == "batch-table":
        documented = [[first, last, most if tokens is None else tokens] for first, last, tokens in DOCUMENTED_TABLE]
        table = batch_table(documented if config.table is None else config.table, most)
        return lambda: table
    if config.name == "goodput":
        given = {name: getattr(config, name) for name in ("prior", "window", "hysteresis", "interval")}
        return partial(Goodput, most, step_seconds, **{k: v for k, v in given.items() if v is not None})
    if config.name == "ema":
        slots = _slots(config, most)
        return lambda: MovingAverage(slots())

    def rates(carried: bool = False) -> PositionRates:
        given = {name: getattr(config, name) for name in ("prior", "window") if getattr(config, name) is not None}
        return PositionRates(most, carried=carried, **given)

    if config.name == "forerun":
        return lambda: Forerun(rates(carried=True), step_seconds, switch_seconds)
    gate = Gate if config.name == "p-min" else EntropyGate
    return lambda: gate(rates(), LEAST_BOUND[gate] if config.least is None else config.least)


def _slots(config: PolicyConfig, most: int) -> Callable[[], dict[int, MovingAverageSlot]]:
    by_batch: Mapping[int, Sequence[int]] = SGLANG_CANDIDATES
    if config.candidates is not None:
        by_batch = config.candidates if isinstance(config.candidates, dict) else {1: config.candidates}
    candidates = {size: tuple(sorted({k for k in tokens if k <= most})) for size, tokens in by_batch.items()}
    for size, tokens in candidates.items():
        if not tokens:
            raise ForerunError(
                f"speculation.policy.candidates: none of {list(by_batch[size])} for batches from {size} is at most the "
                f"{most} draft tokens of the scenario"
            )

    def down(size: int) -> float:
        usual = SGLANG_DOWN_HYSTERESIS if size < SGLANG_SMALL_BATCH else 0.0
        return usual if config.down_hysteresis is None else config.down_hysteresis

    def make() -> dict[int, MovingAverageSlot]:
        return {
            size: MovingAverageSlot(
                tokens,
                present=most,
                alpha=0.2 if config.ema_alpha is None else config.ema_alpha,
                update_interval=config.update_interval or 5,
                warmup=10 if config.warmup_batches is None else config.warmup_batches,
                up=config.up_hysteresis or 0.0,
                down=down(size),
            )
            for size, tokens in candidates.items()
        }

    return make


def check_policy(make_policy: PolicyFactory, most: int, max_seqs: int = 64) -> None:
    """Check a policy against what the engine asks of it, on a short history of random acceptance.

    Checked are: that every choice is a whole number from 0 to ``most``, that two policies with the same history choose
    alike (runs are reproducible), and that one which says ``by_batch_alone`` heeds neither contexts nor history.

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
