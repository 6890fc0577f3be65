"""Speculation page: best number of draft tokens by batch and context, with the engine flags."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache
from multiprocessing import get_context
from typing import Any

from dash.exceptions import PreventUpdate

from dashboards.app import controls
from dashboards.app.controls import ChoiceField, Number, Values
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.parts import area, commands_panel, figure_card, remark, rests_on, side_by_side, table_panel
from dashboards.app.plans import adaptive_throughput
from dashboards.figures.speculation import (
    AdaptiveData,
    acceptance_data,
    acceptance_figure,
    adaptive_figure,
    crossover_figure,
    speedup_by_batch,
    speedup_by_context,
    speedup_figure,
)
from forerun.document import Json
from forerun.tables import Table, number
from forerun.workers import follow_parent
from simulator.running.scenario import scenario_from
from simulator.speculation import curve_names, load_curve
from simulator.speculation.confidence import SEEN_CLASSES
from simulator.speculation.methods import METHODS
from simulator.studies.engine_flags import launch_flags
from simulator.studies.tune.grid import SpeculationGrid, speculation_grid
from simulator.studies.tune.tuning import GridCell, find_drafts

ONE_RATE = "one rate, set below"
DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
LOADS = (4, 16, 64, 256)
"""Concurrent requests at which verification by confidence is simulated."""
FIXED = (1, 3, 7)
"""Fixed numbers of draft tokens whose best competes with verification by confidence, which drafts the last number."""
CONTEXTS = (512, 2048, 8192, 32768, 131072)
CURVE = "eagle3-llama-3.1-8b-mt-bench"
ALPHAS = tuple(round(0.05 * step, 2) for step in range(1, 20))
ALPHA = Number("alpha", "Rate of the first position", stops=ALPHAS, default=0.7, low=0.01, high=0.99, whole=False)


def speculation_scenario(values: Values) -> Json:
    """Scenario data for the values of the controls."""
    acceptance: Json = {"alpha": values["alpha"]}
    if values["curve"] != ONE_RATE:
        curve = load_curve(values["curve"])
        acceptance = {"curve": curve.name, "extrapolate": curve.positions < max(DRAFT_TOKENS)}
    speculation = controls.speculation_of(values, 1, acceptance)
    return controls.deployment(values, speculation=speculation, workload=controls.ONE_REQUEST)


def compute(_context: Context, values: Values) -> Shown:
    """Tables and figures of the speedup grid of the chosen drafter."""
    batch = values["batch"]
    wanted = json.dumps(speculation_scenario(values), sort_keys=True), batch, values["prompt"], values["output"]
    grid = _grid(*wanted)
    chosen = None if values["curve"] == ONE_RATE else values["curve"]
    notes = [
        *grid.notes,
        "Speed-up: acceptance length times the step without speculation over the step that verifies and drafts.",
        "Crossover load: one engine that is always busy, prompts included; queues and bursts are for forerun run.",
    ]
    if chosen is not None:
        curve = load_curve(chosen)
        notes.append(f"Acceptance: {curve.source}; {curve.drafter or curve.method} for {curve.target}, {curve.task}.")
        if curve.positions < max(DRAFT_TOKENS):
            notes.append(f"Acceptance beyond K={curve.positions} is extrapolated by the decay fitted to the curve.")
    cell = tuned_at(*wanted)
    k = cell.best.tokens if cell.best_speedup > 1.0 else 0
    flags: Any = remark(f"At batch {batch} no K pays: leave speculation off.")
    if k:
        data = speculation_scenario(values)
        data["speculation"] |= {"num_speculative_tokens": k}
        title = f"Engine flags: K={k} is best at batch {batch}"
        flags = commands_panel(title, launch_flags(scenario_from(data, "speculation")))
    return {
        "sentence": remark(f"{grid_sentence(grid)} {at_batch_sentence(cell)}"),
        "best": table_panel(crossover_table(grid)),
        "flags": flags,
        "basis": rests_on(grid.basis, notes),
        "by-batch": speedup_figure(speedup_by_batch(grid)),
        "by-context": speedup_figure(speedup_by_context(grid)),
        "crossover": crossover_figure(grid),
    }


def compute_acceptance(_context: Context, values: Values) -> Shown:
    """Published acceptance curves of the method; they depend neither on load nor on hardware."""
    chosen = None if values["curve"] == ONE_RATE else values["curve"]
    names = [name for name in curve_names() if name == chosen or load_curve(name).method == values["method"]]
    return {"acceptance": acceptance_figure(acceptance_data(names, max(DRAFT_TOKENS), chosen)) if names else None}


def has_confidence(method: Any) -> bool:
    """True if a method's drafter has token probabilities: all drafters except those that look text up."""
    return not METHODS[method].looks_up


def compute_adaptive(context: Context, values: Values) -> Shown:
    """Figure of verification by confidence and the best fixed K, simulated at several loads."""
    if not has_confidence(values["method"]):
        return {"adaptive": None}
    scenario = json.dumps(speculation_scenario(values), sort_keys=True)
    wanted = scenario, values["head"], values["prompt"], values["output"]
    session = str(context.served.session)
    _NEWEST[session] = wanted
    with _SIMULATING:
        if _NEWEST[session] != wanted:  # another lever moved meanwhile
            raise PreventUpdate
        return {"adaptive": adaptive_figure(_adaptive(*wanted))}


_SIMULATING = threading.Lock()
_NEWEST: dict[str, tuple[object, ...]] = {}
"""Inputs of each session's latest request; older requests are dropped."""


@lru_cache(maxsize=16)
def _adaptive(*wanted: Any) -> AdaptiveData:
    """Simulate in a separate process, so that other controls of the page still react."""
    fixed, adaptive, basis = _process().submit(adaptive_throughput, LOADS, FIXED, *wanted).result()
    return AdaptiveData("workload.arrivals.max_concurrency", LOADS, fixed, adaptive, basis)


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), follow_parent, (os.getpid(),))


@lru_cache(maxsize=16)
def _grid(scenario: str, batch: int, prompt: int, output: int) -> SpeculationGrid:
    parsed = scenario_from(json.loads(scenario), "speculation")
    batches = sorted({*controls.BATCHES, batch})
    return speculation_grid(parsed, DRAFT_TOKENS, batches, CONTEXTS, batch, prompt, output)


def grid_sentence(grid: SpeculationGrid) -> str:
    best, batches = grid.best, grid.batches
    if not any(best):
        return f"{grid.method} does not pay at any batch tried here."
    first = f"Best is K={best[0]} at batch {batches[0]}" if best[0] else f"Nothing pays at batch {batches[0]}"
    lost = next((batch for batch, k in zip(batches, best, strict=True) if k == 0 and batch > batches[0]), None)
    if lost is not None:
        return f"{grid.method}: {first[0].lower() + first[1:]}; from batch {lost} on no K pays."
    return f"{grid.method}: {first[0].lower() + first[1:]} and K={best[-1]} at batch {batches[-1]}; it pays throughout."


@lru_cache(maxsize=16)
def tuned_at(scenario: str, batch: int, prompt: int, output: int) -> GridCell:
    """The best number of draft tokens at the chosen batch, as computed by ``forerun tune``."""
    lengths = {"workload.input_tokens": prompt, "workload.output_tokens": output}
    parsed = scenario_from(json.loads(scenario), "speculation").with_values(lengths)
    room = {"engine.max_num_seqs": max(batch, parsed.engine.max_num_seqs)}
    (cell,) = find_drafts(parsed.with_values(room), (batch,), (prompt + output // 2,), DRAFT_TOKENS).mean
    return cell


def at_batch_sentence(cell: GridCell) -> str:
    ends = f"{cell.best_low:.2f} to {cell.best_high:.2f}"
    return f"At batch {cell.at_batch}, {cell.best.name} gives {cell.best_speedup:.2f}x ({ends}, 90 % interval)."


def crossover_table(grid: SpeculationGrid) -> Table:
    """Table of the batch and load below which each number of draft tokens pays."""
    rows = []
    for k, length, at_batch, rate in zip(
        grid.draft_tokens, grid.acceptance_length, grid.crossover_batch, grid.crossover_rate, strict=True
    ):
        where = (
            f"above {grid.batches[-1]}" if at_batch is None else "never pays" if at_batch == 0 else f"{at_batch:.0f}"
        )
        rows.append((f"K={k}", f"{length:.2f}", where, number(rate, 3)))
    return Table("Each K pays below", ("draft tokens", "tokens per step", "batch", "req/s"), rows)


PAGE = Page(
    "speculation",
    "Speculation",
    "How many draft tokens pay at which load, from the price of the verify step and measured acceptance.",
    [
        controls.CHIP,
        controls.MODEL,
        controls.TENSOR_PARALLEL,
        controls.WEIGHTS,
        ChoiceField("method", "Method", options=controls.METHODS[1:], default="eagle3"),
        controls.DRAFT,
        ChoiceField("curve", "Acceptance", options=lambda _: [ONE_RATE, *curve_names()], default=CURVE),
        replace(ALPHA, when=("curve", lambda curve: curve == ONE_RATE), live=False),
        ChoiceField("head", "Confidence of draft tokens", ("method", has_confidence), options=tuple(SEEN_CLASSES)),
        Number("batch", "Batch", stops=controls.BATCHES, default=16, low=1, high=512, live=False),
        replace(controls.PROMPT, live=False),
        replace(controls.OUTPUT, live=False),
    ],
    [
        *map(area, ("sentence", "flags")),
        figure_card("by-batch", 420, "Speed-up by draft tokens and batch"),
        side_by_side(
            figure_card("by-context", 420, "Speed-up by draft tokens and context"),
            figure_card("crossover", 420, "Speed-up over the batch, and where it falls below 1"),
        ),
        figure_card("adaptive", 420, "Verification by confidence against the best of K = 1, 3 and 7 over the load"),
        figure_card("acceptance", 420, "Published acceptance curves"),
        *map(area, ("best", "basis")),
    ],
    [
        View(
            compute,
            ("chip", "model", "tp", "dtype", "method", "draft", "curve", "alpha", "batch", "prompt", "output"),
            ("sentence", "best", "flags", "basis"),
            ("by-batch", "by-context", "crossover"),
        ),
        View(
            compute_adaptive,
            ("chip", "model", "tp", "dtype", "method", "draft", "curve", "alpha", "head", "prompt", "output"),
            figures=("adaptive",),
            message_at=None,
        ),
        View(compute_acceptance, ("method", "curve"), figures=("acceptance",), message_at=None),
    ],
)
