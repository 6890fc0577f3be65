"""Published speedups beside predicted ones: from step times, or from two simulated runs under open-loop arrivals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from forerun.errors import ForerunError
from hwprofiles import weakest
from simulator.running.build import Build, build_replica
from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.timing import EngineTimer, StepWork, causal_pairs, decode_work, keys_read
from validation.speculation.cases import Case, Unpredicted, case_of
from validation.speculation.published import PublishedSpeedup, load_published


class Comparison(NamedTuple):
    """A published speedup beside the predicted one."""

    row: PublishedSpeedup
    predicted: float
    acceptance_length: float
    plain_step_s: float
    verify_step_s: float
    basis: str
    constants: tuple[str, ...]
    """Constants of the prediction that may have been fitted, by file and name."""
    evidence: str
    """Weakest evidence of both steps."""

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.row.speedup - 1


def compare_published(
    rows: Iterable[PublishedSpeedup] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Comparison], list[Unpredicted]]:
    """Every published row with its prediction, and every row without one with the reason."""
    compared, left = [], []
    chosen = list(load_published() if rows is None else rows)
    for done, row in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        outcome = compare_row(row)
        if isinstance(outcome, Comparison):
            compared.append(outcome)
        else:
            left.append(outcome)
    return compared, left


def compare_row(row: PublishedSpeedup) -> Comparison | Unpredicted:
    """Predict one row.

    A closed loop of b sequences spends, per token and sequence, its share of a step and of the prompts between:
    ``T / L + b P / n`` with the step T, tokens per step L (1 without speculation), one prompt's time P and n output
    tokens per request. A step ends ``b L / n`` requests in the mean, and the prompts that follow them share a pass.
    Speedup is the ratio of the two. Rows of one stream without lengths leave prompts out.
    """
    case = case_of(row)
    if isinstance(case, Unpredicted):
        return case
    if case.sequences is None:
        return _compared_runs(case)
    try:
        plain, speculative = _built(case.plain), _built(case.speculative)
    except (ForerunError, ValueError) as error:
        return Unpredicted(row, str(error))
    length = case.acceptance_length
    before, after = (
        _step_s(plain.main.timer, case, case.sequences, 1),
        _step_s(speculative.main.timer, case, case.sequences, speculative.main.limits.query_len),
    )
    prompts = [0.0, 0.0]
    if _prompts_count(row, case.sequences):
        share = case.sequences / case.output_tokens
        prompts = [
            share * _prompt_s(build.main.timer, case.input_tokens, share * tokens)
            for build, tokens in ((plain, 1.0), (speculative, length))
        ]
    ratio = (before + prompts[0]) / (after / length + prompts[1])
    evidence = weakest((plain.basis, speculative.basis))
    return Comparison(row, ratio, length, before, after, plain.basis, case.constants, evidence)


def _prompts_count(row: PublishedSpeedup, sequences: int) -> bool:
    """True if a row's speedup holds its prompts: where both lengths are given, or none of several streams. A prompt
    alone is the context of a measured decode step."""
    return bool(row.output_tokens and row.input_tokens) or (sequences > 1 and not row.input_tokens)


def _built(data: dict[str, Any]) -> Build:
    return _build(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=64)
def _build(data: str) -> Build:
    """The parts of a run; rows of one table share theirs."""
    return build_replica(Scenario.model_validate_json(data), seed=0)


def _step_s(timer: EngineTimer, case: Case, sequences: int, query_len: int) -> float:
    """Seconds of a step in which every sequence stands in the middle of its output."""
    context = case.input_tokens + case.output_tokens // 2
    keys = tuple(sequences * keys_read(context, query_len, window) for window in timer.windows)
    return float(timer.seconds(decode_work(sequences, query_len, keys)))


def _prompt_s(timer: EngineTimer, tokens: int, ended: float) -> float:
    """Seconds for each prompt of a step that only reads prompts: those that follow the requests which a step ended.

    Args:
        timer: of the engine.
        tokens: of a prompt.
        ended: requests that a step ends in the mean; those of steps that end any are Poisson's.
    """
    count = max(1, round(ended / -math.expm1(-ended)))
    pairs = tuple(count * causal_pairs(tokens, 0, window) for window in timer.windows)
    keys = tuple(count * keys_read(tokens, tokens, window) for window in timer.windows)
    empty = (0,) * len(keys)
    first = tuple(count * keys_read(tokens + 1, 1, window) for window in timer.windows)
    return (
        float(
            timer.seconds(
                StepWork(
                    prefill_seqs=count,
                    prefill_tokens=count * tokens,
                    prefill_pairs=pairs,
                    prefill_kv_tokens=keys,
                    sampled_prefills=count,
                    sampled_kv_tokens=first,
                    decode_seqs=0,
                    query_len=1,
                    decode_kv_tokens=empty,
                )
            )
        )
        / count
    )


def _compared_runs(case: Case) -> Comparison:
    """Run both scenarios and compare them as the row does: served rate where it is in req/s, else mean latency."""
    plain, drafted = (_run(json.dumps(data, sort_keys=True)) for data in (case.plain, case.speculative))
    if case.row.unit == "req/s":
        speedup = drafted["request_throughput"] / plain["request_throughput"]
    else:
        speedup = plain["mean_e2el_ms"] / drafted["mean_e2el_ms"]
    steps = (plain["step_s"], drafted["step_s"])
    basis = drafted["basis"]
    return Comparison(case.row, speedup, case.acceptance_length, *steps, basis, case.constants, basis)


@lru_cache(maxsize=64)
def _run(data: str) -> dict[str, Any]:
    """Figures of a run that rows of one table share, and its mean seconds per step."""
    result = simulate(Scenario.model_validate_json(data), seed=0)
    summary = summarise(result)
    output = summary["total_output_tokens"] - summary["completed"]
    length = summary.get("spec_decode_acceptance_length") or 1.0
    return {
        "mean_e2el_ms": summary["mean_e2el_ms"],
        "request_throughput": summary["request_throughput"],
        "step_s": summary["mean_tpot_ms"] / 1e3 * length if output else 0.0,
        "basis": result.basis,
    }
