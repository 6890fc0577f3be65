"""Summary of a finished plan: cost, headroom, a failed replica, twice the load, and sensitivities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from math import exp, log
from pathlib import Path
from typing import Any

from forerun.document import DocumentPart
from forerun.tables import Cell, Table, Value, number, pairs
from simulator.running.metrics.conclusion import chance_words, evidence_words
from simulator.running.metrics.tables import memory_rows
from simulator.running.metrics.uncertainty import MOST_SURE
from simulator.running.metrics.usage import HOURS_PER_MONTH
from simulator.studies.plan.layouts import ChipPrice
from simulator.studies.plan.objectives import GOODPUT, limits_words
from simulator.studies.plan.search import Candidate, HeadroomCases, Plan
from simulator.studies.steady_state.traffic import population
from simulator.timing.releases import release_words
from simulator.workload.generate import conversation, trace_began_s
from simulator.workload.workload_config import ARRIVING

HOURS_SHOWN = 24
OVERLOAD = 10.0
"""Maximum SLO ratio used to interpolate the tolerated slowdown: above it, queues grow with the run's length."""
MOST_LESS_SURE = 3
"""Maximum number of cheaper layouts below the required probability that the summary lists."""
OF_THE_CONCLUSION = ("Question", "Traffic", "Headroom", "How sure")
"""Rows of the summary that title and conclusion repeat."""


@dataclass(frozen=True, kw_only=True)
class PlannedHour(DocumentPart):
    """Replicas that an hour of the load needs, and the cost of the hour with autoscaled and with fixed replicas."""

    start_s: float
    clock: str | None
    request_rate: float
    replicas: int
    usd: float | None
    fixed_usd: float | None


@dataclass(frozen=True, kw_only=True)
class ChipCost(DocumentPart):
    """The cheapest layout of one chip as a buyer sees it: dollars, risk, failure and growth."""

    chip: str
    layout: str
    meets_slo: bool
    reason: str | None
    """Reason why no layout of the chip meets the SLO; None if one does."""
    replicas: int
    chips: int
    usd_per_month: float | None
    usd_per_month_range: list[float] | None
    """Dollars a month at the fast and at the slow end of the 90 % interval of the engine; None if it has none."""
    basis: str | None
    evidence: dict[str, float] | None
    """Shares of device time by evidence level."""
    probability: float | None
    prices: dict[str, ChipPrice]
    replica_fails: str | None
    twice_the_load: str | None


def chip_costs(plan: Plan) -> list[ChipCost]:
    """Cost of every chip in the plan, cheapest first; chips on which no layout meets the SLO last."""
    if plan.rate is None or plan.best is None:
        return []
    rows = [_chip_cost(plan, chip, candidate) for chip, candidate in plan.best_of_chips.items()]
    return sorted(rows, key=lambda row: not row.meets_slo)


def _chip_cost(plan: Plan, chip: str, best: Candidate) -> ChipCost:
    layout, holds, cases = best.layout, best.status == "meets", plan.chip_cases.get(chip)
    few_many = cases.fewest if cases is not None and layout.scalable else None
    usd, shared = layout.usd_per_hour, layout.shared_usd_per_hour
    range_of = few_many if few_many and usd else ()
    return ChipCost(
        chip=chip,
        layout=best.name,
        meets_slo=holds,
        reason=None if holds else best.reason,
        replicas=layout.rented(best.replicas),
        chips=best.chips,
        usd_per_month=_monthly(best) if holds else None,
        usd_per_month_range=[((usd or 0.0) * layout.rented(n) + shared) * HOURS_PER_MONTH for n in range_of] or None,
        basis=None if best.verdict is None else best.verdict.observation.basis,
        evidence=None if best.verdict is None else dict(best.verdict.observation.evidence),
        probability=best.chance,
        prices=dict(layout.prices),
        replica_fails=_failure(plan, best, cases) if holds and cases else None,
        twice_the_load=_growth(plan, best, cases) if holds and cases else None,
    )


def _loads(plan: Plan, best: Candidate) -> list[tuple[float, float]]:
    """SLO ratio of a layout by multiples of the planned load, ascending."""
    return sorted((point.request_rate * best.copies / (plan.rate or 1.0), point.slo_ratio) for point in best.points)


def plan_summary(plan: Plan, cheaper: Candidate | None = None) -> dict[str, Any] | None:
    """Sentences about the winner by heading; None if no layout meets the SLO or no rate was requested."""
    best = plan.best
    if best is None or plan.rate is None:
        return None
    verdict = best.verdict
    assert verdict is not None
    monthly = _monthly(best)
    limits, arriving = limits_words(plan.objective), _arriving(plan)
    engine = best.layout.scenario.engine
    rests = evidence_words(verdict.observation.evidence), release_words(engine.framework, engine.release)
    serve = "serves" if best.chips == 1 else "serve"
    return {
        "question": f"what is the {'cheapest' if plan.by_price else 'smallest'} way to serve {number(plan.rate, 3)} "
        f"{arriving} per second within {limits}",
        "traffic": _traffic(plan),
        "answer": f"{'' if monthly is None else f'${monthly:,.0f} a month: '}{_chips(best)} ({best.name}) {serve} "
        f"{number(plan.rate, 3)} {arriving} per second within {limits}.",
        "usd_per_month": monthly,
        "cost": "no price is known for these chips" if monthly is None else f"${monthly:,.0f} a month, at all hours",
        **({} if cheaper is None else {"next cheaper": f"{cheaper.name} fails: {cheaper.reason}"}),
        **_less_sure(plan, best),
        "price of a chip for an hour": price_words(plan) or "not known",
        "headroom": _headroom(plan, best),
        **{heading.lower(): words for heading, words in memory_rows(verdict.observation.memory)},
        **(
            {}
            if plan.headroom_cases is None
            else {
                "a replica fails": _failure(plan, best, plan.headroom_cases),
                "twice the load": _growth(plan, best, plan.headroom_cases),
            }
        ),
        **_by_hour(plan, best),
        **(
            {}
            if best.chance is None
            else {
                "how sure": f"every limit is met as predicted, and with {chance_words(best.chance)} probability if the "
                f"model's own error is counted: the risk is {risk_words(best.chance)}"
            }
        ),
        "what would change it": _changes(plan, best),
        "rests on": "; ".join(filter(None, rests)),
    }


def plan_summary_table(summary: dict[str, Any]) -> Table:
    rows = [(key[0].upper() + key[1:], text) for key, text in summary.items() if key not in ("answer", "usd_per_month")]
    return replace(pairs("Summary", rows, name="plan_summary"), details=OF_THE_CONCLUSION)


def _arriving(plan: Plan) -> str:
    return ARRIVING[plan.study.scenario.workload.rate_unit]


def _traffic(plan: Plan) -> str:
    """Sentence with number, lengths and source of the requests."""
    assert plan.rate is not None
    workload = plan.study.scenario.workload
    requests = population(workload)
    means = [number(round(float(tokens.mean()))) for tokens in (requests.input_tokens, requests.output_tokens)]
    words = f"{number(plan.rate, 3)} {_arriving(plan)} per second, in the mean {means[0]} prompt tokens and "
    words += f"{means[1]} answer tokens"
    if workload.sessions is not None:
        turns = conversation(workload)[0]
        words += f" in each of {number(turns, 3)} turns: {number(plan.rate * turns, 3)} requests per second"
    if plan.options.growth != 1.0:
        words += f", {plan.options.growth:g} times today's"
    if workload.trace is None:
        return f"{words}; drawn from assumed distributions, not from a log"
    began_s = trace_began_s(workload)
    since = "" if began_s is None else f", which begins on {clock_words(began_s)}"
    count = f"{len(requests.input_tokens):,} requests of {Path(workload.trace).name}{since}"
    part = f"; played are {plan.load.window}" if plan.load is not None and plan.load.window else ""
    return f"{words}; from {count}{part}"


def _monthly(candidate: Candidate) -> float | None:
    return None if candidate.usd_per_hour is None else candidate.usd_per_hour * HOURS_PER_MONTH


def price_words(plan: Plan) -> str:
    """Sentence with price and price source of each compared chip; empty if no price is known."""
    prices: dict[str, ChipPrice] = {}
    for candidate in plan.candidates:
        if candidate.status != "refused":
            for chip, price in candidate.layout.prices.items():
                prices.setdefault(chip, price)
    sources = dict.fromkeys(price.source for price in prices.values())
    parts = [
        ", ".join(f"{chip} ${price.usd_per_hour:,.2f}" for chip, price in prices.items() if price.source == source)
        + f" ({source})"
        for source in sources
    ]
    return "; ".join(parts)


def _chips(candidate: Candidate) -> str:
    return f"{candidate.chips} chip{'' if candidate.chips == 1 else 's'}"


def _bill(candidate: Candidate) -> str:
    monthly = _monthly(candidate)
    return _chips(candidate) + ("" if monthly is None else f", ${monthly:,.0f} a month")


def _less_sure(plan: Plan, best: Candidate) -> dict[str, str]:
    """Cheaper layouts that meet the SLO as predicted, but with less than the required probability; cheapest first."""
    cheaper = [c for c in plan.candidates if c.status == "misses" and c.chance and plan.cost(c) < plan.cost(best)]
    surest = {_shape(c): c for c in sorted(cheaper, key=lambda c: c.chance or 0.0)}
    shown = sorted(surest.values(), key=plan.cost)
    words = [f"{c.name} ({_bill(c)}) with {chance_words(c.chance)} probability" for c in shown[:MOST_LESS_SURE]]
    words += [f"{len(shown) - MOST_LESS_SURE} more"] if len(shown) > MOST_LESS_SURE else []
    return {"cheaper, less sure": "; ".join(words)} if words else {}


def _headroom(plan: Plan, best: Candidate) -> str:
    if best.max_rate is None or plan.rate is None:
        return "not searched"
    reach = "at least" if best.at_least else "up to"
    return (
        f"{reach} {number(best.max_rate, 3)} {_arriving(plan)} per second: {headroom_words(best.max_rate, plan.rate)}"
    )


def headroom_words(highest: float, rate: float) -> str:
    """Text of the headroom of a rate: in percent, or as a multiple from 2 on."""
    if highest >= 2 * rate:
        return f"{number(highest / rate, 3)} times the load"
    return f"{highest / rate - 1:.0%} headroom" if highest > 1.005 * rate else "no headroom"


def _failure(plan: Plan, best: Candidate, cases: HeadroomCases) -> str:
    """Sentence on the layout with one replica down, as simulated."""
    usd, unit = best.layout.usd_per_hour, "replica" if best.layout.scalable else "deployment"
    spare = f"one more {unit} keeps every limit" + (
        "" if usd is None else f", for ${usd * HOURS_PER_MONTH:,.0f} a month"
    )
    if best.layout.scalable and best.layout.spare:
        down, rented = best.layout.spare, best.layout.rented(best.replicas)
        return f"{down} of the {rented} may be down and, as predicted, every limit still holds"
    left = cases.one_less
    if left is None:
        if len(best.layout.scenario.pools or ()) > 1:
            return f"the pools are planned as one: a failure of one of their replicas was not tried; {spare}"
        return f"there is one {unit}: while it is down nothing is served; {spare}"
    if left.status == "meets":
        chance = "as predicted" if left.chance is None else f"with {chance_words(left.chance)} probability"
        return f"with {left.replicas} of {best.replicas} replicas left every limit still holds, {chance}"
    broken = f"a limit breaks ({left.reason})"
    if left.chance is not None:  # only the model's error makes it miss
        broken = f"every limit holds as predicted, but with only {chance_words(left.chance)} probability"
    return f"with {left.replicas} of {best.replicas} replicas left {broken}; {spare}"


def _growth(plan: Plan, best: Candidate, cases: HeadroomCases) -> str:
    """Sentence on the layout at twice the load, as simulated."""
    grown = cases.doubled
    if grown is not None and not best.layout.scalable:
        return "the same deployment holds it" if grown is best else f"{grown.name} ({_bill(grown)})"
    if not best.layout.scalable:
        usd = _monthly(best)
        return f"two such deployments ({2 * best.chips} chips{'' if usd is None else f', ${2 * usd:,.0f} a month'})"
    if grown is None:
        return "none of the numbers of replicas tried holds it: it needs a plan of its own"
    if grown.replicas == best.replicas:
        return "the same replicas hold it"
    return f"{grown.replicas} replicas ({_bill(grown)})"


def _by_hour(plan: Plan, best: Candidate) -> dict[str, str]:
    """Sentence on the savings of scaling replicas by the hour; empty without a rate profile."""
    hours = plan.headroom_cases.hours if plan.headroom_cases is not None else ()
    if not hours:
        return {}
    counts = [replicas for *_, replicas in hours]
    mean, monthly = sum(counts) / len(counts), _monthly(best)
    least, most = min(counts), max(counts)
    if least == most:
        return {"by the hour": f"the same number of replicas, {most}, at every hour"}
    words = f"{least} to {most} replicas, {mean:.1f} in the mean"
    if monthly is not None:
        rented = best.layout.rented(best.replicas)
        words += f": ${monthly * mean / rented:,.0f} a month if they follow the load, "
        words += f"${monthly:,.0f} for {rented} at all hours"
    return {"by the hour": words}


def planned_hours(plan: Plan) -> list[PlannedHour]:
    """Replicas of the best layout by the hour; empty without a profile or a log of hours."""
    cases, best = plan.headroom_cases, plan.best
    if cases is None or best is None:
        return []
    fixed, usd = best.layout.rented(best.replicas), best.layout.usd_per_hour
    return [
        PlannedHour(
            start_s=start_s,
            clock=None if cases.began_s is None else clock_words(cases.began_s + start_s),
            request_rate=rate,
            replicas=replicas,
            usd=usd and usd * replicas,
            fixed_usd=usd and usd * fixed,
        )
        for start_s, rate, replicas in cases.hours
    ]


def clock_words(clock_s: float) -> str:
    """Date and time in the log's own time zone, e.g. ``2024-05-01 10:00``."""
    return f"{datetime.fromtimestamp(clock_s, UTC):%Y-%m-%d %H:%M}"


def hours_table(hours: list[PlannedHour], unit: str) -> Table:
    """Table of the replicas for each hour of a profile or a log; equal consecutive hours share a row."""
    rows: list[tuple[Value, ...]] = []
    for _, group in groupby(hours, key=lambda hour: hour.replicas):
        same = list(group)
        first, highest = same[0], max(hour.request_rate for hour in same)
        since = first.clock or f"{first.start_s / 3600:.3g} h"
        busiest = Cell(number(highest, 3), value=highest)
        rows.append((since, len(same), busiest, first.replicas, first.usd, first.fixed_usd))
    columns = ("from", "hours", f"busiest {unit}", "replicas", "$/h", "$/h, fixed fleet")
    return Table("Replicas by the hour", columns, rows, shown=HOURS_SHOWN, name="hours")


def _changes(plan: Plan, best: Candidate) -> str:
    """Sentence on the changes that would change the answer (more traffic, slower engine, prices), smallest first."""
    verdict = best.verdict
    assert verdict is not None
    margins = []
    if best.max_rate is not None and plan.rate is not None:
        more = best.max_rate / plan.rate - 1.0
        many = f"{number(more + 1, 3)} times the traffic" if more >= 1 else "{:.0%} more traffic"
        many = many if more >= 0.005 else "any more traffic"
        risk = chance_words(1.0 - plan.options.confidence)
        margins.append((more, many if best.chance is None else f"{many}: the risk is then above {risk}"))
    if verdict.binding not in (None, GOODPUT) and 0 < verdict.slo_ratio < 1:
        times = tolerated_slowdown(_loads(plan, best)) or 1.0 / verdict.slo_ratio
        slower = f"an engine {number(times, 3)} times as slow as" if times >= 2 else "an engine {:.0%} slower than"
        risk = "" if best.chance is None else f": the risk of that is {risk_words(best.chance)}"
        margins.append((times - 1.0, f"{slower} predicted{risk}"))
    rivals = [c for c in plan.candidates[1:] if c.status == "meets" and c.layout.prices.keys() - best.layout.prices]
    dearer = [(1.0 - plan.cost(best) / plan.cost(c), c) for c in rivals if plan.cost(c) > plan.cost(best)]
    if plan.by_price and dearer:
        share, rival = min(dearer, key=lambda one: one[0])
        margins.append((share, f"a price {{:.0%}} lower for {rival.layout.chip_names}"))
    sentences = [words.format(share) for share, words in sorted(margins)]
    return "; ".join(sentences) if sentences else "nothing that was tried"


def risk_words(chance: float) -> str:
    """Text of the probability that a limit is missed; a bound where nothing was measured.

    >>> risk_words(0.97), risk_words(0.9)
    ('3 %', '10 % or more')
    """
    return chance_words(1.0 - chance) + " or more" * (chance == MOST_SURE)


def tolerated_slowdown(loads: Iterable[tuple[float, float]]) -> float | None:
    """Largest factor on all durations at which the SLO is still met; None if it is met at all known loads.

    An engine that is ``s`` times as slow behaves as at ``s`` times the load, with latencies ``s`` times as long. So the
    SLO is met while ``s * slo_ratio(s * load) <= 1``; logarithms are interpolated between the loads.

    Args:
        loads: multiples of the planned load, from 1, with their largest ratio of a latency over its limit.

    >>> round(tolerated_slowdown([(1.0, 0.25), (4.0, 1.0)]), 3)
    2.0
    """
    excess = [(log(load), log(load * min(ratio, OVERLOAD))) for load, ratio in sorted(loads) if load >= 1 and ratio > 0]
    for (low, below), (high, above) in pairwise(excess):
        if below <= 0 < above:
            return exp(low - below * (high - low) / (above - below))
    return None


def _shape(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.layout.scenario.hardware.chip, candidate.chips
