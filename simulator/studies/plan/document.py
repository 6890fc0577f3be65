"""Capacity plans: the entry point, its result, a document with its conclusion in one sentence, and tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path

from forerun.document import LEFT_OUT, DocumentPart, Json, StudyDocument, plain_json
from forerun.errors import ArgumentError, ForerunError
from forerun.result import StudyResult, Summary
from forerun.tables import ABSENT, Cell, Table, Value, number
from hwprofiles import weakest
from simulator.running.metrics.conclusion import chance_words, main_evidence
from simulator.running.metrics.uncertainty import MOST_SURE, SURPRISED
from simulator.running.metrics.usage import (
    HOURS_PER_MONTH,
    main_bottleneck,
    tokens_per_joule,
    usd_per_million_tokens,
)
from simulator.running.scenario import Scenario, scenario_from
from simulator.studies.artefacts import artefact
from simulator.studies.engine_flags import launch_flags
from simulator.studies.frame import study_header
from simulator.studies.plan.layouts import ChipPrice
from simulator.studies.plan.objectives import RESAMPLES, latency_words, limits_words
from simulator.studies.plan.search import RATE_MARGIN, Candidate, Plan
from simulator.studies.plan.summary import (
    ChipCost,
    PlannedHour,
    chip_costs,
    headroom_words,
    hours_table,
    plan_summary,
    plan_summary_table,
    planned_hours,
)
from simulator.studies.plan.trials import LoadPoint, Verdict
from simulator.studies.study_file import StudyFile, yaml_text
from simulator.workload.workload_config import ARRIVING, rate_unit

SURE = 0.95
"""Minimum share of agreeing runs at which a verdict is called sure."""
J_PER_KWH = 3.6e6
BINDS = 0.9
"""Share of a limit above which the metric nearest to its limit is called binding."""


def plan_result(plan: Plan, intensity: tuple[float, float, float] | None) -> PlanResult:
    """Build the result of a plan."""
    data = plan_document(plan)
    if intensity is not None:
        rows = [_with_carbon(row, intensity) for row in data.candidates]
        carbon = dict(zip(("mean", "low", "high"), intensity, strict=True))
        data = replace(data, candidates=rows, best=data.best and BestLayout(**vars(rows[0])), carbon_g_per_kwh=carbon)
    if plan.options.emit is not None and data.best is not None:
        data = replace(data, artefact=artefact(plan.options.emit, data.deployment))
    return PlanResult(data, files={"study.yaml": _study_text(data.scenario, plan.study)})


def _with_carbon(row: PlannedLayout, intensity: Sequence[float]) -> PlannedLayout:
    each = row.output_tokens_per_joule
    grams = [1e6 / each / J_PER_KWH * one for one in intensity] if each else None
    return replace(row, g_co2_per_million_output_tokens=grams)


def carbon_of(carbon: float | str | Path) -> tuple[float, float, float]:
    """Mean, minimum and maximum carbon intensity, g/kWh, from a number or a CSV file over the day."""
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
    """Copy of the study with a trace as its workload."""
    data = study.scenario.model_dump(exclude_unset=True)
    data["workload"] = {"trace": trace} | ({"columns": dict(columns)} if columns else {})
    return replace(study, scenario=scenario_from(data, f"{study.place}: trace {trace}"))


def _study_text(scenario: Json, study: StudyFile) -> str:
    again: Json = {"scenario": scenario}
    if study.vary:
        again["vary"] = plain_json({path: list(values) for path, values in study.vary.items()})  # type: ignore[arg-type]
    if study.variants:
        again["variants"] = [{"name": v.name, "set": plain_json(dict(v.set))} for v in study.variants]
    return yaml_text(again)


@dataclass(frozen=True, kw_only=True)
class Confidence(DocumentPart):
    """Certainty of the verdict on a layout."""

    method: str
    runs: int
    share: float
    """Share of the runs that meet the SLO."""
    binding_interval: list[float] | None
    probability: float | None
    required: float
    sure: bool | None


@dataclass(frozen=True, kw_only=True)
class LayoutAtLoad(DocumentPart):
    """Throughput, speed and cost of a layout at one load."""

    request_rate: float
    output_tokens_per_s_per_chip: float
    output_tokens_per_s_per_user: float
    usd_per_million_output_tokens: float | None
    meets_slo: bool | None


@dataclass(frozen=True, kw_only=True)
class PlannedLayout(DocumentPart):
    """A layout of a plan. Fields from ``usd_per_million_output_tokens`` on are None if it was not simulated."""

    layout: str
    set: Json
    """Scenario values that the layout sets, by dotted path."""
    status: str
    meets_slo: bool | None
    reason: str | None
    replicas: int
    chips: int | None
    usd_per_hour: float | None
    prices: dict[str, ChipPrice]
    max_rate: float | None
    """Highest request rate at which the layout meets the SLO, req/s; None if not searched."""
    max_rate_is_at_least: bool | None
    headroom: float | None
    """Headroom as a share: ``max_rate`` over the planned rate, less 1."""
    analytic_max_rate: float | None
    probability: float | None
    """Probability that the layout meets the SLO, including the model error; None without ``interval``."""
    intervals: dict[str, list[float]]
    """90 % intervals of the limited metrics, and beside it their likely (50 %) ranges."""
    likely: dict[str, list[float]] = field(default_factory=dict)
    flags: dict[str, str] | None
    """Launch command of one replica, by engine."""
    board_w: float | None = None
    rate_per_kw: float | None = None
    load_points: list[LayoutAtLoad] | None = None
    usd_per_million_output_tokens: float | None = None
    power_w: float | None = None
    output_tokens_per_joule: float | None = None
    binding: str | None = None
    values: dict[str, float | None] | None = None
    slo_ratio: float | None = None
    confidence: Confidence | None = None
    bottleneck: dict[str, float] | None = None
    basis: str | None = None
    g_co2_per_million_output_tokens: list[float] | None = field(default=None, metadata=LEFT_OUT)

    def launch_command(self, engine: str = "vllm") -> str:
        """Launch command of the layout for ``vllm`` or ``sglang``.

        Raises:
            ForerunError: there is no command for this engine.
        """
        commands = self.flags or {}
        if engine not in commands:
            raise ForerunError(f"no launch command for '{engine}' ({', '.join(commands)})")
        return commands[engine]


@dataclass(frozen=True, kw_only=True)
class BestLayout(PlannedLayout):
    """The layout that a plan names."""

    chips: int


@dataclass(frozen=True, kw_only=True)
class NextCheaper(DocumentPart):
    """Most expensive layout that costs less than the best layout and fails."""

    layout: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class PlanDocument(StudyDocument):
    """The ``plan`` JSON."""

    mode: str
    request_rate: float | None
    growth: float
    power_budget_w: float | None
    slo: dict[str, float]
    limits: str
    """The SLO in words."""
    ranked_by: str
    load: Json | None
    candidates: list[PlannedLayout]
    """Layouts, best first."""
    best: BestLayout | None
    next_cheaper: NextCheaper | None
    pareto: list[str]
    plan_summary: Json | None
    by_chip: list[ChipCost] = field(default_factory=list)
    """Cheapest layout of every chip, the cheapest chip first."""
    hours: list[PlannedHour] = field(default_factory=list)
    replications: int
    runs: int
    carbon_g_per_kwh: dict[str, float] | None = field(default=None, metadata=LEFT_OUT)
    artefact: str | None = field(default=None, metadata=LEFT_OUT)

    @property
    def holding(self) -> list[PlannedLayout]:
        """Layouts that meet the SLO."""
        return [row for row in self.candidates if row.status == "meets"]

    @property
    def unit(self) -> str:
        """Unit of the request rates in the document."""
        return rate_unit(self.scenario["workload"])

    @property
    def deployment(self) -> Scenario:
        """Scenario of the best layout under the planned load; without a best layout, the original scenario."""
        changes = {} if self.best is None else {**(self.load or {}), **self.best.set}
        return scenario_from(self.scenario, "plan").with_values(changes)


KV_NEARLY_GONE = "KV memory was nearly gone"
"""Beginning of a note of a run; a plan repeats the note only once for all layouts."""
MOST_NAMED = 4


class PlanResult(StudyResult[PlanDocument]):
    """Result of ``plan``: layouts, best first. Its data frame has one row per layout.

    ``best`` is the best layout, None if no layout meets the SLO.
    """

    kind = "plan"
    document_type = PlanDocument

    @property
    def legend(self) -> str:  # type: ignore[override]
        """Legend of the terms in the tables."""
        words = (
            "* no layout costs less at a higher rate. hold: runs that meet the SLO. P(SLO): probability of meeting it, "
        )
        words += "the model's error included, as in the likely range of the binding figure (--full: nine in ten)."
        steps = any("-token steps" in row.layout for row in self.data.candidates)
        return words + " TP2: two chips share each layer." + " 2048-token steps: max_num_batched_tokens." * steps

    @property
    def best(self) -> BestLayout | None:
        """The cheapest layout that meets the SLO; None if no layout does."""
        return self.data.best

    @property
    def scenario(self) -> Scenario:
        """Scenario of the best layout under the planned load; without a best layout, the original scenario."""
        return self.data.deployment

    @property
    def title(self) -> str:
        rate, workload = self.data.request_rate, self.data.scenario["workload"]
        mean = " on average" if workload.get("trace") else ""
        goal = "highest rate" if rate is None else f"{number(rate)} {ARRIVING[self.data.unit]} per second{mean}"
        return f"Capacity plan: {self.model}, {goal}, {self.data.limits}"

    @property
    def facts(self) -> str:
        return f"{super().facts} · {len(self.data.candidates)} candidates · {self.data.runs} runs"

    @property
    def marks(self) -> Sequence[str]:
        return f"{self.data.runs} runs", f"{len(self.data.candidates)} candidates"

    @property
    def summary(self) -> Summary:
        keys = ("layout", "chips", "usd_per_hour", "usd_per_million_output_tokens", "max_rate", "headroom", "binding")
        return Summary({**{key: getattr(self.best, key, None) for key in keys}, "answer": self.conclusion})

    def records(self) -> list[Json]:
        plain = ("layout", "status", "reason", "replicas", "chips", "usd_per_hour", "usd_per_million_output_tokens",
                 "power_w", "output_tokens_per_joule", "max_rate", "headroom", "analytic_max_rate", "binding",
                 "slo_ratio", "basis")  # fmt: skip
        return [
            {key: row[key] for key in plain} | row["set"] | (row["values"] or {}) for row in self.document["candidates"]
        ]

    def tables(self) -> list[Table]:
        data = self.data
        tables = [_holding_table(data), _power_table(data)]
        for status, words in FAILING.items():
            tables.append(_failing_table(words, [row for row in data.candidates if row.status == status], status))
        flags = [(row.layout, *command) for row in data.candidates for command in (row.flags or {}).items()]
        commands = [[layout, engine, line] for layout, engine, command in flags for line in command.splitlines()]
        columns = ("layout", "engine", "command")
        losers = [row.layout for row in data.candidates[1:]]
        title = "Launch commands of one replica"
        first = sum(len(command.splitlines()) for _, _, command in flags[:2])
        tables.append(Table(title, columns, commands, shown=first, name="commands", details=losers))
        if data.plan_summary is not None:
            tables += [plan_summary_table(data.plan_summary), hours_table(data.hours, data.unit)]
        return [table for table in tables if table.rows] or tables[:1]


FAILING = {
    "misses": "Simulated, and misses the SLO",
    "pruned": "Cannot hold it, by the analytic model",
    "not simulated": "Not simulated",
    "refused": "Refused",
    "error": "Internal errors; please report them",
}
SHOWN = 12
"""Maximum layouts without success that a terminal shows per kind of reason."""


def _holding_table(data: PlanDocument) -> Table:
    """Layouts that meet the SLO, best first; a star marks the Pareto front."""
    rows: list[list[Value]] = []
    for row in data.holding:
        sure, ends = row.confidence, (part.get(row.binding or "") for part in (row.likely, row.intervals))
        assert sure is not None
        assert row.values is not None
        assert row.binding is not None
        rate = (">= " if row.max_rate_is_at_least else "") + number(row.max_rate, 3)
        more = row.headroom
        headroom = "" if more is None else f"{number(more + 1, 3)}x the load" if more >= 1 else f"{more:+.0%}"
        likely, wide = ("" if one is None else "..".join(number(end, 3) for end in one) for one in ends)
        bound, runs = latency_words(row.binding, row.values[row.binding]), f"of {sure.runs}" if sure.runs > 1 else ""
        rows.append(
            [
                row.layout + (" *" if row.layout in data.pareto else ""),
                row.chips,
                row.usd_per_hour,
                Cell(number(row.usd_per_million_output_tokens, 3), value=row.usd_per_million_output_tokens),
                _watts(row.power_w),
                Cell(rate, aside=headroom, value=row.max_rate),
                Cell(bound, aside=likely or wide, detail=likely and f"({wide})"),
                Cell(f"{sure.share:.0%}", aside=runs, value=sure.share),
                Cell("<= " * (sure.probability == MOST_SURE) + chance_words(sure.probability), value=sure.probability),
                main_bottleneck(row.bottleneck) or ABSENT,
                row.basis,
            ]
        )
    columns = ("", "chips", "$/h", "$/Mtok", "power", f"max {data.unit}", "binding", "hold", "P(SLO)", "bound", "basis")
    title, details = "Holds the SLO, best first (* on the Pareto front)", ("power", "bound", "basis")
    return Table(title, columns, rows, name="holds", details=details)


def _watts(power_w: float | None) -> Cell:
    return Cell(ABSENT if power_w is None else f"{power_w:,.0f} W", value=power_w)


def _power_table(data: PlanDocument) -> Table:
    """Power and carbon of layouts that meet the SLO; empty if neither a budget nor carbon was requested."""
    rows: list[list[Value]] = []
    carbon = data.carbon_g_per_kwh is not None
    for row in data.holding if carbon or data.power_budget_w is not None else ():
        grams = row.g_co2_per_million_output_tokens
        per_usd = row.max_rate / row.usd_per_hour if row.usd_per_hour and row.max_rate else None
        cells: list[Value] = [row.layout, _watts(row.board_w), _watts(row.power_w), row.rate_per_kw, per_usd]
        cells.append(row.output_tokens_per_joule)
        if carbon:
            low_high = "" if not grams or grams[1] == grams[2] else f"{number(grams[1], 3)}..{number(grams[2], 3)}"
            cells.append(Cell(number(grams and grams[0], 3), aside=low_high, value=grams and grams[0]))
        rows.append(cells)
    columns = ["", "boards may draw", "drawn", f"{data.unit} per kW", f"{data.unit} per $/h", "tokens/J"]
    return Table("Watts", [*columns, *(["g CO2/Mtok"] if carbon else [])], rows, name="watts")


def _failing_table(title: str, rows: list[PlannedLayout], name: str) -> Table:
    """Layouts that do not meet the SLO, by reason."""
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(row.reason or ABSENT, []).append(row.layout)
    lines: list[list[Value]] = [
        [Cell(names[0], aside=f"and {len(names) - 1} more" if len(names) > 1 else ""), reason]
        for reason, names in named.items()
    ]
    details = [names[0] for names in named.values()] if name == "not simulated" else ()
    return Table(title, ("layout", "reason"), lines, shown=SHOWN, name=name, details=details)


def plan_document(plan: Plan) -> PlanDocument:
    """Build the ``plan`` JSON from a plan."""
    options, best = plan.options, plan.best
    candidates = [planned_layout(plan, candidate) for candidate in plan.candidates]
    answers = plan.candidates if best is None else [best]
    judged = [c.verdict.observation.basis for c in answers if c.verdict is not None]
    owned = [(note, c.name) for c in plan.candidates if c.verdict is not None for note in c.verdict.observation.notes]
    tight = list(dict.fromkeys(name for note, name in owned if note.startswith(KV_NEARLY_GONE)))
    notes = [note for note, _ in owned if not note.startswith(KV_NEARLY_GONE)]
    if tight:
        more = f" and {len(tight) - MOST_NAMED} more" if len(tight) > MOST_NAMED else ""
        notes.append(f"{KV_NEARLY_GONE} in {'; '.join(tight[:MOST_NAMED])}{more}")
    served = () if best is None or best.verdict is None else best.verdict.observation.notes
    shown = dict.fromkeys([*plan.notes, *(note for note in notes if " refused: " not in note or note in served)])
    cheaper = next_cheaper(plan)
    rate = plan.rate if plan.rate is not None or best is None else best.max_rate
    return PlanDocument(
        mode=options.mode,
        request_rate=plan.rate,
        growth=options.growth,
        power_budget_w=options.power_budget_w,
        slo=plan.objective.document(),
        limits=limits_words(plan.objective),
        ranked_by="max_rate" if plan.rate is None else "usd_per_hour" if plan.by_price else "chips",
        load=None if rate is None or plan.load is None else plan.load.values_at(plan.study.scenario, rate),
        candidates=candidates,
        best=BestLayout(**vars(candidates[0])) if best is not None else None,
        next_cheaper=None if cheaper is None else NextCheaper(layout=cheaper.name, reason=cheaper.reason),
        pareto=[candidate.name for candidate in pareto_front(plan)],
        conclusion=plan_sentence(plan),
        plan_summary=plan_summary(plan, cheaper),
        by_chip=chip_costs(plan),
        hours=planned_hours(plan),
        replications=options.replications,
        runs=plan.runs,
        **study_header(plan.study.scenario, options.seed, weakest(judged) if judged else None, list(shown)),
    )


def planned_layout(plan: Plan, candidate: Candidate) -> PlannedLayout:
    """Row of the ranked table for one candidate."""
    layout, rented = candidate.layout, candidate.layout.rented(candidate.replicas)
    margin = None if candidate.max_rate is None or plan.rate is None else candidate.max_rate / plan.rate - 1.0
    usable = candidate.status != "refused"
    board_w = layout.board_w * rented if usable else None
    return PlannedLayout(
        layout=candidate.name,
        set={**layout.settings, "hardware.replicas": rented},
        status=candidate.status,
        meets_slo={"meets": True, "misses": False, "pruned": False}.get(candidate.status),
        reason=candidate.reason,
        replicas=rented,
        chips=candidate.chips if usable else None,
        usd_per_hour=candidate.usd_per_hour if usable else None,
        prices=dict(layout.prices),
        max_rate=candidate.max_rate,
        max_rate_is_at_least=None if candidate.max_rate is None else candidate.at_least,
        headroom=margin,
        analytic_max_rate=None if layout.steady is None else layout.steady.most_rate * candidate.replicas,
        probability=candidate.chance,
        intervals=dict(candidate.intervals),
        likely=dict(candidate.likely),
        flags=None if candidate.status != "meets" else launch_flags(layout.with_replicas(layout.scenario, rented)),
        board_w=board_w,
        rate_per_kw=1e3 * candidate.max_rate / board_w if candidate.max_rate and board_w else candidate.max_rate,
        load_points=[_at_load(candidate, point) for point in candidate.points] if usable else None,
        **({} if candidate.verdict is None else _judged(plan, candidate, candidate.verdict)),
    )


def _judged(plan: Plan, candidate: Candidate, verdict: Verdict) -> Json:
    """Fields that only a simulated layout has."""
    seen, share = verdict.observation, verdict.share if verdict.meets else 1.0 - verdict.share
    confidence = Confidence(
        method=verdict.method,
        runs=verdict.runs,
        share=verdict.share,
        binding_interval=None if verdict.interval is None else list(verdict.interval),
        probability=candidate.chance,
        required=plan.options.confidence,
        sure=None if verdict.runs == 1 and verdict.method == "replications" else share >= SURE,
    )
    return {
        "usd_per_million_output_tokens": _usd_per_million(candidate, seen.output_throughput),
        "power_w": None if seen.power_w is None else seen.power_w * candidate.copies,
        "output_tokens_per_joule": tokens_per_joule(seen.output_throughput, seen.power_w),
        "binding": verdict.binding,
        "values": verdict.values,
        "slo_ratio": verdict.slo_ratio if isfinite(verdict.slo_ratio) else None,
        "confidence": confidence,
        "bottleneck": seen.bottleneck,
        "basis": seen.basis,
    }


def _at_load(candidate: Candidate, point: LoadPoint) -> LayoutAtLoad:
    return LayoutAtLoad(
        request_rate=point.request_rate * candidate.copies,
        output_tokens_per_s_per_chip=point.output_throughput * candidate.copies / candidate.chips,
        output_tokens_per_s_per_user=1e3 / point.median_tpot_ms,
        usd_per_million_output_tokens=_usd_per_million(candidate, point.output_throughput),
        meets_slo=point.meets,
    )


def _usd_per_million(candidate: Candidate, output_throughput: float | None) -> float | None:
    usd, tokens_per_h = candidate.usd_per_hour, (output_throughput or 0.0) * candidate.copies * 3600
    return None if usd is None or tokens_per_h < 1 else usd_per_million_tokens(usd, round(tokens_per_h))


def pareto_front(plan: Plan) -> list[Candidate]:
    """Pareto front of layouts that meet the SLO, by cost and highest rate; in order of cost."""
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
    """Most expensive failing candidate that costs less than the winner; None without a winner or such a candidate."""
    best = plan.best
    if best is None or plan.rate is None:
        return None
    cheaper = [c for c in plan.candidates if c.status in ("misses", "pruned") and plan.cost(c) < plan.cost(best)]
    return max(cheaper, key=lambda c: (plan.cost(c), -_slo_ratio(c)), default=None)


def plan_sentence(plan: Plan) -> str:
    """Conclusion of the plan: layout, dollars a month, headroom and probability, or why no layout holds the SLO."""
    best, options = plan.best, plan.options
    if best is None:
        return _nothing_holds(plan, limits_words(plan.objective))
    parts = []
    if best.usd_per_hour is not None:
        parts.append(f"${best.usd_per_hour * HOURS_PER_MONTH:,.0f} a month")
    reach = "at least" if best.at_least else "up to"
    if plan.rate is None:
        within = "" if options.power_budget_w is None else f" within {options.power_budget_w:,.0f} W"
        words = f"{_short(best)} serves the most{within}: {reach} {number(best.max_rate, 3)} {_unit(plan)}"
    else:
        grown = "" if options.growth == 1.0 else f" at {options.growth:g} times today's load"
        words = f"{_short(best)} is the {'cheapest' if plan.by_price else 'smallest'} layout that holds the SLO{grown}"
        if best.max_rate is not None:
            parts.append(headroom_words(best.max_rate, plan.rate))
    if sure := _sure_words(best):
        parts.append(sure)
    return f"{words}{': ' * bool(parts)}{', '.join(parts)}.{_unmeasured_words(best)}"


def _unmeasured_words(best: Candidate) -> str:
    """Sentence on a winner of another deployment than the measured runs, where these were not as predicted."""
    notes = () if best.verdict is None else best.verdict.observation.notes
    known = next((note for note in notes if SURPRISED in note), None)
    if known is None:
        return ""
    measured = known.split("; ")[1].partition(", so that")[0]
    return f" {_short(best)} was not measured and is not corrected: {measured}. Measure it before you rely on it."


def _short(layout: Candidate) -> str:
    """Name of a layout in a sentence: the tables have the engine's settings and a tensor parallelism of one."""
    return re.sub(r" TP1\b|, \d+-token steps", "", layout.name)


def _sure_words(best: Candidate) -> str:
    """Probability that the winner meets the SLO: with the model's error, or over its runs where that is unknown."""
    verdict = best.verdict
    if best.chance is not None:
        never = verdict is not None and main_evidence(verdict.observation.evidence) == "datasheet"
        most = "at most " * (best.chance == MOST_SURE)
        words = f"SLO met with {most}{chance_words(best.chance)} probability"
        return f"{words}{' on chips that were never measured' * never}"
    if verdict is not None and verdict.runs > 1:
        return f"SLO met in {verdict.share:.0%} of {verdict.runs} runs, the model's error not counted"
    if verdict is not None and verdict.method == "block bootstrap":
        return f"SLO met in {verdict.share:.0%} of {RESAMPLES} resamples of the trace, the model's error not counted"
    return ""


def _unit(plan: Plan) -> str:
    return plan.study.scenario.workload.rate_unit


def _nothing_holds(plan: Plan, limits: str) -> str:
    at = "at any rate" if plan.rate is None else f"at {number(plan.rate, 3)} {_unit(plan)}"
    tried = [c for c in plan.candidates if c.verdict is not None and c.status == "misses"]
    if tried:
        nearest = min(tried, key=_slo_ratio)
        steady, reason = nearest.layout.steady, f"has {nearest.reason}"
        if steady is not None and plan.rate is not None:
            served = nearest.replicas * steady.most_rate
            if not steady.traffic.cached_tokens.any() and plan.rate > RATE_MARGIN * served:
                reason = f"cannot keep up: it serves about {number(served, 3)} {_unit(plan)} in the long run"
        words = f"No layout holds {limits} {at}; the nearest, {_short(nearest)}, {reason}."
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
