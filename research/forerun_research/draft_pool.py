"""Drafters on chips of their own that several verifiers share: queue, common batches, drafting ahead, loss of one.

Every verifier decodes a steady batch: it verifies, tells the drafter that holds its sequences' KV, and waits for the
next drafts. A drafter takes what waits in its queue, up to ``max_batch`` verifiers at once, in one pass over all of it.
Arrivals of requests are left out: the batch of a verifier is given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
import simpy

from forerun import ForerunError, Scenario
from forerun.parts import (
    ACCEPTANCE_FACTORS,
    ModelTimer,
    RemoteDrafter,
    StepWork,
    build_replica,
    decode_step,
    decode_work,
    draft_survival,
    drafting_gain,
    with_acceptance_scaled,
)
from forerun.studies import (
    Cell,
    ProgressCall,
    StudyResult,
    Summary,
    Table,
    Value,
    percent,
    scenario_file,
    study_document,
)

Process = Generator[simpy.Event, Any, None]
STEPS = 200
"""Steps of a verifier from which a rate is taken."""
WAYS = {"after": "after the verdict", "ahead": "ahead of it"}
"""When drafters draft: once the tokens of a step are known, or while it is verified, with roll-back."""
OF_ITS_CHIPS = ("chip", "link", "overlap", "tensor_parallel", "weights_dtype")
"""Fields of a drafter that apply only where it has chips of its own."""


class PoolPrices(NamedTuple):
    """Seconds of each action of verifiers and drafters; all verifiers have the same batch size."""

    batch: int
    verify_s: float
    """Seconds of a step that verifies drafts."""
    plain_s: float
    """Seconds of a step without drafts."""
    draft_s: Callable[[int], float]
    """Seconds of a drafter's pass, by the number of sequences that it drafts for."""
    prefill_s: float
    """Seconds of a drafter's pass over the contexts of a verifier that is new to it."""
    there_s: float
    """Seconds of the message from verifier to drafter with the tokens of a step."""
    back_s: float
    """Seconds of the message from drafter to verifier with the drafts."""
    accepted: float
    """Mean draft tokens accepted per sequence and step."""
    ahead: float
    """Chance that a sequence goes on as its drafter did without waiting. All drafts are then accepted, and the next
    token is guessed; 0 for heads, which read the hidden states of the target."""


def pool_prices(scenario: Scenario, batch: int, context_tokens: int) -> PoolPrices:
    """Prices of a scenario whose drafter has chips of its own.

    The next token is taken to be guessed as often as the last draft token is accepted after all before it.
    """
    speculation = scenario.speculation
    build = build_replica(scenario)
    timer = build.main.timer
    if speculation is None or not isinstance(timer, ModelTimer) or not isinstance(timer.drafter, RemoteDrafter):
        raise ForerunError(
            "speculation.draft.chip: a pool of drafters needs a drafter on chips of its own, such as "
            "speculation.draft: {model: llama-3.2-1b, chip: h100-sxm, link: infiniband-ndr} (examples/draft-pool.yaml)"
        )
    drafter = timer.drafter
    if drafter.overlap:
        raise ForerunError("speculation.draft.overlap: draft-pool tests it both on and off; remove it")
    if timer.adjusted is not None:
        raise ForerunError("speculation.policy: a pool drafts a fixed number of tokens; leave the policy out")
    limits = build.main.limits
    needed = batch * limits.blocks(context_tokens + limits.lookahead_tokens)
    if needed > limits.num_blocks:
        raise ForerunError(f"batch: {batch} sequences of {context_tokens} tokens do not fit the KV cache; take fewer")

    def drafting(work: StepWork[Any]) -> float:
        return float(sum(part.seconds() for part in drafter.parts(work) if part.kind != "link"))

    def drafts(seqs: int) -> float:
        return drafting(decode_step(drafter.windows, seqs, limits.query_len, context_tokens))

    work = decode_step(drafter.windows, batch, limits.query_len, context_tokens)
    there_s, back_s = float(drafter.there_s(work)), float(drafter.back_s(work))
    step = float(timer.seconds(decode_step(timer.windows, batch, limits.query_len, context_tokens)))
    chunk = min(context_tokens, drafter.inner.step.max_tokens)
    pairs = tuple(chunk * context_tokens // 2 if w is None else chunk * min(w, context_tokens) for w in drafter.windows)
    prompt = drafting(
        decode_work(0, 1, (0,) * len(pairs))._replace(
            prefill_seqs=1, prefill_tokens=chunk, prefill_pairs=pairs, prefill_kv_tokens=(context_tokens,) * len(pairs)
        )
    )
    survival = draft_survival(speculation)
    before = survival[-2] if len(survival) > 1 else 1.0
    guessed = survival[-1] / before if before else 0.0
    return PoolPrices(
        batch=batch,
        verify_s=step - drafts(batch) - there_s - back_s,
        plain_s=float(replace(timer, drafter=None).seconds(decode_step(timer.windows, batch, 1, context_tokens))),
        draft_s=drafts,
        prefill_s=batch * (context_tokens / chunk) * prompt,
        there_s=there_s,
        back_s=back_s,
        accepted=float(np.sum(survival)),
        ahead=0.0 if drafter.state_bytes else float(survival[-1] * guessed),
    )


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Numbers of verifiers and drafters in a pool, and how drafters work."""

    verifiers: int
    drafters: int = 1
    max_batch: int = 1
    """Verifiers whose drafts a drafter computes together."""
    ahead: bool = False
    """True if drafters go on while a step verifies; sequences that went another way are drafted again."""
    lost_s: float | None = None
    """When the first drafter is lost; its verifiers decode without drafts until another has read their contexts."""

    def __post_init__(self) -> None:
        for name in ("verifiers", "drafters", "max_batch"):
            if getattr(self, name) < 1:
                raise ForerunError(f"{name}: at least one (got {getattr(self, name)})")


@dataclass(slots=True)
class PoolRun:
    """Counts of a pool. ``submitted`` jobs are those done, dropped (rolled back before they began), lost, or still
    there."""

    tokens_per_s: float = 0.0
    """Throughput of all verifiers, each from its first step to its last."""
    step_s: float = 0.0
    """Mean seconds from step to step, over all verifiers."""
    use: float = 0.0
    """Share of time at which drafters draft."""
    end_s: float = 0.0
    submitted: int = 0
    done: int = 0
    dropped: int = 0
    lost: int = 0
    waiting: int = 0
    plain_steps: int = 0
    together: float = 0.0
    """Mean number of verifiers in a drafter's pass."""
    ends: list[list[float]] = field(default_factory=list)
    """Times, in seconds, at which the steps of each verifier end."""


@dataclass(slots=True, eq=False)
class _Job:
    seqs: int
    seconds: float | None
    """Duration of work other than drafting."""
    result: simpy.Event
    """Triggered when the job ends; its value is whether there is a result."""


class _Pool:
    """Verifiers, drafters and their queues in simulated time."""

    def __init__(self, prices: PoolPrices, shape: PoolShape, steps: int, seed: int) -> None:
        self.env = simpy.Environment()
        self.prices, self.shape, self.steps = prices, shape, steps
        self.random = np.random.default_rng(seed)
        self.queues: list[list[_Job]] = [[] for _ in range(shape.drafters)]
        self.came = [self.env.event() for _ in range(shape.drafters)]
        self.alive = [True] * shape.drafters
        self.lost = self.env.event()
        self.finished = [self.env.event() for _ in range(shape.verifiers)]
        """Nobody stops before all are done, so that the last ones do not have the drafters to themselves."""
        self.busy_s, self.passes, self.served, self.tokens = 0.0, 0, 0, [0.0] * shape.verifiers
        self.run = PoolRun(ends=[[] for _ in range(shape.verifiers)])

    def result(self) -> PoolRun:
        """Simulate until every verifier has done its steps; returns the counts."""
        env, run = self.env, self.run
        for drafter in range(self.shape.drafters):
            env.process(self.draft(drafter))
        if self.shape.lost_s is not None:
            env.process(self.lose(self.shape.lost_s))
        for number in range(self.shape.verifiers):
            env.process(self.verify(number))
        env.run(until=env.all_of(self.finished))
        run.end_s = float(env.now)
        run.waiting = run.submitted - run.done - run.dropped - run.lost
        gaps = [(ends[-1] - ends[0]) / (len(ends) - 1) for ends in run.ends]
        rates = [tokens / (ends[-1] - ends[0]) for tokens, ends in zip(self.tokens, run.ends, strict=True)]
        run.step_s, run.tokens_per_s = float(np.mean(gaps)), float(np.sum(rates))
        run.use = self.busy_s / (run.end_s * self.shape.drafters)
        run.together = self.served / max(1, self.passes)
        return run

    def ask(self, home: int, seqs: int, seconds: float | None = None) -> _Job:
        """Add a job to a drafter's queue."""
        job = _Job(seqs, seconds, self.env.event())
        self.run.submitted += 1
        self.queues[home].append(job)
        if not self.came[home].triggered:
            self.came[home].succeed()
        return job

    def finish(self, job: _Job, fate: str) -> None:
        setattr(self.run, fate, getattr(self.run, fate) + 1)
        job.result.succeed(fate == "done")

    def draft(self, drafter: int) -> Process:
        """Serve the jobs in a drafter's queue, one pass at a time, until the drafter is lost."""
        env, queue = self.env, self.queues[drafter]
        while True:
            if not queue:
                self.came[drafter] = env.event()
                yield self.came[drafter] | self.lost if drafter == 0 else self.came[drafter]
            if not self.alive[drafter]:
                return
            taken = queue[: self.shape.max_batch]
            del queue[: len(taken)]
            seqs = sum(job.seqs for job in taken)
            seconds = sum(job.seconds or 0.0 for job in taken) + (self.prices.draft_s(seqs) if seqs else 0.0)
            began = env.now
            yield env.timeout(seconds) | self.lost if drafter == 0 and self.alive[0] else env.timeout(seconds)
            self.busy_s += env.now - began
            if not self.alive[drafter]:
                for job in taken:
                    self.finish(job, "lost")
                return
            self.passes, self.served = self.passes + 1, self.served + len(taken)
            for job in taken:
                self.finish(job, "done")

    def lose(self, at_s: float) -> Process:
        """Remove the first drafter and every job in its queue."""
        yield self.env.timeout(at_s)
        self.alive[0] = False
        self.lost.succeed()
        for job in self.queues[0]:
            self.finish(job, "lost")
        self.queues[0].clear()

    def home(self, verifier: int) -> int | None:
        alive = [number for number, lives in enumerate(self.alive) if lives]
        drafter = verifier % self.shape.drafters
        return drafter if self.alive[drafter] else alive[verifier % len(alive)] if alive else None

    def verify(self, verifier: int) -> Process:
        """Run the steps of a verifier, with drafts while a drafter is available."""
        env, prices, ends = self.env, self.prices, self.run.ends[verifier]
        home, reading = self.home(verifier), None
        drafted: Any = True
        yield env.timeout(prices.verify_s * verifier / self.shape.verifiers)  # not all in step from the start
        while True:
            gained = prices.batch * (1.0 + (prices.accepted if drafted else 0.0))
            if drafted:
                assert home is not None
                drafted = yield env.process(self.with_drafts(home))
            else:
                self.run.plain_steps += 1
                yield env.timeout(prices.plain_s)
                if reading is None and (home := self.home(verifier)) is not None:
                    reading = self.ask(home, 0, prices.prefill_s)
                elif reading is not None and reading.result.processed:
                    assert home is not None
                    drafted = bool(reading.result.value) and (yield env.process(self.next_drafts(home, prices.batch)))
                    reading = None
            ends.append(float(env.now))
            if len(ends) > 1:
                self.tokens[verifier] += gained
            if len(ends) == self.steps + 1:
                self.finished[verifier].succeed()

    def with_drafts(self, home: int) -> Generator[simpy.Event, Any, bool]:
        """One verification and the drafts that follow; whether these came."""
        prices = self.prices
        early = self.ask(home, prices.batch) if self.shape.ahead and self.alive[home] else None
        yield self.env.timeout(prices.verify_s)
        kept = int(self.random.binomial(prices.batch, prices.ahead)) if early is not None else 0
        came: bool = yield self.env.process(self.next_drafts(home, prices.batch - kept, early, kept))
        return came

    def next_drafts(
        self, home: int, seqs: int, early: _Job | None = None, kept: int = 0
    ) -> Generator[simpy.Event, Any, bool]:
        """Tell the drafter, wait for drafts of ``seqs`` sequences and for those begun early that are kept."""
        yield self.env.timeout(self.prices.there_s)
        if early is not None and not kept and early in self.queues[home]:
            self.queues[home].remove(early)
            self.finish(early, "dropped")
        if not self.alive[home]:
            return False
        wanted = [self.ask(home, seqs)] if seqs else []
        wanted += [early] if early is not None and kept else []
        for job in wanted:
            if not (yield job.result):
                return False
        yield self.env.timeout(self.prices.back_s)
        return True


def run_pool(prices: PoolPrices, shape: PoolShape, steps: int = STEPS, seed: int = 0) -> PoolRun:
    """Verifiers and drafters until every verifier has taken its number of steps after its first."""
    return _Pool(prices, shape, steps, seed).result()


def target_chips_gain(scenario: Scenario, batch: int, context_tokens: int) -> float | None:
    """Gain over plain steps of the scenario's drafter on the verifier's own chips; None where it has no room there."""
    assert scenario.speculation is not None
    assert scenario.speculation.draft is not None
    kept = scenario.speculation.draft.model_dump(exclude_unset=True, exclude={*OF_ITS_CHIPS})
    try:
        build = build_replica(scenario.with_values({"speculation.draft": kept}))
    except ForerunError:
        return None
    return drafting_gain(build.main, scenario.speculation, batch, context_tokens)


class PoolGain(NamedTuple):
    """Throughput of verifiers that share drafters relative to the same verifiers without drafts."""

    verifiers_per_drafter: float
    gain: float
    step_s: float
    use: float


def pool_gains(
    prices: PoolPrices, shares: Sequence[int], max_batch: int = 1, ahead: bool = False, seed: int = 0
) -> list[PoolGain]:
    """One drafter for each number of verifiers in ``shares``."""
    gains = []
    for verifiers in shares:
        run = run_pool(prices, PoolShape(verifiers, 1, max_batch, ahead), seed=seed)
        plain_rate = verifiers * prices.batch / prices.plain_s
        gains.append(PoolGain(verifiers, run.tokens_per_s / plain_rate, run.step_s, run.use))
    return gains


def break_even(gains: Sequence[PoolGain], worth: float = 1.0) -> float | None:
    """Most verifiers per drafter that still gain ``worth``, linear between points in the logarithm of their number.

    None where even the fewest do not gain that; infinite where the most still do.
    """
    above = [number for number, gain in enumerate(gains) if gain.gain >= worth]
    if not above:
        return None
    last = above[-1]
    if last + 1 == len(gains):
        return float("inf")
    (few, high), (many, low) = (gains[last][:2], gains[last + 1][:2])
    return float(few * (many / few) ** ((high - worth) / (high - low)))


def pool_result(
    base: Scenario,
    batch: int,
    context_tokens: int,
    shares: Sequence[int],
    max_batch: int,
    seed: int,
    progress: ProgressCall | None,
) -> DraftPoolResult:
    """The study of ``draft_pool`` for ascending numbers of verifiers."""
    ends = [with_acceptance_scaled(base, factor) for factor in ACCEPTANCE_FACTORS]
    middle, *others = (pool_prices(one, batch, context_tokens) for one in (base, *ends))
    ways = {}
    for number, way in enumerate(WAYS):
        curves = [pool_gains(prices, shares, max_batch, way == "ahead", seed) for prices in (middle, *others)]
        ways[way] = _way(curves)
        if progress is not None:
            progress(number + 1, len(WAYS) + 1)
    body = {
        "batch": batch,
        "context_tokens": context_tokens,
        "max_batch": max_batch,
        "acceptance_factors": list(ACCEPTANCE_FACTORS),
        "prices": {**middle._asdict(), "draft_s": middle.draft_s(batch)},
        "target_chips_gain": target_chips_gain(base, batch, context_tokens),
        "ways": ways,
        "loss": _loss(middle, ways, max_batch, seed),
    }
    notes = (
        "steady batches of equal sequences: read the gains as those of a loaded fleet",
        "ranges are the given acceptance times 0.9 and 1.1; kernels have errors of their own",
        "no pool of drafters was measured",
    )
    document = study_document(body | {"conclusion": _sentence(body)}, base, seed, "extrapolated", notes)
    return DraftPoolResult(document, files=scenario_file(document))


def _way(curves: Sequence[Sequence[PoolGain]]) -> dict[str, Any]:
    """Gains and the break-even of the middle curve, with the ends that all curves span."""
    rows = []
    for points in zip(*curves, strict=True):
        gains = [point.gain for point in points]
        rows.append({**points[0]._asdict(), "low": min(gains), "high": max(gains)})
    break_evens = [break_even(curve) for curve in curves]
    low, high = (pick(break_evens, key=lambda one: one or 0.0) for pick in (min, max))
    return {"gains": rows, "break_even": {"value": break_evens[0], "low": low, "high": high}}


def _loss(prices: PoolPrices, ways: Mapping[str, Any], max_batch: int, seed: int) -> dict[str, Any] | None:
    """Two drafters with the most verifiers that still gain, one drafter lost after a quarter of the run."""
    paying = [row["verifiers_per_drafter"] for row in ways["after"]["gains"] if row["gain"] >= 1.0]
    if not paying:
        return None
    shape = PoolShape(2 * max(paying), 2, max_batch)
    whole = run_pool(prices, shape, seed=seed)
    lost = run_pool(prices, replace(shape, lost_s=whole.end_s / 4), seed=seed)
    plain = shape.verifiers * prices.batch / prices.plain_s
    gains = {"gain": whole.tokens_per_s / plain, "gain_with_loss": lost.tokens_per_s / plain}
    return {**asdict(shape), "lost_s": whole.end_s / 4, **gains, "plain_steps": lost.plain_steps}


def _verifiers(break_even: Mapping[str, float | None], most: float) -> str:
    """A break-even in words, with its range."""

    def words(value: float | None) -> str:
        return "none" if value is None else f"more than {most:g}" if value == inf else f"{value:.1f}"

    middle, low, high = (words(break_even[key]) for key in ("value", "low", "high"))
    return middle if low == high else f"{middle} ({low} to {high})"


def _sentence(document: Mapping[str, Any]) -> str:
    ways = document["ways"]
    most = ways["after"]["gains"][-1]["verifiers_per_drafter"]
    pays = " and ".join(f"{_verifiers(ways[way]['break_even'], most)} drafting {words}" for way, words in WAYS.items())
    gain, at, way = max(
        (row["gain"], row["verifiers_per_drafter"], WAYS[way]) for way, one in ways.items() for row in one["gains"]
    )
    text = (
        f"Verifiers of {document['batch']} sequences that one drafter pays for: {pays}; most is gained, {gain:.2f}x, "
        f"where it serves {at} and drafts {way}"
    )
    same_chips_gain, loss = document["target_chips_gain"], document["loss"]
    if same_chips_gain is not None:
        text += f" ({same_chips_gain:.2f}x with the drafter on the verifier's own chips)"
    if loss is not None:
        ends = f"{loss['gain']:.2f}x to {loss['gain_with_loss']:.2f}x"
        text += f". Losing one of two drafters a quarter into a run takes {loss['verifiers']} verifiers from {ends}"
    return text + "."


class DraftPoolResult(StudyResult):
    """Gain by verifiers per drafter; its data frame has a row for each number and way of drafting."""

    kind = "draft-pool"
    drawn_in = "forerun_research.draft_pool_figures"

    @property
    def title(self) -> str:
        scenario = self.document["scenario"]
        return f"{self.model} on {scenario['hardware']['chip']}: drafts from {scenario['speculation']['draft']['chip']}"

    @property
    def marks(self) -> Sequence[str]:
        return f"{self.document['batch']} sequences each", f"{self.document['context_tokens']:,} tokens of context"

    @property
    def summary(self) -> Summary:
        pays = {f"pays_{way}": one["break_even"]["value"] for way, one in self.document["ways"].items()}
        return Summary({**pays, "target_chips_gain": self.document["target_chips_gain"], "answer": self.conclusion})

    def records(self) -> list[dict[str, Any]]:
        return [{"drafting": way, **row} for way, one in self.document["ways"].items() for row in one["gains"]]

    def tables(self) -> list[Table]:
        rows: list[list[Value]] = [
            [
                WAYS[row["drafting"]],
                row["verifiers_per_drafter"],
                Cell(f"{row['gain']:.2f}x", value=row["gain"], tone="good" if row["gain"] >= 1.0 else "bad"),
                f"{row['low']:.2f} to {row['high']:.2f}",
                Cell(percent(row["use"]), value=row["use"]),
                Cell(f"{1e3 * row['step_s']:.2f}", value=row["step_s"]),
            ]
            for row in self.records()
        ]
        columns = ("drafting", "verifiers", "gain", "range", "drafter at work", "step (ms)")
        names = {"verify_s": "verification", "plain_s": "step without drafts", "draft_s": "drafts of one verifier"}
        names |= {"prefill_s": "contexts read anew", "there_s": "tokens sent", "back_s": "drafts sent"}
        prices = self.document["prices"]
        parts = [(says, f"{1e3 * prices[key]:.2f}") for key, says in names.items()]
        return [
            Table("Tokens per second over the same verifiers without drafts", columns, rows, name="gains"),
            Table("What it is made of", ("", "ms"), parts, name="prices"),
        ]
