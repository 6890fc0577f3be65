"""Best draft on the user's own machine: a few measured rates correct priced steps.

Step prices are the usual ones, corrected for this machine by two factors: one on every step, one on the time that
further rows and drafting add to a step of one row. Both have a prior from the errors on other machines and are updated
by the measured rates; their posterior spread, and the acceptance's, gives the interval of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import DocumentPart, StudyDocument
from forerun.errors import ArgumentError, ForerunError
from forerun.result import Summary
from forerun.tables import Cell, Table, Value, number
from simulator.running.build import Build, build_replica
from simulator.running.drafting import method_overhead
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.speculation.confidence import threshold_chain
from simulator.speculation.engine_logs import CLUSTER, read_acceptance
from simulator.speculation.level_decay import LevelDecay, conditional_rates, fit_acceptance_lengths, fit_survival
from simulator.speculation.methods import names_in
from simulator.studies.engine_flags import engine_name
from simulator.studies.frame import study_header
from simulator.studies.steady_state.prices import decode_steps
from simulator.studies.steady_state.traffic import population
from simulator.studies.study_file import yaml_text
from simulator.studies.tune.choices import draft_choices
from simulator.studies.tune.document import TunedResult
from traces.llama_cpp import LocalRate, read_llama_cpp

SPEED_SPREAD, ROW_SPREAD = 0.12, 0.35
"""Prior standard deviations of the two factors, in logarithms. With class defaults on cards left out of the fit, errors
are 6 to 11 % of one-row rates at the median, and 20 to 30 % of batches at the 90th percentile."""
RATE_NOISE, MODEL_NOISE = 0.03, 0.05
"""Standard deviation of a measured rate, and of a priced step that was not measured itself."""
ACCEPTANCE_SPREAD = 0.08
"""Standard deviation of an unmeasured acceptance rate."""
P_MINS = (0.0, 0.6, 0.75)
"""Confidence thresholds to try: a draft ends at the first token whose confidence is lower."""
LEVEL = 1.645
"""Standard deviations of a 90 % interval."""


@dataclass(slots=True)
class MachinePrices:
    """Priced seconds of a step by streams, context and draft tokens, from the chip's fits or class defaults."""

    scenario: Scenario
    _builds: dict[tuple[int, int], Build] = field(default_factory=dict)

    def seconds(self, streams: int, context: int, drafted: int) -> tuple[float, float]:
        """Seconds of a step without drafting, and of a step that verifies and drafts."""
        return self._step(streams, context, 0), self._step(streams, context, drafted)

    def _step(self, streams: int, context: int, drafted: int) -> float:
        timer = self.build(streams, drafted).main.timer
        work = decode_steps(timer.windows, np.array([streams]), drafted + 1, np.array([context + drafted + 1]))
        costs = timer.costs(work)
        return float((costs.device_s + costs.host_s)[0])

    def build(self, streams: int, drafted: int) -> Build:
        """Build of the engine with a chain of ``drafted`` tokens."""
        if (streams, drafted) not in self._builds:
            values: dict[str, Any] = {"engine.max_num_seqs": max(streams, self.scenario.engine.max_num_seqs)}
            if self.scenario.speculation is not None:
                chain = {"speculation.num_speculative_tokens": drafted, "speculation.acceptance": {"alpha": 0.5}}
                values |= chain | {"speculation.policy": "fixed"} if drafted else {"speculation.method": "none"}
            self._builds[streams, drafted] = build_replica(self.scenario.with_values(values), 0)
        return self._builds[streams, drafted]


@dataclass(frozen=True, slots=True)
class Machine:
    """Log correction factors of a machine and their covariance."""

    mean: FloatArray
    """Log factors: (on every step, on the time added by further rows and drafting)."""
    covariance: FloatArray
    spread: float
    """Prior standard deviation of the first log factor."""

    def seconds(self, plain: float, step: float) -> float:
        """Seconds of a step on this machine."""
        return float(np.exp(self.mean[0]) * (plain + np.exp(self.mean[1]) * (step - plain)))

    def gradient(self, plain: float, step: float) -> FloatArray:
        """Gradient of the logarithm of a step's seconds by the two log factors."""
        added = np.exp(self.mean[1]) * (step - plain)
        return np.array([1.0, added / (plain + added)])


def fit_machine(measured: Sequence[tuple[float, float, float]], spread: float = SPEED_SPREAD) -> Machine:
    """Most likely factors, by Gauss-Newton steps from factors of 1; ``spread`` is the prior deviation of the first."""
    machine = Machine(np.zeros(2), np.diag([spread**2, ROW_SPREAD**2]), spread)
    weights = np.diag([spread**-2, ROW_SPREAD**-2])
    for _ in range(20):
        precision, pull = weights.copy(), -weights @ machine.mean
        for plain, step, seconds in measured:
            slope = machine.gradient(plain, step)
            precision += np.outer(slope, slope) / RATE_NOISE**2
            pull += slope * np.log(seconds / machine.seconds(plain, step)) / RATE_NOISE**2
        covariance = np.linalg.inv(precision)
        machine = Machine(machine.mean + covariance @ pull, covariance, spread)
    return machine


@dataclass(frozen=True, kw_only=True)
class MachineDraft(DocumentPart):
    """One way to draft on a machine: its rate and its speed-up, with their 90 % intervals."""

    batch: list[int]
    context: list[int]
    num_speculative_tokens: int
    p_min: float
    acceptance_length: float
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    speedup: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """Text of the rate with its interval."""
        ends = f"{number(self.tokens_per_s_low, 3)} to {number(self.tokens_per_s_high, 3)}"
        return f"{number(self.tokens_per_s, 3)} tok/s ({ends})"


@dataclass(frozen=True, kw_only=True)
class MeasuredRate(DocumentPart):
    """A rate that was measured on the machine, with its step as priced and as fitted."""

    where: str
    streams: int
    num_speculative_tokens: int
    step_ms: float
    priced_ms: float
    fitted_ms: float
    tokens_per_s: float


@dataclass(frozen=True)
class MachineFactor(DocumentPart):
    """A correction factor with its 90 % interval."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class MachineDocument(StudyDocument):
    """The ``tune`` JSON of one machine."""

    table: list[MachineDraft]
    best: MachineDraft
    machine: dict[str, MachineFactor]
    measured: list[MeasuredRate]
    acceptance: dict[str, Any]
    engine: str
    emit: str


def tuned_machine(
    base: Scenario,
    logs: Sequence[Path | str],
    measured: Sequence[str],
    p_min: Sequence[float] | str | None,
    batch: tuple[int, ...] | None,
    context: tuple[int, ...] | None,
    tokens: tuple[int, ...] | None,
) -> MachineResult:
    """Implementation of ``tune_machine``; axes are ascending numbers."""
    seen = [rate for log in logs for rate in read_llama_cpp(Path(log))]
    seen += [_given_rate(text) for text in measured]
    decoding = [rate for rate in seen if rate.kind == "decode"]
    if context is not None and len(context) > 1:
        raise ArgumentError("context", f"one length on one machine (got {', '.join(map(str, context))})")
    thresholds = P_MINS if p_min is None else _thresholds(p_min)
    requests = population(base.workload)
    half_way = int(np.mean(requests.input_tokens) + np.mean(requests.output_tokens) / 2)
    around = half_way if context is None else context[0]
    prices = MachinePrices(base)
    rows = [_priced(prices, rate, around) for rate in decoding]
    plain = run_band(base.with_values({"speculation.method": "none"}))
    bands = plain, plain if base.speculation is None or base.speculation.acceptance is None else run_band(base)
    machine = fit_machine([row[1:] for row in rows], plain.spread)
    accepted, accepted_spread, source = _acceptance(decoding)
    tried, lanes = tokens or tuple(range(1, 9)), batch or (1,)
    survival = _survival(base, accepted, max(tried))
    cells = [
        cell
        for streams in lanes
        for cell in _cells(prices, machine, bands, survival, accepted_spread, streams, around, tried, thresholds)
    ]
    alternatives = [cell for cell in cells if cell.batch == cells[0].batch]
    sure = [cell for cell in alternatives if not cell.num_speculative_tokens or cell.low > 1.0]
    best = max(sure, key=lambda cell: cell.tokens_per_s)
    ends = LEVEL * np.sqrt(np.diag(machine.covariance))
    every_step, further_rows = (
        MachineFactor(*(float(np.exp(value)) for value in (m, m - e, m + e)))
        for m, e in zip(machine.mean, ends, strict=True)
    )
    unmeasured = "nothing was measured here: give --measured 43 (tokens per second without drafting) or --from-log"
    notes = [
        f"acceptance is that of {source}",
        *([] if rows else [unmeasured]),
        "a confidence threshold is priced for each request alone; confidences are taken to be calibrated",
    ]
    data = MachineDocument(
        table=cells,
        best=best,
        machine={"every_step": every_step, "further_rows": further_rows},
        measured=[
            MeasuredRate(
                where=rate.place,
                streams=rate.streams,
                num_speculative_tokens=round(rate.draft_tokens) if rate.accepted >= 0 else rate.drafted,
                step_ms=seconds * 1e3,
                priced_ms=step * 1e3,
                fitted_ms=machine.seconds(plain, step) * 1e3,
                tokens_per_s=rate.tokens_per_s,
            )
            for rate, plain, step, seconds in rows
        ],
        acceptance={"from": source, "lengths": {str(k): v for k, v in accepted.items()}},
        engine="llama.cpp",
        emit=llama_flags(base, best.num_speculative_tokens, best.p_min),
        conclusion=_conclusion(cells, best, len(rows)),
        **study_header(base, 0, prices.build(1, 0).basis, notes),
    )
    return MachineResult(data, files={"scenario.yaml": yaml_text(data.scenario)})


def _thresholds(texts: Sequence[float] | str) -> tuple[float, ...]:
    try:
        thresholds = tuple(float(part) for part in (texts.split(",") if isinstance(texts, str) else texts))
    except ValueError:
        thresholds = (-1.0,)
    if not all(0.0 <= threshold < 1.0 for threshold in thresholds):
        raise ArgumentError("p_min", f"{texts}: write numbers from 0 to below 1, such as 0,0.6,0.75")
    return tuple(dict.fromkeys(thresholds))


def _given_rate(text: str) -> LocalRate:
    """Parse a measured rate such as ``43`` or ``3:71``."""
    drafted, _, rate = text.rpartition(":")
    try:
        tokens_per_s, count = float(rate), int(drafted or 0)
    except ValueError:
        tokens_per_s, count = 0.0, 0
    if not (0.0 < tokens_per_s < 1e6 and 0 <= count <= 64):
        raise ArgumentError(
            "measured", f"{text}: write tokens per second, or DRAFT_TOKENS:TOKENS_PER_S, as in 43 or 3:71"
        )
    # without counts of its own its drafts are taken to be accepted as the scenario says
    return LocalRate("decode", tokens_per_s, 1, 0, None, count, -1 if count else 0, f"--measured {text}")


class _Priced(NamedTuple):
    """A measured rate with its priced step, the priced step of one row, and the measured seconds."""

    rate: LocalRate
    plain: float
    step: float
    seconds: float


def _priced(prices: MachinePrices, rate: LocalRate, around: int) -> _Priced:
    context = rate.context or around
    if rate.accepted < 0:
        drafted = rate.drafted
        assert prices.scenario.speculation is not None
        length = 1.0 + float(_survival(prices.scenario, {}, drafted).sum())
    else:
        drafted = round(rate.draft_tokens) if rate.drafted else 0
        length = rate.tokens / rate.cycles if drafted else 1.0
    plain = prices.seconds(1, context, 0)[0]
    step = prices.seconds(rate.streams, context, drafted)[1]
    return _Priced(rate, plain, step, rate.streams * length / rate.tokens_per_s)


def _acceptance(rates: Sequence[LocalRate]) -> tuple[dict[int, float], float, str]:
    """Acceptance lengths by draft tokens, pooled over the rates; spread of an acceptance rate; source as text."""
    pooled: dict[int, list[int]] = {}
    for rate in rates:
        if rate.drafted and rate.accepted >= 0:
            count = pooled.setdefault(max(1, round(rate.draft_tokens)), [0, 0, 0])
            for place, value in enumerate((rate.cycles, rate.accepted, rate.drafted)):
                count[place] += value
    if not pooled:
        return {}, ACCEPTANCE_SPREAD, "the scenario"
    lengths = {drafted: 1.0 + accepted / cycles for drafted, (cycles, accepted, _) in pooled.items()}
    share = sum(one[1] for one in pooled.values()) / sum(one[2] for one in pooled.values())
    seen = sum(one[2] for one in pooled.values()) / CLUSTER
    return lengths, float(np.sqrt(max(share * (1 - share), 0.01) / max(seen, 1.0))), "the log"


def _survival(scenario: Scenario, lengths: dict[int, float], deepest: int) -> FloatArray:
    """Probability that at least 1, 2, ... draft tokens are accepted, from the log or the scenario."""
    acceptance = None if scenario.speculation is None else scenario.speculation.acceptance
    counted = None if acceptance is None or acceptance.log is None else read_acceptance(acceptance.log)
    if counted is not None and counted.per_position is not None:
        model = fit_survival(counted.per_position, counted.num_drafts).model
        return LevelDecay(model.level, min(model.decay, 1.0)).survival(deepest)
    if lengths:
        bounded = {drafted: min(length, drafted + 0.98) for drafted, length in lengths.items()}
        model = fit_acceptance_lengths(bounded).model
        return LevelDecay(model.level, min(model.decay, 1.0)).survival(deepest)
    return draft_choices(scenario, [deepest])[0].survival


def _cells(
    prices: MachinePrices,
    machine: Machine,
    bands: tuple[Band, Band],
    survival: FloatArray,
    spread: float,
    streams: int,
    context: int,
    tried: Sequence[int],
    thresholds: Sequence[float],
) -> list[MachineDraft]:
    """Rates of every way to draft, no drafting first; ``bands`` are intervals of runs without and with drafts."""
    assert prices.scenario.speculation is not None
    overhead = method_overhead(prices.scenario.engine.framework, prices.scenario.speculation.method)
    one_row, plain = prices.seconds(1, context, 0)[0], prices.seconds(streams, context, 0)[1]
    steps = {0: plain} | {k: prices.seconds(streams, context, k)[1] for k in range(1, max(tried) + 1)}
    rates = conditional_rates(survival.tolist())
    cells = [_cell(machine, bands[0], _Steps(one_row, plain, plain), streams, context, (0, 0.0), 1.0, 0.0)]
    pass_s = max(0.0, (steps[max(tried)] - plain) / max(tried))
    for k in tried:
        for threshold in thresholds:
            chain = threshold_chain(rates[:k], threshold)
            cut = [steps[n] for n in range(k + 1)]
            if threshold:  # every pass is looked at, the one that ended the draft too
                cut = [one + overhead.gate_s * min(n + 1, k) + (n < k) * pass_s / 2 for n, one in enumerate(cut)]
            surer = threshold_chain([min(1.0, rate * (1.0 + spread)) for rate in rates[:k]], threshold).length
            step_times = _Steps(one_row, plain, float(chain.chances @ np.array(cut)))
            cells.append(
                _cell(
                    machine,
                    bands[1],
                    step_times,
                    streams,
                    context,
                    (k, threshold),
                    chain.length,
                    float(np.log(surer / chain.length)),
                )
            )
    return cells


class _Steps(NamedTuple):
    """Priced steps: of one row, of all streams without drafting, and of all streams with a way to draft."""

    one_row: float
    plain: float
    own: float


MOST_REQUESTS = 256
"""Maximum number of requests simulated for the interval of a rate."""


class Band(NamedTuple):
    """90 % interval of a run's mean TPOT as factors on it, as ``forerun run`` prints it."""

    low: float
    high: float

    @property
    def spread(self) -> float:
        """Standard deviation of the log speed of uncorrected machines, without ``MODEL_NOISE``."""
        deviation = float(np.log(self.high / self.low)) / 2 / LEVEL
        return float(np.sqrt(max(deviation**2 - MODEL_NOISE**2, RATE_NOISE**2)))


def run_band(scenario: Scenario) -> Band:
    """Interval of the decode rate without measurements, from a simulated run."""
    fewer = scenario.with_values({"workload.num_requests": min(MOST_REQUESTS, scenario.workload.num_requests or 1)})
    document = simulate(fewer, intervals=True, full_step_rows=0).document
    ends, value = document["intervals"].get("mean_tpot_ms"), document["summary"]["mean_tpot_ms"]
    return Band(1.0, 1.0) if ends is None else Band(ends[0] / value, ends[1] / value)


def _cell(
    machine: Machine,
    band: Band,
    steps: _Steps,
    streams: int,
    context: int,
    draft: tuple[int, float],
    length: float,
    accepted_spread: float,
) -> MachineDraft:
    """Row of the table for one way to draft.

    The rate has the interval of a run, narrowed in the same ratio in which measured rates narrow the machine's factors.
    """
    seconds, without = (machine.seconds(steps.one_row, one) for one in (steps.own, steps.plain))
    slope, other = (machine.gradient(steps.one_row, one) for one in (steps.own, steps.plain))
    drafts, untouched = accepted_spread**2 + MODEL_NOISE**2, np.diag([machine.spread**2, ROW_SPREAD**2])
    narrow = float(np.exp(LEVEL * np.sqrt((slope - other) @ machine.covariance @ (slope - other) + drafts)))
    left = np.sqrt((slope @ machine.covariance @ slope + drafts) / (slope @ untouched @ slope + drafts))
    rate, speedup = streams * length / seconds, length * without / seconds
    return MachineDraft(
        batch=[streams, streams],
        context=[context, context],
        num_speculative_tokens=draft[0],
        p_min=draft[1],
        acceptance_length=length,
        tokens_per_s=rate,
        tokens_per_s_low=rate * float(band.high**-left),
        tokens_per_s_high=rate * float(band.low**-left),
        speedup=speedup,
        low=speedup / (narrow if draft[0] else 1.0),
        high=speedup * (narrow if draft[0] else 1.0),
    )


def llama_flags(scenario: Scenario, tokens: int, p_min: float) -> str:
    """Flags of ``llama-server``: drafter, maximum draft length, confidence threshold; empty without drafting."""
    assert scenario.speculation is not None
    known = engine_name("llama.cpp", scenario.speculation)
    if known is None:
        raise ForerunError(
            f"emit: llama.cpp has no {scenario.speculation.method}; use another speculation.method "
            f"({', '.join(names_in('llama.cpp'))})"
        )
    split = " --split-mode tensor" if scenario.hardware.tensor_parallel > 1 else ""
    return f"{known.name} --spec-draft-n-max {tokens} --spec-draft-p-min {p_min:g}{split}" if tokens else ""


def _conclusion(cells: Sequence[MachineDraft], best: MachineDraft, measured: int) -> str:
    plain_rate = f"{cells[0].words} without drafting"
    basis = f"from {measured} measured rate{'s' if measured != 1 else ''}" if measured else "from class defaults alone"
    if not best.num_speculative_tokens:
        first = max((cell for cell in cells if cell.batch == best.batch), key=lambda cell: cell.tokens_per_s)
        if first == best:
            return f"Drafting does not pay here: {plain_rate}, {basis}."
        return (
            f"Do not draft: no draft is sure to pay here. The best, n-max {first.num_speculative_tokens}, gives "
            f"{first.speedup:.2f} times ({first.low:.2f} to {first.high:.2f}) the {plain_rate}, {basis}; "
            "--measured or --from-log narrows that."
        )
    threshold = f", p-min {best.p_min:g}" if best.p_min else ""
    draft = f"n-max {best.num_speculative_tokens}{threshold}"
    return f"Best with {draft}: {best.words}, {best.speedup:.2f} times the {plain_rate}, {basis}."


class MachineResult(TunedResult[MachineDocument]):
    """Result of ``tune_machine``: ways to draft on one machine. Its data frame has one row per way."""

    document_type = MachineDocument

    @property
    def title(self) -> str:
        return f"Speculation on this machine: {self.model} on {self.data.scenario['hardware']['chip']}"

    @property
    def summary(self) -> Summary:
        keys = ("num_speculative_tokens", "p_min", "tokens_per_s", "speedup", "low", "high")
        figures = {key: getattr(self.data.best, key) for key in keys}
        return Summary({**figures, "flags": self.flags, "answer": self.conclusion})

    def records(self) -> list[dict[str, Any]]:
        return [{**vars(row), "batch": row.batch[0], "context": row.context[0]} for row in self.data.table]

    def tables(self) -> list[Table]:
        flags = Table("Flags", ("engine", "flags"), [["llama.cpp", self.flags]] if self.flags else [], name="flags")
        others = (_measured_table(self.data.measured), flags)
        return [_rates_table(self.data), *(table for table in others if table.rows)]


def _rates_table(data: MachineDocument) -> Table:
    thresholds = list(dict.fromkeys(row.p_min for row in data.table))
    lines: dict[tuple[int, int], list[Value]] = {}
    for row in data.table:
        words = Cell(
            f"{row.tokens_per_s:.1f}",
            aside=f"{row.tokens_per_s_low:.0f}-{row.tokens_per_s_high:.0f}, {row.speedup:.2f}x",
            tone="strong" if row == data.best else "",
            value=row.tokens_per_s,
        )
        lines.setdefault((row.batch[0], row.num_speculative_tokens), []).append(words)
    named = (f"p-min {threshold:g}" if threshold else "no threshold" for threshold in thresholds)
    padded = [[*key, *cells, *[None] * (len(thresholds) - len(cells))] for key, cells in lines.items()]
    return Table("Tokens per second (90 % interval, speed-up)", ["streams", "n-max", *named], padded, name="rates")


def _measured_table(measured: Sequence[MeasuredRate]) -> Table:
    keys = ("streams", "num_speculative_tokens", "tokens_per_s", "step_ms", "priced_ms", "fitted_ms")
    rows: list[list[Value]] = [
        [row.where, *(Cell(number(getattr(row, key), 4), value=getattr(row, key)) for key in keys)] for row in measured
    ]
    columns = ("where", "streams", "draft tokens", "tok/s", "step ms", "priced ms", "fitted ms")
    return Table("Measured on this machine", columns, rows, shown=20, name="measured")
