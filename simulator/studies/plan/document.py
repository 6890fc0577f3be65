"""Capacity plans: the entry point, its result, a document with its conclusion in one sentence, and tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

from forerun.document import json_value
from forerun.errors import ArgumentError, ForerunError
from forerun.result import NamedFields, StudyResult, Summary
from forerun.tables import ABSENT, Cell, Table, Value, number
from hwprofiles import weakest
from simulator.running.metrics.conclusion import chance_words
from simulator.running.metrics.uncertainty import MOST_SURE
from simulator.running.metrics.usage import main_bottleneck, tokens_per_joule, usd_per_million_tokens
from simulator.running.scenario import Scenario, scenario_from
from simulator.studies.artefacts import artefact
from simulator.studies.engine_flags import launch_flags
from simulator.studies.frame import study_document
from simulator.studies.plan.objectives import RESAMPLES, latency_words, limits_words
from simulator.studies.plan.search import Candidate, Plan
from simulator.studies.plan.summary import (
    headroom_words,
    hours_document,
    hours_table,
    plan_summary,
    plan_summary_table,
    price_words,
)
from simulator.studies.plan.trials import LoadPoint
from simulator.studies.study_file import StudyFile, yaml_text
from simulator.workload.workload_config import ARRIVING, rate_unit

Document = dict[str, Any]
SURE = 0.95
"""Share of the runs that agree from which a verdict is called sure."""


J_PER_KWH = 3.6e6
BINDS = 0.9
"""Share of its limit from which the figure nearest its limit binds."""


def plan_result(plan: Plan, intensity: tuple[float, float, float] | None, emit: str | None) -> PlanResult:
    """The result of a plan."""
    document = plan_document(plan)
    if intensity is not None:
        document["carbon_g_per_kwh"] = dict(zip(("mean", "low", "high"), intensity, strict=True))
        for row in document["candidates"]:
            each = row["output_tokens_per_joule"]
            row["g_co2_per_million_output_tokens"] = each and [1e6 / each / J_PER_KWH * one for one in intensity]
    result = PlanResult(document, files={"study.yaml": _study_text(document, plan.study)})
    if emit is not None and result.best is not None:
        document["artefact"] = artefact(emit, result.scenario)
    return result


def carbon_of(carbon: float | str | Path) -> tuple[float, float, float]:
    """Mean, least and greatest carbon intensity, g/kWh: of a number, or of a CSV file over the day."""
    try:
        one = float(str(carbon))
    except ValueError:
        pass
    else:
        if not 0 <= one < 1e6:
            raise ArgumentError("carbon", f"grams of CO2 per kWh from 0 (got {carbon})")
        return one, one, one
    path = Path(str(carbon))
    if not path.is_file():
        raise ArgumentError("carbon", f"{carbon} is neither a number of grams per kWh nor a file")
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    if not rows or rows[0] != ["hour", "g_per_kwh"]:
        raise ForerunError(f"{path}: line 1: the columns are hour,g_per_kwh")
    intensities: list[tuple[float, float]] = []
    for line, row in enumerate(rows[1:], 2):
        try:
            hour, grams = map(float, row)
        except ValueError:
            raise ForerunError(f"{path}: line {line}: two numbers are needed, hour and g_per_kwh") from None
        if not (0 <= grams < 1e6 and 0 <= hour <= 24 and (not intensities or hour > intensities[-1][0])):
            raise ForerunError(f"{path}: line {line}: hours rise from 0 to 24, grams per kWh are 0 or more")
        intensities.append((hour, grams))
    if not intensities:
        raise ForerunError(f"{path}: holds no hour")
    hours, grams_of = zip(*intensities, strict=True)
    lasts = [after - before for before, after in pairwise([*hours, 24.0 + hours[0]])]
    mean = sum(one * last for one, last in zip(grams_of, lasts, strict=True)) / sum(lasts)
    return mean, min(grams_of), max(grams_of)


def with_trace(study: StudyFile, trace: str, columns: Mapping[str, str] | None = None) -> StudyFile:
    """The study with a trace as its workload."""
    data = study.scenario.model_dump(exclude_unset=True)
    data["workload"] = {"trace": trace} | ({"columns": dict(columns)} if columns else {})
    return replace(study, scenario=scenario_from(data, f"{study.place}: trace {trace}"))


def _study_text(document: Document, study: StudyFile) -> str:
    again: Document = {"scenario": document["scenario"]}
    if study.vary:
        again["vary"] = json_value({path: list(values) for path, values in study.vary.items()})  # type: ignore[arg-type]
    if study.variants:
        again["variants"] = [{"name": v.name, "set": json_value(dict(v.set))} for v in study.variants]
    return yaml_text(again)


class PlannedLayout(NamedFields):
    """A layout of a plan; its other fields are those of the plan's JSON."""

    layout: str
    chips: int
    replicas: int
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    max_rate: float | None
    """Highest request rate at which it meets the SLO, req/s; None where that was not searched."""
    headroom: float | None
    """``max_rate`` over the planned rate, less 1."""
    probability: float | None
    """Probability that it meets the SLO, the model's error included; None without ``interval``."""
    bottleneck: dict[str, float] | None
    basis: str | None
    set: dict[str, Any]
    """Scenario values that the layout sets, by dotted path."""

    def launch_command(self, engine: str = "vllm") -> str:
        """The command that starts the layout in ``vllm`` or ``sglang``.

        Raises:
            ForerunError: there is no command for this engine.
        """
        commands: dict[str, str] = self["flags"] or {}
        if engine not in commands:
            raise ForerunError(f"no launch command for '{engine}' ({', '.join(commands)})")
        return commands[engine]


KV_NEARLY_GONE = "KV memory was nearly gone"
"""Begin of the note of a run; a plan has one for all its layouts."""
MOST_NAMED = 4


class PlanResult(StudyResult):
    """Layouts, the best first; its data frame has a row for each.

    ``best`` is the winner's row of the document, None where no layout holds the SLO.
    """

    kind = "plan"

    @property
    def legend(self) -> str:  # type: ignore[override]
        """Words of the tables."""
        words = (
            "* no layout costs less at a higher rate. hold: runs that meet the SLO. P(SLO): probability of meeting it, "
        )
        words += "the model's error included, as in the 90 % interval of the binding figure."
        steps = any("-token steps" in row["layout"] for row in self.document["candidates"])
        return words + " 2048-token steps: max_num_batched_tokens." * steps

    @property
    def best(self) -> PlannedLayout | None:
        """The cheapest layout that meets the SLO, its figures as attributes and items; None where none does."""
        best: Document | None = self.document["best"]
        return None if best is None else PlannedLayout(best)

    @property
    def scenario(self) -> Scenario:
        """The best deployment under the load that was planned for; without one, the scenario as it was."""
        changes = {} if self.best is None else {**(self.document["load"] or {}), **self.best["set"]}
        return scenario_from(self.document["scenario"], "plan").with_values(changes)

    @property
    def title(self) -> str:
        rate = self.document["request_rate"]
        mean = " on average" if self.document["scenario"]["workload"].get("trace") else ""
        arriving = ARRIVING[rate_unit(self.document["scenario"]["workload"])]
        goal = "highest rate" if rate is None else f"{number(rate)} {arriving} per second{mean}"
        return f"Capacity plan: {self.model}, {goal}"

    @property
    def facts(self) -> str:
        document = self.document
        return f"{super().facts} · {len(document['candidates'])} candidates · {document['runs']} runs"

    @property
    def marks(self) -> Sequence[str]:
        return f"{self.document['runs']} runs", f"{len(self.document['candidates'])} candidates"

    @property
    def summary(self) -> Summary:
        keys = ("layout", "chips", "usd_per_hour", "usd_per_million_output_tokens", "max_rate", "headroom", "binding")
        best: Mapping[str, Any] = self.best or {}
        return Summary({**{key: best.get(key) for key in keys}, "answer": self.conclusion})

    def records(self) -> list[dict[str, Any]]:
        plain = ("layout", "status", "reason", "replicas", "chips", "usd_per_hour", "usd_per_million_output_tokens",
                 "power_w", "output_tokens_per_joule", "max_rate", "headroom", "analytic_max_rate", "binding",
                 "slo_ratio", "basis")  # fmt: skip
        return [
            {key: row[key] for key in plain} | row["set"] | (row["values"] or {}) for row in self.document["candidates"]
        ]

    def tables(self) -> list[Table]:
        rows = self.document["candidates"]
        tables = [_holding_table(self.document), _power_table(self.document)]
        for status, words in FAILING.items():
            tables.append(_failing_table(words, [row for row in rows if row["status"] == status], status))
        commands = [[row["layout"], *command] for row in rows for command in (row["flags"] or {}).items()]
        columns = ("layout", "engine", "command")
        losers = [row["layout"] for row in rows[1:]]
        title = "Launch commands of one replica"
        tables.append(Table(title, columns, commands, shown=2, name="commands", details=losers))
        if self.document["plan_summary"] is not None:
            hours, unit = self.document.get("hours") or [], rate_unit(self.document["scenario"]["workload"])
            tables += [plan_summary_table(self.document["plan_summary"]), hours_table(hours, unit)]
        return [table for table in tables if table.rows] or tables[:1]


FAILING = {
    "misses": "Simulated, and misses the SLO",
    "pruned": "Cannot hold it, by the analytic model",
    "not simulated": "Not simulated",
    "refused": "Refused",
    "error": "Internal errors; please report them",
}
SHOWN = 12
"""Reasons of each kind that a terminal shows."""


def _holding_table(document: Document) -> Table:
    """Layouts that meet the SLO, best first; a star marks the Pareto front."""
    rows: list[list[Value]] = []
    for row in document["candidates"]:
        if row["status"] != "meets":
            continue
        sure, ends = row["confidence"], row["intervals"].get(row["binding"])
        rate = (">= " if row["max_rate_is_at_least"] else "") + number(row["max_rate"], 3)
        more = row["headroom"]
        headroom = "" if more is None else f"{more + 1:.3g}x the load" if more >= 1 else f"{more:+.0%}"
        interval = "" if ends is None else "..".join(number(end, 3) for end in ends)
        bound = latency_words(row["binding"], row["values"][row["binding"]])
        rows.append(
            [
                row["layout"] + (" *" if row["layout"] in document["pareto"] else ""),
                row["chips"],
                row["usd_per_hour"],
                Cell(number(row["usd_per_million_output_tokens"], 3), value=row["usd_per_million_output_tokens"]),
                Cell(ABSENT if row["power_w"] is None else f"{row['power_w']:,.0f} W", value=row["power_w"]),
                Cell(rate, aside=headroom, value=row["max_rate"]),
                Cell(bound, aside=interval),
                Cell(
                    f"{sure['share']:.0%}", aside=f"of {sure['runs']}" if sure["runs"] > 1 else "", value=sure["share"]
                ),
                Cell(
                    ABSENT if sure["probability"] is None else chance_words(sure["probability"]),
                    value=sure["probability"],
                ),
                main_bottleneck(row["bottleneck"]) or ABSENT,
                row["basis"],
            ]
        )
    highest = f"max {rate_unit(document['scenario']['workload'])}"
    columns = ("", "chips", "$/h", "$/Mtok", "power", highest, "binding", "hold", "P(SLO)", "bound", "basis")
    title, details = "Holds the SLO, best first (* on the Pareto front)", ("power", "bound", "basis")
    return Table(title, columns, rows, name="holds", details=details)


def _power_table(document: Document) -> Table:
    """Power and carbon of layouts that meet the SLO; empty where neither a budget nor carbon was requested."""
    rows: list[list[Value]] = []
    carbon = "carbon_g_per_kwh" in document
    for row in document["candidates"] if carbon or document["power_budget_w"] is not None else ():
        if row["status"] != "meets":
            continue
        drawn, grams = row["power_w"], row.get("g_co2_per_million_output_tokens")
        per_usd = None if not row["usd_per_hour"] or not row["max_rate"] else row["max_rate"] / row["usd_per_hour"]
        cells: list[Value] = [
            row["layout"],
            Cell(f"{row['board_w']:,.0f} W", value=row["board_w"]),
            Cell(ABSENT if drawn is None else f"{drawn:,.0f} W", value=drawn),
            row["rate_per_kw"],
            per_usd,
            row["output_tokens_per_joule"],
        ]
        if carbon:
            low_high = "" if not grams or grams[1] == grams[2] else f"{number(grams[1], 3)}..{number(grams[2], 3)}"
            cells.append(Cell(number(grams and grams[0], 3), aside=low_high, value=grams and grams[0]))
        rows.append(cells)
    unit = rate_unit(document["scenario"]["workload"])
    columns = ["", "boards may draw", "drawn", f"{unit} per kW", f"{unit} per $/h", "tokens/J"]
    return Table("Watts", [*columns, *(["g CO2/Mtok"] if carbon else [])], rows, name="watts")


def _failing_table(title: str, rows: list[Document], name: str) -> Table:
    """Layouts that do not meet the SLO, by reason."""
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(row["reason"] or ABSENT, []).append(row["layout"])
    lines: list[list[Value]] = [
        [Cell(names[0], aside=f"and {len(names) - 1} more" if len(names) > 1 else ""), reason]
        for reason, names in named.items()
    ]
    details = [names[0] for names in named.values()] if name == "not simulated" else ()
    return Table(title, ("layout", "reason"), lines, shown=SHOWN, name=name, details=details)


def plan_document(plan: Plan) -> Document:
    """The contract's ``plan`` JSON."""
    candidates = [candidate_document(plan, candidate) for candidate in plan.candidates]
    answers = plan.candidates if plan.best is None else [plan.best]
    judged = [c.verdict.observation.basis for c in answers if c.verdict is not None]
    basis = weakest(judged) if judged else None
    owned = [(note, c.name) for c in plan.candidates if c.verdict is not None for note in c.verdict.observation.notes]
    tight = list(dict.fromkeys(name for note, name in owned if note.startswith(KV_NEARLY_GONE)))
    notes = [note for note, _ in owned if not note.startswith(KV_NEARLY_GONE)]
    if tight:
        more = f" and {len(tight) - MOST_NAMED} more" if len(tight) > MOST_NAMED else ""
        notes.append(f"{KV_NEARLY_GONE} in {'; '.join(tight[:MOST_NAMED])}{more}")
    cheaper = next_cheaper(plan)
    rate = plan.rate if plan.rate is not None or plan.best is None else plan.best.max_rate
    body = {
        "mode": plan.options.mode,
        "request_rate": plan.rate,
        "growth": plan.options.growth,
        "power_budget_w": plan.options.power_budget_w,
        "slo": plan.objective.document(),
        "ranked_by": "max_rate" if plan.rate is None else "usd_per_hour" if plan.by_price else "chips",
        "load": None if rate is None or plan.load is None else plan.load.values_at(plan.study.scenario, rate),
        "candidates": candidates,
        "best": candidates[0] if plan.best is not None else None,
        "next_cheaper": None if cheaper is None else {"layout": cheaper.name, "reason": cheaper.reason},
        "pareto": [candidate.name for candidate in pareto_front(plan)],
        "conclusion": plan_sentence(plan),
        "plan_summary": plan_summary(plan),
        "hours": hours_document(plan),
        "replications": plan.options.replications,
        "runs": plan.runs,
    }
    served = () if plan.best is None or plan.best.verdict is None else plan.best.verdict.observation.notes
    shown = dict.fromkeys([*plan.notes, *(note for note in notes if " refused: " not in note or note in served)])
    return study_document(body, plan.study.scenario, plan.options.seed, basis, list(shown))


def candidate_document(plan: Plan, candidate: Candidate) -> Document:
    """One row of the ranked table."""
    verdict, layout = candidate.verdict, candidate.layout
    usable, rented = candidate.status != "refused", layout.rented(candidate.replicas)
    usd = candidate.usd_per_hour if usable else None
    margin = None if candidate.max_rate is None or plan.rate is None else candidate.max_rate / plan.rate - 1.0
    row: Document = {
        "layout": candidate.name,
        "set": {**layout.settings, "hardware.replicas": rented},
        "status": candidate.status,
        "meets_slo": {"meets": True, "misses": False, "pruned": False}.get(candidate.status),
        "reason": candidate.reason,
        "replicas": rented,
        "chips": candidate.chips if usable else None,
        "usd_per_hour": usd,
        "prices": {chip: price._asdict() for chip, price in layout.prices.items()},
        "max_rate": candidate.max_rate,
        "max_rate_is_at_least": None if candidate.max_rate is None else candidate.at_least,
        "headroom": margin,
        "analytic_max_rate": None if layout.steady is None else layout.steady.most_rate * candidate.replicas,
        "probability": candidate.chance,
        "intervals": candidate.intervals,
        "flags": None if candidate.status != "meets" else launch_flags(layout.with_replicas(layout.scenario, rented)),
    }
    if usable:
        row["board_w"] = layout.board_w * rented
        row["rate_per_kw"] = candidate.max_rate and 1e3 * candidate.max_rate / row["board_w"]
        row["load_points"] = [_load_point(candidate, point) for point in candidate.points]
    if verdict is None:
        return row | dict.fromkeys(OF_A_VERDICT)
    seen = verdict.observation
    share = verdict.share if verdict.meets else 1.0 - verdict.share
    confidence = {
        "method": verdict.method,
        "runs": verdict.runs,
        "share": verdict.share,
        "binding_interval": verdict.interval,
        "probability": candidate.chance,
        "required": plan.options.confidence,
        "sure": None if verdict.runs == 1 and verdict.method == "replications" else share >= SURE,
    }
    values = (
        _usd_per_million(candidate, seen.output_throughput),
        None if seen.power_w is None else seen.power_w * candidate.copies,
        tokens_per_joule(seen.output_throughput, seen.power_w),
        verdict.binding,
        verdict.values,
        verdict.slo_ratio if isfinite(verdict.slo_ratio) else None,
        confidence,
        seen.bottleneck,
        seen.basis,
    )
    return row | dict(zip(OF_A_VERDICT, values, strict=True))


def _load_point(candidate: Candidate, point: LoadPoint) -> Document:
    """Throughput, speed and cost of a candidate at one load."""
    return {
        "request_rate": point.request_rate * candidate.copies,
        "output_tokens_per_s_per_chip": point.output_throughput * candidate.copies / candidate.chips,
        "output_tokens_per_s_per_user": 1e3 / point.median_tpot_ms,
        "usd_per_million_output_tokens": _usd_per_million(candidate, point.output_throughput),
        "meets_slo": point.meets,
    }


def _usd_per_million(candidate: Candidate, output_throughput: float | None) -> float | None:
    usd, tokens_per_h = candidate.usd_per_hour, (output_throughput or 0.0) * candidate.copies * 3600
    return None if usd is None or tokens_per_h < 1 else usd_per_million_tokens(usd, round(tokens_per_h))


OF_A_VERDICT = ("usd_per_million_output_tokens", "power_w", "output_tokens_per_joule", "binding", "values", "slo_ratio",
                "confidence", "bottleneck", "basis")  # fmt: skip
"""Parts of a candidate's row that only a simulated one has."""


def pareto_front(plan: Plan) -> list[Candidate]:
    """Layouts that hold and that no other beats in both cost and highest rate; in the order of their cost."""
    holding = [c for c in plan.candidates if c.status == "meets"]
    front: list[Candidate] = []
    fastest = -inf
    for candidate in sorted(holding, key=lambda c: (plan.cost(c), -(c.max_rate or 0.0), _slo_ratio(c))):
        reach = candidate.max_rate if candidate.max_rate is not None else -_slo_ratio(candidate)
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
    return max(cheaper, key=lambda c: (plan.cost(c), -_slo_ratio(c)), default=None)


def plan_sentence(plan: Plan) -> str:
    """The plan in one sentence or two."""
    limits, unit = limits_words(plan.objective), plan.study.scenario.workload.rate_unit
    best = plan.best
    if best is None:
        return _nothing_holds(plan, limits)
    prices = f" Prices per chip and hour: {words}." if (words := price_words(plan)) else ""
    verdict = best.verdict
    assert verdict is not None
    assert verdict.binding is not None
    binds = latency_words(verdict.binding, verdict.values[verdict.binding])
    binds += " binds" if verdict.slo_ratio > BINDS else " is nearest its limit"
    price = "" if best.usd_per_hour is None else f" at ${best.usd_per_hour:,.2f}/h"
    chips = f"{best.chips} chip{'s' if best.chips > 1 else ''}{price}"
    reach = "at least" if best.at_least else "up to"
    if plan.rate is None:
        within = "" if plan.options.power_budget_w is None else f" within {plan.options.power_budget_w:,.0f} W"
        words = f"{best.name} ({chips}) holds {limits} {reach} {number(best.max_rate, 3)} {unit}{within}"
        words += ", more than any other"
        sure = f", {_sure_words(best)}" if best.chance is not None else ""
        return f"{words}{sure}; {binds} at that rate.{prices}"
    at = f"at {number(plan.rate, 3)} {unit}"
    if plan.options.growth != 1.0:
        window = plan.load.window if plan.load is not None else ""
        at += f" ({plan.options.growth:g} times {f'the rate of {window}' if window else 'today'})"
    words = (
        f"{best.name} ({chips}) is the {'cheapest' if plan.by_price else 'smallest'} layout that holds {limits} {at}: "
    )
    words += binds
    if best.max_rate is not None:
        headroom = headroom_words(best.max_rate, plan.rate)
        words += f"; its highest rate is {reach} {number(best.max_rate, 3)} {unit} ({headroom})"
    words += f"; {sure}" if (sure := _sure_words(best)) else ""
    cheaper = next_cheaper(plan)
    if cheaper is not None:
        words += f". The next cheaper, {cheaper.name}, fails: {cheaper.reason}"
    return f"{words}.{prices}"


def _sure_words(best: Candidate) -> str:
    """How sure the winner is: over its runs, and with the model's error counted."""
    verdict, words = best.verdict, []
    if verdict is not None and verdict.runs > 1:
        words.append(f"it meets the SLO in {verdict.share:.0%} of {verdict.runs} runs")
    elif verdict is not None and verdict.method == "block bootstrap":
        words.append(f"it meets the SLO in {verdict.share:.0%} of {RESAMPLES} resamples of the trace")
    if best.chance is not None:
        words.append(f"with {chance_words(best.chance)} probability if the model's own error is counted")
    return " and ".join(words)


def _nothing_holds(plan: Plan, limits: str) -> str:
    at = "at any rate" if plan.rate is None else f"at {number(plan.rate, 3)} {plan.study.scenario.workload.rate_unit}"
    tried = [c for c in plan.candidates if c.verdict is not None and c.status == "misses"]
    if tried:
        nearest = min(tried, key=_slo_ratio)
        words = f"No layout holds {limits} {at}; the nearest, {nearest.name}, has {nearest.reason}."
        surest = max((c.chance for c in tried if c.chance is not None), default=0.0)
        if surest < 0.01:
            return words
        share = int(100 * surest) / 100
        words = f"{words} Runs meet the SLO and the model's error decides: --confidence {share:g} accepts a layout"
        return f"{words}{': only calibrated evidence carries more' * (surest == MOST_SURE)}."
    if plan.candidates and all(c.status == "refused" for c in plan.candidates):
        return f"No layout can be built: {plan.candidates[-1].reason}."
    reasons = [c.reason for c in plan.candidates if c.status in ("pruned", "misses")]
    return f"No layout holds {limits} {at}: {reasons[0] if reasons else 'none was tried'}."


def _slo_ratio(candidate: Candidate) -> float:
    return candidate.verdict.slo_ratio if candidate.verdict is not None else inf
