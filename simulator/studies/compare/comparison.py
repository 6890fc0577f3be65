"""Paired what-if: variants of a scenario on common random numbers, with intervals, sensitivity and crossover."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from forerun.errors import ArgumentError, ForerunError, WorkerDiedError
from forerun.result import NamedFields, StudyResult, Summary
from forerun.tables import ABSENT, Cell, Table, Tone, Value, duration, number
from forerun.workers import study_workers
from hwprofiles import weakest
from simulator.running.metrics import combine_replications
from simulator.running.metrics.conclusion import chance_words
from simulator.running.metrics.uncertainty import LEAST_SURE, MOST_SURE
from simulator.running.metrics.usage import HOST_SHARE, host_share
from simulator.running.scenario import Scenario, ScenarioSource, as_scenario, load_scenario
from simulator.speculation import borrowed_acceptance
from simulator.studies.alspec import at_range_end
from simulator.studies.compare.crossover import (
    MAX_CONCURRENCY,
    SIDE_RUNS,
    at_value,
    automatic_path,
    crossing_rows,
    grid_values,
    lacks_section,
    load_curves,
    load_path,
    nearest_crossing,
    scenario_load,
    served_grid,
    served_load,
)
from simulator.studies.compare.sensitivity import swings
from simulator.studies.frame import ProgressCall, study_document
from simulator.studies.paired import (
    COSTS,
    HIGHER_IS_BETTER,
    LEVEL,
    Ratio,
    checked_metric,
    load_words,
    metric_values,
    metric_with_unit,
    metric_words,
    paired_ratio,
    times,
    with_model_error,
)
from simulator.studies.plan.objectives import latency_words
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
    study_text,
)
from simulator.workload.workload_config import rate_unit

AUTOMATIC, NONE = "auto", "none"
SAMPLING, MODELLED, ASSUMED = "sampling", "model error and sampling", "assumed costs and sampling"
"""Sources of error that the interval of a ratio may cover."""
TORNADO_ROWS = 8
NO_EFFECT = 0.005
"""Change of a speedup over the range of an assumed parameter that counts as none."""


def variants_of(study: StudyFile) -> list[Variant]:
    """The variants of a study, baseline first: all combinations of ``vary``, or the named ones.

    A single one is compared with the scenario as it is given.

    Raises:
        ForerunError: nothing varies, or a value that the scenario does not take.
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
    """The variant that each is compared with: the first at its load where loads vary beside other fields, else the
    first of all."""
    loads = {}
    for variant in variants:
        path = load_path(variant.scenario)
        loads[variant.name] = path, path and scenario_load(variant.scenario, path)
    firsts: dict[Any, str] = {}
    for name, load in loads.items():
        firsts.setdefault(load, name)
    alone = min(Counter(loads.values()).values()) < 2
    return {name: variants[0].name if alone else firsts[load] for name, load in loads.items()}


def variants_from_files(
    files: Sequence[Path], overrides: Sequence[str] = (), vary: Sequence[str] = ()
) -> list[Variant]:
    """The variants that the command line names: one study or scenario file, or several scenario files.

    Raises:
        ForerunError: a file is wrong, or ``vary`` with several files.
    """
    if len(files) == 1:
        return variants_of(load_study(files[0], overrides, vary))
    if vary:
        raise ArgumentError("vary", "works on one scenario; compare several as they are, or vary one")
    names = [file.stem for file in files]
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
    """The comparison of ``variants``, the baseline first; see ``compare``."""
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
    combined = {name: combine_replications(runs) for name, runs in documents.items()}
    runs = len(next(iter(documents.values())))
    notes = _notes(combined, runs, fixed_note, variants) + lost
    if alike:
        untried = "" if differ else "; assumed parameters were not tried"
        base = bases[alike[0]] if len({bases[name] for name in alike}) == 1 else "the first of its load"
        same = f"runs exactly as {base}: what it changes has no effect on this load"
        notes.append(f"{', '.join(alike)}: {same}{untried}")
    nearest = nearest_crossing(curves, scenario_load(variants[0].scenario, path) if path else None)
    along = {"path": path, "metric": metric}
    body = {
        "variants": [_variant_document(v, bases[v.name], combined[v.name], ratios[v.name]) for v in variants],
        "baseline": variants[0].name,
        "metric": metric,
        "level": LEVEL,
        "crossover": None if nearest is None else {**along, **nearest, "all": crossing_rows(curves)},
        "load_curves": None
        if path is None
        else {**along, "requested": crossover != AUTOMATIC, "curves": [curve.document() for curve in curves]},
        "served_load": served,
        "sensitivity": [swing.document() for swing in tornado],
        "conclusion": "",
        "replications": runs,
    }
    basis = weakest(run["basis"] for run in combined.values())
    document = study_document(body, variants[0].scenario, seeds[0], basis, notes)
    borrowed = [(v.name, borrowed_acceptance(v.scenario.speculation, v.scenario.model)) for v in variants]
    remarks = "".join(f" {name}: {words}." for name, words in borrowed if words is not None)
    document["conclusion"] = compare_sentence(document) + remarks
    return CompareResult(document)


SAME_RATIO = 0.005
"""Difference of a ratio from 1 that counts as none."""
GOODPUT = "request_goodput"
SAME_GOODPUT = 0.005
"""Difference of the share of good requests up to which variants are judged by another metric."""


def headline_metric(variant: Variant) -> str:
    """What a comparison without an SLO is judged by: throughput where the load adapts to the engine, else end-to-end
    latency."""
    arrivals = variant.scenario.workload.arrivals
    adaptive = arrivals is not None and arrivals.process in ("burst", "closed-loop")
    return "output_throughput" if adaptive else "mean_e2el_ms"


def _served_loads(variants: Sequence[Variant], path: str | None) -> dict[str, Any] | None:
    """The load field, its value in the scenario, and the most of it that each variant can serve; None without one."""
    if path is None:
        return None
    loads = {variant.name: served_load(variant.scenario, path) for variant in variants}
    return {"path": path, "requested": scenario_load(variants[0].scenario, path), **loads}


def _judged_by(base: Variant, documents: Mapping[str, Sequence[dict[str, Any]]]) -> str:
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
    """The variants that a call means, the baseline first, and what they are judged by, if anybody says."""
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
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The runs of every variant on the seeds that all of them finished, and notes on those that they did not; the first
    of each also looks for its model's error, where that is requested.
    """
    documents: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
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


def _ratios(base: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> dict[str, Ratio | None]:
    return {
        name: paired_ratio([row[name] for row in base], [row[name] for row in other], better)
        for name, better in HIGHER_IS_BETTER.items()
    }


def _with_model_error(
    bases: Mapping[str, str],
    documents: Mapping[str, Sequence[dict[str, Any]]],
    ratios: Mapping[str, dict[str, Ratio | None]],
) -> dict[str, dict[str, Ratio | None]]:
    """Ratios with the error of the model in their intervals, for variants that know it."""
    errors = {name: runs[0]["model_error"] for name, runs in documents.items()}
    evidence = {name: weakest(run["basis"] for run in runs) for name, runs in documents.items()}
    return {
        name: {
            metric: ratio
            and with_model_error(ratio, errors[base], errors[name], metric, (evidence[base], evidence[name]))
            for metric, ratio in ratios[name].items()
        }
        for name, base in bases.items()
        if name != base and errors[base] is not None and errors[name] is not None
    }


def _model_ranges(
    variants: Sequence[Variant],
    bases: Mapping[str, str],
    seed: int,
    pool: RunPool,
    measured: Mapping[str, Sequence[dict[str, Any]]],
    ratios: Mapping[str, dict[str, Ratio | None]],
) -> dict[str, dict[str, Ratio | None]]:
    """Ratios of variants under attention-level speculation, their intervals widened to the range of its assumed costs.

    Such runs are often deterministic: the interval of sampling alone would have no width and mean nothing.
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
    """Path and values of the load grid, and a remark where there is none."""
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


OF_THE_RUN = (
    "summary",
    "intervals",
    "slo",
    "bottleneck",
    "basis",
    "chips",
    "energy_joules",
    "usd_per_million_output_tokens",
    "scenario",
)


def _variant_document(
    variant: Variant, base: str, run: dict[str, Any], ratios: dict[str, Ratio | None]
) -> dict[str, Any]:
    attention = variant.scenario.attention_speculation
    return {
        "name": variant.name,
        "set": dict(variant.set),
        "baseline": base,
        "speedup": {name: None if ratio is None else ratio._asdict() for name, ratio in ratios.items()},
        "interval_of": ASSUMED if attention is not None else MODELLED if run["model_error"] else SAMPLING,
        "ideal": attention is not None and attention.reading == "pipelined",
        **{key: run[key] for key in OF_THE_RUN},
    }


def _notes(combined: dict[str, dict[str, Any]], runs: int, fixed: str | None, variants: Sequence[Variant]) -> list[str]:
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
    """The first of every kind of note: those of several replications differ in their numbers."""
    kinds: dict[str, str] = {}
    for note in notes:
        kinds.setdefault(re.sub(r"\d[\d,.]*", "0", note), note)
    return list(kinds.values())


def compare_sentence(document: dict[str, Any]) -> str:
    """The verdict on the baseline, the crossover, and whether an assumption could turn it over."""
    metric, base = document["metric"], document["baseline"]
    rows = contenders(document)
    if not rows:
        return f"No variant measures {metric_words(metric)}, so none can be compared with {base}."
    if len({base_of(row, document) for row in rows}) > 1:
        return _by_load_sentence(document, rows) + _slo_words(document)
    winner = rows[0]
    best, speedup = winner["name"], winner["speedup"][metric]
    verdict, reached = Ratio(**speedup).verdict, times(speedup["ratio"])
    where = f" in {metric_words(metric)}"
    interval = _interval(speedup, winner["interval_of"])
    good: list[Any] = [(v.get("slo") or {}).get("good_share") for v in document["variants"]]
    lead = ""
    if metric != GOODPUT and None not in good:
        low, high = min(good), max(good)
        shares = f"{low:.1%} to {high:.1%}"
        if high - low < SAME_GOODPUT:
            shares = f"{low:.1%}" if low == high else f"at least {low:.1%}"
        lead = f"Within the SLO are {shares} of the requests of every variant. "
    side, likely = Ratio(**speedup).side, "" if verdict else "probably "
    if abs(speedup["ratio"] - 1.0) < SAME_RATIO:
        side = 0
        text = f"{best} and {base} differ by less than {SAME_RATIO:.1%}{where}: {reached}{interval}"
    elif side > 0:
        text = f"{best} {likely}improves {metric_words(metric)} {reached} over {base}{interval}"
    elif side < 0:
        others = "" if len(rows) == 1 else " and the others worse still"
        text = (
            f"{base} {likely}has the better {metric_words(metric)}: {best} reaches {reached}{where}{interval}{others}"
        )
    elif len(rows) == 1:
        text = f"{best} does not differ surely from {base}{where}: {reached}{interval}"
    else:
        text = f"no variant beats {base} surely{where}; the best, {best}, reaches {reached}{interval}"
    text = text[0].upper() + text[1:] if text.startswith("no ") else text
    text += _crossover_words(document, best) + _sensitivity_words(document, best, side) + _host_words(document, rows)
    return lead + text + _overload_words(document) + _slo_words(document)


def _by_load_sentence(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The best variant at every load, over the first one at that load."""
    metric, parts, decided = document["metric"], [], []
    for base in dict.fromkeys(v["baseline"] for v in document["variants"]):
        best = next((row for row in rows if row["baseline"] == base), None)
        if best is not None:
            ratio = Ratio(**best["speedup"][metric])
            ends = "" if ratio.low is None or ratio.high is None else f" ({times(ratio.low)} to {times(ratio.high)})"
            parts.append(f"{best['name']} {times(ratio.ratio)}{ends}")
            decided += [best["name"]] if ratio.verdict else []
    text = f"{metric_words(metric)} over the first variant at the same load, with 95 % intervals: {'; '.join(parts)}"
    turned = [name for name in decided if any(name in row["flips"] for row in document["sensitivity"])]
    rests = _sensitivity_words(document, [*turned, *decided][0], 1) if decided else "."
    return text[0].upper() + text[1:] + rests


def compared_variants(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The variants that are compared with another."""
    return [variant for variant in document["variants"] if variant["name"] != base_of(variant, document)]


def base_of(variant: dict[str, Any], document: dict[str, Any]) -> str:
    """Name of the variant that one is compared with."""
    return str(variant.get("baseline", document["baseline"]))


def contenders(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Variants that measure the metric that decides, the highest speedup first."""
    metric = document["metric"]
    measuring = [v for v in compared_variants(document) if v["speedup"][metric] is not None]
    rows = [v for v in measuring if not v.get("ideal")] or measuring  # what nothing can reach wins no comparison
    return sorted(rows, key=lambda variant: -variant["speedup"][metric]["ratio"])


def _overload_words(document: dict[str, Any]) -> str:
    """Which variants cannot serve the load that the scenario requests."""
    served = document.get("served_load")
    if served is None or served["requested"] is None:
        return ""
    path, load = served["path"], served["requested"]
    known = {v["name"]: served[v["name"]] for v in document["variants"] if served[v["name"]] is not None}
    over = {name: most for name, most in known.items() if most < load}
    if not over:
        return ""
    if len(over) == len(document["variants"]):
        return f" {load_words(path, load)} cannot be served: at most about {load_words(path, max(over.values()))} can."
    rates = ", ".join(f"{name} serves at most about {load_words(path, most)}" for name, most in over.items())
    return f" The load is {load_words(path, load)}; {rates}."


def _slo_words(document: dict[str, Any]) -> str:
    """Sentence on the SLO limits that variants miss."""
    words = []
    for variant in document["variants"]:
        limits = (variant.get("slo") or {}).get("limits", {})
        missed = [
            f"{latency_words(key, limit['value'])} (limit {number(limit['limit'])})"
            for key, limit in limits.items()
            if limit["met"] is False
        ]
        words += [f"{variant['name']} misses {', '.join(missed)}"] if missed else []
    return f" {'; '.join(words)}." if words else ""


def _crossover_words(document: dict[str, Any], best: str) -> str:
    crossover = document["crossover"]
    if crossover is None:
        return _everywhere_words(document, best)
    crossings = [c for c in crossover["all"] if c["variant"] == best]
    crossing = crossover if crossover["variant"] == best or not crossings else crossings[0]
    subject = "it pays" if crossing["variant"] == best else f"{crossing['variant']} pays"
    path, unit = crossover["path"], rate_unit(document["scenario"]["workload"])
    all_of_it = [c for c in crossover["all"] if c["variant"] == crossing["variant"]]
    places = []
    for place in all_of_it:
        low, high = number(place["low"], 3), number(place["high"], 3)
        known = place["low"] is not None and place["high"] is not None and low != high
        words = f"{place['better']} about {load_words(path, place['value'], unit)}"
        places.append(words + (f" ({low} to {high})" if known else ""))
    served = document["served_load"] or {}
    pair = [served.get(name) for name in (crossing["variant"], document["baseline"])]
    most = inf if None in pair else min(one for one in pair if one is not None)
    points = [point for point in _points_of(document, crossing["variant"]) if point["value"] <= most]
    side = "at other loads"
    if len(all_of_it) == 1:
        below = crossing["better"] == "below"
        points = [point for point in points if (point["value"] > crossing["value"]) == below]
        side = "above" if below else "below"
    worst = 1.0 - min((point["ratio"] for point in points), default=1.0)
    words = f"; {subject} {' and '.join(places)}" + (f"; {side} it costs up to {worst:.0%}" if worst >= 0.005 else "")
    if most < inf and pair[0] != pair[1]:
        subject = "it" if crossing["variant"] == best else crossing["variant"]
        words += f"; {subject} serves at most about {load_words(path, pair[0], unit)}, "
        words += f"{document['baseline']} {number(pair[1], 3)}"
    return words


def _points_of(document: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    curves: list[dict[str, Any]] = document["load_curves"]["curves"]
    return next((curve["points"] for curve in curves if curve["variant"] == variant), [])


def _everywhere_words(document: dict[str, Any], best: str) -> str:
    """That a variant pays at every load tried that can be served; empty where it does not, or no load was tried."""
    served = document.get("served_load") or {}
    pair: list[Any] = [served.get(best), served.get(document["baseline"])]
    if document.get("load_curves") is None or None in pair:
        return ""
    most = max(pair)
    ratios = [point["ratio"] for point in _points_of(document, best) if point["value"] <= most]
    if len(ratios) < 2 or min(ratios) <= 1.0:
        return ""
    return f"; it pays at every load that can be served, up to about {load_words(served['path'], most)}"


def _sensitivity_words(document: dict[str, Any], best: str, side: int) -> str:
    rows = document["sensitivity"]
    if not rows or side == 0:
        return "."
    flipping = [row["says"] for row in rows if best in row["flips"]]
    if not flipping:
        return ". No assumed parameter reverses this within its range." if document["basis"] == "calibrated" else "."
    names = ", ".join(flipping[:3]) + (" and others" if len(flipping) > 3 else "")
    return f". It rests on {names}: within the assumed range the verdict turns over."


def _host_words(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Host work's share of the time of the best variant that drafts; empty where it is small."""
    methods = [(one.get("scenario", {}).get("speculation") or {"method": "none"})["method"] for one in rows]
    row = next((one for one, method in zip(rows, methods, strict=True) if method != "none"), None)
    if row is None or (share := host_share(row["bottleneck"])) < HOST_SHARE:
        return ""
    base = next(v for v in document["variants"] if v["name"] == base_of(row, document))
    return (
        f" Host work is {share:.0%} of the engine's time in {row['name']} and {host_share(base['bottleneck']):.0%} in "
        f"{base['name']}: where an engine's host is slower, drafting gains less."
    )


def _interval(speedup: dict[str, Any], what: str) -> str:
    if speedup["low"] is None:
        return ""
    words = "over the range of assumed costs" if what == ASSUMED else "95 % interval"
    likely = speedup.get("probability")
    chance = "" if likely is None else f", {chance_words(likely)} likely to be better"
    chance += ": no surer without calibrated evidence" if likely in (LEAST_SURE, MOST_SURE) else ""
    if Ratio(**speedup).undecided:
        chance = ", which of the two is better is undecided"
    return f" ({words} {times(speedup['low'])} to {times(speedup['high'])}{chance})"


SHOWN = ("output_throughput", "request_throughput", "request_goodput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
         "p99_tpot_ms", "mean_e2el_ms", "p99_e2el_ms", "spec_decode_acceptance_length")  # fmt: skip
"""Metrics that tables show; the rest is in the JSON and in the data frame."""
BRIEF = ("output_throughput", "request_goodput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
"""Those whose speedups a terminal shows without ``--full``."""
FAR = 100.0
"""Ratio beyond which the end of an interval is far off and no more than that."""


class ComparedVariant(NamedFields):
    """A variant of a comparison; its other fields are those of the comparison's JSON."""

    name: str
    set: dict[str, Any]
    """Scenario values in which the variant differs, by dotted path."""
    summary: dict[str, Any]
    """Figures of its runs, keyed as vLLM's benchmark."""
    speedup: dict[str, dict[str, float] | None]
    """By metric: ``ratio`` over the baseline, with ``low`` and ``high``."""
    bottleneck: dict[str, float]
    basis: str
    chips: int


class CompareResult(StudyResult):
    """Variants beside each other on common random numbers.

    Its data frame has a row for each variant and metric: ``variant``, ``metric``, ``value``, ``speedup``, ``low``,
    ``high``.
    """

    kind = "compare"
    legend = (
        "Speedup, its 95 % interval (chance and the model's error), and P, the probability that the variant is better; "
        "undecided: the prediction favours one and the model's error the other. Without calibrated evidence P is at "
        "most 0.9, and the interval reaches beyond 1."
    )

    @property
    def title(self) -> str:
        names = [variant["name"] for variant in self.document["variants"]]
        against = " against ".join(names) if len(names) == 2 else f"{len(names)} variants"
        return f"{self.model} on {self.document['scenario']['hardware']['chip']}: {against}"

    @property
    def facts(self) -> str:
        document = self.document
        return f"basis: {document['basis']} · {document['replications']} paired runs from seed {document['seed']}"

    @property
    def best(self) -> ComparedVariant:
        """The variant with the highest speedup in the metric that decides; the baseline where none is above 1."""
        metric = self.document["metric"]
        first, others = self.document["variants"][0], compared_variants(self.document)
        ratios = [(variant["speedup"][metric] or {}).get("ratio") or 0.0 for variant in others]
        highest = max(ratios, default=0.0)
        return ComparedVariant(others[ratios.index(highest)] if highest > 1.0 else first)

    @property
    def marks(self) -> Sequence[str]:
        runs, metric = self.document["replications"], self.document["metric"]
        return f"{runs} paired runs", f"judged by {metric_words(metric)}"

    @property
    def summary(self) -> Summary:
        metric = self.document["metric"]
        ratios = {
            variant["name"]: variant["speedup"][metric] and variant["speedup"][metric]["ratio"]
            for variant in compared_variants(self.document)
        }
        return Summary({"metric": metric, "baseline": self.document["baseline"], **ratios, "answer": self.conclusion})

    @property
    def files(self) -> dict[str, str]:
        return {"study.yaml": study_text(self.document["variants"])}

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "variant": variant["name"],
                "metric": metric,
                "value": (variant if metric in COSTS else variant["summary"]).get(metric),
            }
            | (variant["speedup"].get(metric) or {})
            for variant in self.document["variants"]
            for metric in dict.fromkeys([*HIGHER_IS_BETTER, *SHOWN])
        ]

    def tables(self) -> list[Table]:
        document = self.document
        others = _sensitivity_table(document), _curve_table(document), _crossover_table(document)
        return [_speedup_table(document), _value_table(document), *(table for table in others if table.rows)]


def _speedup_table(document: dict[str, Any]) -> Table:
    others = compared_variants(document)
    shown = dict.fromkeys([document["metric"], *SHOWN, *COSTS])
    rows: list[list[Value]] = []
    for metric in (key for key in shown if key in HIGHER_IS_BETTER):
        cells = [variant["speedup"][metric] for variant in others]
        if any(cell is not None for cell in cells):
            rows.append([metric_words(metric), *map(ratio_cell, cells)])
    several = len({base_of(variant, document) for variant in others}) > 1
    base = "the first variant at the same load" if several else document["baseline"]
    title = f"Speedup over {base} (above 1 is better)"
    brief = {document["metric"], *BRIEF} | ({COSTS[0]} if "prices" in document["scenario"] else set())
    details = {metric_words(metric) for metric in shown if metric in HIGHER_IS_BETTER and metric not in brief}
    return Table(title, ["", *(variant["name"] for variant in others)], rows, name="speedup", details=details)


def ratio_cell(cell: dict[str, Any] | None) -> Value:
    """A ratio with its interval, toned where it is sure."""
    if cell is None:
        return None
    ratio = Ratio(**cell)
    text, interval, exact = f"{ratio.ratio:.3f}", "", ""
    if ratio.low is not None and ratio.high is not None:
        interval = f"{ratio.low:.3f}..{ratio.high:.3f}"
        if ratio.high > FAR:
            interval, exact = f"{ratio.low:.3f}..>{FAR:.0f}", f"({interval})"
        elif interval == f"{text}..{text}":
            interval, exact = "", interval
    chance = "" if ratio.probability is None else "undecided" if ratio.undecided else f"P={ratio.probability:.2f}"
    shown = "" if ratio.verdict or not interval else chance
    aside, detail = (" ".join(filter(None, parts)) for parts in ((interval, shown), (exact, "" if shown else chance)))
    tone: Tone = "" if ratio.low is None else {1: "good", -1: "bad", 0: ""}[ratio.verdict]  # type: ignore[assignment]
    return Cell(text, aside=aside, tone=tone, value=ratio.ratio, detail=detail)


def _value_table(document: dict[str, Any]) -> Table:
    variants = document["variants"]
    rows: list[list[Value]] = []
    for key in SHOWN:
        cells = [variant["summary"].get(key) for variant in variants]
        if any(cell is not None for cell in cells):
            rows.append([metric_with_unit(key), *cells])
    rows.append(["basis", *(variant["basis"] for variant in variants)])
    details = {metric_with_unit(key) for key in SHOWN if key in HIGHER_IS_BETTER and key != document["metric"]}
    details |= {"basis"} if len({variant["basis"] for variant in variants}) == 1 else set()
    return Table("Means", ["", *(variant["name"] for variant in variants)], rows, name="means", details=details)


def _sensitivity_table(document: dict[str, Any]) -> Table:
    """The widest swings of the answer over the assumed parameters."""
    names = [variant["name"] for variant in compared_variants(document)]
    rows: list[list[Value]] = []
    moving = [row for row in document["sensitivity"] if any(abs(swing(row, name)) > NO_EFFECT for name in names)]
    for row in document["sensitivity"]:
        cells: list[Value] = []
        for name in names:
            ends = row["ratios"].get(name, {})
            low, high = ends.get("at_low"), ends.get("at_high")
            text = ABSENT if low is None or high is None else f"{low:.3f} .. {high:.3f}"
            turned = name in row["flips"]
            cells.append(Cell(text, aside="turns over" if turned else "", tone="bad" if turned else ""))
        rows.append([row["says"], Cell(range_words(row)), *cells])
    title = f"Speedup of {metric_words(document['metric'])} at the ends of assumed parameters"
    details = [row["says"] for row in document["sensitivity"] if not row["flips"]]
    shown = min(TORNADO_ROWS, max(1, len(moving)))
    return Table(title, ["", "range", *names], rows, shown=shown, name="sensitivity", details=details)


def swing(row: dict[str, Any], variant: str) -> float:
    """Change of a variant's speedup between the ends of an assumed parameter; 0 where an end has none."""
    ends = row["ratios"].get(variant, {})
    low, high = ends.get("at_low"), ends.get("at_high")
    return 0.0 if low is None or high is None else float(high - low)


def range_words(row: dict[str, Any]) -> str:
    """The range of an assumed parameter, e.g. ``x0.5 .. x2``."""
    if row["unit"] == "factor":
        return f"x{row['low']:g} .. x{row['high']:g}"
    if row["unit"] == "s":
        return f"{duration(row['low'])} .. {duration(row['high'])}"
    return f"{row['low']:g} .. {row['high']:g} {row['unit']}"


def _curve_table(document: dict[str, Any]) -> Table:
    """Speedups at every load tried for the crossover; shown if the crossover was requested."""
    along = document["load_curves"] or {"path": "", "metric": document["metric"], "curves": []}
    unit = rate_unit(document["scenario"]["workload"])
    loads = dict.fromkeys(point["value"] for curve in along["curves"] for point in curve["points"])
    by_load = [{point["value"]: point for point in curve["points"]} for curve in along["curves"]]
    rows = [
        [load_words(along["path"], load, unit), *(ratio_cell(_without_value(points.get(load))) for points in by_load)]
        for load in sorted(loads)
    ]
    title = f"Speedup of {metric_words(along['metric'])} by {along['path'].rpartition('.')[2]}"
    details = set() if along.get("requested") else {str(row[0]) for row in rows}
    return Table(title, ["", *(one["variant"] for one in along["curves"])], rows, name="load curves", details=details)


def _without_value(point: dict[str, Any] | None) -> dict[str, Any] | None:
    return point and {name: part for name, part in point.items() if name != "value"}


def _crossover_table(document: dict[str, Any]) -> Table:
    """Table of the loads at which variants start or stop being faster than the baseline."""
    crossover, unit = document["crossover"], rate_unit(document["scenario"]["workload"])
    rows = [
        [row["variant"], row["better"], load_words(crossover["path"], row["value"], unit),
         "" if low == high else f"{low} .. {high}"]
        for row in (crossover["all"] if crossover is not None else ())
        for low, high in [(number(row["low"], 3), number(row["high"], 3))]
    ]  # fmt: skip
    return Table("Crossover", ("variant", "pays", "at", "95 % interval"), rows, name="crossover")
