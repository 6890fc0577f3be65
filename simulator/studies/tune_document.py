"""A finished tuning as a JSON document with its conclusion in one sentence."""

from __future__ import annotations

from typing import Any

from simulator.errors import ForerunError
from simulator.metrics.document import forerun_version, jsonable, scenario_document
from simulator.scenario import Scenario
from simulator.speculation import borrowed_acceptance, iid_alpha
from simulator.studies.draft_choices import DraftChoice
from simulator.studies.tune import BreakEven, Cell, Load, Tuning
from simulator.studies.tune_flags import batch_table, flags, sglang_choice, vllm_config

Document = dict[str, Any]
SGLANG_REMARK = (
    "SGLang drafts the same at every batch: the flags are those of the middle batch at which drafting pays; "
    "--speculative-adaptive lets it move the steps by what is accepted"
)
PLACEHOLDER_REMARK = "DRAFT_MODEL stands for the drafter's checkpoint; speculation.draft.model names it"


def tune_document(tuning: Tuning, engine: str, strict: bool = True) -> Document:
    """The contract's ``tune`` JSON.

    Args:
        tuning: what was found.
        engine: ``vllm`` or ``sglang``, whose flags ``emit`` holds.
        strict: refuse a drafter that the engine does not have; else ``emit`` is None and a note says why.

    Raises:
        ForerunError: the engine has no such drafter.
    """
    notes = list(tuning.notes)
    emitted: str | None = None
    try:
        emitted = flags(tuning, engine)
    except ForerunError as error:
        if strict:
            raise
        notes.append(str(error))
    if emitted == "":
        notes.append("nothing to emit: leave the engine's speculation flags out")
    if engine == "sglang" and emitted and len(batch_table(tuning.mean)) > 1:
        notes.append(SGLANG_REMARK)
    if "DRAFT_MODEL" in (emitted or ""):
        notes.append(PLACEHOLDER_REMARK)
    if not all(cell.fits for cell in tuning.cells):
        notes.append(
            f"cells marked with * need more KV cache than there is ({tuning.kv_tokens:,} tokens): not all of so many "
            f"sequences run at once"
        )
    speculation = tuning.scenario.speculation
    assert speculation is not None
    document = jsonable(
        {
            "table": [cell_document(cell) for cell in tuning.cells],
            "at_mean_context": [cell_document(cell) for cell in tuning.mean],
            "method": speculation.method,
            "mean_request": {"input_tokens": tuning.prompt_tokens, "output_tokens": tuning.output_tokens},
            "choices": [_choice_document(choice) for choice in tuning.choices],
            "crossover": {
                "context": tuning.mean_context,
                **_load_document(tuning.crossover),
                "low": _load_document(tuning.crossover_low),
                "high": _load_document(tuning.crossover_high),
            },
            "break_even": [_break_even_document(one) for one in tuning.break_even],
            "kv_tokens": tuning.kv_tokens,
            "engine": engine,
            "emit": emitted,
            "speculative_config": vllm_config(tuning) if engine == "vllm" and emitted else None,
            "sglang_tokens": _tokens(sglang_choice(tuning)) if engine == "sglang" else None,
            "conclusion": conclusion(tuning) + _borrowed_words(tuning.scenario),
            "scenario": scenario_document(tuning.scenario),
            "seed": 0,
            "version": forerun_version(),
            "basis": tuning.basis,
            "notes": notes,
        }
    )
    assert isinstance(document, dict)
    return document


def cell_document(cell: Cell) -> Document:
    """One row of the table; ``if_on`` is the best way to draft even where not to draft is better."""
    return {
        "batch": list(cell.batch),
        "context": list(cell.context),
        "num_speculative_tokens": _tokens(cell.choice),
        "draft": "off" if cell.choice is None else cell.choice.name,
        "speedup": cell.speedup,
        "low": cell.low,
        "high": cell.high,
        "judged_at": {"batch": cell.at_batch, "context": cell.at_context},
        "if_on": {
            "num_speculative_tokens": cell.best.tokens,
            "speedup": cell.best_speedup,
            "low": cell.best_low,
            "high": cell.best_high,
        },
        "fits_kv_cache": cell.fits,
    }


def _borrowed_words(scenario: Scenario) -> str:
    """Whose acceptance the tuning rests on, where it is not the scenario's own."""
    words = borrowed_acceptance(scenario.speculation, scenario.model)
    return "" if words is None else f" {words[0].upper()}{words[1:]}."


def conclusion(tuning: Tuning) -> str:
    """The tuning in one sentence or two."""
    speculation, at = tuning.scenario.speculation, tuning.crossover
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
    words = (
        f"{speculation.method} is best at {best.speedup:.2f}x ({best.low:.2f} to {best.high:.2f}) with "
        f"{best.best.name} at batch {best.at_batch} {where}"
    )
    if at.batch is None:
        last = paying[-1]
        return f"{words}, and pays up to batch {last.at_batch} ({last.speedup:.2f}x with {last.best.name})."
    ends = [end.request_rate for end in (tuning.crossover_low, tuning.crossover_high)]
    low, high = ("0" if ends[0] is None else f"{ends[0]:.3g}", "beyond" if ends[1] is None else f"{ends[1]:.3g}")
    return (
        f"{words}; it pays below {at.request_rate:.3g} req/s per replica ({low} to {high}), a batch of "
        f"{at.batch:.0f}, and costs above."
    )


def _tokens(choice: DraftChoice | None) -> int:
    return 0 if choice is None else choice.tokens


def _choice_document(choice: DraftChoice) -> Document:
    return {
        "name": choice.name,
        "num_speculative_tokens": choice.tokens,
        "acceptance_length": 1.0 + float(choice.survival.sum()),
    }


def _load_document(load: Load) -> Document:
    pays = "always" if load.batch is None else "never" if load.batch == 0.0 else "below"
    return {"pays": pays, "batch": load.batch or None, "request_rate": load.request_rate}


def _break_even_document(one: BreakEven) -> Document:
    """``alpha`` is the chance, alike at every position of the chain, that gives the length; None where none can."""
    depth = len(one.choice.survival)
    possible = one.choice.tokens == depth and one.acceptance_length <= depth + 1
    return {
        "batch": one.batch,
        "num_speculative_tokens": one.choice.tokens,
        "acceptance_length": one.acceptance_length,
        "low": one.low,
        "high": one.high,
        "alpha": iid_alpha(max(1.0, one.acceptance_length), depth) if possible else None,
        "expected_acceptance_length": one.expected_length,
    }
