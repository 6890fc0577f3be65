"""The race: every controller on every pattern, regret against the best fixed number of draft tokens, a certificate."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun import ForerunError, Scenario
from forerun.parts import (
    AcceptanceSampler,
    Build,
    DraftPolicy,
    ModelTimer,
    adaptive_policies,
    after_margin,
    build_replica,
    decode_step,
    draft_survival,
    named,
    request_records,
    step_prices,
)
from forerun.studies import (
    ArgumentError,
    Cell,
    ProgressCall,
    StudyResult,
    Summary,
    Table,
    Value,
    did_you_mean,
    percent,
    scenario_file,
    study_document,
    study_workers,
)
from forerun.testing import check_policy
from forerun_research.patterns import (
    Pattern,
    PatternTraffic,
    changed,
    drawn,
    read_traffic,
    survival_by_level,
    traffic_of,
)

OFF, FIXED, OWN = "off", "fixed", "forerun"
CONTROLLERS = ("batch-table", "ema", "goodput", "p-min", "entropy", OWN)
"""Policies that run unless others are named, beside off and every fixed K."""
SEARCHED = 0.5
"""Share of the patterns that are searched for from the worst so far; the others are drawn."""
ROUNDS = 4
PARENTS = 4
"""Worst patterns of a round from which the next are made."""
SWITCH_S = 0.02
"""Host seconds of a change of K where the scenario does not say: another set of captured graphs; assumed."""
TABLE_CONTEXT, TABLE_GAIN = 1024, 1.01
"""Context of an emitted table, and the gain from which a smaller K replaces a larger one as batches grow. A table that
went up and down with the sizes of captured graphs would change K all the time."""


class RaceOutcome(NamedTuple):
    """One controller on one pattern."""

    latency_s: float
    """Mean end-to-end latency."""
    switches: int
    tokens_per_s: float


def replayed_race(base: Scenario, names: Sequence[str], pattern: Path) -> RaceResult:
    """A race on the one pattern that an earlier race wrote."""
    traffic = read_traffic(pattern.read_text(encoding="utf-8"), str(pattern))
    return _result(base, names, {None: run_pattern(base, names, traffic)}, 0)


def searched_race(
    base: Scenario,
    names: Sequence[str],
    patterns: int,
    requests: int,
    seed: int,
    jobs: int | None,
    progress: ProgressCall | None,
) -> RaceResult:
    """Race on patterns: the first are drawn, the others made of those that hurt the controllers most."""
    rng = np.random.default_rng([seed, 0xACE])
    first = max(1, round(patterns * (1 - SEARCHED)))
    sizes = [first, *(len(part) for part in np.array_split(np.arange(patterns - first), ROUNDS) if len(part))]
    seconds = steps_of(base)
    outcomes: dict[Pattern, dict[str, RaceOutcome]] = {}
    with study_workers(jobs) as workers:
        for size in sizes:
            parents = _hurt(outcomes, names)
            generation = [
                changed(rng, parents[n % len(parents)]) if parents else drawn(rng, requests) for n in range(size)
            ]
            started = [workers.start(run_pattern, base, names, traffic_of(one, seconds)) for one in generation]
            for pattern, outcome in zip(generation, started, strict=True):
                outcomes[pattern] = outcome()
                if progress is not None:
                    progress(len(outcomes), patterns)
    result = _result(base, names, outcomes, seed)
    closest = list(outcomes)[result.document["certificate"]["pattern"]]
    result.files["closest.csv"] = traffic_of(closest, seconds).csv
    return result


def drafting_scenario(scenario: Scenario) -> Scenario:
    """The scenario with what a race needs: chain drafts of a fixed number, and a price on changing it."""
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none" or speculation.num_speculative_tokens is None:
        raise ForerunError(
            "speculation: a race needs a drafter with num_speculative_tokens, the most it may draft, such as "
            "--set speculation='{method: ngram, num_speculative_tokens: 4, acceptance: {alpha: 0.5}}'"
        )
    policy = named(speculation.policy)
    settings = policy.model_dump(exclude_none=True) if policy.name != FIXED else {"name": OWN}
    return scenario.with_values({"speculation.policy": {"switch_s": SWITCH_S, **settings}})


def checked_controllers(names: Sequence[str]) -> tuple[str, ...]:
    """Policies by name, each once; what is neither one nor ``module:factory`` is refused."""
    known = adaptive_policies()
    for name in names:
        if ":" not in name and name not in known:
            hint = did_you_mean(name, known)
            raise ArgumentError("controller", f"no controller '{name}'{hint} ({', '.join(known)}, or module:factory)")
    return tuple(dict.fromkeys(names))


def with_controller(scenario: Scenario, name: str) -> Scenario:
    """The scenario with the controller ``name``: ``off``, ``fixed-K`` or a policy that changes K.

    The scenario's own policy keeps its parameters, others have their defaults.
    """
    assert scenario.speculation is not None
    if name == OFF:
        return scenario.with_values({"speculation": None})
    if name.startswith(f"{FIXED}-"):
        tokens = int(name.partition("-")[2])
        values = {"speculation.policy": FIXED, "speculation.num_speculative_tokens": tokens}
        rates = [float(rate) for rate in draft_survival(scenario.speculation)][:tokens]
        return scenario.with_values({**values, "speculation.acceptance": {"per_position": rates}})
    if ":" in name:
        return scenario
    policy = named(scenario.speculation.policy)
    if name == policy.name:
        return scenario
    return scenario.with_values({"speculation.policy": {"name": name, **policy.shared_settings}})


def plug_in(name: str, most: int) -> Callable[[], DraftPolicy]:
    """Load a user-defined policy ``module:factory``; the factory is called with the largest K."""
    module, _, attribute = name.partition(":")
    try:
        make = partial(getattr(importlib.import_module(module), attribute), most)
    except (ImportError, AttributeError) as error:
        raise ArgumentError("controller", f"{name}: {error}") from None
    check_policy(make, most)
    return make


def steps_of(scenario: Scenario) -> Callable[[int, int, int], float]:
    """Seconds of a plain decode step of the target by (sequences, draft tokens, context); tokens must be 0."""
    timer = build_replica(with_controller(scenario, OFF)).main.timer
    assert isinstance(timer, ModelTimer)

    def seconds(seqs: int, tokens: int, context: int) -> float:
        return float(timer.seconds(decode_step(timer.windows, seqs, tokens + 1, context)))

    return seconds


def run_pattern(scenario: Scenario, names: Sequence[str], traffic: PatternTraffic) -> dict[str, RaceOutcome]:
    """Run every controller, off and every fixed K on one stream of requests; called in a worker process."""
    assert scenario.speculation is not None
    fixed = [f"{FIXED}-{tokens}" for tokens in range(1, scenario.speculation.depth + 1)]
    return {name: run_controller(scenario, name, traffic) for name in (OFF, *fixed, *names)}


def run_controller(scenario: Scenario, name: str, traffic: PatternTraffic) -> RaceOutcome:
    build = controlled(scenario, name, traffic)
    log = build.fleet.run(traffic.stream)
    requests = request_records(log)
    if requests.failed.any():
        raise ForerunError(f"{name}: {int(requests.failed.sum())} requests are longer than can be served")
    latency = requests.finished_s - requests.arrival_s
    span = float(requests.finished_s.max() - requests.arrival_s.min())
    draft = log.steps.draft(slice(None)) if build.main.rule is not None else None
    switches = 0 if draft is None else int(draft.switched.sum())
    return RaceOutcome(float(latency.mean()), switches, float(traffic.output_tokens.sum()) / span)


def controlled(scenario: Scenario, name: str, traffic: PatternTraffic) -> Build:
    """The replicas under a controller, with the acceptance of each request as the traffic has it."""
    build = _built(scenario.model_dump_json(exclude_unset=True), name)
    if build.main.sampler is None:
        return build
    assert scenario.speculation is not None
    # All controllers draw from the thresholds of the longest drafts, so that their first positions agree.
    rates = survival_by_level([float(rate) for rate in draft_survival(scenario.speculation)])
    depth = build.main.sampler.num_speculative_tokens
    sampler = AcceptanceSampler(rates[:, :depth], 0, class_of=traffic.level)
    return build.with_pools(lambda pool: replace(pool, sampler=sampler))


@lru_cache(maxsize=16)  # the controllers of one race, tens of megabytes each
def _built(text: str, name: str) -> Build:
    scenario = Scenario.model_validate_json(text)
    custom = plug_in(name, scenario.speculation.depth) if scenario.speculation is not None and ":" in name else None
    return build_replica(with_controller(scenario, name), make_policy=custom)


def is_fixed(name: str) -> bool:
    """True if a controller never changes K: off, or a fixed number of draft tokens."""
    return name == OFF or name.startswith(f"{FIXED}-")


def regret_of(outcomes: Mapping[str, RaceOutcome], name: str) -> float:
    """Share by which a controller's latency exceeds that of the best fixed K, off included."""
    best = min(one.latency_s for other, one in outcomes.items() if is_fixed(other))
    return outcomes[name].latency_s / best - 1.0


def _hurt(outcomes: Mapping[Pattern, Mapping[str, RaceOutcome]], names: Sequence[str]) -> list[Pattern]:
    """Patterns on which some controller falls furthest behind: of our own first, then of any."""

    def worst(aimed: Sequence[str], count: int) -> list[Pattern]:
        scores = {pattern: max(regret_of(o, name) for name in aimed) for pattern, o in outcomes.items()}
        return sorted(scores, key=lambda pattern: -scores[pattern])[:count]

    return worst([OWN] if OWN in names else names, PARENTS) + worst(names, PARENTS // 2)


def _result(
    scenario: Scenario,
    names: Sequence[str],
    outcomes_by_pattern: Mapping[Pattern, dict[str, RaceOutcome]] | Mapping[None, dict[str, RaceOutcome]],
    seed: int,
) -> RaceResult:
    runs = list(outcomes_by_pattern.values())
    fixed = [name for name in runs[0] if is_fixed(name)]
    rows = [_controller_row(name, runs) for name in (*names, *fixed)]
    rows.sort(key=lambda row: row["regret_mean"])
    winner = min((row for row in rows if row["name"] in names), key=lambda row: row["regret_mean"])
    body = {
        "controllers": rows,
        "winner": winner["name"],
        "patterns": [
            {
                "pattern": None if pattern is None else asdict(pattern),
                "says": None if pattern is None else pattern.words,
                "latency_s": {name: one.latency_s for name, one in outcomes.items()},
                "switches": {name: one.switches for name, one in outcomes.items() if one.switches},
            }
            for pattern, outcomes in outcomes_by_pattern.items()
        ],
        "certificate": {
            "controller": winner["name"],
            "against": OFF,
            "at_least": winner["speed_over_off_worst"],
            "patterns": len(runs),
            "pattern": winner["closest_pattern"],
        },
        "switch_s": named(scenario.speculation.policy).switch_s if scenario.speculation else None,
        "emit": {"vllm": vllm_table(scenario)},
        "conclusion": "",
    }
    notes = (
        "acceptance is drawn by request: its factor multiplies the scenario's conditional rates",
        "p-min and entropy see rates, not confidences: a drafter's own probabilities may do better than here",
    )
    document = study_document(body, scenario, seed, build_replica(scenario).basis, notes)
    document["conclusion"] = _sentence(document)
    return RaceResult(document, files=scenario_file(document))


def _controller_row(name: str, runs: Sequence[Mapping[str, RaceOutcome]]) -> dict[str, Any]:
    regrets = [regret_of(outcomes, name) for outcomes in runs]
    speeds = [outcomes[OFF].latency_s / outcomes[name].latency_s for outcomes in runs]
    return {
        "name": name,
        "regret_mean": fsum(regrets) / len(regrets),
        "regret_worst": max(regrets),
        "worst_pattern": int(np.argmax(regrets)),
        "speed_over_off_mean": float(np.exp(np.mean(np.log(speeds)))),
        "speed_over_off_worst": min(speeds),
        "closest_pattern": int(np.argmin(speeds)),
        "switches": fsum(outcomes[name].switches for outcomes in runs) / len(runs),
    }


def vllm_table(scenario: Scenario) -> str:
    """K by batch size of the ``forerun`` policy at the scenario's acceptance, as JSON for vLLM's config."""
    build = build_replica(with_controller(scenario, OWN))
    assert scenario.speculation is not None
    survival = [1.0, *(float(rate) for rate in draft_survival(scenario.speculation))]
    timer = build.main.timer
    assert isinstance(timer, ModelTimer)
    step_seconds = step_prices(timer, len(survival) - 1, timer.seconds)
    expected = np.cumsum(survival) * [after_margin(tokens) for tokens in range(len(survival))]
    rows: list[list[int]] = []
    best = len(survival) - 1
    budget = build.main.limits.max_num_batched_tokens
    at_once = min(build.main.limits.max_num_seqs, budget, build.main.memory.num_blocks)  # each needs a block
    for batch in range(1, at_once + 1):
        fitting = min(len(survival), budget // batch)  # choices of K with which one step takes the whole batch
        best = min(best, fitting - 1)
        steps = [step_seconds(batch, tokens, TABLE_CONTEXT) for tokens in range(fitting)]
        speeds = expected[:fitting] / steps
        fewer = int(np.argmax(speeds[: best + 1]))
        if speeds[fewer] > TABLE_GAIN * speeds[best]:
            best = fewer
        if rows and rows[-1][2] == best:
            rows[-1][1] = batch
        else:
            rows.append([batch, batch, best])
    return json.dumps({"num_speculative_tokens": len(survival) - 1, "num_speculative_tokens_per_batch_size": rows})


def _sentence(document: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in document["controllers"]}
    best, proof = rows[document["winner"]], document["certificate"]
    worst = max((row for row in rows.values() if not is_fixed(row["name"])), key=lambda row: row["regret_worst"])
    fixed = min((row for row in rows.values() if is_fixed(row["name"])), key=lambda row: row["regret_mean"])
    hindsight = f"{best['regret_mean']:+.1%} latency against the best fixed K in hindsight"
    if fixed["regret_mean"] < best["regret_mean"]:
        text = f"No controller beats {_fixed_words(fixed['name'])} in the mean ({fixed['regret_mean']:+.1%}): "
        text += f"the best, {best['name']}, has {hindsight}"
    else:
        text = f"{best['name']} wins in the mean: {hindsight}"
    text += (
        f" over {proof['patterns']} pattern{'s' * (proof['patterns'] > 1)}, {best['regret_worst']:+.1%} at worst; it "
        f"never runs below {proof['at_least']:.0%} of off on any of them"
    )
    latencies = [row["latency_s"] for row in document["patterns"]]
    often, times = Counter(min(one, key=one.__getitem__) for one in latencies).most_common(1)[0]
    if often != best["name"]:
        text += f". On {times} of them {often} is the fastest"
    if worst["name"] != best["name"]:
        text += f". {worst['name']} falls behind by up to {worst['regret_worst']:.0%}"
    return text + "."


def _fixed_words(name: str) -> str:
    """``fixed-3`` is K=3 throughout."""
    return "no drafts at all" if name == "off" else f"K={name.removeprefix('fixed-')} throughout"


class RaceResult(StudyResult):
    """Controllers, the least regret first; its data frame has a row for each."""

    kind = "race"
    drawn_in = "forerun_research.race_figures"

    @property
    def title(self) -> str:
        chip = self.document["scenario"]["hardware"]["chip"]
        return f"{self.model} on {chip}: {len(self.document['controllers'])} controllers of speculation"

    @property
    def facts(self) -> str:
        return f"{super().facts} · {len(self.document['patterns'])} patterns"

    @property
    def marks(self) -> Sequence[str]:
        switch = self.document["switch_s"] or 0.0
        return f"{len(self.document['patterns'])} patterns", f"a change of K costs {1e3 * switch:g} ms of host time"

    @property
    def summary(self) -> Summary:
        row = next(row for row in self.document["controllers"] if row["name"] == self.document["winner"])
        return Summary({**row, "answer": self.conclusion})

    def records(self) -> list[dict[str, Any]]:
        return list(self.document["controllers"])

    def tables(self) -> list[Table]:
        commands = [["vllm", self.document["emit"]["vllm"]]]
        emitted = Table("To paste", ("engine", "speculative config"), commands, shown=2, name="commands")
        return [_controller_table(self.document), _pattern_table(self.document), emitted]


def _controller_table(document: Mapping[str, Any]) -> Table:
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "mean regret": ("regret_mean", "{:+.1%}".format),
        "worst": ("regret_worst", "{:+.1%}".format),
        "over off": ("speed_over_off_mean", "{:.2f}x".format),
        "worst of off": ("speed_over_off_worst", percent),
        "changes of K": ("switches", "{:.1f}".format),
    }
    rows = [
        [Cell(row["name"], tone="good" if row["name"] == document["winner"] else "")]
        + [Cell(words(row[key]), value=row[key]) for key, words in columns.values()]
        for row in document["controllers"]
    ]
    return Table("Latency against the best fixed K in hindsight", ["", *columns], rows, name="controllers")


def _pattern_table(document: Mapping[str, Any]) -> Table:
    """Patterns by how far the winner falls behind, worst first."""
    winner = document["winner"]
    rows: list[tuple[float, list[Value]]] = []
    for number, row in enumerate(document["patterns"]):
        latency = row["latency_s"]
        fixed = {name: one for name, one in latency.items() if is_fixed(name)}
        best = min(fixed, key=fixed.__getitem__)
        behind = latency[winner] / fixed[best] - 1
        over = latency[OFF] / latency[winner]
        rows.append((-behind, [number, row["says"], best, Cell(f"{behind:+.1%}"), Cell(percent(over))]))
    title = f"Patterns on which {winner} falls furthest behind"
    columns = ("", "traffic", "best fixed", "regret", "of off")
    ranked = [row for _, row in sorted(rows, key=lambda one: one[0])]
    return Table(title, columns, ranked, shown=5, name="patterns")
