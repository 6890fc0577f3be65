"""Load up to which the flags of a tuning pay: priced at every batch, then simulated near that load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.document import DocumentPart
from forerun.errors import ForerunError
from forerun.workers import Workers
from simulator.running.drafting import method_overhead
from simulator.running.scenario import Scenario
from simulator.studies.compare.comparison import headline_metric
from simulator.studies.compare.crossover import (
    RATE_SCALE,
    REQUEST_RATE,
    SERVED_SHARES,
    SIDE_RUNS,
    LoadCurve,
    load_curves,
    load_path,
    served_grid,
    served_load,
)
from simulator.studies.plan.trials import planned_load
from simulator.studies.runs import RunPool
from simulator.studies.study_file import Variant
from simulator.studies.tune.choices import DraftChoice
from simulator.studies.tune.grid import busy_rate, crossover
from simulator.studies.tune.token_time import TokenTime
from simulator.studies.tune.tuning import USUAL_BATCHES, Tuning, choice_spreads, up_to
from simulator.workload.generate import conversation

AROUND = (0.85, 1.15)
"""Loads that are simulated first, as multiples of the priced crossover."""
PLAIN, DRAFTING = "plain", "flags"


@dataclass(frozen=True)
class TunedLoad(DocumentPart):
    """A batch of mean requests, and the requests per second of one replica at that batch; None = not reached."""

    batch: float | None
    request_rate: float | None


@dataclass(frozen=True, slots=True)
class Launched:
    """Gain of the flags by batch, and the load up to which drafting pays."""

    pays: str
    """Loads at which drafting pays: ``below`` or ``above`` a load, ``always`` or ``never``."""
    crossover: TunedLoad
    low: TunedLoad
    high: TunedLoad
    served_rate: float | None
    """Highest requests per second that one replica can serve, with the flags or without; None if unknown."""


def launched(tuning: Tuning, choices: Mapping[int, DraftChoice | None], seed: int) -> Launched:
    """Find the load up to which drafting pays.

    Args:
        tuning: tuning of the scenario.
        choices: draft choice by first batch size, from 1 on: one entry, or vLLM's schedule.
        seed: first seed of the runs.
    """
    batches = np.array(sorted({*up_to(tuning.scenario.engine.max_num_seqs, USUAL_BATCHES),
                               *(cell.at_batch for cell in tuning.mean)}))  # fmt: skip
    plain, speedups = _priced(tuning, choices, batches)
    priced, lower, higher = (_tuned_load(tuning, batches, plain, values) for values in speedups)
    with_flags = _drafting(tuning.scenario, choices)
    busiest = busy_rate(float(batches[-1]), plain.step_s[-1], plain.prompt_s[-1], max(1, tuning.output_tokens - 1))
    curve, per_value, served = _served_crossover(with_flags, priced.request_rate, busiest, seed)
    most = None if not served else max(served.values()) * per_value
    if curve is None:  # nothing could be served: prices alone
        pays = "always" if priced.batch is None else "never" if priced.batch == 0.0 else "below"
        return Launched(pays, priced, lower, higher, most)
    if not curve.crossings:
        never = curve.points[0].ratio < 1.0
        nothing = TunedLoad(None, None)
        return Launched("never" if never else "always", nothing, nothing, nothing, most)
    at = curve.crossings[-1]
    rate = at.value * per_value
    low, high = (None if end is None else end * per_value for end in (at.low, at.high))
    if priced.request_rate:  # the error of the model, as far as it moves the priced load
        error = [end.request_rate and end.request_rate / priced.request_rate for end in (lower, higher)]
        low, high = (None if factor is None else rate * factor for factor in error)
    high = None if most is not None and high is not None and high >= most else high
    around = zip((priced, lower, higher), (rate, low, high), strict=True)
    loads = [TunedLoad(one.batch or None, at_rate) for one, at_rate in around]
    return Launched(at.better, loads[0], loads[1], loads[2], most)


def _drafting(scenario: Scenario, choices: Mapping[int, DraftChoice | None]) -> Scenario:
    """Scenario with the flags: one number of draft tokens or one tree, or a schedule by batch."""
    chosen = [choice for choice in choices.values() if choice is not None]
    if len(choices) == 1:
        return chosen[0].scenario.with_values({"speculation.policy": "fixed"})
    firsts = sorted(choices)
    lasts = [first - 1 for first in firsts[1:]] + [max(firsts[-1], scenario.engine.max_num_seqs)]
    tokens = [0 if (choice := choices[first]) is None else choice.tokens for first in firsts]
    table = [list(row) for row in zip(firsts, lasts, tokens, strict=True)]
    most = max(chosen, key=lambda choice: choice.tokens)
    return most.scenario.with_values({"speculation.policy": {"name": "batch-table", "table": table}})


def _priced(
    tuning: Tuning, choices: Mapping[int, DraftChoice | None], batches: IntArray
) -> tuple[TokenTime, FloatArray]:
    """Times without drafting, and [3, batch] the speed-up of the flags and both ends of its interval."""
    scenario, speculation = tuning.scenario, tuning.scenario.speculation
    assert speculation is not None
    grid = tuning.priced.grid.at(batches.tolist(), tuning.mean_context)
    without = scenario.with_values({"speculation.method": "none"})
    ones = np.ones(len(batches))
    plain = grid.token_time(without, ones, {})
    before = plain.seconds(1.0)
    added: FloatArray = np.zeros(len(batches))
    if len(choices) > 1:
        cost = method_overhead("vllm", speculation.method)
        added = np.asarray(cost.policy_step_s + cost.policy_sequence_s * batches, np.float64)
    firsts = np.array(sorted(choices))
    rows = np.searchsorted(firsts, batches, side="right") - 1
    factors = np.tile(before / (before + added), (3, 1))
    used = {choice.name: choice for choice in choices.values() if choice is not None}
    spreads = choice_spreads(scenario, without, list(used.values()), grid)
    for row, first in enumerate(firsts.tolist()):
        choice = choices[first]
        if choice is not None:
            length = choice.length(grid.contexts)
            values = before / (grid.token_time(choice.scenario, length, {}).seconds(length) + added / length)
            ends = spreads[choice.name].all.ends(values)
            factors = np.where(rows == row, np.array([values, *ends]), factors)
    return plain, factors


def _tuned_load(tuning: Tuning, batches: IntArray, plain: TokenTime, speedups: FloatArray) -> TunedLoad:
    """Batch above which a speed-up is below 1, and the rate that keeps a replica without drafting at this batch."""
    at = crossover(batches, speedups)
    if not at:
        return TunedLoad(at, None)
    step_s, prompt_s = (float(np.interp(at, batches, part)) for part in (plain.step_s, plain.prompt_s))
    return TunedLoad(at, busy_rate(at, step_s, prompt_s, max(1, tuning.output_tokens - 1)))


def _served_crossover(
    with_flags: Scenario, priced_rate: float | None, busiest: float, seed: int
) -> tuple[LoadCurve | None, float, dict[str, float]]:
    """Simulated speed-ups of the flags near their crossover, and the highest loads that can be served."""
    scenario = with_flags
    path = load_path(scenario)
    turns, replicas = conversation(scenario.workload)[0], scenario.hardware.replicas
    per_value = turns / replicas
    if path == RATE_SCALE:
        try:
            recorded = planned_load(scenario, None, own_arrivals=True).recorded_rate
        except ForerunError:
            return None, per_value, {}
        assert recorded is not None
        per_value = recorded / replicas
    elif path != REQUEST_RATE:
        path = REQUEST_RATE
        scenario = planned_load(scenario, None, own_arrivals=False).at(scenario, 1.0)
    plain = scenario.with_values({"speculation": None})
    variants = [Variant(PLAIN, {}, plain), Variant(DRAFTING, {}, scenario)]
    known = {variant.name: served_load(variant.scenario, path) for variant in variants}
    served = {name: most for name, most in known.items() if most is not None}
    everywhere = served_grid(None, known) or [share * busiest / per_value for share in SERVED_SHARES]
    near = [] if not priced_rate else [share * priced_rate / per_value for share in AROUND]
    with Workers(0) as workers:
        pool = RunPool(workers)
        seeds = [seed + n for n in range(SIDE_RUNS)]
        metric = headline_metric(variants[0])
        for values in (near, everywhere):
            if values:
                (curve,) = load_curves(variants, path, values, metric, seeds, pool, known)
                if curve.crossings or (values is everywhere and curve.points):
                    return curve, per_value, served
    return None, per_value, served
