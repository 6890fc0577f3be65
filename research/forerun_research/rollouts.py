"""Responses of a training step: a burst that shares prompts, its long tail, and drafts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from forerun import ForerunError, RunResult, Scenario, simulate
from forerun.parts import (
    Build,
    FloatArray,
    IntArray,
    ModelTimer,
    PrefixHashes,
    RequestStream,
    build_replica,
    drafting_gain,
    draw_lengths,
    fleet_cost_usd,
    serve,
    with_acceptance_scaled,
)
from forerun.studies import (
    ArgumentError,
    Cell,
    ProgressCall,
    StudyResult,
    Summary,
    Table,
    Value,
    duration,
    number,
    scenario_file,
    study_document,
)

NO_DRAFTS, ALWAYS, IN_TAIL, FREE_SWITCH = "no drafts", "always", "in the tail", "in the tail, free switch"
NO_HOST_COST = {"step_s": 0.0, "per_sequence_s": 0.0}
FIRST_STEPS = 4
"""Steps until the responses that one step leaves to the next are those of a long training (partial rollouts)."""
MOST_AGES = 4
"""Ages of the drafter that are simulated; between them step times are interpolated."""
CURVE_POINTS = 100


class Responses(NamedTuple):
    """Responses in progress at the start of a step; the groups' prompts are numbered, from 0."""

    prompt_tokens: IntArray
    prompt: IntArray
    generated: IntArray
    """Tokens that earlier steps generated; the engine computes their KV again."""
    remaining: IntArray

    def stream(self, block_tokens: int) -> RequestStream:
        """Requests of a burst; the whole blocks of a prompt are the same for its group."""
        tokens = self.prompt_tokens + self.generated
        own = np.arange(len(tokens))
        hashes = PrefixHashes.of_groups(tokens, self.prompt_tokens, self.prompt, own, block_tokens)
        return RequestStream(np.zeros(len(tokens)), tokens, self.remaining, None, prefix_hashes=hashes)

    def after(self, generated: IntArray) -> Responses:
        """Responses that have not ended after ``generated`` further tokens of each."""
        left = generated < self.remaining
        parts = self.prompt_tokens, self.prompt, self.generated + generated, self.remaining - generated
        return Responses(*(part[left] for part in parts))


def new_responses(scenario: Scenario, count: int, group: int, rng: np.random.Generator, first: int) -> Responses:
    """``count`` responses to new prompts, numbered from ``first``, with the lengths of the scenario's workload."""
    workload = scenario.workload
    assert workload.input_tokens is not None
    assert workload.output_tokens is not None
    prompts = draw_lengths(workload.input_tokens, ceil(count / group), rng)
    prompt = np.arange(count) // group
    output = draw_lengths(workload.output_tokens, count, rng)
    return Responses(prompts[prompt], first + prompt, np.zeros(count, dtype=np.int64), output)


class GeneratedStep(NamedTuple):
    """Generation of one training step."""

    seconds: float
    """Until the step has the responses it needs."""
    tokens: int
    """Tokens generated until then."""
    ends_s: FloatArray
    """Times at which responses ended, ascending, up to ``seconds``."""
    left: Responses
    accepted: float
    """Mean tokens per sequence and verification, the bonus token included; 1 without drafts."""


def generate_step(scenario: Scenario, responses: Responses, needed: int, seed: int, block_tokens: int) -> GeneratedStep:
    """Simulate the responses until ``needed`` of them have ended."""
    requests = serve(scenario, seed, responses.stream(block_tokens)).requests
    if requests.failed.any():
        raise ForerunError(
            f"workload: {int(requests.failed.sum())} responses cannot be served; their prompt and output need more KV "
            "blocks, or a longer engine.max_model_len, than there is"
        )
    ends = np.sort(requests.finished_s)
    seconds = float(ends[needed - 1])
    share = (seconds - requests.first_token_s) / np.maximum(requests.finished_s - requests.first_token_s, 1e-12)
    ahead = np.floor(1 + (responses.remaining - 1) * np.clip(share, 0.0, 1.0)).astype(np.int64)
    ahead = np.where(requests.first_token_s > seconds, 0, np.minimum(ahead, responses.remaining - 1))
    generated = np.where(requests.finished_s <= seconds, responses.remaining, ahead)
    left = responses.after(generated)
    drafts = int(requests.drafts.sum())
    accepted = 1.0 + float(requests.accepted_tokens.sum()) / drafts if drafts else 1.0
    return GeneratedStep(seconds, int(generated.sum()), ends[:needed], left, accepted)


def tail_batch(scenario: Scenario, build: Build, responses: Responses) -> int:
    """Largest batch of a replica up to which drafting is faster than plain steps; 0: none.

    The gain is taken at the context that the last b responses of a replica have: its prompts, and the tokens after
    which all but b responses have ended.
    """
    speculation, replicas = scenario.speculation, scenario.hardware.replicas
    assert speculation is not None
    if not isinstance(build.main.timer, ModelTimer):
        raise ForerunError("attention_speculation: rollouts are about drafts; remove it")
    most = min(ceil(len(responses.remaining) / replicas), build.main.limits.max_num_seqs)
    pays = 0
    for batch in sorted({*range(1, min(most, 16) + 1), *np.geomspace(1, most, 40).round().astype(int).tolist()}):
        ended = max(0.0, 1.0 - batch * replicas / len(responses.remaining))
        context = int(np.mean(responses.prompt_tokens) + np.quantile(responses.remaining, ended) / 2 * (1 + ended))
        if drafting_gain(build.main, speculation, batch, context) <= 1.0:
            break
        pays = batch
    return pays


def rollouts_result(
    scenario: Scenario, options: Mapping[str, Any], seed: int, progress: ProgressCall | None
) -> RolloutsResult:
    """Steps of every way to draft, at every age of the drafter."""
    study = _Rollouts(_checked(scenario), options, seed, progress)
    body = study.body()
    basis = study.shown.basis
    notes = [*dict.fromkeys(study.shown.notes)]
    if options["oversample"] > 1:
        notes.append("responses that a step leaves have as many tokens as their own mean rate gives")
    document = study_document(body | {"conclusion": _sentence(body)}, scenario, seed, basis, notes)
    return RolloutsResult(document, files=scenario_file(document))


def _checked(scenario: Scenario) -> Scenario:
    workload, speculation = scenario.workload, scenario.speculation
    if workload.input_tokens is None or workload.sessions is not None:
        raise ForerunError("workload: rollouts draw prompts and responses; give input_tokens and output_tokens alone")
    if workload.arrivals is None or workload.arrivals.process != "burst":
        raise ForerunError("workload.arrivals: a training step sends its prompts at once; write {process: burst}")
    if speculation is not None and speculation.policy not in ("fixed", None):
        raise ForerunError("speculation.policy: rollouts compares when to draft; remove it")
    return scenario


class _Rollouts:
    """The simulations of a study."""

    def __init__(
        self, scenario: Scenario, options: Mapping[str, Any], seed: int, progress: ProgressCall | None
    ) -> None:
        self.options, self.seed, self.progress = options, seed, progress
        self.needed = int(scenario.workload.num_requests or 0)
        self.started = ceil(self.needed * options["oversample"])
        for name, count in (("workload.num_requests", self.needed), ("oversample", self.started)):
            if count % options["group"]:
                raise ForerunError(
                    f"{name}: {count} responses do not make whole groups of {options['group']} (--group)"
                )
        self.build = build_replica(scenario)
        self.block_tokens = self.build.main.limits.block_size
        drafting = scenario.speculation is not None and scenario.speculation.method != "none"
        given = {"acceptance_loss": options["acceptance_loss"] > 0, "drafter_every": options["drafter_every"] > 1}
        ageing = drafting and all(given.values())
        for name, changed in given.items():
            if changed and not ageing:
                needed = "a drafter, --acceptance-loss and --drafter-every together"
                raise ArgumentError(name, f"has no effect without {needed}; remove it or give all of them")
        self.ways = {NO_DRAFTS: scenario.with_values({"speculation": None}) if drafting else scenario}
        self.tail = 0
        if drafting:
            self.ways[ALWAYS] = scenario
            first = new_responses(scenario, self.started, options["group"], np.random.default_rng(seed), 0)
            replicas = scenario.hardware.replicas
            self.tail = tail_batch(scenario, self.build, first)
            if 0 < self.tail < min(ceil(self.started / replicas), self.build.main.limits.max_num_seqs):
                policy = {"name": "disable-above-batch", "batch": self.tail}
                self.ways[IN_TAIL] = scenario.with_values({"speculation.policy": policy})
                self.ways[FREE_SWITCH] = scenario.with_values({"speculation.policy": policy | NO_HOST_COST})
        last = options["drafter_every"] - 1
        self.ages = np.unique(np.linspace(0, last, MOST_AGES).round().astype(int)).tolist() if ageing else [0]
        warm_up = FIRST_STEPS - 1 if options["oversample"] > 1 else 0
        self.runs = 1 + sum(warm_up + (1 if way == NO_DRAFTS else len(self.ages)) for way in self.ways)
        self.done = 0
        self.shown: RunResult

    def _advance(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.runs)

    def _responses(self, left: Responses | None, step: int) -> Responses:
        """Responses that the step before left, and new ones in whole groups; the same draws for every way."""
        missing = self.started - (0 if left is None else len(left.remaining))
        rng = np.random.default_rng([self.seed, step] if step else self.seed)
        new = new_responses(self.ways[NO_DRAFTS], missing, self.options["group"], rng, step * self.started)
        return new if left is None else Responses(*map(np.concatenate, zip(left, new, strict=True)))

    def steps(self, scenario: Scenario, ages: Sequence[int]) -> list[GeneratedStep]:
        """A step of a long training at each age of the drafter."""
        responses = self._responses(None, 0)
        for step in range(1, FIRST_STEPS if self.options["oversample"] > 1 else 1):
            left = generate_step(scenario, responses, self.needed, self.seed, self.block_tokens).left
            responses = self._responses(left, step)
            self._advance()
        made = []
        for age in ages:
            aged = with_acceptance_scaled(scenario, (1.0 - self.options["acceptance_loss"]) ** age) if age else scenario
            made.append(generate_step(aged, responses, self.needed, self.seed, self.block_tokens))
            self._advance()
        return made

    def body(self) -> dict[str, Any]:
        """The study's own part of the document."""
        options, every = self.options, self.options["drafter_every"]
        sync_s = self.build.main.memory.weight_bytes / (options["sync_gb_s"] * 1e9)
        rows: dict[str, dict[str, Any]] = {}
        for way, scenario in self.ways.items():
            ages = [0] if way == NO_DRAFTS else self.ages
            steps = self.steps(scenario, ages)
            seconds = np.interp(np.arange(every), ages, [step.seconds for step in steps])
            generation = float(np.mean(seconds))
            step_s = generation + sync_s + options["train_s"]
            rows[way] = {
                "drafting": way,
                "generation_s": generation,
                "step_s": step_s,
                "steps_per_day": 86400.0 / step_s,
                "tokens_per_s": steps[0].tokens / steps[0].seconds,
                "acceptance_length": steps[0].accepted,
                "by_age": [
                    {"age": age, "generation_s": step.seconds, "acceptance_length": step.accepted}
                    for age, step in zip(ages, steps, strict=True)
                ],
                "curve": _curve(steps[0], self.started),
            }
        plain = rows[NO_DRAFTS]
        for row in rows.values():
            row["speedup"], row["step_speedup"] = (plain[key] / row[key] for key in ("generation_s", "step_s"))
        available = [row for way, row in rows.items() if way != FREE_SWITCH]
        best = min(available, key=lambda row: row["generation_s"])
        stream = self._responses(None, 0).stream(self.block_tokens)
        self.shown = simulate(self.ways[best["drafting"]], self.seed, full_step_rows=0, stream=stream, intervals=True)
        self._advance()
        ends = self.shown.document["intervals"]["output_throughput"]
        low, high = (self.shown.summary["output_throughput"] / end for end in reversed(ends))
        for row in rows.values():
            row["generation_interval_s"] = [row["generation_s"] * low, row["generation_s"] * high]
            row["usd_per_step"] = fleet_cost_usd(self.shown, row["step_s"])
        return {
            "responses": self.needed,
            **options,
            "sync_s": sync_s,
            "tail_batch": self.tail,
            "best": best["drafting"],
            "ways": list(rows.values()),
        }


def _curve(step: GeneratedStep, started: int) -> list[list[float]]:
    """Responses in progress over time, as (seconds, responses) at evenly spaced times."""
    at_s = np.linspace(0.0, step.seconds, CURVE_POINTS + 1)
    running = started - np.searchsorted(step.ends_s, at_s, side="right")
    return [[float(second), int(count)] for second, count in zip(at_s, running, strict=True)]


def _sentence(body: Mapping[str, Any]) -> str:
    ways = {row["drafting"]: row for row in body["ways"]}
    best, plain = ways[body["best"]], ways[NO_DRAFTS]
    cost = "" if best["usd_per_step"] is None else f" and costs ${number(best['usd_per_step'], 3)}"
    text = f"A step takes {duration(best['step_s'])}{cost}, {duration(best['generation_s'])} of it generation"
    if len(ways) == 1:
        return f"{text}."
    gain = {way: f"{row['speedup']:.2f}x" for way, row in ways.items()}
    if body["best"] == NO_DRAFTS:
        text += f" without drafts; drafting always gives {gain[ALWAYS]}"
    else:
        text += f", drafting {body['best']}: {gain[body['best']]} over {duration(plain['generation_s'])} without drafts"
    if IN_TAIL not in ways:
        return f"{text}."
    if body["best"] == IN_TAIL:
        text += f"; drafting always gives {gain[ALWAYS]}"
    else:
        text += f"; drafting in the tail alone gives {gain[IN_TAIL]}"
    if gain[FREE_SWITCH] != gain[IN_TAIL]:
        text += f", and {gain[FREE_SWITCH]} if the switch costs the host nothing"
    return f"{text}. The tail: at most {body['tail_batch']} responses per replica."


class RolloutsResult(StudyResult):
    """Times of a training step; its data frame has a row for each way to draft."""

    kind = "rollouts"
    drawn_in = "forerun_research.rollouts_figures"
    legend = (
        "In the tail: drafts only while so few responses run that they pay. Free switch: without the host time that an "
        "engine's choice of draft tokens takes in every step (policy.step_s, per_sequence_s)."
    )

    @property
    def title(self) -> str:
        chip = self.document["scenario"]["hardware"]["chip"]
        return f"{self.model} on {chip}: {self.document['responses']:,} responses per training step"

    @property
    def summary(self) -> Summary:
        best = next(row for row in self.document["ways"] if row["drafting"] == self.document["best"])
        keys = ("step_s", "generation_s", "speedup", "steps_per_day", "usd_per_step")
        return Summary({key: best[key] for key in keys} | {"answer": self.conclusion})

    def records(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key not in ("by_age", "curve")} for row in self._ways]

    @property
    def _ways(self) -> list[dict[str, Any]]:
        ways: list[dict[str, Any]] = self.document["ways"]
        return ways

    def tables(self) -> list[Table]:
        priced = any(row["usd_per_step"] is not None for row in self._ways)
        rows: list[list[Value]] = [
            [
                row["drafting"],
                Cell(
                    duration(row["generation_s"]),
                    aside="..".join(map(duration, row["generation_interval_s"])),
                    value=row["generation_s"],
                ),
                Cell(f"{row['speedup']:.2f}x", value=row["speedup"], tone="good" if row["speedup"] >= 1.0 else "bad"),
                Cell(f"{row['acceptance_length']:.2f}", value=row["acceptance_length"]),
                Cell(f"{row['tokens_per_s']:,.0f}", value=row["tokens_per_s"]),
                Cell(duration(row["step_s"]), value=row["step_s"]),
                Cell(f"{row['steps_per_day']:,.1f}", value=row["steps_per_day"]),
                *([Cell(number(row["usd_per_step"], 3), value=row["usd_per_step"])] if priced else []),
            ]
            for row in self._ways
        ]
        columns = ("drafting", "generation", "speedup", "tokens/verify", "tokens/s", "step", "steps/day")
        shown = (*columns, *(["$/step"] if priced else []))
        tables = [Table("Generation and whole step", shown, rows, name="ways")]
        if any(len(row["by_age"]) > 1 for row in self._ways):
            aged = [
                [
                    row["drafting"],
                    one["age"],
                    Cell(f"{one['acceptance_length']:.2f}", value=one["acceptance_length"]),
                    Cell(duration(one["generation_s"]), value=one["generation_s"]),
                ]
                for row in self._ways
                if len(row["by_age"]) > 1
                for one in row["by_age"]
            ]
            names = ("drafting", "steps since training", "tokens/verify", "generation")
            tables.append(Table("Age of the drafter", names, aged, name="ages"))
        return tables
