"""Capacity plans: the cheapest layout that holds an SLO at a load, or the highest load that each layout holds.

Layouts are tried in the order of their cost, so that the first that holds is the winner whatever the rest would do;
none is left out but by bounds that err on the side of trying (``pruning``). That a layout holds is always told by the
event simulation, with replications on common random numbers. Equal costs rank by the distance from the SLO.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import ForerunError
from simulator.scenario import Scenario
from simulator.studies.candidates import Candidate, Plan, PlanOptions, ProgressCall
from simulator.studies.layouts import Layout, layouts, replica_counts, search_axes
from simulator.studies.loads import Load, load_of
from simulator.studies.objectives import Objective
from simulator.studies.plan_searches import CheapestFirst, HighestRates
from simulator.studies.study_file import StudyFile
from simulator.workers import Workers, cores


def make_plan(
    study: StudyFile, objective: Objective, options: PlanOptions, progress: ProgressCall | None = None
) -> Plan:
    """Search the layouts of a study for those that hold an objective.

    Raises:
        ForerunError: an empty or oversized search space, a workload without a rate, or what the scenario itself has
            wrong. Layouts that the model refuses are no error: they are listed with the reason.
    """
    load, rate = _load(study.scenario, options)
    found = layouts(study, search_axes(study))
    counts = replica_counts(study, options.max_replicas)
    usable = [layout for layout in found if layout.refused is None]
    by_price = bool(usable) and all(layout.usd_per_hour is not None for layout in usable)
    plan = Plan(study, objective, options, rate, by_price)
    plan.notes += _notes(study, usable, by_price)
    refused = [Candidate(layout, counts[0], "refused", layout.refused) for layout in found if layout.refused]
    with Workers(options.jobs or cores() if options.jobs != 1 else 0) as workers:
        if rate is None:
            searched = HighestRates(plan, load, usable, counts, workers, progress).run()
        else:
            searched = CheapestFirst(plan, load, rate, usable, counts, workers, progress).run()
    plan.candidates = [*searched, *refused]
    return plan


def _load(scenario: Scenario, options: PlanOptions) -> tuple[Load, float | None]:
    load = load_of(scenario, options.requests, own_arrivals=options.mode == "own")
    if options.mode == "max-rate":
        return load, None
    rate = options.rate if options.mode == "rate" else load.own_rate
    if rate is None:
        raise ForerunError(
            "workload.arrivals: a plan needs a rate to hold: give --rate R, --max-rate or --trace FILE, or "
            "arrivals with a request_rate"
        )
    return load, rate * options.growth


def _notes(study: StudyFile, usable: Sequence[Layout], by_price: bool) -> list[str]:
    notes = []
    chips = {layout.scenario.hardware.chip for layout in usable}
    if not by_price and any(layout.usd_per_hour is not None for layout in usable):
        notes.append("not every chip has a price: layouts are ranked by their number of chips")
    if by_price and study.scenario.prices is not None and len(chips) > 1:
        own = study.scenario.hardware.chip
        notes.append(f"prices.usd_per_chip_hour is the price of {own}; other chips cost what their profiles say")
    return notes
