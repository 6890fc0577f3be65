"""Measured against simulated benchmark results: figures by metric, 90 % intervals, and the worst predicted runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.document import Json, plain_json
from forerun.errors import ForerunError, did_you_mean, named_arguments
from forerun.result import Summary
from forerun.tables import Table
from hwprofiles import ProfileError, chip_name, weakest
from simulator.llm.load import catalogue_model
from simulator.replay.explain import Explanation, Start, explanation_of
from simulator.replay.replay_tables import CONTRADICTS, ERRORS, Replay, run_replay_tables
from simulator.replay.rerun import rerun
from simulator.replay.scores import ALL, error_figures
from simulator.replay.split import Split
from simulator.running.measured_runs import (
    contradiction,
    framework_name,
    own_base,
    with_implied_load,
    with_named_model,
)
from simulator.running.scenario import Scenario, as_scenario
from traces import TraceError
from traces.benchmark_results import METRICS, MeasuredRun, as_runs

Interval = tuple[float, float]

COVERAGE = 0.90
LEAST_CONFIGURATIONS = 9
"""Minimum number of other configurations for an error interval."""


def run_intervals(runs: Sequence[MeasuredRun], predicted: Sequence[dict[str, float]]) -> list[dict[str, Interval]]:
    """90 % intervals of every run and metric, in the metric's unit; absent if there are too few configurations.

    The error of a simulation for a configuration (model, chip, engine, lengths) is shared by all its loads, so runs of
    one configuration are not independent evidence about each other. So a run's interval comes from the ratios of
    measured to predicted of all other configurations, each of which counts once.

    Source: split conformal prediction (Papadopoulos et al. 2002, doi:10.1007/3-540-36755-1_29) with groups held out
        whole (Dunn, Wasserman, Ramdas, "Distribution-free prediction sets for two-layer hierarchical models", 2022,
        doi:10.1080/01621459.2022.2060112).
    """
    known = {configuration: place for place, configuration in enumerate(dict.fromkeys(r.configuration for r in runs))}
    groups = np.array([known[run.configuration] for run in runs], dtype=np.int64)
    intervals: list[dict[str, Interval]] = [{} for _ in runs]
    for metric in METRICS:
        rows = [i for i, run in enumerate(runs) if run.measured.get(metric, 0) > 0 and predicted[i].get(metric, 0) > 0]
        ratios = np.array([runs[i].measured[metric] / predicted[i][metric] for i in rows])
        own: IntArray = groups[np.array(rows, dtype=np.int64)]
        for group in np.unique(own):
            others = own != group
            count = len(np.unique(own[others]))
            if count < LEAST_CONFIGURATIONS:
                continue
            low, high = _ends(ratios[others], own[others], count)
            for row in np.array(rows)[~others].tolist():
                value = predicted[int(row)][metric]
                intervals[row][metric] = (float(low * value), float(high * value))
    return intervals


def _ends(ratios: FloatArray, groups: IntArray, count: int) -> Interval:
    """Ends of the interval of a ratio in a new group, where every group weighs the same."""
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(ratios, kind="stable")
    share = np.cumsum((1.0 / (sizes[place] * count))[order])
    tail = (1.0 - COVERAGE) / 2.0 * (count + 1) / count - 1.0 / count
    low = np.searchsorted(share, max(0.0, tail), side="left")
    high = np.searchsorted(share, min(1.0, 1.0 - tail) - 1e-12, side="left")
    values = ratios[order]
    return float(values[min(int(low), len(values) - 1)]), float(values[min(int(high), len(values) - 1)])


def coverage90(metric: str, runs: Sequence[MeasuredRun], intervals: Sequence[dict[str, Interval]]) -> float | None:
    """Percent of runs whose measurement lies in its interval; None if no run has an interval."""
    inside = [
        interval[metric][0] <= run.measured[metric] <= interval[metric][1]
        for run, interval in zip(runs, intervals, strict=True)
        if metric in interval
    ]
    return 100.0 * sum(inside) / len(inside) if inside else None


SHORT_NAMES = {
    "ttft": "mean_ttft_ms",
    "tpot": "mean_tpot_ms",
    "itl": "mean_itl_ms",
    "e2el": "mean_e2el_ms",
    "e2e": "mean_e2el_ms",
    "throughput": "output_throughput",
}
"""Short names of common metrics, accepted in limits."""
HELD_IN = "part of the training split"
NOT_CHOSEN = "left out by --where or --limit"
WORST_RUNS = 20
SHOWN_REMARKS = 8
_FACTS = ("name", "model", "chip", "framework", "tensor_parallel", "max_concurrency", "request_rate",
          "input_tokens", "output_tokens", "num_requests", "weights_dtype", "speculation", "process",
          "framework_version", "pipeline_parallel", "expert_parallel")  # fmt: skip


class RunScore(NamedTuple):
    """Errors of one metric over ``n`` of the ``of`` runs that measured it, in percent of the measurement."""

    metric: str
    group: str
    n: int
    of: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    coverage: float
    """Share of the runs with this metric that were simulated, percent."""
    coverage90: float | None = None
    """Share of the measurements inside their 90 % interval, percent; None if no interval is known."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One measured run and its simulation; ``skipped`` is the reason if there is no simulation."""

    run: MeasuredRun
    predicted: dict[str, float]
    basis: str | None
    notes: tuple[str, ...]
    skipped: str | None
    simulated: str = ""
    """Model, chip and engine of the simulation."""

    def error(self, metric: str) -> float | None:
        """Signed error in percent of the measurement, or None if one of the two is missing."""
        if metric not in self.predicted or metric not in self.run.measured:
            return None
        return (self.predicted[metric] / self.run.measured[metric] - 1.0) * 100.0


@dataclass(frozen=True, eq=False, repr=False)
class RequestReplay(Replay):
    """Result of replaying measured runs: measurements and simulated predictions."""

    sources: tuple[str, ...]
    outcomes: tuple[RunOutcome, ...]
    scores: tuple[RunScore, ...]
    skipped: dict[str, int]
    split: Split | None
    seed: int
    scenario: Scenario
    explanation: Explanation | None = None
    """Why the run furthest off differs from its prediction, if ``explain`` requests it."""

    @cached_property
    def document(self) -> Json:
        """The JSON of ``forerun replay requests``; errors are percentages such as 7.3, latencies milliseconds."""
        from forerun.version import VERSION
        from simulator.running.metrics.document import scenario_document

        bases = [outcome.basis for outcome in self.outcomes if outcome.basis is not None]
        return {
            "sources": list(self.sources),
            "split": None if self.split is None else self.split._asdict(),
            "scores": [score._asdict() for score in self.scores],
            "runs": [
                {**_row(outcome), "interval90": interval}
                for outcome, interval in zip(self.outcomes, outcome_intervals(self.outcomes), strict=True)
                if outcome.skipped is None
            ],
            "skipped": self.skipped,
            "skipped_runs": [
                {"name": o.run.name, "place": o.run.place, "reason": o.skipped}
                for o in self.outcomes
                if o.skipped is not None
            ],
            "worst": [
                {"metric": metric, **_row(outcome), "ape": abs(outcome.error(metric) or 0.0)}
                for metric, outcome in worst_runs(self)
            ],
            "basis": weakest(bases) if bases else None,
            "scenario": scenario_document(self.scenario),
            "seed": self.seed,
            "version": VERSION,
            **({} if self.explanation is None else {"explanation": plain_json(self.explanation)}),
        }

    @property
    def summary(self) -> Summary:
        """Errors of each metric over all runs, in percent."""
        overall = [score for score in self.scores if score.group == ALL]
        return Summary({f"{score.metric}.{key}": getattr(score, key) for score in overall for key in ERRORS})

    @property
    def remarks(self) -> list[str]:
        """Remarks on the runs, the commonest first."""
        notes = Counter(note for run in self.document["runs"] for note in run["notes"])
        runs = len(self.document["runs"])
        words = [note if count == runs else f"{count} of {runs} runs: {note}" for note, count in notes.most_common()]
        hidden = len(words) - SHOWN_REMARKS
        return [*words[:SHOWN_REMARKS], *([f"{hidden} more remarks on single runs (--json)"] if hidden > 0 else [])]

    def tables(self) -> list[Table]:
        """Causes where they were requested, errors by metric, worst runs, every run, runs that are not simulated."""
        return run_replay_tables(self.document)

    def records(self) -> list[Json]:
        """A row per measured run that was served again."""
        return [dict(run) for run in self.document["runs"]]

    @property
    def gated(self) -> list[tuple[str, str, RunScore]]:
        """Scores over all runs by the group names of ``--fail-above``: a metric, its short name, ``all``."""
        overall = [score for score in self.scores if score.group == ALL]
        short = [(name, score) for score in overall for name, metric in SHORT_NAMES.items() if metric == score.metric]
        named = [(name, score) for score in overall for name in (ALL, score.metric)] + short
        return [(name, score.metric, score) for name, score in named]


@named_arguments
def replay_requests(
    runs: str | Path | Sequence[MeasuredRun | str | Path],
    base: Scenario | Mapping[str, Any] | str | Path | None = None,
    sources: Sequence[str] = (),
    split: Split | None = None,
    where: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    explain: bool = False,
    start: Start | None = None,
    progress: Callable[[int, int], None] | None = None,
    overrides: Sequence[str] = (),
) -> RequestReplay:
    """Simulate every measured run again and score the simulation.

    Args:
        runs: measured runs, or files or folders of measured runs.
        base: scenario (or its file) for settings that the runs do not state; None = they state model, chip and load.
        sources: names of the files, for the report; default: the files among ``runs``.
        split: score only configurations that this split holds out (all loads of one configuration are on one side).
        where: conditions such as ``tensor_parallel<=4`` or ``model=llama-3.1-8b`` that a run must meet.
        limit: maximum number of runs to simulate, evenly chosen.
        seed: seed of the simulations.
        explain: look for causes of the error of the run furthest off, and for changes that would help it.
        start: runs work on other processes; None = here.
        progress: called with (done, total).
        overrides: ``a.b=value`` for what runs without a base lack.

    Raises:
        ForerunError: a bad condition, or no run that can be simulated; the text says why.
    """
    if not sources:
        given = [runs] if isinstance(runs, str | Path) else runs
        sources = [str(one) for one in given if not isinstance(one, MeasuredRun)]
    measured, base = as_runs(runs), None if base is None else as_scenario(base)
    if base is None:
        measured = [with_named_model(run, overrides) for run in measured]
    elif base.workload.arrivals is not None and (offered := base.workload.arrivals.request_rate):
        measured = [with_implied_load(run, offered) for run in measured]
    measured = [
        replace(run, notes=(f"{CONTRADICTS}{words}", *run.notes)) if (words := contradiction(run)) else run
        for run in measured
    ]
    conditions = [parse_condition(text) for text in where]
    chosen: list[MeasuredRun] = []
    skipped: Counter[str] = Counter()
    for run in measured:
        if not all(condition(run) for condition in conditions):
            skipped[NOT_CHOSEN] += 1
        elif split is not None and in_training(run, split):
            skipped[HELD_IN] += 1
        else:
            chosen.append(run)
    if limit is not None and len(chosen) > limit:
        skipped[NOT_CHOSEN] += len(chosen) - limit
        chosen = [chosen[int(i)] for i in np.linspace(0, len(chosen) - 1, limit).round()]
    pending: list[Callable[[], RunOutcome]] = []
    for run in chosen:
        parallel = run.unusable is None and run.measured and start is not None
        pending.append(
            (start if start is not None and parallel else partial)(outcome_of, run, base or tuple(overrides), seed)
        )
    outcomes = []
    for done, result in enumerate(pending, 1):
        outcomes.append(result())
        if progress is not None:
            progress(done, len(pending))
    skipped.update(outcome.skipped for outcome in outcomes if outcome.skipped is not None)
    if all(outcome.skipped is not None for outcome in outcomes):
        reasons = "; ".join(f"{count} x {reason}" for reason, count in skipped.most_common(5)) or "there is none"
        raise ForerunError(f"no measured run can be simulated ({reasons})")
    scenario = base or own_base(next(one.run for one in outcomes if one.skipped is None), overrides)
    replay = RequestReplay(
        tuple(sources), tuple(outcomes), tuple(run_scores(outcomes)), dict(skipped.most_common()), split, seed, scenario
    )
    if not explain:
        return replay
    furthest = next((outcome.run for _, outcome in worst_runs(replay)), None)
    if furthest is None:
        raise ForerunError("--explain judges mean TTFT, TPOT or throughput, and no run states one of them")
    return replace(replay, explanation=explanation_of(furthest, base or own_base(furthest, overrides), seed, start))


def outcome_of(run: MeasuredRun, base: Scenario | Sequence[str], seed: int) -> RunOutcome:
    """Simulate one run; an error becomes the reason for which the run is skipped.

    ``base`` is a scenario, or overrides for a run that states enough by itself.
    """
    skipped = run.unusable if run.unusable is not None or run.measured else "nothing was measured"
    if skipped is None:
        try:
            own = base if isinstance(base, Scenario) else own_base(run, base)
            result = rerun(run, own, seed)
            assumed = {
                "no engine is named: vllm": run.framework or own.engine.framework != "vllm",
                f"no number of requests is stated: {own.workload.num_requests}": run.num_requests or run.stages,
            }
            notes = (*result["notes"], *(note for note, known in assumed.items() if own is not base and not known))
            return RunOutcome(run, result["predicted"], result["basis"], notes, None, result["simulated"])
        except (ForerunError, ProfileError, TraceError) as error:
            skipped = str(error).removeprefix(f"{run.place}: ")
    return RunOutcome(run, {}, None, (), skipped)


def run_scores(outcomes: Sequence[RunOutcome]) -> list[RunScore]:
    """Figures of every metric over all runs, then by model, chip, engine and tensor parallelism."""
    groups: dict[str, list[RunOutcome]] = {"all": list(outcomes)}
    intervals = zip(outcomes, outcome_intervals(outcomes), strict=True)
    inside = {id(outcome.run): interval for outcome, interval in intervals}
    for outcome in outcomes:
        groups.setdefault(group_label(outcome.run), []).append(outcome)
    if len(groups) == 2:
        groups = {"all": groups["all"]}
    scores = []
    for label, members in groups.items():
        for metric in METRICS:
            of = sum(metric in outcome.run.measured for outcome in members)
            errors = np.array([e for o in members if (e := o.error(metric)) is not None])
            if len(errors):
                own = [outcome.run for outcome in members]
                covered = coverage90(metric, own, [inside[id(run)] for run in own])
                share = 100.0 * len(errors) / of
                figures = error_figures(errors)
                scores.append(RunScore(metric, label, len(errors), of, **figures, coverage=share, coverage90=covered))
    return scores


def outcome_intervals(outcomes: Sequence[RunOutcome]) -> list[dict[str, Interval]]:
    """90 % intervals of every run, from the errors on the other configurations of the replay."""
    return run_intervals([outcome.run for outcome in outcomes], [outcome.predicted for outcome in outcomes])


def group_label(run: MeasuredRun) -> str:
    """Model, chip, engine and tensor parallelism of a run, in the catalogue's words where it has them."""
    parts = [_known_model(run), _known_chip(run), run.framework and (framework_name(run.framework) or run.framework)]
    words = [part for part in parts if part]
    return ", ".join([*words, *([f"TP {run.tensor_parallel}"] if run.tensor_parallel else [])]) or "unnamed"


def in_training(run: MeasuredRun, split: Split) -> bool:
    """True if a fit under ``split`` may see the run. Decided by configuration, so that a whole curve is on one side."""
    text = f"{split.seed} {run.configuration!r}".encode()
    share = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2.0**64
    return share < split.train


def parse_condition(text: str) -> Callable[[MeasuredRun], bool]:
    """A test for ``FACT=VALUE``, ``FACT~PART``, ``FACT>=N`` or ``FACT<=N``.

    Raises:
        ForerunError: no such fact, or no number where one is needed.
    """
    for sign in (">=", "<=", "~", "="):
        name, sign_used, value = (part.strip() for part in text.partition(sign))
        if sign_used:
            break
    if not sign_used or name not in _FACTS:
        hint = did_you_mean(name, _FACTS) if sign_used else ""
        raise ForerunError(
            f"--where: '{text}' is not FACT=VALUE, FACT~PART, FACT>=N or FACT<=N{hint} (facts: {', '.join(_FACTS)})"
        )
    if sign == "~":
        return lambda run: value.lower() in str(getattr(run, name) or "").lower()
    if sign == "=":
        return lambda run: value.lower() in _spellings(run, name)
    try:
        number = float(value)
    except ValueError:
        raise ForerunError(f"--where: '{text}': '{value}' is no number") from None

    def compared(run: MeasuredRun) -> bool:
        fact = getattr(run, name)
        fact = fact[1] if isinstance(fact, tuple) else fact
        if not isinstance(fact, int | float):
            return False
        return fact >= number if sign == ">=" else fact <= number

    return compared


def worst_runs(replay: RequestReplay) -> list[tuple[str, RunOutcome]]:
    """The runs whose mean latencies or throughput are furthest off, worst first, each under its worst metric."""
    errors_of_runs = []
    for outcome in replay.outcomes:
        errors = {m: abs(e) for m in set(SHORT_NAMES.values()) if (e := outcome.error(m)) is not None}
        if errors:
            metric = max(sorted(errors), key=lambda name: errors[name])
            errors_of_runs.append((errors[metric], metric, outcome))
    errors_of_runs.sort(key=lambda item: -item[0])
    return [(metric, outcome) for _, metric, outcome in errors_of_runs[:WORST_RUNS]]


def _row(outcome: RunOutcome) -> Json:
    run = outcome.run
    facts = {name: getattr(run, name) for name in _FACTS}
    tokens = {name: list(v) if isinstance(v := facts[name], tuple) else v for name in ("input_tokens", "output_tokens")}
    errors = {metric: outcome.error(metric) for metric in METRICS}
    return {
        **facts,
        **tokens,
        "place": run.place,
        "stages": [list(stage) for stage in run.stages] or None,
        "measured": dict(run.measured),
        "derived": list(run.derived),
        "predicted": {metric: outcome.predicted[metric] for metric in METRICS if metric in outcome.predicted},
        "error": {metric: error for metric, error in errors.items() if error is not None},
        "basis": outcome.basis,
        "simulated": outcome.simulated,
        "notes": [*run.notes, *outcome.notes],
    }


def _spellings(run: MeasuredRun, name: str) -> set[str]:
    value: Any = getattr(run, name)
    if value is None:
        return {"none"}
    known: dict[str, Callable[[Any], Any]] = {
        "model": _known_model,
        "chip": _known_chip,
        "framework": lambda run: framework_name(run.framework),
    }
    return {str(word).lower() for word in (value, known[name](run) if name in known else value)}


def _known_model(run: MeasuredRun) -> str | None:
    return None if run.model is None else (catalogue_model(run.model) or run.model)


def _known_chip(run: MeasuredRun) -> str | None:
    from hwprofiles import chip_names

    return None if run.chip is None else (chip_name(run.chip, chip_names()) or run.chip)
