"""A finished tuning as a JSON document with its conclusion in one sentence, and as flags of engines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from simulator.errors import ForerunError, did_you_mean
from simulator.metrics.document import forerun_version, jsonable, scenario_document
from simulator.scenario import Scenario
from simulator.speculation import borrowed_acceptance, iid_alpha
from simulator.speculation.config import TABLE_NAME_IN_VLLM, check_table
from simulator.studies.engine_flags import SGLANG_METHODS, VLLM_METHODS, published_name
from simulator.studies.tune.choices import DraftChoice
from simulator.studies.tune.tuning import BreakEven, Cell, Load, Tuning

ENGINES = ("vllm", "sglang")
PLACEHOLDER = "DRAFT_MODEL"
"""Stands where a drafter's checkpoint goes that the scenario does not name."""
NEEDS_CHECKPOINT = ("draft-model", "medusa", "eagle", "eagle2", "eagle3", "parallel-draft")


def checked_engine(name: str) -> str:
    """The engine of ``--emit``.

    Raises:
        ForerunError: none that flags are known for.
    """
    if name not in ENGINES:
        raise ForerunError(f"--emit {name}: no such engine{did_you_mean(name, ENGINES)} ({' or '.join(ENGINES)})")
    return name


def default_engine(scenario: Scenario) -> str:
    """The scenario's own engine where its flags are known, else vLLM."""
    return scenario.engine.framework if scenario.engine.framework in ENGINES else "vllm"


def flags(tuning: Tuning, engine: str) -> str:
    """The flags for an engine, ready to be pasted; empty where nothing is to be drafted.

    Raises:
        ForerunError: the engine has no such drafter.
    """
    if engine == "vllm":
        config = vllm_config(tuning)
        return "" if config is None else shlex.join(["--speculative-config", json.dumps(config)])
    return shlex.join(sglang_words(tuning))


def batch_table(cells: Sequence[Cell]) -> list[list[int]]:
    """[first batch, last batch, draft tokens] of cells with ascending batches, equal neighbours joined.

    The first range starts at 1, as vLLM asks; batches beyond the last range take its K there.

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


def vllm_config(tuning: Tuning) -> dict[str, Any] | None:
    """vLLM's speculative config with the number of draft tokens by batch, at the mean request's context.

    Returns:
        None where no draft token pays at any batch: leave the flag out.

    Raises:
        ForerunError: a drafter or a tree that vLLM does not have.
    """
    speculation = tuning.scenario.speculation
    assert speculation is not None
    table = batch_table(tuning.mean)
    most = max(drafted for _, _, drafted in table)
    if most == 0:
        return None
    method = VLLM_METHODS.get(speculation.method)
    if method is None or speculation.tree is not None:
        what = f"{speculation.method} tree" if speculation.tree is not None else speculation.method
        raise ForerunError(
            f"--emit vllm: vLLM has no {what}; use --emit sglang, or another speculation.method "
            f"({', '.join(sorted(VLLM_METHODS))}) with num_speculative_tokens"
        )
    config: dict[str, Any] = {"method": method}
    drafter = _checkpoint(tuning.scenario)
    if drafter is not None:
        config["model"] = drafter
    config["num_speculative_tokens"] = most
    if len(table) > 1:
        config[TABLE_NAME_IN_VLLM] = table
    return config


def sglang_words(tuning: Tuning) -> list[str]:
    """SGLang's flags for one way to draft at every batch: it has no table by batch.

    Raises:
        ForerunError: a drafter that SGLang does not have.
    """
    speculation = tuning.scenario.speculation
    assert speculation is not None
    choice = sglang_choice(tuning)
    if choice is None:
        return []
    algorithm = SGLANG_METHODS.get(speculation.method)
    if algorithm is None:
        raise ForerunError(
            f"--emit sglang: flags of {speculation.method} in SGLang are not known here; use --emit vllm, or another "
            f"speculation.method ({', '.join(sorted(SGLANG_METHODS))})"
        )
    words = ["--speculative-algorithm", algorithm]
    drafter = _checkpoint(tuning.scenario)
    if drafter is not None:
        words += ["--speculative-draft-model-path", drafter]
    if algorithm == "NGRAM":
        return [*words, "--speculative-num-draft-tokens", str(choice.tokens)]
    steps, top_k = len(choice.survival), 1
    drafted = choice.scenario.speculation
    assert drafted is not None
    if drafted.tree is not None:
        if drafted.tree.growth is None:
            raise ForerunError(
                "--emit sglang: SGLang grows its trees; give speculation.tree as {depth: 5, top_k: 4, nodes: 8}"
            )
        steps, top_k = drafted.tree.growth.depth, drafted.tree.growth.top_k
    words += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(top_k)]
    return [*words, "--speculative-num-draft-tokens", str(choice.tokens + 1)]


def sglang_choice(tuning: Tuning) -> DraftChoice | None:
    """What to draft where one number must do: the best at the middle one of the batches at which drafting pays."""
    paying = [cell.choice for cell in tuning.mean if cell.choice is not None]
    return paying[len(paying) // 2] if paying else None


def _checkpoint(scenario: Scenario) -> str | None:
    """The drafter's checkpoint, a placeholder where the scenario names none, None where the method has none."""
    speculation = scenario.speculation
    assert speculation is not None
    named = speculation.draft.model if speculation.draft is not None else None
    if named is not None:
        return published_name(named)
    return PLACEHOLDER if speculation.method in NEEDS_CHECKPOINT else None


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
