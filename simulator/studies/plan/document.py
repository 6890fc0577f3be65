"""A finished plan as a JSON document with its conclusion in one sentence."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from simulator.metrics import forerun_version, jsonable, scenario_document
from simulator.metrics.replications import BASIS_ORDER
from simulator.metrics.usage import usd_per_million_tokens
from simulator.studies.engine_flags import launch_flags
from simulator.studies.plan.objectives import RESAMPLES, latency_words, limits_words
from simulator.studies.plan.search import Candidate, Plan

Document = dict[str, Any]
SURE = 0.95
"""Share of the runs that agree from which a verdict is called sure."""


def plan_document(plan: Plan) -> Document:
    """The contract's ``plan`` JSON."""
    candidates = [candidate_document(plan, candidate) for candidate in plan.candidates]
    judged = [c.verdict.observation.basis for c in plan.candidates if c.verdict is not None]
    basis = max(judged, key=BASIS_ORDER.index) if judged else None
    notes = [note for c in plan.candidates if c.verdict is not None for note in c.verdict.observation.notes]
    best = plan.best
    cheaper = next_cheaper(plan)
    document = jsonable(
        {
            "mode": plan.options.mode,
            "request_rate": plan.rate,
            "growth": plan.options.growth,
            "slo": plan.objective.document(),
            "ranked_by": "max_rate" if plan.rate is None else "usd_per_hour" if plan.by_price else "chips",
            "candidates": candidates,
            "best": candidates[0] if best is not None else None,
            "next_cheaper": None if cheaper is None else {"layout": cheaper.name, "reason": cheaper.reason},
            "pareto": [candidate.name for candidate in pareto_front(plan)],
            "conclusion": conclusion(plan),
            "replications": plan.options.replications,
            "runs": plan.runs,
            "scenario": scenario_document(plan.study.scenario),
            "seed": plan.options.seed,
            "version": forerun_version(),
            "basis": basis,
            "notes": list(dict.fromkeys([*plan.notes, *(n for n in notes if "requests refused" not in n)])),
        }
    )
    assert isinstance(document, dict)
    return document


def candidate_document(plan: Plan, candidate: Candidate) -> Document:
    """One row of the ranked table."""
    verdict = candidate.verdict
    usable = candidate.status != "refused"
    usd = candidate.usd_per_hour if usable else None
    row: Document = {
        "layout": candidate.name,
        "set": {**candidate.layout.settings, "hardware.replicas": candidate.replicas},
        "status": candidate.status,
        "meets_slo": {"meets": True, "misses": False, "pruned": False}.get(candidate.status),
        "reason": candidate.reason,
        "replicas": candidate.replicas,
        "chips": candidate.chips if usable else None,
        "usd_per_hour": usd,
        "usd_per_million_output_tokens": None,
        "power_w": None,
        "max_rate": candidate.max_rate,
        "max_rate_is_at_least": None if candidate.max_rate is None else candidate.at_least,
        "headroom": None,
        "analytic_max_rate": None,
        "binding": None,
        "values": None,
        "strain": None,
        "confidence": None,
        "bottleneck": None,
        "basis": None,
        "flags": None,
    }
    if candidate.layout.steady is not None:
        row["analytic_max_rate"] = candidate.layout.steady.most_rate * candidate.replicas
    if candidate.max_rate is not None and plan.rate is not None:
        row["headroom"] = candidate.max_rate / plan.rate - 1.0
    if verdict is not None:
        seen = verdict.observation
        share = verdict.share if verdict.meets else 1.0 - verdict.share
        row |= {
            "usd_per_million_output_tokens": _per_million(usd, seen.output_throughput),
            "power_w": seen.power_w,
            "binding": verdict.binding,
            "values": verdict.values,
            "strain": verdict.strain if isfinite(verdict.strain) else None,
            "confidence": {
                "method": verdict.method,
                "runs": verdict.runs,
                "share": verdict.share,
                "binding_interval": verdict.interval,
                "sure": None if verdict.runs == 1 and verdict.method == "replications" else share >= SURE,
            },
            "bottleneck": seen.bottleneck,
            "basis": seen.basis,
        }
    if candidate.status == "meets":
        driven = candidate.layout.with_replicas(candidate.layout.scenario, candidate.replicas)
        row["flags"] = launch_flags(driven)
    return row


def pareto_front(plan: Plan) -> list[Candidate]:
    """Layouts that hold and that no other beats in both cost and highest rate; in the order of their cost."""
    holding = [c for c in plan.candidates if c.status == "meets"]
    front: list[Candidate] = []
    fastest = -inf
    for candidate in sorted(holding, key=lambda c: (plan.cost(c), -(c.max_rate or 0.0), _strain(c))):
        reach = candidate.max_rate if candidate.max_rate is not None else -_strain(candidate)
        if reach > fastest:
            front.append(candidate)
            fastest = reach
    return front


def next_cheaper(plan: Plan) -> Candidate | None:
    """The dearest candidate that costs less than the winner and fails; None without a winner or such a candidate."""
    best = plan.best
    if best is None or plan.rate is None:
        return None
    cheaper = [c for c in plan.candidates if c.status in ("misses", "pruned") and plan.cost(c) < plan.cost(best)]
    return max(cheaper, key=lambda c: (plan.cost(c), -_strain(c)), default=None)


def conclusion(plan: Plan) -> str:
    """The plan in one sentence or two."""
    limits = limits_words(plan.objective)
    best = plan.best
    if best is None:
        return _nothing_holds(plan, limits)
    verdict = best.verdict
    assert verdict is not None
    assert verdict.binding is not None
    binds = f"{latency_words(verdict.binding, verdict.values[verdict.binding])} binds"
    price = "" if best.usd_per_hour is None else f" at ${best.usd_per_hour:,.2f}/h"
    chips = f"{best.chips} chip{'s' if best.chips > 1 else ''}{price}"
    reach = "at least" if best.at_least else "up to"
    if plan.rate is None:
        words = f"{best.name} ({chips}) holds {limits} {reach} {best.max_rate:.3g} req/s, more than any other"
        return f"{words}; {binds} there."
    at = f"at {plan.rate:.3g} req/s"
    if plan.options.growth != 1.0:
        at += f" ({plan.options.growth:g} times today's)"
    words = (
        f"{best.name} ({chips}) is the {'cheapest' if plan.by_price else 'smallest'} layout that holds {limits} {at}: "
    )
    words += binds
    if best.max_rate is not None:
        words += f", and it holds {reach} {best.max_rate:.3g} req/s ({best.max_rate / plan.rate - 1:+.0%})"
    if verdict.runs > 1:
        words += f"; {verdict.share:.0%} of {verdict.runs} runs hold"
    elif verdict.method == "block bootstrap":
        words += f"; {verdict.share:.0%} of {RESAMPLES} resampled traces hold"
    cheaper = next_cheaper(plan)
    if cheaper is not None:
        words += f". The next cheaper, {cheaper.name}, fails: {cheaper.reason}"
    return words + "."


def _nothing_holds(plan: Plan, limits: str) -> str:
    at = "at any rate" if plan.rate is None else f"at {plan.rate:.3g} req/s"
    tried = [c for c in plan.candidates if c.verdict is not None and c.status == "misses"]
    if tried:
        nearest = min(tried, key=_strain)
        return f"No layout holds {limits} {at}; the nearest, {nearest.name}, has {nearest.reason}."
    if plan.candidates and all(c.status == "refused" for c in plan.candidates):
        return f"No layout can be built: {plan.candidates[-1].reason}."
    reasons = [c.reason for c in plan.candidates if c.status in ("pruned", "misses")]
    return f"No layout holds {limits} {at}: {reasons[0] if reasons else 'none was tried'}."


def _strain(candidate: Candidate) -> float:
    return candidate.verdict.strain if candidate.verdict is not None else inf


def _per_million(usd_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_million_tokens(usd_per_hour, round(tokens_per_s * 3600)) if tokens_per_s * 3600 >= 1 else None
