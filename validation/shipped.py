"""Comparisons that anyone can compute: the kernels of a CPU core, closed loops, published speedups, ALSpec."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from typing import NamedTuple

from dashboards.recorded_errors import SECTIONS, ErrorRow
from forerun.workers import Workers
from hwprofiles import KernelLibrary, load_chip, weakest
from simulator.replay.calibrate import calibrate
from simulator.replay.kernels import replay_kernels
from simulator.replay.rerun import rerun
from simulator.replay.scores import Score
from simulator.replay.split import Split, training_rows
from simulator.speculation.attention_level import compare_layouts, consistency_set, consistency_sets
from traces.benchmark_results import MeasuredRun
from traces.kernels import read_kernels
from validation.facts import NOTHING, fitted_words
from validation.inputs import Cache
from validation.record import signed_row
from validation.requests import base_scenario
from validation.speculation import (
    FITTED_DEPTH,
    Comparison,
    CurveScore,
    compare_published,
    curve_scores,
    grows_trees,
    load_published,
)
from validation.tables.silicon import generator_budget

SPLIT = Split(0.7, 1)
"""The split of ``forerun calibrate``: only what it holds out is scored."""
SAMPLE = "kernels-cpu"
LOOPS, LOOPS_FILE = "closed loops of equal lengths", "equal_loops.csv"
"""Llama-3.1-8B under TensorRT-LLM 1.0.0rc3 on H100, from the table of measured runs in aiconfigurator-core 0.12.0
(NVIDIA, Apache-2.0; ``id`` is the end of its own): rows that no fit sees, with the limit on a step's tokens with which
NVIDIA's generator starts such servers."""
CURVES = "acceptance curves, deepest K"
ROWS_AT_ONCE = 8
"""Published rows that a process compares before it takes others: neighbours share the parts of a run."""


class ValidationPart(NamedTuple):
    """Some comparisons that are computed together, and kept together until something that they depend on changes."""

    section: str
    name: str
    slow: bool
    """True if ``--quick`` leaves it out: fits, and trees that are grown thousands of times."""


class ShippedErrors(NamedTuple):
    """Errors of what ships, and the parts that were left out for being slow."""

    rows: list[ErrorRow]
    left_out: list[ValidationPart]


def parts(sections: Sequence[str] = SECTIONS) -> list[ValidationPart]:
    """Everything that ships, in the order of the record."""
    groups: dict[str, bool] = {}
    for row in load_published():
        groups[row.group] = groups.get(row.group, False) or grows_trees(row)
    every_part = [
        ValidationPart("kernels", SAMPLE, True),
        ValidationPart("requests", LOOPS, False),
        *(ValidationPart("speculation", name, slow) for name, slow in groups.items()),
    ]
    every_part += [ValidationPart("speculation", CURVES, False), ValidationPart("attention", "published maxima", False)]
    return [part for part in every_part if part.section in sections]


def shipped_errors(
    sections: Sequence[str] = SECTIONS,
    jobs: int = 1,
    quick: bool = False,
    cache: Cache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShippedErrors:
    """Errors that the package alone can compute.

    Args:
        sections: which of ``SECTIONS``.
        jobs: processes.
        quick: leave out the slow parts.
        cache: what earlier runs found; a part is taken from it while none of its inputs has changed.
        progress: called with (parts done, parts).
    """
    every_part = parts(sections)
    left = [part for part in every_part if quick and part.slow]
    wanted = [part for part in every_part if part not in left]
    rows_by_part: dict[ValidationPart, list[ErrorRow]] = {}
    pending: dict[ValidationPart, Callable[[], list[ErrorRow]]] = {}
    with Workers(jobs if jobs > 1 else 0) as workers:
        for part in sorted(wanted, key=lambda part: not part.slow):
            kept = None if cache is None else cache.get(part.name)
            if kept is None:
                pending[part] = _started(part, workers)
            else:
                rows_by_part[part] = kept
        for part, result in pending.items():
            rows_by_part[part] = result()
            if cache is not None:
                cache.put(part.name, rows_by_part[part])
            if progress is not None:
                progress(len(rows_by_part), len(wanted))
    return ShippedErrors([row for part in wanted for row in rows_by_part[part]], left)


def _started(part: ValidationPart, workers: Workers) -> Callable[[], list[ErrorRow]]:
    """Begin a part on the workers; what is returned gives its rows."""
    if part.section == "kernels":
        return workers.start(sample_errors)
    if part.section == "requests":
        return workers.start(loop_errors)
    if part.section == "attention":
        return workers.start(attention_errors)
    if part.name == CURVES:
        return workers.start(curve_errors)
    rows = [row for row in load_published() if row.group == part.name]
    some = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]
    results = [workers.start(compare_published, few) for few in some]
    return lambda: table_errors([item for result in results for item in result()[0]])


def sample_errors() -> list[ErrorRow]:
    """Errors on the shipped sample of one CPU core: with the machine's limits alone, and fitted, on held-out shapes.

    The fit sees the training shapes alone: of families with few rows ``calibrate`` fits every row that it is given.
    """
    with (
        as_file(files("traces").joinpath("samples", f"{SAMPLE}.csv")) as trace,
        as_file(files("traces").joinpath("samples", f"{SAMPLE}.machine.yaml")) as machine,
    ):
        table, chip = read_kernels(trace), load_chip(str(machine))
    limits = replay_kernels(table, KernelLibrary(chip), SPLIT)
    fitted = calibrate(table.where(training_rows(table, SPLIT)), chip, split=None, residual=False, judge=False)
    report = replay_kernels(table, KernelLibrary(fitted.chip), SPLIT)
    note = f"this core, on the other {SPLIT.train:.0%} of the shapes"
    groups = [group for group in report.groups if group.regime == "all"]
    return [
        kernel_error_row(f"{SAMPLE}, limits alone", limits.overall, limits.basis, NOTHING, True),
        *(kernel_error_row(f"{SAMPLE}, {g.op} {g.dtype}".strip(), g, "calibrated", note, True) for g in groups),
    ]


def kernel_error_row(name: str, score: Score, basis: str, fitted: str, ships: bool) -> ErrorRow:
    """A score of kernels as a row of the record."""
    return ErrorRow("kernels", name, "seconds", score.n, score.mape, score.median_ape, score.bias, basis, fitted, ships)


def loop_runs() -> list[MeasuredRun]:
    """The closed loops of ``LOOPS_FILE`` as measured runs."""
    with files("validation").joinpath(LOOPS_FILE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        MeasuredRun(
            name=row["id"],
            place=f"{LOOPS_FILE}: {row['id']}",
            model="llama-3.1-8b",
            chip="h100-sxm",
            framework="trtllm",
            framework_version="1.0.0rc3",
            process="closed-loop",
            prefix_caching=False,
            max_num_seqs=int(row["max_concurrency"]),
            measured={"mean_tpot_ms": float(row["mean_tpot_ms"])},
            tensor_parallel=int(row["tensor_parallel"]),
            max_concurrency=int(row["max_concurrency"]),
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            chunked_prefill=False,
            max_num_batched_tokens=generator_budget("trtllm", int(row["max_concurrency"]), int(row["input_tokens"])),
        )
        for row in rows
    ]


def loop_errors() -> list[ErrorRow]:
    """Error of TPOT on ``LOOPS_FILE``."""
    metric = "mean_tpot_ms"
    results = [(run, rerun(run, base_scenario())) for run in loop_runs()]
    signed = [result["predicted"][metric] / run.measured[metric] - 1.0 for run, result in results]
    basis = weakest(result["basis"] for _, result in results)
    return [signed_row("requests", LOOPS, metric, signed, basis, fitted_words(LOOPS, {"frameworks.yaml: trtllm"}))]


def table_errors(comparisons: Sequence[Comparison]) -> list[ErrorRow]:
    """The error of one published table of speedups; none where no row of it can be predicted."""
    if not comparisons:
        return []
    bases = {comparison.basis for comparison in comparisons}
    basis = weakest(base for base in bases if base is not None) if any(bases) else None
    group = comparisons[0].row.group
    signed = [comparison.error for comparison in comparisons]
    constants = {name for comparison in comparisons for name in comparison.constants}
    return [signed_row("speculation", group, "speedup", signed, basis, fitted_words(group, constants))]


def curve_errors(curves: Sequence[CurveScore] | None = None) -> list[ErrorRow]:
    """Acceptance lengths of published curves beyond the depths that were fitted; none without curves."""
    scores = curve_scores() if curves is None else curves
    if not scores:
        return []
    words = f"level and decay of each curve on K = 1 to {FITTED_DEPTH}"
    signed = [curve.error for curve in scores]
    return [signed_row("speculation", CURVES, "acceptance_length", signed, None, words)]


def attention_errors() -> list[ErrorRow]:
    """Speed-up and cut in attention overhead of every published ALSpec result that has a parameter set."""
    rows = []
    for name in consistency_sets():
        parameters = consistency_set(name)
        published = parameters.published
        compared = compare_layouts(parameters, published["context_tokens"], published["hit_rate"])
        label = f"{name}, {published['context_tokens']:,} tokens, {published['hit_rate']:.1%} hits"
        for metric, predicted, measured in (
            ("speedup", compared.speedup, published["max_speedup"]),
            ("overhead_reduction", compared.overhead_reduction, published["max_overhead_reduction"]),
        ):
            words = "consistency, not validation: parameters were chosen knowing the published figure"
            error = float(predicted) / measured - 1.0
            rows.append(signed_row("attention", label, metric, [error], "extrapolated", words))
    return rows
