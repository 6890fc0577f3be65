"""Result of a tuning: JSON document, conclusion in one sentence, and engine flags."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import cast

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import LEFT_OUT, DocumentPart, Json, StudyDocument, plain_json
from forerun.errors import ArgumentError, ForerunError, did_you_mean
from forerun.result import Data, StudyResult, Summary
from forerun.tables import Cell, Table, Tone, Value, number, pairs
from simulator.running.drafting import method_overhead
from simulator.running.metrics.tables import memory_rows
from simulator.running.metrics.usage import HOST_SHARE
from simulator.running.scenario import Scenario
from simulator.speculation import borrowed_acceptance, iid_alpha, window_note
from simulator.speculation.methods import METHODS, names_in, option_release
from simulator.speculation.speculation_config import TABLE_NAME_IN_VLLM, SpeculationConfig, check_table
from simulator.studies.artefacts import ARTEFACTS, artefact, vllm_schedule
from simulator.studies.compare.crossover import REQUEST_RATE, scenario_load
from simulator.studies.engine_flags import ENGINES, drafter_name, engine_name, sglang_counts
from simulator.studies.frame import study_header
from simulator.studies.tune.choices import DraftChoice
from simulator.studies.tune.launched import Launched, TunedLoad, launched
from simulator.studies.tune.tuning import BreakEven, GridCell, Tuning, fewest_nearly_best
from simulator.studies.tune.worth import DraftWorth, draft_worth

OPTION = re.compile(r'(?<![\w-])--[a-z-]+|(?<=")[a-z_]+(?=":)')
"""Regular expression for an option of a command, or a key of vLLM's speculative config."""
LENGTH_ENDS = ("acceptance_length", "low", "high")
WIDE = 4
"""Ratio of last to first batch above which a note states the batch at which a range is judged."""


def engine_of(name: str | None, scenario: Scenario) -> str:
    """Engine of ``--emit``; default: the scenario's engine if its flags are known, else vLLM."""
    if name is None:
        return scenario.engine.framework if scenario.engine.framework in ENGINES else "vllm"
    if name not in ENGINES:
        known = (*ENGINES, "llama.cpp", *ARTEFACTS_OF_TUNE)
        raise ArgumentError("emit", f"{name}: no such engine or file{did_you_mean(name, known)} ({', '.join(known)})")
    return name


def flags(tuning: Tuning, engine: str) -> str:
    """Flags for an engine, ready to paste; empty if not drafting is best."""
    if engine == "vllm":
        config = vllm_config(tuning)
        return "" if config is None else shlex.join(["--speculative-config", json.dumps(config)])
    return shlex.join(sglang_words(tuning))


def tuned_batches(cells: Sequence[GridCell]) -> list[list[int]]:
    """[first batch, last batch, draft tokens] of cells with ascending batches, equal neighbours joined.

    The first range starts at 1, as vLLM requires; batches beyond the last range use the last K.

    Source: vLLM's documentation, features/speculative_decoding/dynamic_speculative_decoding.
    """
    table: list[list[int]] = []
    for cell in cells:
        drafted = 0 if cell.choice is None else cell.choice.tokens
        if table and table[-1][2] == drafted:
            table[-1][1] = cell.batch[1]
        else:
            table.append([cell.batch[0] if table else 1, cell.batch[1], drafted])
    check_table(table)
    return table


def vllm_config(tuning: Tuning) -> Json | None:
    """vLLM's speculative config: one number of draft tokens, or a schedule by batch if it gains more.

    Returns:
        None if no draft token pays at any batch: leave the flag out.
    """
    speculation = tuning.scenario.speculation
    assert speculation is not None
    choice = one_choice(tuning)
    if choice is None:
        return None
    known = engine_name("vllm", speculation)
    if known is None or speculation.tree is not None:
        what = f"{speculation.method} tree" if speculation.tree is not None else speculation.method
        raise ForerunError(
            f"emit: vLLM has no {what}; use sglang, or another speculation.method "
            f"({', '.join(sorted(names_in('vllm')))}) with num_speculative_tokens"
        )
    config: Json = {"method": known.name, **known.options}
    drafter = drafter_name(tuning.scenario)
    if drafter is not None:
        config["model"] = drafter
    config["num_speculative_tokens"] = choice.tokens
    if schedule_pays(tuning):
        table = tuned_batches(tuning.mean)
        config |= {"num_speculative_tokens": max(drafted for _, _, drafted in table), TABLE_NAME_IN_VLLM: table}
    return config


def sglang_words(tuning: Tuning) -> list[str]:
    """SGLang's flags for one way to draft at every batch, because SGLang has no table by batch."""
    speculation = tuning.scenario.speculation
    assert speculation is not None
    choice = one_choice(tuning)
    if choice is None:
        return []
    known = engine_name("sglang", speculation)
    if known is None:
        raise ForerunError(
            f"emit: flags of {speculation.method} in SGLang are not known here; use vllm, or another "
            f"speculation.method ({', '.join(sorted(names_in('sglang')))})"
        )
    words = ["--speculative-algorithm", known.name]
    drafter = drafter_name(tuning.scenario)
    if drafter is not None:
        words += ["--speculative-draft-model-path", drafter]
    depth, top_k = len(choice.survival), 1
    drafted = choice.scenario.speculation
    assert drafted is not None
    if drafted.tree is not None:
        if drafted.tree.growth is None:
            raise ForerunError("emit: SGLang grows its trees; give speculation.tree as {depth: 5, top_k: 4, nodes: 8}")
        depth, top_k = drafted.tree.growth.depth, drafted.tree.growth.top_k
    steps, verified = sglang_counts(known.name, depth, choice.tokens)
    if steps is not None:
        words += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(top_k)]
    return [*words, "--speculative-num-draft-tokens", str(verified)]


def one_choice(tuning: Tuning) -> DraftChoice | None:
    """The choice with the highest geometric mean of speed-ups over the judged batches; None if none surely pays."""
    if not surely_pays(tuning):
        return None
    return tuning.choices[int(fewest_nearly_best(np.exp(np.log(tuning.mean_speedups()[1:]).mean(axis=1))))]


def schedule_speedups(tuning: Tuning) -> FloatArray:
    """Speed-ups of vLLM's schedule by batch, with the schedule's host time per step."""
    assert tuning.scenario.speculation is not None
    cost = method_overhead("vllm", tuning.scenario.speculation.method)
    batches = np.array([cell.at_batch for cell in tuning.mean])
    rows = [0 if cell.choice is None else 1 + tuning.choices.index(cell.choice) for cell in tuning.mean]
    by_choice = tuning.mean_speedups(cost.policy_step_s + cost.policy_sequence_s * batches)
    speedups: FloatArray = by_choice[rows, range(len(rows))]
    return speedups


def one_speedups(tuning: Tuning) -> FloatArray:
    """Speed-ups by batch with the same choice at every batch; 1 without a choice."""
    choice = one_choice(tuning)
    speedups: FloatArray = tuning.mean_speedups()[0 if choice is None else 1 + tuning.choices.index(choice)]
    return speedups


def schedule_pays(tuning: Tuning) -> bool:
    """True if vLLM's schedule by batch gains more than a single number of draft tokens, over all judged batches."""
    if one_choice(tuning) is None or len(tuned_batches(tuning.mean)) == 1:
        return False
    return bool(np.log(schedule_speedups(tuning) / one_speedups(tuning)).sum() > 0.0)


def surely_pays(tuning: Tuning) -> bool:
    """True if the interval of the speedup lies above 1 at any batch size, at the mean request's context."""
    return any(cell.sure for cell in tuning.mean)


SGLANG_REMARK = "SGLang: --speculative-adaptive moves the number of draft steps by what is accepted"
PLACEHOLDER_REMARK = "DRAFT_MODEL stands for the drafter's checkpoint; speculation.draft.model names it"
ARTEFACTS_OF_TUNE = ("vllm-schedule", *(name for name in ARTEFACTS if name not in ENGINES))
"""Artefacts that ``tune --emit`` can write in addition to an engine's flags by batch."""


@dataclass(frozen=True, kw_only=True)
class JudgedAt(DocumentPart):
    """The batch and context at which a cell is judged."""

    batch: int
    context: int


@dataclass(frozen=True, kw_only=True)
class DraftGain(DocumentPart):
    """Draft tokens and their speed-up of decoding, with its 90 % interval."""

    num_speculative_tokens: int
    speedup: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """Text of the speed-up with its interval."""
        return f"{self.speedup:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class BreakEvenLength(DocumentPart):
    """Minimum mean tokens per step at which drafting pays, with its interval; None if prompts alone take too long."""

    acceptance_length: float | None
    low: float | None
    high: float | None

    def words(self, joined: str) -> str:
        """Text of the length with its interval, such as ``1.20 (1.10 to 1.30)``."""
        ends = ("never" if end is None else f"{end:.2f}" for end in (self.acceptance_length, self.low, self.high))
        return f"{next(ends)} ({next(ends)}{joined}{next(ends)})"


@dataclass(frozen=True, kw_only=True)
class TunedCell(DraftGain):
    """Draft tokens for a range of batches and contexts."""

    batch: list[int]
    context: list[int]
    draft: str
    judged_at: JudgedAt
    if_on: DraftGain
    """The best way to draft, even if no drafting is better."""
    fits_kv_cache: bool


@dataclass(frozen=True, kw_only=True)
class GridRow(TunedCell):
    """A cell of the table by batch and context."""

    breaks_even_at: BreakEvenLength


@dataclass(frozen=True, kw_only=True)
class WithFlags(DocumentPart):
    """Draft tokens of the flags at a batch."""

    draft: str
    num_speculative_tokens: int
    speedup: float


@dataclass(frozen=True, kw_only=True)
class MeanRow(TunedCell):
    """A cell at the mean request's context."""

    with_flags: WithFlags | None


@dataclass(frozen=True, kw_only=True)
class BreakEvenRow(BreakEvenLength):
    """Break-even at a batch of the mean request."""

    batch: int
    num_speculative_tokens: int
    alpha: float | None
    """Acceptance rate, equal at every position, that yields the length; None if no rate can."""
    expected_acceptance_length: float


@dataclass(frozen=True, kw_only=True)
class LoadThatPays(TunedLoad):
    """The load up to which drafting pays, with its interval."""

    context: int
    pays: str
    low: TunedLoad
    high: TunedLoad


@dataclass(frozen=True, kw_only=True)
class TuneDocument(StudyDocument):
    """The ``tune`` JSON."""

    table: list[GridRow]
    per_chip_bytes: dict[str, float] | None = field(default=None, metadata=LEFT_OUT)
    at_mean_context: list[MeanRow]
    at_every_batch: int
    method: str
    mean_request: dict[str, int]
    choices: list[Json]
    crossover: LoadThatPays
    break_even: list[BreakEvenRow]
    kv_tokens: int | None
    engine: str
    emit: str | None
    emit_needs: list[Json]
    speculative_config: Json | None
    sglang_tokens: int | None
    worth: list[DraftWorth] | None = field(default=None, metadata=LEFT_OUT)
    artefact: str | None = field(default=None, metadata=LEFT_OUT)


def tuned_artefact(name: str, scenario: Scenario, data: TuneDocument) -> str:
    """Text of an artefact with the results of ``tune``: by batch and context, or one choice for every batch."""
    if name == "vllm-schedule":
        return vllm_schedule(scenario, plain_json(data.table))
    drafted = data.at_every_batch
    changes = {"speculation.num_speculative_tokens": drafted} if drafted else {"speculation": None}
    return artefact(name, scenario.with_values(changes))


class TunedResult(StudyResult[Data]):
    """Result of ``tune``; ``flags`` are the engine's command-line flags."""

    kind = "tune"
    legend = (
        "K: draft tokens per step. low-high: 90 % interval of the model's error, with the deployments in which "
        "drafting gains nothing. breaks even at: mean tokens per step "
        "(acceptance length) from which drafting pays; alpha: the same as the chance, equal at every position, that a "
        "draft token is accepted; expected: the tokens per step of this drafter."
    )

    @property
    def flags(self) -> str | None:
        """Engine flags, ready to paste. Empty or None if no drafting is best or the engine has no such flags."""
        flags: str | None = self.document["emit"]
        return flags


class TuneResult(TunedResult[TuneDocument]):
    """Result of ``tune``: draft tokens by batch and context. Its data frame has one row per cell."""

    document_type = TuneDocument

    @property
    def title(self) -> str:
        return f"Speculation tuned: {self.data.method} on {self.model}"

    @property
    def summary(self) -> Summary:
        best = max(self.data.at_mean_context, key=lambda cell: cell.speedup)
        keys = ("draft", "num_speculative_tokens", "speedup", "low", "high")
        figures = {"batch": best.judged_at.batch, **{key: getattr(best, key) for key in keys}}
        return Summary({**figures, "flags": self.flags, "answer": self.conclusion})

    def records(self) -> list[Json]:
        keys = ("draft", "num_speculative_tokens", "speedup", "low", "high", "fits_kv_cache")
        return [
            {**vars(cell.judged_at), **{key: getattr(cell, key) for key in keys}}
            | {f"if_on_{key}": value for key, value in vars(cell.if_on).items()}
            for cell in self.data.table
        ]

    def tables(self) -> list[Table]:
        tables = [_grid_table(self.data), _mean_table(self.data)]
        flags = [[self.data.engine, self.flags]] if self.flags else []
        held = memory_rows(self.data.per_chip_bytes)
        tables += _worth_tables(self.data, self.data.worth) if self.data.worth else []
        tables += [pairs("Memory", held, name="memory")] if held else []
        return [*tables, *([Table("Flags", ("engine", "flags"), flags, name="flags")] if flags else ())]


def _by_context(cells: Sequence[GridRow], title: str, name: str, cell_of: Callable[[GridRow], Value]) -> Table:
    """Table with one row per batch and one column per context."""
    rows: dict[int, list[Value]] = {}
    for cell in cells:
        rows.setdefault(cell.judged_at.batch, []).append(cell_of(cell))
    contexts = dict.fromkeys(cell.judged_at.context for cell in cells)
    columns = ["batch", *(f"context {context:,}" for context in contexts)]
    return Table(title, columns, [[f"{batch:,}", *of_batch] for batch, of_batch in rows.items()], name=name)


def _grid_table(data: TuneDocument) -> Table:
    def drafted(cell: GridRow) -> Value:
        words, tone = f"{cell.draft}{'' if cell.fits_kv_cache else '*'}", "faint" if cell.draft == "off" else ""
        return Cell(words, aside=cell.if_on.words, tone=cast(Tone, tone), value=cell.if_on.speedup)

    return _by_context(data.table, "Draft tokens and speed-up of decoding (90 % interval)", "drafts", drafted)


def _mean_table(data: TuneDocument) -> Table:
    """Table at the mean request's context: the best choice and the break-even acceptance length per batch."""
    rows: list[list[Value]] = [
        [
            f"{cell.judged_at.batch:,}",
            cell.draft,
            cell.if_on.words,
            None if (launched := cell.with_flags) is None else f"{launched.draft} {launched.speedup:.2f}",
            even.words(" to "),
            None if even.alpha is None else f"{even.alpha:.2f}",
            f"{even.expected_acceptance_length:.2f}",
        ]
        for cell, even in zip(data.at_mean_context, data.break_even, strict=True)
    ]
    columns = ("batch", "draft", "speed-up if on", "with the flags", "breaks even at", "break-even alpha", "expected")
    title = f"At the mean context of {data.crossover.context:,} tokens: speed-up and acceptance length"
    return Table(title, columns, rows, name="break even")


def _worth_tables(data: TuneDocument, worths: Sequence[DraftWorth]) -> list[Table]:
    """Tables of the gains of improvements by batch, and of break-even acceptance lengths by batch and context."""
    lines: dict[str, list[Value]] = {}
    for one in worths:
        gain, low, high = (100 * (value - 1) for value in (one.gain, one.low, one.high))
        usd = "" if one.usd_per_month is None else f"${one.usd_per_month:,.0f}"
        cell = Cell(f"{gain:.1f} % ({low:.1f}-{high:.1f})", aside=usd, value=one.gain - 1)
        lines.setdefault(one.improvement, []).append(cell)
    priced = any(one.usd_per_month is not None for one in worths)
    title = f"What a better drafter is worth: tokens per second{', and dollars a month per busy replica' * priced}"
    columns = ("improvement", *(f"batch {batch}" for batch in dict.fromkeys(one.batch for one in worths)))
    worth = Table(title, columns, [[name, *cells] for name, cells in lines.items()], name="worth")
    title = "Smallest acceptance length that pays, with the K of the table above (90 % interval)"
    return [worth, _by_context(data.table, title, "pays", lambda cell: cell.breaks_even_at.words("-"))]


def tune_document(tuning: Tuning, engine: str, seed: int = 0, strict: bool = True) -> TuneDocument:
    """Build the ``tune`` JSON from a tuning."""
    notes = list(tuning.notes)
    emitted: str | None = None
    try:
        emitted = flags(tuning, engine)
    except ForerunError as error:
        if strict:
            raise
        notes.append(str(error))
    framework = tuning.scenario.engine.framework
    if emitted and framework.startswith("trtllm"):
        notes.append("the flags are vLLM's: --emit trtllm writes TensorRT-LLM's file")
    if emitted == "":
        notes.append("nothing to emit: leave the engine's speculation flags out")
    if engine == "sglang" and emitted and len(tuned_batches(tuning.mean)) > 1:
        notes.append(SGLANG_REMARK)
    method = tuning.scenario.speculation.method if tuning.scenario.speculation else "none"
    if emitted and engine in METHODS[method].names and METHODS[method].names[engine].other:
        notes.append(METHODS[method].names[engine].other)
    if "DRAFT_MODEL" in (emitted or ""):
        notes.append(PLACEHOLDER_REMARK)
    scheduled = engine == "vllm" and TABLE_NAME_IN_VLLM in (emitted or "")
    wide = {cell.batch: cell.at_batch for cell in tuning.mean if cell.batch[1] > WIDE * cell.batch[0]}
    if scheduled and wide:
        ranges = ", ".join(f"{low:,} to {high:,} at {batch:,}" for (low, high), batch in wide.items())
        notes.append(f"wide ranges of batches are judged at one of them alone ({ranges}); give more, such as 1..256")
    choices = launched_choices(tuning, scheduled)
    load = None if choices is None else launched(tuning, choices, seed)
    at = None if load is None else load.crossover.batch
    off = next((cell for cell in tuning.mean if cell.choice is None), None)
    if scheduled and at and off is not None and off.batch[0] != round(at) + 1:
        notes.append(
            f"the flags draft nothing from batch {off.batch[0]:,} on: {off.batch[0]:,} to {off.batch[1]:,} take the "
            f"result at {off.at_batch:,}. That drafting pays up to {at:.0f} is interpolated; give --batch more values"
        )
    if not all(cell.fits for cell in tuning.cells):
        notes.append(
            f"cells marked with * need more KV cache than there is ({tuning.kv_tokens:,} tokens): not all of so many "
            f"sequences run at once"
        )
    speculation = tuning.scenario.speculation
    assert speculation is not None
    if engine == "vllm" and emitted and len(tuned_batches(tuning.mean)) > 1:
        notes.append(_schedule_note(tuning, scheduled))
    beyond = window_note(speculation, np.array([tuning.prompt_tokens]))
    if beyond is not None:
        notes.append(beyond)
    borrowed = borrowed_acceptance(speculation, tuning.scenario.model)
    with_flags: Sequence[WithFlags | None] = _launched(tuning, scheduled) if emitted else [None] * len(tuning.mean)
    return TuneDocument(
        table=[
            GridRow(**_cell_fields(cell), breaks_even_at=BreakEvenLength(**_ends_of(even)))
            for cell, even in zip(tuning.cells, tuning.break_even, strict=False)
        ],
        per_chip_bytes=tuning.memory,
        at_mean_context=[
            MeanRow(**_cell_fields(cell), with_flags=flags_of)
            for cell, flags_of in zip(tuning.mean, with_flags, strict=True)
        ],
        at_every_batch=_tokens(one_choice(tuning)),
        method=speculation.method,
        mean_request={"input_tokens": tuning.prompt_tokens, "output_tokens": tuning.output_tokens},
        choices=[
            {
                "name": choice.name,
                "num_speculative_tokens": choice.tokens,
                "acceptance_length": 1.0 + float(choice.survival.sum()),
            }
            for choice in tuning.choices
        ],
        crossover=LoadThatPays(
            context=tuning.mean_context,
            pays="never" if load is None else load.pays,
            **vars(_shown(None if load is None else load.crossover)),
            low=_shown(None if load is None else load.low),
            high=_shown(None if load is None else load.high),
        ),
        break_even=[_break_even_row(one) for one in tuning.break_even[len(tuning.cells) :]],
        kv_tokens=tuning.kv_tokens,
        engine=engine,
        emit=emitted,
        emit_needs=_releases(engine, speculation, emitted or ""),
        speculative_config=vllm_config(tuning) if engine == "vllm" and emitted else None,
        sglang_tokens=_tokens(one_choice(tuning)) if engine == "sglang" else None,
        conclusion=tune_sentence(tuning)
        + ("" if load is None else _load_sentence(tuning, load, scheduled, bool(emitted)))
        + _host_sentence(tuning)
        + (f" {borrowed[0].upper()}{borrowed[1:]}." if borrowed else ""),
        **study_header(tuning.scenario, seed, tuning.basis, notes),
    )


def _cell_fields(cell: GridCell) -> Json:
    """Fields of one row of a table."""
    ends = {"speedup": cell.best_speedup, "low": cell.best_low, "high": cell.best_high}
    return {
        "batch": list(cell.batch),
        "context": list(cell.context),
        "num_speculative_tokens": _tokens(cell.choice),
        "draft": _name(cell.choice),
        **(dict.fromkeys(ends, 1.0) if cell.choice is None else ends),
        "judged_at": JudgedAt(batch=cell.at_batch, context=cell.at_context),
        "if_on": DraftGain(num_speculative_tokens=cell.best.tokens, **ends),
        "fits_kv_cache": cell.fits,
    }


def _launched(tuning: Tuning, scheduled: bool) -> list[WithFlags]:
    """Draft tokens of the flags at each batch of the mean request, and their speed-up."""
    one = one_choice(tuning)
    choices = [cell.choice if scheduled else one for cell in tuning.mean]
    speedups = schedule_speedups(tuning) if scheduled else one_speedups(tuning)
    return [
        WithFlags(draft=_name(choice), num_speculative_tokens=_tokens(choice), speedup=float(speedup))
        for choice, speedup in zip(choices, speedups, strict=True)
    ]


def launched_choices(tuning: Tuning, scheduled: bool) -> dict[int, DraftChoice | None] | None:
    """Draft choice by first batch size: one choice, or vLLM's schedule; None without drafting."""
    one = one_choice(tuning)
    if one is None:
        return None
    if not scheduled:
        return {1: one}
    firsts = (first for first, _, _ in tuned_batches(tuning.mean))
    return {first: next(c.choice for c in tuning.mean if c.batch[0] >= first or first == 1) for first in firsts}


def _load_sentence(tuning: Tuning, load: Launched, scheduled: bool, emitted: bool) -> str:
    """Sentence on the gains of the flags and the load up to which they pay."""
    speedups = schedule_speedups(tuning) if scheduled else one_speedups(tuning)
    drafted = "by batch" if scheduled else f"{_name(one_choice(tuning))} at every batch"
    ends = {tuning.mean[i].at_batch: speedups[i] for i in (0, -1)}
    gains = ", ".join(f"{speedup:.2f}x at batch {batch:,}" for batch, speedup in ends.items())
    words = f" {'The flags draft' if emitted else 'Drafting'} {drafted}: {gains}; this "
    served = load.served_rate
    most = "" if served is None else f", up to {number(served, 3)} req/s per replica"
    if load.pays == "always":
        words += f"pays at every load that can be served{most}."
    elif load.pays == "never":
        words += f"costs at every load that can be served{most}."
    else:
        rates = [end.request_rate for end in (load.low, load.high)]
        low = "0" if rates[0] is None else number(rates[0], 3)
        beyond = "beyond" if served is None else f"{number(served, 3)}, the most that can be served"
        high = beyond if rates[1] is None else number(rates[1], 3)
        batch = "" if load.crossover.batch is None else f", a batch of {load.crossover.batch:.0f}"
        other = "above" if load.pays == "below" else "below"
        words += (
            f"pays {load.pays} {number(load.crossover.request_rate, 3)} req/s per replica ({low} to {high}){batch}, "
            f"and costs {other}."
        )
    requested, replicas = scenario_load(tuning.scenario, REQUEST_RATE), tuning.scenario.hardware.replicas
    if served is None or requested is None or requested <= served * replicas:
        return words
    known = f"at most about {number(served * replicas, 3)} req/s can"
    return f"{words} {number(requested, 3)} req/s cannot be served: {known}."


def _host_sentence(tuning: Tuning) -> str:
    """Sentence on the host's share of a drafting step at the batch with the largest gain; empty if small."""
    column, cell = max(enumerate(tuning.mean, len(tuning.cells)), key=lambda one: one[1].best_speedup)
    share = float(tuning.priced.times[tuning.choices.index(cell.best)].host[column])
    if share < HOST_SHARE:
        return ""
    at = f"{share:.0%} of a step that drafts at batch {cell.at_batch}"
    return f" Host work is {at}: where an engine's host is slower, drafting gains less."


def _schedule_note(tuning: Tuning, scheduled: bool) -> str:
    """Note on the cost of vLLM's schedule by batch, and on whether the flags contain it."""
    assert tuning.scenario.speculation is not None
    cost = method_overhead("vllm", tuning.scenario.speculation.method)
    words = (
        f"{1e3 * cost.policy_step_s:.2f} ms per step and {1e6 * cost.policy_sequence_s:.0f} us per sequence in vLLM "
        "0.27, drafts or none"
    )
    if scheduled:
        return f"a schedule by batch costs {words}; the speed-ups with the flags include it"
    gains = zip(tuning.mean, schedule_speedups(tuning), strict=True)
    pairs_of = ", ".join(f"{gain:.2f} at {cell.at_batch:,}" for cell, gain in gains)
    return f"no schedule by batch: it costs {words}, and would reduce the speed-ups to {pairs_of}"


def tune_sentence(tuning: Tuning) -> str:
    speculation = tuning.scenario.speculation
    assert speculation is not None
    paying = [cell for cell in tuning.mean if cell.choice is not None]
    where = f"for requests of {tuning.prompt_tokens} + {tuning.output_tokens} tokens"
    if not paying:
        best = max(tuning.mean, key=lambda cell: cell.best_speedup)
        return (
            f"{speculation.method} pays at no batch {where}: at best {best.best_speedup:.2f}x "
            f"({best.best_low:.2f} to {best.best_high:.2f}) with {best.best.name} at batch {best.at_batch}."
        )
    best = max(paying, key=lambda cell: cell.speedup)
    if not surely_pays(tuning):
        return (
            f"{speculation.method} is not sure to pay at any batch {where}: at best {best.speedup:.2f}x "
            f"({best.best_low:.2f} to {best.best_high:.2f}) with {best.best.name} at batch {best.at_batch}."
        )
    return (
        f"{speculation.method} is best at {best.speedup:.2f}x ({best.best_low:.2f} to {best.best_high:.2f}) with "
        f"{best.best.name} at batch {best.at_batch} {where}."
    )


def _releases(engine: str, speculation: SpeculationConfig, emitted: str) -> list[Json]:
    """Engine releases that introduced the emitted method name and each emitted option."""
    words = dict.fromkeys(word for word in OPTION.findall(emitted) if word != "--speculative-config")
    name = engine_name(engine, speculation)
    known = [name] if words and name is not None else []
    known += [option_release(engine, word) for word in words]
    return [{key: getattr(one, key) for key in ("name", "since", "date", "source")} for one in known]


def _name(choice: DraftChoice | None) -> str:
    return "off" if choice is None else choice.name


def _tokens(choice: DraftChoice | None) -> int:
    return 0 if choice is None else choice.tokens


def _shown(load: TunedLoad | None) -> TunedLoad:
    return TunedLoad(None, None) if load is None else TunedLoad(load.batch or None, load.request_rate)


def _ends_of(one: BreakEven) -> dict[str, float | None]:
    """Fields of a break-even length with its interval; None if prompts alone take too long."""
    return {key: value if isfinite(value := getattr(one, key)) else None for key in LENGTH_ENDS}


def with_worth(tuning: Tuning, data: TuneDocument) -> TuneDocument:
    """Copy of the document with the value of a better drafter, also in the conclusion."""
    worths = draft_worth(tuning)
    best = max(worths, key=lambda one: one.gain)
    usd = "" if best.usd_per_month is None else f", ${best.usd_per_month:,.0f} a month per busy replica"
    sentence = (
        f"Of the drafter's improvements most is gained by {best.improvement} at batch {best.batch}: "
        f"{100 * (best.gain - 1):.1f} % ({100 * (best.low - 1):.1f} to {100 * (best.high - 1):.1f}){usd}."
    )
    return replace(data, worth=worths, conclusion=f"{data.conclusion} {sentence}")


def _break_even_row(one: BreakEven) -> BreakEvenRow:
    depth = len(one.choice.survival)
    possible = one.choice.tokens == depth and one.acceptance_length <= depth + 1
    return BreakEvenRow(
        batch=one.batch,
        num_speculative_tokens=one.choice.tokens,
        **_ends_of(one),
        alpha=iid_alpha(max(1.0, one.acceptance_length), depth) if possible else None,
        expected_acceptance_length=one.expected_length,
    )
