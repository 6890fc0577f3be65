"""Why a measured run differs from its prediction: a verdict, changes that close the gap, changes that would help.

Each cause of ``causes.yaml`` is tried alone: the run is simulated with that one change, and the share of the gap that
closes says how well the change explains it. A change that speeds the simulation up explains a run that was slower no
better than nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import log
from typing import Any

from forerun.document import DocumentPart, Json
from forerun.errors import ForerunError
from forerun.tables import number
from forerun.yaml_files import packaged
from hwprofiles import ProfileError, dtype_bytes, load_chip
from simulator.llm import load_architecture
from simulator.replay.replay_tables import metric_title
from simulator.replay.rerun import rerun
from simulator.running.measured_runs import run_scenario
from simulator.running.metrics.statistics import Z50, Z90
from simulator.running.metrics.uncertainty import intervals_of
from simulator.running.scenario import Scenario
from simulator.studies.compare.comparison import compare_variants
from simulator.studies.paired import HIGHER_IS_BETTER
from simulator.studies.runs import nested_value
from simulator.studies.study_file import Variant
from simulator.timing import resolve_weight_dtypes
from simulator.timing.framework import older_sets
from traces import TraceError
from traces.benchmark_results import MeasuredRun, PromptPool

JUDGED = (("mean_ttft_ms", "median_ttft_ms"), ("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "median_itl_ms"),
          ("output_throughput", "request_throughput"))  # fmt: skip
"""Figures by which a run is judged; of each group the first that was measured and predicted."""
OF_ARRIVALS, AS_OFFERED = ("output_throughput", "request_throughput"), 0.05
"""Metrics that depend only on arrivals if the engine keeps up with them, and their maximum error in that case. Arrivals
of few requests differ by more from one draw to the next."""
EQUAL = 0.1
"""Difference of the explained shares up to which two causes explain a gap equally well."""
LEAST_SHARE = 0.1
"""Minimum share of the gap that a listed cause must explain."""
MOST, PAIRED = 0.5, 5
"""Share of the gap below which the first causes are tried in pairs, and how many of them."""
SHOWN_CAUSES = 8
MOST_HELPS = 3
LEAST_GAIN = 1.01
Start = Callable[..., Callable[[], Any]]
"""Starts a function on a worker and returns a callable that gives its result."""
Refused = (ForerunError, ProfileError, TraceError)


@dataclass(frozen=True, slots=True)
class Judged(DocumentPart):
    """A measured metric of a run and its prediction."""

    metric: str
    measured: float
    predicted: float
    likely: tuple[float, float]
    """Ends of the interval that contains the measurement in half of all runs."""
    interval: tuple[float, float]
    """Ends of the 90 % interval."""

    @property
    def place(self) -> str:
        """``likely``, ``inside`` (of the 90 % interval) or ``outside``."""
        inside = self.interval[0] <= self.measured <= self.interval[1]
        likely = self.likely[0] <= self.measured <= self.likely[1]
        return "likely" if likely else "inside" if inside else "outside"


@dataclass(frozen=True, slots=True)
class Cause(DocumentPart):
    """A change of the simulated run and what it explains of the gap."""

    cause: str
    change: list[Json]
    """Changes by which it was tried, each a mapping as in ``causes.yaml``."""
    share: float
    """Part of the gap that closes, 1 for all of it."""
    predicted: dict[str, float]
    check: str


@dataclass(frozen=True, slots=True)
class Help(DocumentPart):
    """A change that would speed the run up, by prediction."""

    change: str
    set: Json
    metric: str
    ratio: float
    """Improvement of the metric, above 1 for the better."""
    interval: tuple[float | None, float | None]
    probability: float | None


@dataclass(frozen=True, slots=True)
class Explanation(DocumentPart):
    """Verdict on a measured run, causes by the share of the gap that each explains, and changes that would help."""

    run: str
    verdict: str
    judged: list[Judged]
    causes: list[Cause]
    helps: list[Help]


def explanation_of(run: MeasuredRun, base: Scenario, seed: int = 0, start: Start | None = None) -> Explanation:
    """Find what may make a measured run differ from its prediction.

    Args:
        run: measured run; its facts override ``base``.
        base: scenario for settings that the run does not state.
        seed: seed of the simulations.
        start: runs work on other processes; None = here.

    Raises:
        ForerunError: the run cannot be simulated, or none of its figures is judged.
    """
    scenario = run_scenario(run, base)
    judged = judged_figures(run, rerun(run, base, seed, intervals=True))
    if not judged:
        raise ForerunError(f"{run.place}: --explain judges TTFT, TPOT or throughput, and the run states none of them")
    causes: list[Cause] = []
    if any(row.place != "likely" for row in judged):
        causes = ranked_causes(run, base, judged, seed, start)
    return Explanation(
        run.name, _verdict(judged, causes), judged, causes[:SHOWN_CAUSES], helps(_from_here(scenario, causes), seed)
    )


def ranked_causes(
    run: MeasuredRun, base: Scenario, judged: Sequence[Judged], seed: int = 0, start: Start | None = None
) -> list[Cause]:
    """Causes by the share of the gap that each explains alone; if none explains half, the best pair."""
    scenario = run_scenario(run, base)
    tried = [(one, [change]) for one in _entries("causes") for change in _changes(one, scenario)]
    causes = _best(_shares(tried, run, base, scenario, judged, seed, start))
    if causes and causes[0].share < MOST:
        pairs = [({"cause": f"{one.cause}, and {other.cause}", "check": f"{one.check}; {other.check}"},
                  [*one.change, *other.change]) for one, other in combinations(causes[:PAIRED], 2)]  # fmt: skip
        together = _best(_shares(pairs, run, base, scenario, judged, seed, start))
        causes = _best([*causes, *(pair for pair in together[:1] if pair.share > causes[0].share + EQUAL)])
    return causes


def _entries(section: str) -> list[Json]:
    entries: list[Json] = packaged("simulator.replay", "causes.yaml")[section]
    return entries


def judged_figures(run: MeasuredRun, result: Json) -> list[Judged]:
    """Figures that were measured and predicted, with both intervals; of a prediction without one, both are a point."""
    predicted, error = result["predicted"], result["model_error"]
    intervals = {} if error is None else intervals_of(predicted, error, error["sampling"])
    rows, requests = [], run.num_requests or 1000
    for names in JUDGED:
        metric = next((name for name in names if name in run.measured and predicted.get(name)), None)
        if metric is not None and not (
            metric in OF_ARRIVALS
            and run.max_concurrency is None
            and abs(run.measured[metric] / predicted[metric] - 1) < max(AS_OFFERED, 3 * (2 / requests) ** 0.5)
        ):
            value = predicted[metric]
            low, high = intervals.get(metric, (value, value))
            likely = (value * (low / value) ** (Z50 / Z90), value * (high / value) ** (Z50 / Z90))
            rows.append(Judged(metric, run.measured[metric], value, likely, (low, high)))
    return rows


def _distance(predicted: Mapping[str, float], judged: Sequence[Judged]) -> float:
    """Sum of the logarithms of measured over predicted, each without its sign."""
    return sum(
        abs(log(row.measured / predicted[row.metric])) if predicted.get(row.metric) else float("inf") for row in judged
    )


Tried = tuple[Json, list[Json]]
"""A cause (an entry of ``causes.yaml``) with the changes by which it is tried."""


def _shares(
    tried: Sequence[Tried], run: MeasuredRun, base: Scenario, scenario: Scenario, judged: Sequence[Judged], seed: int,
    start: Start | None,
) -> list[Cause]:  # fmt: skip
    """Shares of the gap that tries explain, without tries that do not apply."""
    gap = _distance({row.metric: row.predicted for row in judged}, judged)
    pending = [(start or partial)(_predicted, changes, run, base, scenario, seed) for _, changes in tried]
    causes = []
    for (entry, changes), result in zip(tried, pending, strict=True):
        predicted = result()
        if predicted is not None:
            shown = {row.metric: predicted[row.metric] for row in judged if row.metric in predicted}
            share = 1.0 - _distance(predicted, judged) / gap
            causes.append(Cause(entry["cause"], changes, share, shown, entry["check"]))
    return causes


def _best(causes: Sequence[Cause]) -> list[Cause]:
    """The best try of every cause that explains something, the best cause first."""
    best: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda cause: -cause.share):
        if cause.share >= LEAST_SHARE:
            best.setdefault(cause.cause, cause)
    return list(best.values())


def _predicted(
    changes: Sequence[Json], run: MeasuredRun, base: Scenario, scenario: Scenario, seed: int
) -> dict[str, float] | None:
    """Figures of a run under changes; None if the changes do not apply or cannot be simulated."""
    factors: dict[str, float] = {}
    try:
        for change in changes:
            run, more = _applied(change, run, scenario)
            factors |= more
        predicted: dict[str, float] = rerun(run, base, seed, factors=factors)["predicted"]
    except Refused:
        return None
    return predicted


def _changes(entry: Json, scenario: Scenario) -> Iterator[Json]:
    """The changes by which a cause is tried on a scenario; empty if it does not apply or nothing changes."""
    plain = scenario.model_dump()
    if any(bool(nested_value(plain, path)) != value for path, value in entry.get("when", {}).items()):
        return
    for each in entry["tries"]:
        if "halved" in each:
            value = nested_value(plain, each["halved"])
            while isinstance(value, int) and value > 1:
                value //= 2
                yield {each["halved"]: value}
        elif "widened" in each:
            formats = resolve_weight_dtypes(load_architecture(scenario.model), scenario.weights_dtype)
            narrowest = min(formats.values(), key=dtype_bytes)
            if dtype_bytes(narrowest) < 2:
                yield from ({"weights_dtype": wide} for wide in each["widened"].get(narrowest, []))
                yield {"weights_dtype": "bf16"}
        elif "older" in each:
            yield from ({each["older"]: name} for name in older_sets(nested_value(plain, each["older"])))
        elif not any("." in path for path in each) or any(
            nested_value(plain, path) != one for path, one in each.items()
        ):
            yield each


def _applied(change: Json, run: MeasuredRun, scenario: Scenario) -> tuple[MeasuredRun, dict[str, float]]:
    """A run with a change, and the factors on constants that belong to it.

    Raises:
        ForerunError: the change does not apply to the run.
    """
    settings = {**run.settings}
    if "factors" in change:
        name = scenario.engine.framework
        return run, {f"{name}.{constant}": factor for constant, factor in change["factors"].items()}
    if "acceptance_length" in change:
        if run.acceptance_length is not None or run.acceptance_per_position:
            raise ForerunError("the acceptance was measured")
        return replace(run, acceptance_length=change["acceptance_length"]), {}
    if "same_prompts" in change:
        tokens = scenario.workload.input_tokens
        if run.pool is not None or not isinstance(tokens, int):
            raise ForerunError("the prompts are known")
        settings["engine.enable_prefix_caching"] = True
        return replace(run, pool=PromptPool(prompts=1, groups=1, shared_tokens=tokens), settings=settings), {}
    if "power" in change:
        power = load_chip(scenario.hardware.chip).power
        if power is None or scenario.hardware.power_limit_w is not None:
            raise ForerunError("the power limit is stated, or the chip's power not known")
        return replace(run, settings={**settings, "hardware.power_limit_w": change["power"] * power.tdp_w}), {}
    if "hardware.link" in change and scenario.hardware.tensor_parallel * scenario.hardware.expert_parallel == 1:
        raise ForerunError("one chip")
    outstanding = change.get("workload.arrivals.max_concurrency")
    return replace(run, settings=settings | change, max_concurrency=outstanding or run.max_concurrency), {}


def _verdict(judged: Sequence[Judged], causes: Sequence[Cause]) -> str:
    """Sentence with the verdict and the supported claim about its cause."""
    off = [row for row in judged if row.place == "outside"] or [row for row in judged if row.place == "inside"]
    if not off:
        return "The server is as fast as it should be: every figure lies in the likely half of its interval"
    off.sort(key=lambda row: -abs(log(row.measured / row.predicted)))
    words = []
    for row in off:
        (title, unit), ratio = metric_title(row.metric), row.measured / row.predicted
        faster = (ratio > 1) == HIGHER_IS_BETTER.get(row.metric, False)
        pace = f"{max(ratio, 1 / ratio):.1f} times {'faster' if faster else 'slower'} than it should be"
        low, high = (number(end) for end in row.interval)
        figure = (
            f"{title[0].lower()}{title[1:]}: {number(row.measured)} {unit} for {number(row.predicted)} (nine in ten "
        )
        words.append(f"{pace} in {figure}{low} to {high})")
    usual = "" if off[0].place == "outside" else "; that is unusual, and inside nine in ten"
    return f"The server is {'; '.join(words)}{usual}. {_claim(causes)}"


def _claim(causes: Sequence[Cause]) -> str:
    if not causes:
        return "No single cause that is known here explains it"
    equal = _equally_good(causes)
    if len(equal) > 1:
        named = " or ".join(f"{cause.cause} ({cause.share:.0%})" for cause in equal[:3])
        return f"Nothing is claimed, for {len(equal)} causes explain it equally well: {named}"
    return f"The likeliest cause is {equal[0].cause}, which explains {equal[0].share:.0%}"


def _equally_good(causes: Sequence[Cause]) -> list[Cause]:
    """The causes that explain as much as the first one, within ``EQUAL``; a single one is claimed."""
    return [cause for cause in causes if cause.share > causes[0].share - EQUAL]


def _from_here(scenario: Scenario, causes: Sequence[Cause]) -> Scenario:
    """Scenario with the change of the first cause, if that cause is claimed and its change is a scenario field."""
    equal = _equally_good(causes)
    changes = {path: value for change in equal[0].change for path, value in change.items()} if len(equal) == 1 else {}
    try:
        return scenario.with_values(changes) if all("." in path for path in changes) else scenario
    except Refused:
        return scenario


def helps(scenario: Scenario, seed: int) -> list[Help]:
    """The changes that would speed a scenario up most, by prediction, with 90 % intervals of the gain."""
    rate = scenario.workload.arrivals is not None and scenario.workload.arrivals.request_rate is not None
    metric = "mean_e2el_ms" if rate else "output_throughput"
    variants = [Variant("as measured", {}, scenario)]
    plain = scenario.model_dump()
    for entry in _entries("helps"):
        change = dict(entry.get("set", {}))
        if "doubled" in entry:
            change = {entry["doubled"]: 2 * (nested_value(plain, entry["doubled"]) or 1)}
        if all(nested_value(plain, path) == value for path, value in change.items()):
            continue
        try:
            variants.append(Variant(entry["change"], change, scenario.with_values(change)))
        except Refused:
            continue
    gained = _most_gained(variants, metric, seed)
    more = [variant for variant in gained if any(path.startswith("hardware.") for path in variant.set)]
    gained = [variant for variant in gained if variant not in more[1:]]  # of more hardware the best alone
    kept = [variants[0], *gained[:MOST_HELPS]]
    if len(kept) == 1:
        return []
    compared = compare_variants(
        kept, metric, "none", [seed], sensitivity=False, interval=True, jobs=1, progress=None
    ).data
    rows = []
    for variant in compared.variants[1:]:
        ratio = variant.speedup[metric]
        if ratio is not None:
            rows.append(
                Help(variant.name, variant.set, metric, ratio.ratio, (ratio.low, ratio.high), ratio.probability)
            )
    return rows


def _most_gained(variants: Sequence[Variant], metric: str, seed: int) -> list[Variant]:
    """The variants with the largest gains over the first, by runs without intervals."""
    from simulator.running.metrics.summary import summarise
    from simulator.running.run import simulate

    figures: list[float | None] = []
    for variant in variants:
        try:
            figures.append(summarise(simulate(variant.scenario, seed, intervals=False)).get(metric))
        except Refused:
            figures.append(None)
    base = figures[0]
    if not base:
        return []
    gains = [
        ((value / base if HIGHER_IS_BETTER[metric] else base / value) if value else 0.0, place)
        for place, value in enumerate(figures)
    ]
    best = sorted((gain, place) for gain, place in gains[1:] if gain > LEAST_GAIN)[::-1]
    return [variants[place] for _, place in best]
