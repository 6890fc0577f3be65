"""Policies: how many tokens to draft for the next step, from the batch, the clock and what was accepted so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from typing import Protocol, runtime_checkable

from simulator.errors import ForerunError
from simulator.speculation.config import PolicyConfig, check_table

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
"""Mean contexts within so many tokens are priced alike by ``goodput``."""

StepSeconds = Callable[[int, int, int], float]
"""Seconds of a decode step by (sequences, draft tokens of each, mean context), drafting included."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a policy is told when a step is planned."""

    seqs: int
    """Requests in the step, those in prefill included; what they draft is verified in the next step."""
    context_tokens: int
    """Tokens in the KV cache of all of them before the step."""


@runtime_checkable
class DraftPolicy(Protocol):
    """A plug-in point: chooses the draft tokens of each step of one replica. ``check_policy`` tries an own one.

    Asked while a step is planned, as vLLM's scheduler looks its table up: the drafter proposes as many tokens at the
    end of that step, and the next step verifies them.
    """

    @property
    def by_batch_alone(self) -> bool:
        """Whether the choice depends on ``Batch.seqs`` and nothing else; only then equal steps are taken together."""

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
    _asked: int = field(init=False, default=0)
    _seconds: dict[tuple[int, int, int], float] = field(init=False, default_factory=dict)

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
        self._asked += 1
        if batch.seqs and self._asked % self.interval == 0:
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
        cell = batch.context_tokens // (batch.seqs * CONTEXT_CELL)
        key = (batch.seqs, tokens, cell)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self.step_seconds(batch.seqs, tokens, cell * CONTEXT_CELL + CONTEXT_CELL // 2)
            self._seconds[key] = seconds
        return batch.seqs * expected / seconds


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


def policy_factory(config: PolicyConfig, most: int, step_seconds: StepSeconds) -> PolicyFactory | None:
    """What makes the policy that a scenario names; None where K never changes.

    Args:
        config: the policy.
        most: draft tokens of a full proposal.
        step_seconds: the timing model, for policies that ask it.

    Raises:
        ForerunError: no candidate of ``ema`` is at most ``most``.
    """
    if config.name == "fixed":
        return None
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
    slots = _slots(config, most)
    return lambda: MovingAverage(slots())


def _slots(config: PolicyConfig, most: int) -> Callable[[], dict[int, MovingAverageSlot]]:
    asked: Mapping[int, Sequence[int]] = SGLANG_CANDIDATES
    if config.candidates is not None:
        asked = config.candidates if isinstance(config.candidates, dict) else {1: config.candidates}
    candidates = {size: tuple(sorted({k for k in tokens if k <= most})) for size, tokens in asked.items()}
    for size, tokens in candidates.items():
        if not tokens:
            raise ForerunError(
                f"speculation.policy.candidates: none of {list(asked[size])} for batches from {size} is at most the "
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
        raise ForerunError(f"{name} lacks something that simulator.speculation.DraftPolicy asks for")
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
