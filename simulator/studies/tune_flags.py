"""A tuning as flags: vLLM's ``--speculative-config`` with its table by batch, SGLang's speculative flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from simulator.errors import ForerunError, did_you_mean
from simulator.scenario import Scenario
from simulator.speculation.policy_config import TABLE_NAME_IN_VLLM, check_table
from simulator.studies.draft_choices import DraftChoice
from simulator.studies.engine_flags import SGLANG_METHODS, VLLM_METHODS, published_name
from simulator.studies.tune import Cell, Tuning

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
