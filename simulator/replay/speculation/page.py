"""The validation page of speculation: every published row beside its prediction, failures left in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator.replay.speculation.cases import RESEARCH, Unpredicted
from simulator.replay.speculation.predict import Comparison
from simulator.speculation import curve_names, fit_lengths, load_curve

CONSTANTS = {
    "vllm20780": "host seconds per step and per draft pass of vLLM's EAGLE and EAGLE-3 in 2025, on K = 2 and 6; also "
    "used for every other row of that engine (`vllm16937`, `vllm16035`, `kubecon2025`)",
    "gptoss_h200": "five parameters of the MXFP4 expert kernels under Zipf's law of expert popularity, on K = 0 at "
    "concurrency 1 to 128 (`gptoss-h200.yaml`), and the drafter's host seconds per step, on K = 1 at concurrency 1",
    "kubecon2025": "acceptance length 1.18 of random prompts, on the lowest rate",
    "vllm_blog2024": "acceptance length 3.0 (draft model) and 4.6 (n-gram), and output lengths 147 and 148, which the "
    "source does not give, on the lowest rate of each",
    "magicdec": "what each further query adds to verify attention, one constant per GPU, on one row of each "
    "(`magicdec-05`, `magicdec-14`)",
    "specbench": "host seconds per draft pass of its Python loop, on `specbench-097`; also used for `hass`",
}
"""What was fitted to rows of a group; everything else is predicted."""
FITTED_DEPTH = 3
"""Acceptance curves are fitted on K = 1 to this and read off beyond."""


class GroupScore(NamedTuple):
    """How one published table came out; percentages."""

    group: str
    rows: int
    mape: float
    bias: float
    right_sign: float
    """Share of rows on the right side of 1 (published within 2 % of 1 counts as either)."""


class CurveScore(NamedTuple):
    """Acceptance length of one published curve beyond the depths that it was fitted on."""

    curve: str
    depth: int
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.published - 1


def group_scores(comparisons: Sequence[Comparison]) -> list[GroupScore]:
    """Scores by published table, in the order of the rows."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.row.group, []).append(comparison)
    return [_score(name, found) for name, found in groups.items()]


def _score(name: str, found: Sequence[Comparison]) -> GroupScore:
    errors = np.array([comparison.error for comparison in found])
    right = [abs(c.row.speedup - 1) <= 0.02 or (c.row.speedup > 1) == (c.predicted > 1) for c in found]
    return GroupScore(
        name, len(found), 100 * float(np.abs(errors).mean()), 100 * float(errors.mean()), 100 * float(np.mean(right))
    )


def curve_scores() -> list[CurveScore]:
    """Every catalogue curve published to K = 5 or deeper: fitted on K = 1 to 3, read off at its deepest."""
    scores = []
    for name in curve_names():
        lengths = load_curve(name).lengths or {}
        near = {k: length for k, length in lengths.items() if k <= FITTED_DEPTH}
        if len(near) >= 2 and max(lengths) >= 5:
            depth = max(lengths)
            predicted = fit_lengths(near).model.acceptance_length(depth)
            scores.append(CurveScore(name, depth, lengths[depth], predicted))
    return scores


def validation_document(
    comparisons: Sequence[Comparison], left: Sequence[Unpredicted], curves: Sequence[CurveScore]
) -> dict[str, Any]:
    """The page's figures as plain data."""
    return {
        "groups": [score._asdict() for score in group_scores(comparisons)],
        "overall": [_score("all", comparisons)._asdict()] if comparisons else [],
        "constants": CONSTANTS,
        "rows": [_row(comparison) for comparison in comparisons],
        "not_predicted": [{"id": item.row.id, "group": item.row.group, "reason": item.reason} for item in left],
        "curves": [curve._asdict() | {"error": curve.error} for curve in curves],
    }


def _row(comparison: Comparison) -> dict[str, Any]:
    row = comparison.row
    return {
        "id": row.id,
        "group": row.group,
        "published": row.speedup,
        "predicted": comparison.predicted,
        "error": comparison.error,
        "acceptance_length": comparison.acceptance_length,
        "plain_step_s": comparison.plain_step_s,
        "verify_step_s": comparison.verify_step_s,
        "basis": comparison.basis,
        "source": row.source,
    }


def validation_page(
    comparisons: Sequence[Comparison], left: Sequence[Unpredicted], curves: Sequence[CurveScore], version: str
) -> str:
    """The page in Markdown."""
    return "\n".join(_lines(comparisons, left, curves, version)) + "\n"


def _lines(
    comparisons: Sequence[Comparison], left: Sequence[Unpredicted], curves: Sequence[CurveScore], version: str
) -> Iterator[str]:
    yield "# Speculation against published measurements"
    yield ""
    yield f"Written by `forerun validate speculation` of Forerun {version}; failures are left in."
    yield ""
    yield "A published speedup is predicted as (plain step) / (verify step / acceptance length): step times from the"
    yield "chip's profile, acceptance length from the same source (else of the same drafter on the same model in the"
    yield "catalogue). Where prompt and output lengths are given, each request also pays its prompt. Rows without"
    yield "lengths are taken in the middle of 128 + 256 tokens, and several streams then pay such prompts too; papers"
    yield f"that name no chip, on an A100; research code runs as framework `{RESEARCH}`, bound by kernel launches. Rows"
    yield "under open-loop arrivals are two simulated runs of one stream of requests, compared in the source's own"
    yield "metric. MagicDec's rows take the acceptance of LLaMA-3.1-8B drafting for itself from 512 tokens of KV,"
    yield "TinyLlama's too."
    yield ""
    yield "Engines of their time: rows of vLLM in 2024, and of EAGLE-3's table 5, run framework `vllm-2024`, which"
    yield "verifies each draft token as a sequence of its own; SGLang's rows pay the host work of a drafting step that"
    yield "its scheduler did not overlap. Both are measured elsewhere (`frameworks.yaml`, `draft_overheads.yaml`), not"
    yield "fitted to these rows. What remains: SGLang's gains at 48 and 64 streams come out too small, because 80"
    yield "questions do not keep so many busy to the end; under overload (`vllm_blog2024` at 8 requests/s, n-gram) both"
    yield "runs queue and their ratio says little."
    yield ""
    yield "Constants fitted to these rows, and nothing else:"
    yield ""
    for group, words in CONSTANTS.items():
        yield f"* `{group}`: {words}."
    yield ""
    yield "## By source"
    yield ""
    yield "| table | rows | MAPE | bias | side of 1 right |"
    yield "|---|---:|---:|---:|---:|"
    for score in group_scores(comparisons):
        yield (
            f"| {score.group} | {score.rows} | {score.mape:.1f} % | {score.bias:+.1f} % | {score.right_sign:.0f} % |"
        )
    if comparisons:
        total = _score("all", comparisons)
        yield f"| **all** | {total.rows} | {total.mape:.1f} % | {total.bias:+.1f} % | {total.right_sign:.0f} % |"
    yield ""
    yield f"## Acceptance beyond the fitted depths (fitted on K = 1 to {FITTED_DEPTH})"
    yield ""
    if curves:
        errors = [abs(curve.error) for curve in curves]
        yield f"{len(curves)} curves; median error {100 * np.median(errors):.1f} %, worst {100 * max(errors):.1f} %."
        yield ""
        yield "| curve | K | published | predicted | error |"
        yield "|---|---:|---:|---:|---:|"
        for curve in sorted(curves, key=lambda c: -abs(c.error)):
            yield (
                f"| {curve.curve} | {curve.depth} | {curve.published:.2f} | {curve.predicted:.2f} | "
                f"{100 * curve.error:+.1f} % |"
            )
        yield ""
    yield "## Every row"
    yield ""
    yield "| id | model | hardware | engine | method | K or nodes | load | length | published | predicted | error |"
    yield "|---|---|---|---|---|---|---|---:|---:|---:|---:|"
    for item in comparisons:
        row = item.row
        hardware = f"{row.chips or ''}{' x ' if row.chips else ''}{row.hardware or 'not stated'}"
        yield (
            f"| {row.id} | {row.model} | {hardware} | {row.engine or 'own code'} | {row.method} | "
            f"{row.tokens or row.nodes or ''} | {row.load_type} {row.load} | {item.acceptance_length:.2f} | "
            f"{row.speedup:.2f} | {item.predicted:.2f} | {100 * item.error:+.0f} % |"
        )
    yield ""
    yield "## Not predicted"
    yield ""
    yield "| rows | reason |"
    yield "|---:|---|"
    reasons: dict[str, int] = {}
    for refused in left:
        reasons[refused.reason] = reasons.get(refused.reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda entry: -entry[1]):
        yield f"| {count} | {reason} |"
    yield ""
    yield "## Sources"
    yield ""
    for source in sorted({item.row.source for item in comparisons} | {item.row.source for item in left}):
        yield f"* {source}"
