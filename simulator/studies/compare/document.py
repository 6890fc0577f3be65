"""A finished comparison: its document, its conclusion in one sentence, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from forerun.document import DocumentPart, Json, StudyDocument, plain_json
from forerun.result import StudyResult, Summary
from forerun.tables import ABSENT, Cell, Table, Tone, Value, duration, number
from simulator.running.metrics.conclusion import chance_words
from simulator.running.metrics.uncertainty import LEAST_SURE, MOST_SURE, decoding_share
from simulator.running.metrics.usage import host_share
from simulator.studies.compare.crossover import Crossing, CurvePoint
from simulator.studies.compare.sensitivity import Swing
from simulator.studies.paired import COSTS, HIGHER_IS_BETTER, Ratio, load_words, metric_with_unit, metric_words, times
from simulator.studies.plan.objectives import latency_words
from simulator.studies.study_file import study_text
from simulator.workload.workload_config import rate_unit

SAMPLING, MODELLED, ASSUMED = "sampling", "model error and sampling", "assumed costs and sampling"
"""Sources of error that the interval of a ratio may cover."""
TORNADO_ROWS = 8
NO_EFFECT = 0.005
"""Change of a speedup over the range of an assumed parameter up to which the parameter has no effect."""
SAME_RATIO = 0.005
"""Maximum difference of a ratio from 1 that counts as equal."""
GOODPUT = "request_goodput"
SAME_GOODPUT = 0.005
"""Maximum difference in the share of good requests at which variants are compared by another metric than goodput."""


@dataclass(frozen=True)
class DraftingGain(DocumentPart):
    """Figures of drafting against a baseline without it."""

    host_share: float
    """Share of a drafting step in which the chips wait for the host."""
    baseline_host_share: float
    acceptance_length: float
    break_even_acceptance_length: float | None
    """Acceptance length, from 1 on, at which both take as long per request at this run's step times; None if none."""

    @classmethod
    def of(cls, base: Json, run: Json) -> DraftingGain | None:
        """Figures from two run documents; None unless the second alone drafts.

        In a step of given length, time per token is inverse to the acceptance length. Prompts do not depend on it.
        """
        section, other = (one["scenario"].get("speculation") or {} for one in (run, base))
        summary, length = run["summary"], run["summary"].get("spec_decode_acceptance_length")
        latencies = [one["summary"].get("mean_e2el_ms") for one in (base, run)]
        if length is None or other.get("method", "none") != "none" or not all(latencies):
            return None
        decoding = decoding_share(summary, "mean")
        left = latencies[0] / latencies[1] - (1.0 - decoding)
        needed = decoding * length / left if left > 0.0 else inf
        reachable = 1.0 + section.get("num_speculative_tokens", inf)
        shares = (host_share(run["bottleneck"]), host_share(base["bottleneck"]))
        return cls(*shares, length, max(1.0, needed) if needed <= reachable else None)

    def words(self, name: str, base: str) -> str:
        """Sentence of a conclusion."""
        needed, ends = self.break_even_acceptance_length, "no acceptance makes it pay"
        if needed is not None:
            gains = needed < self.acceptance_length
            ends = "the gain is gone at an acceptance length below" if gains else "it pays from an acceptance length of"
            ends += f" about {needed:.2f}"
        own, plain = f"{self.host_share:.0%} of a drafting step in {name}", f"{self.baseline_host_share:.0%} in {base}"
        return f" Host work is {own}, {plain}; {ends} (now {number(self.acceptance_length, 3)})."


@dataclass(frozen=True, kw_only=True)
class CacheOutcome(DocumentPart):
    """Tokens that a variant's eviction policies find in the caches, and their regret against the clairvoyant bound."""

    prefix_hit_rate: float | None
    hit_rate_by_tier: dict[str, float | None] | None
    mean_task_s: float | None
    """Mean seconds of a session, from its first arrival to its last end; None if no request waits for another."""
    p99_task_s: float | None
    regret: dict[str, float | None] | None = None
    """Distance to the clairvoyant bound: hit rate below it; shares by which TTFT, task time and cost are above it;
    None of the bound itself, and where nobody can be clairvoyant."""

    @classmethod
    def of(cls, run: Json, bound: Json | None) -> CacheOutcome:
        """Outcome of a variant's runs, and of the clairvoyant variant's."""
        own, best = (None if one is None else _cache_figures(one) for one in (run, bound))
        assert own is not None
        regret = (
            None if best is None else {key: _regret(key, own[key], best[key]) for key in own if key != "p99_task_s"}
        )
        tasks = {key: own[key] for key in ("mean_task_s", "p99_task_s")}
        tiers = run["kv_cache"].get("hit_rate_by_tier")
        return cls(prefix_hit_rate=own["prefix_hit_rate"], hit_rate_by_tier=tiers, regret=regret, **tasks)


def _cache_figures(run: Json) -> dict[str, float | None]:
    tasks = run.get("tasks") or {}
    return {
        "prefix_hit_rate": run["kv_cache"]["prefix_hit_rate"],
        "mean_ttft_ms": run["summary"].get("mean_ttft_ms"),
        "mean_task_s": tasks.get("mean_s"),
        "p99_task_s": tasks.get("p99_s"),
        "usd_per_million_output_tokens": run["usd_per_million_output_tokens"],
    }


def _regret(key: str, own: float | None, best: float | None) -> float | None:
    if own is None or best is None:
        return None
    return best - own if key == "prefix_hit_rate" else own / best - 1.0 if best else None


@dataclass(frozen=True, kw_only=True)
class ComparedVariant(DocumentPart):
    """A variant of a comparison."""

    name: str
    set: Json
    """Scenario values that the variant sets, by dotted path."""
    baseline: str
    """Name of the variant that this one is compared with."""
    speedup: dict[str, Ratio | None]
    """Speedup over the baseline, by metric."""
    interval_of: str
    ideal: bool
    """True if the variant is an ideal bound that no real system reaches."""
    summary: Json
    """Metrics of the variant's runs, keyed as in vLLM's benchmark."""
    intervals: Json | None
    likely: Json | None = None
    slo: Json | None
    bottleneck: dict[str, float]
    basis: str
    chips: int
    energy_joules: float | None
    usd_per_million_output_tokens: float | None
    scenario: Json
    drafting: DraftingGain | None = None
    """None unless the variant drafts and its baseline does not."""
    cache: CacheOutcome | None = None
    """None unless eviction policies differ between variants."""

    def value(self, metric: str) -> Any:
        """Value of a compared metric; None if the variant's runs do not measure it."""
        return getattr(self, metric) if metric in COSTS else self.summary.get(metric)

    @property
    def missed(self) -> list[str]:
        """Texts about the SLO limits that the variant misses."""
        limits = (self.slo or {}).get("limits", {})
        return [
            f"{latency_words(key, limit['value'])} (limit {number(limit['limit'])})"
            for key, limit in limits.items()
            if limit["met"] is False
        ]


@dataclass(frozen=True, kw_only=True)
class Crossover(DocumentPart):
    """Crossover loads: the one nearest to the scenario's load, and all crossings."""

    path: str
    metric: str
    variant: str
    value: float
    low: float | None
    high: float | None
    better: str
    all: list[Crossing]


@dataclass(frozen=True, kw_only=True)
class SpeedupCurve(DocumentPart):
    """A variant's speedups in order of load."""

    variant: str
    points: list[CurvePoint]


@dataclass(frozen=True, kw_only=True)
class LoadCurves(DocumentPart):
    """Speedups of every variant along one load field."""

    path: str
    metric: str
    requested: bool
    """True if the field was named, False if it is the scenario's load."""
    curves: list[SpeedupCurve]


@dataclass(frozen=True, kw_only=True)
class CompareDocument(StudyDocument):
    """The ``compare`` JSON."""

    variants: list[ComparedVariant]
    baseline: str
    metric: str
    level: float
    crossover: Crossover | None
    load_curves: LoadCurves | None
    served_load: Json | None
    """Load field ``path``, its ``requested`` value, and the highest value that each variant can serve."""
    sensitivity: list[Swing]
    replications: int
    eviction_bounds: dict[str, CacheOutcome] = field(default_factory=dict)
    """Clairvoyant bounds that are no variants, by name; empty unless eviction policies differ."""

    @property
    def compared(self) -> list[ComparedVariant]:
        """Variants that are compared with a baseline (all except baselines)."""
        return [variant for variant in self.variants if variant.name != variant.baseline]

    @property
    def contenders(self) -> list[tuple[ComparedVariant, Ratio]]:
        """Variants that measure the deciding metric, with their speedup in it, highest first."""
        rows = [(one, ratio) for one in self.compared if (ratio := one.speedup[self.metric]) is not None]
        rows = [row for row in rows if not row[0].ideal] or rows  # what nothing can reach wins no comparison
        return sorted(rows, key=lambda row: -row[1].ratio)

    @property
    def unit(self) -> str:
        """Unit of the request rates in the document."""
        return rate_unit(self.scenario["workload"])

    def points(self, variant: str) -> list[CurvePoint]:
        """Speedups of a variant at every load tried."""
        curves = [] if self.load_curves is None else self.load_curves.curves
        return next((curve.points for curve in curves if curve.variant == variant), [])

    def most(self, variant: str) -> float | None:
        """Highest load that a variant can serve in the long run; None if unknown."""
        return (self.served_load or {}).get(variant)


def compare_sentence(data: CompareDocument) -> str:
    """Conclusion: verdict on the baseline, crossover, and assumptions that could reverse the verdict."""
    what, base, rows = metric_words(data.metric), data.baseline, data.contenders
    if not rows:
        return f"No variant measures {what}, so none can be compared with {base}."
    if len({row.baseline for row, _ in rows}) > 1:
        return _by_load_sentence(data) + _slo_words(data)
    winner, ratio = rows[0]
    best, reached, where = winner.name, times(ratio.ratio), f" in {what}"
    interval = _interval(ratio, winner.interval_of)
    good: list[Any] = [(variant.slo or {}).get("good_share") for variant in data.variants]
    lead = share = ""
    if data.metric != GOODPUT and None not in good:
        low, high = min(good), max(good)
        shares = (
            f"{low:.1%} to {high:.1%}"
            if high - low >= SAME_GOODPUT
            else f"{low:.1%}"
            if low == high
            else f"about {low:.1%}"
        )
        if low < 1.0:
            share = f" Within the SLO are {shares} of the requests of every variant."
        if all(variant.missed for variant in data.variants):
            lead, share = "No variant meets the SLO. ", ""
    side, likely = ratio.side, "" if ratio.verdict else "probably "
    if abs(ratio.ratio - 1.0) < SAME_RATIO:
        side, interval = 0, _interval(ratio, winner.interval_of, judged=False)
        text = f"{best} and {base} differ by less than {SAME_RATIO:.1%}{where}: {reached}{interval}"
    elif side > 0:
        text = f"{best} {likely}improves {what} {reached} over {base}{interval}"
    elif side < 0:
        others = "" if len(rows) == 1 else " and the others worse still"
        text = f"{base} {likely}has the better {what}: {best} reaches {reached}{where}{interval}{others}"
    elif ratio.probability is not None and ratio.probability > 0.5 and ratio.ratio > 1.0:
        text = f"{best} may improve {what} {reached} over {base}{interval}"
    elif len(rows) == 1:
        text = f"{best} does not differ surely from {base}{where}: {reached}{interval}"
    else:
        text = f"No variant beats {base} surely{where}; the best, {best}, reaches {reached}{interval}"
    text += _crossover_words(data, best) + _sensitivity_words(data, best, side) + _drafting_words(data)
    return lead + text + share + _overload_words(data) + _slo_words(data)


def _by_load_sentence(data: CompareDocument) -> str:
    """Sentence with the best variant at every load, relative to the first variant at that load."""
    parts, decided = [], []
    for base in dict.fromkeys(variant.baseline for variant in data.variants):
        best, ratio = next((row for row in data.contenders if row[0].baseline == base), (None, None))
        if best is not None and ratio is not None:
            ends = "" if ratio.low is None or ratio.high is None else f" ({times(ratio.low)} to {times(ratio.high)})"
            parts.append(f"{best.name} {times(ratio.ratio)}{ends}")
            decided += [best.name] if ratio.verdict else []
    text = f"{metric_words(data.metric)} over the first variant at the same load, with 95 % intervals: "
    turned = [name for name in decided if any(name in row.flips for row in data.sensitivity)]
    rests = _sensitivity_words(data, [*turned, *decided][0], 1) if decided else "."
    return text[0].upper() + text[1:] + "; ".join(parts) + rests


def _overload_words(data: CompareDocument) -> str:
    """Clause about variants that cannot serve the scenario's load."""
    if data.served_load is None or data.served_load["requested"] is None:
        return ""
    path, load = data.served_load["path"], data.served_load["requested"]
    known = {one.name: most for one in data.variants if (most := data.most(one.name)) is not None}
    over = {name: most for name, most in known.items() if most < load}
    if not over:
        return ""
    if len(over) == len(data.variants):
        return f" {load_words(path, load)} cannot be served: at most about {load_words(path, max(over.values()))} can."
    rates = ", ".join(f"{name} serves at most about {load_words(path, most)}" for name, most in over.items())
    return f" The load is {load_words(path, load)}; {rates}."


def _slo_words(data: CompareDocument) -> str:
    """Sentence on the SLO limits that variants miss."""
    words = [f"{variant.name} misses {', '.join(variant.missed)}" for variant in data.variants if variant.missed]
    return f" {'; '.join(words)}." if words else ""


def _crossover_words(data: CompareDocument, best: str) -> str:
    crossover = data.crossover
    if crossover is None:
        return _everywhere_words(data, best)
    crossings = [one for one in crossover.all if one.variant == best] or [
        one for one in crossover.all if one.variant == crossover.variant
    ]
    name = crossings[0].variant
    places = []
    for place in crossings:
        low, high = number(place.low, 3), number(place.high, 3)
        known = place.low is not None and place.high is not None and low != high
        words = f"{place.better} about {load_words(crossover.path, place.value, data.unit)}"
        places.append(words + (f" ({low} to {high})" if known else ""))
    own, base = data.most(name), data.most(data.baseline)
    most = inf if own is None or base is None else min(own, base)
    points = data.points(name)
    side = "at other loads"
    if len(crossings) == 1:
        below = crossings[0].better == "below"
        points = [point for point in points if (point.value > crossings[0].value) == below]
        side = "above" if below else "below"
    worst, worst_beyond = (
        1.0 - min((point.ratio for point in points if (point.value > most) == beyond), default=1.0)
        for beyond in (False, True)
    )
    costs = f"; {side} it costs up to {worst:.0%}" if worst >= 0.005 else ""
    if worst_beyond >= max(0.005, 2.0 * worst):
        costs = f"{costs or f'; {side} it costs nothing'} where both keep up, {worst_beyond:.0%} where one does not"
    subject = "it pays" if name == best else f"{name} pays"
    words = f"; {subject} {' and '.join(places)}{costs}"
    if most < inf and own != base:
        words += f"; {'it' if name == best else name} serves at most about {load_words(crossover.path, own, data.unit)}"
        words += f", {data.baseline} {number(base, 3)}"
    return words


def _everywhere_words(data: CompareDocument, best: str) -> str:
    """Clause about a variant that pays at every tried load that can be served; empty if it does not."""
    pair = [data.most(name) for name in (best, data.baseline)]
    if data.load_curves is None or data.served_load is None or None in pair:
        return ""
    most = max(one for one in pair if one is not None)
    ratios = [point.ratio for point in data.points(best) if point.value <= most]
    if len(ratios) < 2 or min(ratios) <= 1.0:
        return ""
    return f"; it pays at every load that can be served, up to about {load_words(data.served_load['path'], most)}"


def _sensitivity_words(data: CompareDocument, best: str, side: int) -> str:
    if not data.sensitivity or side == 0:
        return "."
    flipping = [row.says for row in data.sensitivity if best in row.flips]
    if not flipping:
        return ". No assumed parameter reverses this within its range." if data.basis == "calibrated" else "."
    names = ", ".join(flipping[:3]) + (" and others" if len(flipping) > 3 else "")
    return f". It rests on {names}: within the assumed range the verdict turns over."


def _drafting_words(data: CompareDocument) -> str:
    """Sentence about the best drafting variant: its host work, and the acceptance at which its gain ends."""
    drafting = next(((row, row.drafting) for row, _ in data.contenders if row.drafting is not None), None)
    return "" if drafting is None else drafting[1].words(drafting[0].name, drafting[0].baseline)


def _interval(ratio: Ratio, what: str, judged: bool = True) -> str:
    """Interval of a ratio in brackets; if ``judged``, with the probability that the variant is better."""
    if ratio.low is None or ratio.high is None:
        return ""
    words = "over the range of assumed costs" if what == ASSUMED else "95 % interval"
    likely = ratio.probability if judged else None
    better = likely is None or likely >= 0.5
    chance = "" if likely is None else f", {chance_words(likely if better else 1.0 - likely)} likely to be "
    chance += ("better" if better else "worse") * bool(chance)
    if likely in (LEAST_SURE, MOST_SURE):
        chance = f", likely to be {'better' if likely == MOST_SURE else 'worse'}: no surer without calibrated evidence"
    if judged and ratio.undecided:
        chance = ", which of the two is better is undecided"
    return f" ({words} {times(ratio.low)} to {times(ratio.high)}{chance})"


SHOWN = ("output_throughput", "request_throughput", "request_goodput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
         "p99_tpot_ms", "mean_e2el_ms", "p99_e2el_ms", "spec_decode_acceptance_length")  # fmt: skip
"""Metrics shown in tables; further metrics are only in the JSON and the data frame."""
BRIEF = ("output_throughput", "request_goodput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
"""Metrics whose speedups a terminal shows without ``--full``."""
REGRETS = {
    "prefix_hit_rate": "not found",
    "mean_ttft_ms": "TTFT",
    "mean_task_s": "task",
    COSTS[0]: "cost",
}
"""Regret against the clairvoyant bound, in words of a table."""
FAR = 100.0
"""Ratio above which an interval's end is shown as a bound (``>100``)."""


class CompareResult(StudyResult[CompareDocument]):
    """Result of ``compare``: variants compared on common random numbers.

    Its data frame has a row for each variant and metric: ``variant``, ``metric``, ``value``, ``speedup``, ``low``,
    ``high``.
    """

    kind = "compare"
    document_type = CompareDocument

    @property
    def legend(self) -> str:  # type: ignore[override]
        """Legend of the terms in the tables."""
        words = (
            "Speedup, its 95 % interval (chance and the model's error), and P, the probability that the variant is "
            "better; undecided: the prediction favours one and the model's error the other. Where nothing was measured "
            "P is at most 0.9, and the interval reaches beyond 1."
        )
        drafts = any(variant.drafting is not None for variant in self.data.variants)
        return words + " Drafting gained nothing in one published deployment of ten." * drafts

    @property
    def title(self) -> str:
        names = [variant.name for variant in self.data.variants]
        against = " against ".join(names) if len(names) == 2 else f"{len(names)} variants"
        return f"{self.model} on {self.data.scenario['hardware']['chip']}: {against}"

    @property
    def facts(self) -> str:
        return f"basis: {self.data.basis} · {self.data.replications} paired runs from seed {self.data.seed}"

    @property
    def best(self) -> ComparedVariant:
        """Variant with the highest speedup in the deciding metric; the baseline if no speedup is above 1."""
        rows = [(variant, ratio) for variant in self.data.compared if (ratio := variant.speedup[self.data.metric])]
        variant, ratio = max(rows, key=lambda row: row[1].ratio, default=(self.data.variants[0], None))
        return variant if ratio is not None and ratio.ratio > 1.0 else self.data.variants[0]

    @property
    def marks(self) -> Sequence[str]:
        return f"{self.data.replications} paired runs", f"judged by {metric_words(self.data.metric)}"

    @property
    def summary(self) -> Summary:
        speedups = {one.name: one.speedup[self.data.metric] for one in self.data.compared}
        ratios = {name: ratio and ratio.ratio for name, ratio in speedups.items()}
        first = {"metric": self.data.metric, "baseline": self.data.baseline}
        return Summary({**first, **ratios, "answer": self.conclusion})

    @property
    def files(self) -> dict[str, str]:
        return {"study.yaml": study_text(self.document["variants"])}

    def records(self) -> list[Json]:
        metrics = dict.fromkeys([*HIGHER_IS_BETTER, *SHOWN])
        return [
            {"variant": variant.name, "metric": metric, "value": variant.value(metric)}
            | plain_json(variant.speedup.get(metric) or {})
            for variant in self.data.variants
            for metric in metrics
        ]

    def tables(self) -> list[Table]:
        data = self.data
        others = _sensitivity_table(data), _curve_table(data), _crossover_table(data)
        return [
            _speedup_table(data),
            _value_table(data),
            *(table for table in (_cache_table(data), *others) if table.rows),
        ]


def _speedup_table(data: CompareDocument) -> Table:
    shown = [metric for metric in dict.fromkeys([data.metric, *SHOWN, *COSTS]) if metric in HIGHER_IS_BETTER]
    rows: list[list[Value]] = []
    for metric in shown:
        cells = [variant.speedup[metric] for variant in data.compared]
        if any(cell is not None for cell in cells):
            rows.append([metric_words(metric), *map(ratio_cell, cells)])
    several = len({variant.baseline for variant in data.compared}) > 1
    base = "the first variant at the same load" if several else data.baseline
    title = f"Speedup over {base} (above 1 is better)"
    brief = {data.metric, *BRIEF} | ({COSTS[0]} if "prices" in data.scenario else set())
    details = {metric_words(metric) for metric in shown if metric not in brief}
    return Table(title, ["", *(variant.name for variant in data.compared)], rows, name="speedup", details=details)


def ratio_cell(ratio: Ratio | None) -> Value:
    """Cell with a ratio and its interval, coloured if the verdict is sure."""
    if ratio is None:
        return None
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


def _value_table(data: CompareDocument) -> Table:
    rows: list[list[Value]] = []
    for key in SHOWN:
        cells = [variant.summary.get(key) for variant in data.variants]
        if any(cell is not None for cell in cells):
            rows.append([metric_with_unit(key), *cells])
    rows.append(["basis", *(variant.basis for variant in data.variants)])
    details = {metric_with_unit(key) for key in SHOWN if key in HIGHER_IS_BETTER and key != data.metric}
    details |= {"basis"} if len({variant.basis for variant in data.variants}) == 1 else set()
    return Table("Means", ["", *(one.name for one in data.variants)], rows, name="means", details=details)


def _cache_table(data: CompareDocument) -> Table:
    """Table of what eviction policies find, and of their regret; empty if all variants have the same."""
    columns: dict[str, list[Value]] = {}
    named = {one.name: one.cache for one in data.variants} | data.eviction_bounds
    caches = [cache for cache in named.values() if cache is not None]
    if caches:
        columns["found"] = [_percent(cache.prefix_hit_rate) for cache in caches]
        tiers = caches[0].hit_rate_by_tier or {}
        for tier in tiers if len(tiers) > 1 else ():
            columns[f"in {tier}"] = [_percent((cache.hit_rate_by_tier or {}).get(tier)) for cache in caches]
        columns["mean task (s)"] = [cache.mean_task_s for cache in caches]
        columns["p99 task (s)"] = [cache.p99_task_s for cache in caches]
        for key, words in REGRETS.items():
            columns[words] = [_percent((cache.regret or {}).get(key)) for cache in caches]
    columns = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    rows = [[name, *cells] for name, *cells in zip(named, *columns.values(), strict=True)] if columns else []
    title = "Prompt tokens found in caches, and regret against belady (a bound on tokens found, not on times and cost)"
    return Table(title, ["", *columns], rows, name="caches")


def _percent(share: float | None) -> Value:
    return None if share is None else Cell(f"{share:.1%}", value=share)


def _sensitivity_table(data: CompareDocument) -> Table:
    """Table of the assumed parameters with the largest effect on the answer."""
    names = [variant.name for variant in data.compared]
    rows: list[list[Value]] = []
    for row in data.sensitivity:
        cells: list[Value] = []
        for name in names:
            ends, turned = row.ratios.get(name), name in row.flips
            known = ends is not None and ends.at_low is not None and ends.at_high is not None
            text = f"{ends.at_low:.3f} .. {ends.at_high:.3f}" if ends is not None and known else ABSENT
            cells.append(Cell(text, aside="turns over" if turned else "", tone="bad" if turned else ""))
        rows.append([row.says, Cell(range_words(row)), *cells])
    title = f"Speedup of {metric_words(data.metric)} at the ends of assumed parameters"
    details = [row.says for row in data.sensitivity if not row.flips]
    moving = sum(any(abs(row.change(name)) > NO_EFFECT for name in names) for row in data.sensitivity)
    shown = min(TORNADO_ROWS, max(1, moving))
    return Table(title, ["", "range", *names], rows, shown=shown, name="sensitivity", details=details)


def range_words(row: Swing) -> str:
    """Text of the range of an assumed parameter, e.g. ``x0.5 .. x2``."""
    if row.unit == "factor":
        return f"x{row.low:g} .. x{row.high:g}"
    if row.unit == "s":
        return f"{duration(row.low)} .. {duration(row.high)}"
    return f"{row.low:g} .. {row.high:g} {row.unit}"


def _curve_table(data: CompareDocument) -> Table:
    """Table of speedups at every load tried for the crossover, shown if a crossover was requested."""
    along = data.load_curves or LoadCurves(path="", metric=data.metric, requested=False, curves=[])
    by_load = [{point.value: point for point in curve.points} for curve in along.curves]
    rows = [
        [load_words(along.path, load, data.unit), *(ratio_cell(points.get(load)) for points in by_load)]
        for load in sorted({load for points in by_load for load in points})
    ]
    title = f"Speedup of {metric_words(along.metric)} by {along.path.rpartition('.')[2]}"
    details = set() if along.requested else {str(row[0]) for row in rows}
    return Table(title, ["", *(one.variant for one in along.curves)], rows, name="load curves", details=details)


def _crossover_table(data: CompareDocument) -> Table:
    """Table of the loads at which variants start or stop being faster than the baseline."""
    rows: list[list[Value]] = []
    for row in data.crossover.all if data.crossover is not None else ():
        low, high = number(row.low, 3), number(row.high, 3)
        at = load_words(data.crossover.path, row.value, data.unit) if data.crossover else ""
        rows.append([row.variant, row.better, at, "" if low == high else f"{low} .. {high}"])
    return Table("Crossover", ("variant", "pays", "at", "95 % interval"), rows, name="crossover")
