"""Paired what-if: variants of a scenario on common random numbers, with intervals, sensitivity and crossover."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from forerun.document import Json
from forerun.errors import ArgumentError, ForerunError, WorkerDiedError
from forerun.workers import study_workers
from hwprofiles import weakest
from simulator.running.build import build_run
from simulator.running.metrics import combine_replications
from simulator.running.refusals import evictions_of
from simulator.running.scenario import Scenario, ScenarioSource, as_scenario, load_scenario, place_of
from simulator.speculation import borrowed_acceptance
from simulator.studies.alspec import at_range_end
from simulator.studies.compare.crossover import (
    MAX_CONCURRENCY,
    SIDE_RUNS,
    at_value,
    automatic_path,
    grid_values,
    lacks_section,
    load_curves,
    load_path,
    nearest_crossing,
    scenario_load,
    served_grid,
    served_load,
)
from simulator.studies.compare.document import (
    ASSUMED,
    GOODPUT,
    MODELLED,
    SAME_GOODPUT,
    SAMPLING,
    CacheOutcome,
    CompareDocument,
    ComparedVariant,
    CompareResult,
    Crossover,
    DraftingGain,
    LoadCurves,
    SpeedupCurve,
    compare_sentence,
)
from simulator.studies.compare.sensitivity import swings
from simulator.studies.frame import ProgressCall, study_header
from simulator.studies.paired import (
    HIGHER_IS_BETTER,
    LEVEL,
    Ratio,
    checked_metric,
    metric_values,
    paired_ratio,
    with_model_error,
)
from simulator.studies.runs import RunPool, SeededRun, nested_value, with_seeds
from simulator.studies.study_file import (
    Source,
    StudyFile,
    Values,
    Variant,
    design_points,
    load_study,
    parse_vary,
    settings_name,
    study_of,
)
from simulator.studies.unshared import unshared_of

AUTOMATIC, NONE = "auto", "none"


def variants_of(study: StudyFile) -> list[Variant]:
    """Variants of a study, baseline first: all combinations of ``vary``, or the named variants.

    A single variant is compared with the given scenario.

    Raises:
        ForerunError: nothing varies, or a value is invalid in the scenario.
    """
    variants = list(study.variants)
    if study.vary:
        if variants:
            raise ForerunError(
                f"{study.place}: compare takes vary or variants, not both; write the combinations as variants"
            )
        points = design_points(study.vary)
        variants = [Variant(settings_name(point), point, study.with_settings(point)) for point in points]
    if not variants:
        raise ForerunError(
            f"{study.place}: there is nothing to compare; add --vary PATH=V1,V2,..., or name a second file"
        )
    if len(variants) == 1:
        variants.insert(0, Variant("as given", {}, study.scenario))
    return variants


def bases_of(variants: Sequence[Variant]) -> dict[str, str]:
    """Baseline of each variant: the first variant at the same load if loads and other fields vary, else the first."""
    loads = {}
    for variant in variants:
        path = load_path(variant.scenario)
        loads[variant.name] = path, path and scenario_load(variant.scenario, path)
    firsts: dict[Any, str] = {}
    for name, load in loads.items():
        firsts.setdefault(load, name)
    alone = min(Counter(loads.values()).values()) < 2
    return {name: variants[0].name if alone else firsts[load] for name, load in loads.items()}


def variants_from_files(files: Sequence[str], overrides: Sequence[str] = (), vary: Sequence[str] = ()) -> list[Variant]:
    """Variants that the command line names: one study or scenario file, or several scenario files.

    Raises:
        ForerunError: a file is invalid, or ``vary`` is given with several files.
    """
    if len(files) == 1:
        return variants_of(load_study(files[0], overrides, vary))
    if vary:
        raise ArgumentError("vary", "works on one scenario; compare several as they are, or vary one")
    places = [place_of(file) for file in files]
    lines = [f"line {number}" for number, place in enumerate(places, start=1) if place not in files]
    names = [Path(place).stem if place in files else lines.pop(0) for place in places]
    names = [name if names.count(name) == 1 else str(file) for name, file in zip(names, files, strict=True)]
    if len(set(names)) < len(names):
        raise ForerunError(f"{files[0]}: the same file is given twice; name different files, or use --vary")
    return [Variant(name, {}, load_scenario(file, overrides)) for name, file in zip(names, files, strict=True)]


def compare_variants(
    variants: Sequence[Variant],
    metric: str | None,
    crossover: str,
    seeds: Sequence[int],
    *,
    sensitivity: bool,
    interval: bool,
    jobs: int | None,
    progress: ProgressCall | None,
) -> CompareResult:
    """Compare ``variants``, baseline first; see ``compare``."""
    named = crossover.partition("=")[0]
    served = _served_loads(variants, automatic_path(variants) if named in (AUTOMATIC, NONE) else named)
    path, values, fixed_note = _crossover_plan(variants, crossover, served)
    with study_workers(jobs) as workers:
        pool = RunPool(workers, progress)
        documents, lost = _base_documents(variants, seeds, pool, interval)
        measured = {name: [metric_values(run) for run in runs] for name, runs in documents.items()}
        metric = metric or _judged_by(variants[0], documents)
        if all(row[metric] is None for row in measured[variants[0].name]):
            raise ArgumentError("metric", f"{variants[0].name} does not measure {metric}; choose another")
        bases = bases_of(variants)
        ratios = {name: _ratios(measured[base], measured[name]) for name, base in bases.items()}
        if interval:
            ratios |= _with_model_error(bases, documents, ratios)
        ratios |= _model_ranges(variants, bases, seeds[0], pool, measured, ratios)
        answers = {name: ratios[name][metric] for name, base in bases.items() if name != base}
        side = seeds[:SIDE_RUNS]
        most = {} if served is None or served["path"] != path else {one.name: served[one.name] for one in variants}
        requested = crossover != AUTOMATIC
        curves = load_curves(variants, path, values, metric, side, pool, most, requested) if path else []
        alike = [name for name in answers if measured[name] == measured[bases[name]]]
        differ = len(alike) < len(answers)  # variants that run alike do so whatever the assumed parameters are
        tornado = swings(variants, bases, metric, side, answers, pool) if sensitivity and differ else []
        bounds = _eviction_bounds(variants, bases)
        unnamed = [one for one in (bounds or {}).values() if one not in variants]
        best = _base_documents(unnamed, seeds, pool, False)[0] if unnamed else {}
    combined = {name: combine_replications(runs) for name, runs in documents.items()}
    best_runs = combined | {name: combine_replications(runs) for name, runs in best.items()}
    runs = len(next(iter(documents.values())))
    notes = _notes(combined, runs, fixed_note, variants) + lost
    if alike:
        untried = "" if differ else "; assumed parameters were not tried"
        base = bases[alike[0]] if len({bases[name] for name in alike}) == 1 else "the first of its load"
        same = f"runs exactly as {base}: what it changes has no effect on this load"
        notes.append(f"{', '.join(alike)}: {same}{untried}")
    crossings = [crossing for curve in curves for crossing in curve.crossings]
    nearest = nearest_crossing(crossings, scenario_load(variants[0].scenario, path) if path else None)
    data = CompareDocument(
        variants=[_compared(one, bases[one.name], best_runs, ratios[one.name], bounds) for one in variants],
        eviction_bounds={one.name: CacheOutcome.of(best_runs[one.name], None) for one in unnamed},
        baseline=variants[0].name,
        metric=metric,
        level=LEVEL,
        crossover=None
        if nearest is None or path is None
        else Crossover(path=path, metric=metric, all=crossings, **vars(nearest)),
        load_curves=None
        if path is None
        else LoadCurves(
            path=path,
            metric=metric,
            requested=crossover != AUTOMATIC,
            curves=[SpeedupCurve(variant=curve.variant, points=list(curve.points)) for curve in curves],
        ),
        served_load=served,
        sensitivity=tornado,
        replications=runs,
        **study_header(variants[0].scenario, seeds[0], weakest(run["basis"] for run in combined.values()), notes),
    )
    borrowed = [(v.name, borrowed_acceptance(v.scenario.speculation, v.scenario.model)) for v in variants]
    remarks = "".join(f" {name}: {words}." for name, words in borrowed if words is not None)
    return CompareResult(replace(data, conclusion=compare_sentence(data) + remarks))


def headline_metric(variant: Variant) -> str:
    """Deciding metric without an SLO: throughput if the load adapts to the engine, else end-to-end latency."""
    arrivals = variant.scenario.workload.arrivals
    adaptive = arrivals is not None and arrivals.process in ("burst", "closed-loop")
    return "output_throughput" if adaptive else "mean_e2el_ms"


def _served_loads(variants: Sequence[Variant], path: str | None) -> dict[str, Any] | None:
    """The load field, its value in the scenario, and the highest load that each variant can serve; None without one."""
    if path is None:
        return None
    loads = {variant.name: served_load(variant.scenario, path) for variant in variants}
    return {"path": path, "requested": scenario_load(variants[0].scenario, path), **loads}


def _judged_by(base: Variant, documents: Mapping[str, Sequence[Json]]) -> str:
    """Deciding metric of a comparison: goodput if there is an SLO and the share of good requests differs."""
    if not base.scenario.slo:
        return headline_metric(base)
    good = [fmean((run["slo"] or {}).get("good_share") or 0.0 for run in runs) for runs in documents.values()]
    return headline_metric(base) if max(good) - min(good) <= SAME_GOODPUT or 0.0 in good else GOODPUT


def chosen_variants(
    scenarios: Source | Mapping[str, Scenario] | Sequence[Variant | ScenarioSource],
    vary: Mapping[str, Sequence[Any]] | None,
    metric: str | None,
) -> tuple[list[Variant], str | None]:
    """Variants from the arguments of ``compare``, baseline first, and the metric if one is given."""
    several: list[Variant] = []
    if isinstance(scenarios, list | tuple):
        several = [
            each if isinstance(each, Variant) else Variant(f"scenario {number}", {}, as_scenario(each))
            for number, each in enumerate(scenarios, 1)
        ]
        if len(several) < 2:
            raise ArgumentError("scenarios", f"a list of two or more is needed (got {len(several)})")
    elif isinstance(scenarios, Mapping) and any(isinstance(each, Scenario) for each in scenarios.values()):
        several = [Variant(str(name), {}, as_scenario(each)) for name, each in scenarios.items()]
    if several:
        if vary:
            raise ArgumentError("vary", "works on one scenario; compare several as they are, or vary one")
        variants = several
    else:
        study = study_of(cast(Source, scenarios), vary)
        variants, metric = variants_of(study), metric or study.metric
    return variants, None if metric is None else checked_metric(metric)


def _base_documents(
    variants: Sequence[Variant], seeds: Sequence[int], pool: RunPool, interval: bool
) -> tuple[dict[str, list[Json]], list[str]]:
    """Runs of every variant on the seeds that all variants finished, and notes on dropped seeds. The first run of each
    variant also estimates the model error if ``interval``."""
    documents: dict[str, list[Json]] = {variant.name: [] for variant in variants}
    runs = {variant.name: with_seeds(variant.scenario, seeds, "document") for variant in variants}
    for variant in variants if interval else ():
        if variant.scenario.attention_speculation is None:
            runs[variant.name][0] = runs[variant.name][0]._replace(intervals=True)
    pool.documents_if_any([run for variant_runs in runs.values() for run in variant_runs])
    lost: list[str] = []
    for index, seed in enumerate(seeds):
        try:
            row = {name: pool.document(variant_runs[index], name) for name, variant_runs in runs.items()}
        except WorkerDiedError as error:
            lost.append(f"seed {seed} is left out of every variant: {error}")
            continue
        for name, document in row.items():
            documents[name].append(document)
    if len(lost) == len(seeds):
        raise WorkerDiedError(lost[0])
    return documents, lost


def _ratios(base: Sequence[Json], other: Sequence[Json]) -> dict[str, Ratio | None]:
    return {
        name: paired_ratio([row[name] for row in base], [row[name] for row in other], better)
        for name, better in HIGHER_IS_BETTER.items()
    }


def _with_model_error(
    bases: Mapping[str, str],
    documents: Mapping[str, Sequence[Json]],
    ratios: Mapping[str, dict[str, Ratio | None]],
) -> dict[str, dict[str, Ratio | None]]:
    """Ratios whose intervals include the model error, for variants with a known model error."""
    errors = {name: runs[0]["model_error"] for name, runs in documents.items()}

    def widened(name: str, base: str) -> dict[str, Ratio | None]:
        runs = documents[base][0], documents[name][0]
        levels = [run["evidence"] for one in (base, name) for run in documents[one]]
        unshared = unshared_of(runs[0]["scenario"], runs[1]["scenario"], *levels)
        return {
            metric: ratio and with_model_error(ratio, errors[base], errors[name], metric, levels,
                                               unshared and partial(unshared.draws, *runs, metric))
            for metric, ratio in ratios[name].items()
        }  # fmt: skip

    known = {name for name, error in errors.items() if error is not None}
    return {name: widened(name, base) for name, base in bases.items() if name != base and {name, base} <= known}


def _model_ranges(
    variants: Sequence[Variant],
    bases: Mapping[str, str],
    seed: int,
    pool: RunPool,
    measured: Mapping[str, Sequence[Json]],
    ratios: Mapping[str, dict[str, Ratio | None]],
) -> dict[str, dict[str, Ratio | None]]:
    """Ratios of variants with attention-level speculation, with intervals widened to the range of assumed costs.

    Such runs are often deterministic: a pure sampling interval would have zero width.
    """
    ends = {
        variant.name: [SeededRun(at_range_end(variant.scenario, end), seed) for end in ("low", "high")]
        for variant in variants
        if variant.name != bases[variant.name] and variant.scenario.attention_speculation is not None
    }
    pool.documents_if_any([run for runs in ends.values() for run in runs])
    ranges = {}
    for name, runs in ends.items():
        base = measured[bases[name]][:1]
        others = [_ratios(base, [metric_values(pool.document(run, name))]) for run in runs]
        ranges[name] = {metric: _widened(ratio, [o[metric] for o in others]) for metric, ratio in ratios[name].items()}
    return ranges


def _widened(ratio: Ratio | None, ends: Sequence[Ratio | None]) -> Ratio | None:
    if ratio is None:
        return None
    known = [end for end in (ratio.low, ratio.high, *(one.ratio for one in ends if one is not None)) if end is not None]
    low, high = min([ratio.ratio, *known]), max([ratio.ratio, *known])
    return Ratio(ratio.ratio, low, high) if high > low * (1 + 1e-9) else Ratio(ratio.ratio, None, None)


def _crossover_plan(
    variants: Sequence[Variant], requested: str, served: Mapping[str, Any] | None
) -> tuple[str | None, list[float], str | None]:
    """Path and values of the load grid, and a remark if there is none."""
    if requested == NONE:
        return None, [], None
    if requested == AUTOMATIC:
        path = automatic_path(variants)
        if path is None:
            return None, [], "no crossover: the variants have no load in common that could grow"
        base = scenario_load(variants[0].scenario, path)
        if path != MAX_CONCURRENCY:
            most = {} if served is None else {variant.name: served[variant.name] for variant in variants}
            return path, served_grid(base, most) or grid_values(None, base, False, "crossover"), None
        grid = grid_values(None, 8.0 if base is not None and base <= 1 else base, True, "crossover")
        if variants[0].scenario.workload.trace is None:
            return path, grid, None
        requests = max((variant.scenario.workload.num_requests or grid[-1]) for variant in variants)
        grid = [value for value in grid if value <= requests]
        if len(grid) < 2:
            few = f"the workload has only {requests:g} request{'s' * (requests > 1)}"
            return None, [], f"no crossover along the load: {few}"
        return path, grid, None
    path, equals, _ = requested.partition("=")
    values: Values | None = parse_vary([requested])[path] if equals else None
    having = [variant.scenario for variant in variants if not lacks_section(variant.scenario, path)]
    if not having:
        raise ForerunError(f"crossover {requested}: no variant has the section {path.partition('.')[0]}")
    known = nested_value(having[0].model_dump(), path)
    is_number = isinstance(known, int | float) and not isinstance(known, bool)
    base = float(known) if is_number else scenario_load(variants[0].scenario, path)
    whole = is_number and isinstance(known, int)
    grid = grid_values(values, base, whole, f"crossover {requested}")
    for variant in variants:
        at_value(variant.scenario, path, grid[0])
    return path, grid, None


OF_THE_RUN = ("summary", "intervals", "likely", "slo", "bottleneck", "basis", "chips", "energy_joules",
              "usd_per_million_output_tokens", "scenario")  # fmt: skip


def _eviction_bounds(variants: Sequence[Variant], bases: Mapping[str, str]) -> dict[str, Variant] | None:
    """Clairvoyant bound by baseline, a variant or one beside them; None if all have the same eviction policies."""
    evictions = {one.name: evictions_of(one.scenario) for one in variants}
    fields = {field for by_field in evictions.values() for field in by_field}
    varied = [field for field in sorted(fields) if len({one.get(field) for one in evictions.values()}) > 1]
    bounds = {
        bases[one.name]: one
        for one in variants
        if varied and any(setting.rule.clairvoyant for setting in evictions[one.name].values())
    }
    for one in variants:
        if varied and one.name in bases.values() and one.name not in bounds:
            words = "belady (bound)" if len(set(bases.values())) == 1 else f"belady (bound), {one.name}"
            with suppress(ForerunError):  # refused where nobody knows which server will have which requests
                values = {field: "belady" for field in varied if field in evictions[one.name]}
                bound = Variant(words, {}, one.scenario.with_values(values))
                build_run(bound.scenario)
                bounds[one.name] = bound
    return bounds if varied else None


def _compared(
    variant: Variant,
    base: str,
    runs: Mapping[str, Json],
    ratios: dict[str, Ratio | None],
    bounds: Mapping[str, Variant] | None,
) -> ComparedVariant:
    attention, run = variant.scenario.attention_speculation, runs[variant.name]
    return ComparedVariant(
        name=variant.name,
        set=dict(variant.set),
        baseline=base,
        speedup=ratios,
        interval_of=ASSUMED if attention is not None else MODELLED if run["model_error"] else SAMPLING,
        ideal=(attention is not None and attention.reading == "pipelined") or variant in (bounds or {}).values(),
        drafting=None if attention is not None else DraftingGain.of(runs[base], run),
        cache=None if bounds is None else CacheOutcome.of(run, runs[bounds[base].name] if base in bounds else None),
        **{key: run[key] for key in OF_THE_RUN},
    )


def _notes(combined: dict[str, Json], runs: int, fixed: str | None, variants: Sequence[Variant]) -> list[str]:
    seen = {name: _one_of_each(run["notes"]) for name, run in combined.items()}
    all_notes = dict.fromkeys(note for notes in seen.values() for note in notes)
    owners = {note: [name for name, notes in seen.items() if note in notes] for note in all_notes}
    base, others = variants[0].name, len(combined) - 1
    result = []
    for note, names in owners.items():
        owned = f"all but {base}" if base not in names and len(names) == others > 1 else ", ".join(names)
        result.append(note if len(names) == len(combined) else f"{owned}: {note}")
    if fixed is not None:
        result.append(fixed)
    if runs < 2:
        result.append("one run of each variant: the intervals do not cover chance (--replications 2 or more)")
    if variants[0].scenario.workload.trace is not None and runs > 1:
        drawn = any(one.scenario.random for one in variants)
        covered = "cover only the engine's random draws, such as acceptance" if drawn else "contain no chance"
        result.append(f"every run replays the same requests of the trace: the intervals {covered}")
    return result


def _one_of_each(notes: Sequence[str]) -> list[str]:
    """First note of every kind; notes of several replications differ only in their numbers."""
    kinds: dict[str, str] = {}
    for note in notes:
        kinds.setdefault(re.sub(r"\d[\d,.]*", "0", note), note)
    return list(kinds.values())
