"""Speculation: how many draft tokens pay at which batch and context, and the engine flags for them."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

import dash_mantine_components as dmc
from dash import Dash

from dashboards.app import choices
from dashboards.app.context import Context, Page
from dashboards.app.parts import (
    at,
    card,
    columns,
    figure_card,
    page_frame,
    remark,
    rests_on,
    select,
    shown_when,
    slider,
    table,
    with_controls,
)
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.speculation import (
    acceptance_data,
    acceptance_figure,
    crossover_data,
    crossover_figure,
    speedup_by_batch,
    speedup_by_context,
    speedup_figure,
)
from dashboards.report_parts import number
from simulator.scenario import scenario_from
from simulator.speculation import curve_names, load_curve
from simulator.studies.engine_flags import launch_flags
from simulator.studies.tune.grid import SpeculationGrid, speculation_grid

NAME = "speculation"
ONE_RATE = "one rate, set below"
CONTROLS = ("chip", "model", "tp", "dtype", "method", "draft", "curve", "alpha", "batch", "prompt", "output")
AREAS = ("sentence", "best", "flags", "basis")
FIGURES = ("by-batch", "by-context", "crossover", "acceptance")
METHODS = tuple(method for method in choices.METHODS if method != "none")
DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
CONTEXTS = (512, 2048, 8192, 32768, 131072)
ALPHAS = tuple(round(0.05 * step, 2) for step in range(1, 20))
STEPS = {
    "alpha": ALPHAS,
    "batch": choices.BATCHES,
    "prompt": choices.CONTEXTS[:9],
    "output": choices.CONTEXTS[:6],
}
DEFAULT_CURVE = "eagle3-llama-3.1-8b-mt-bench"


def layout(params: Params, context: Context) -> Any:
    """The page."""
    chips, models, curves = choices.chips(), choices.models(), [ONE_RATE, *curve_names()]
    controls = [
        select(NAME, "chip", "Chip", chips, params.choice("chip", chips, choices.DEFAULT_CHIP)),
        select(NAME, "model", "Model", models, params.choice("model", models, choices.DEFAULT_MODEL)),
        select(
            NAME, "tp", "Tensor parallel", choices.TENSOR_PARALLEL, params.choice("tp", choices.TENSOR_PARALLEL, "1")
        ),
        select(NAME, "dtype", "Weights", choices.DTYPES, params.choice("dtype", choices.DTYPES, choices.DTYPES[0])),
        select(NAME, "method", "Method", METHODS, params.choice("method", METHODS, "eagle3")),
        select(NAME, "draft", "Draft model", models, params.choice("draft", models, "llama-3.2-1b")),
        select(NAME, "curve", "Acceptance", curves, params.choice("curve", curves, DEFAULT_CURVE)),
        slider(NAME, "alpha", "Rate of the first position", ALPHAS, params.number("alpha", 0, 1, 0.7), live=False),
        slider(NAME, "batch", "Batch", STEPS["batch"], params.number("batch", 1, 512, 16), live=False),
        slider(NAME, "prompt", "Prompt", STEPS["prompt"], params.number("prompt", 1, 32768, 512), "tokens", False),
        slider(NAME, "output", "Output", STEPS["output"], params.number("output", 1, 4096, 256), "tokens", False),
    ]
    content = [
        message_area(NAME),
        area(NAME, "sentence"),
        figure_card(NAME, "by-batch", 420, "Speed-up by draft tokens and batch"),
        columns(
            figure_card(NAME, "by-context", 420, "Speed-up by draft tokens and context"),
            figure_card(NAME, "crossover", 420, "Speed-up over the batch, and where it falls below 1"),
        ),
        figure_card(NAME, "acceptance", 420, "Published acceptance curves"),
        columns(card("Each K pays below", area(NAME, "best")), card("Engine flags", area(NAME, "flags"))),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Speculation",
        "How many draft tokens pay at which load, from the price of the verify step and measured acceptance.",
        with_controls(controls, content),
    )


def scenario_data(values: Values) -> dict[str, Any]:
    """The scenario that the controls describe, as plain data."""
    method = str(values["method"])
    acceptance: dict[str, Any]
    if values["curve"] == ONE_RATE:
        acceptance = {"alpha": at(ALPHAS, values["alpha"])}
    else:
        curve = load_curve(str(values["curve"]))
        acceptance = {"curve": curve.name, "extrapolate": curve.positions < max(DRAFT_TOKENS)}
    speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": 1, "acceptance": acceptance}
    if method == "draft-model":
        speculation["draft"] = {"model": str(values["draft"])}
    data: dict[str, Any] = {
        "model": str(values["model"]),
        "hardware": {"chip": str(values["chip"]), "tensor_parallel": int(values["tp"])},
        "speculation": speculation,
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1},
    }
    if values["dtype"] != choices.DTYPES[0]:
        data["weights_dtype"] = str(values["dtype"])
    return data


def compute(_context: Context, values: Values) -> Shown:
    """The grid of the chosen drafter."""
    batch, prompt, output = (int(at(STEPS[name], values[name])) for name in ("batch", "prompt", "output"))
    grid = _grid(json.dumps(scenario_data(values), sort_keys=True), batch, prompt, output)
    chosen = None if values["curve"] == ONE_RATE else str(values["curve"])
    names = [name for name in curve_names() if load_curve(name).method == grid.method or name == chosen]
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
        if curve.method != grid.method:
            notes.append(f"The curve is of a drafter of method {curve.method}, the costs are those of {grid.method}.")
    shown = {
        "sentence": remark(said(grid)),
        "best": _crossovers(grid),
        "flags": _flags(values, grid, batch),
        "basis": rests_on(grid.basis, notes),
    }
    figures = {
        "by-batch": speedup_figure(speedup_by_batch(grid)),
        "by-context": speedup_figure(speedup_by_context(grid)),
        "crossover": crossover_figure(crossover_data(grid)),
        "acceptance": acceptance_figure(acceptance_data(names, max(DRAFT_TOKENS), chosen)) if names else None,
    }
    return shown, figures


@lru_cache(maxsize=16)
def _grid(scenario: str, batch: int, prompt: int, output: int) -> SpeculationGrid:
    parsed = scenario_from(json.loads(scenario), "speculation")
    return speculation_grid(parsed, DRAFT_TOKENS, choices.BATCHES, CONTEXTS, batch, prompt, output)


def said(grid: SpeculationGrid) -> str:
    """What the grid says in one sentence."""
    best, batches = grid.best, grid.batches
    if not any(best):
        return f"{grid.method} does not pay at any batch tried here."
    first = f"Best is K={best[0]} at batch {batches[0]}" if best[0] else f"Nothing pays at batch {batches[0]}"
    lost = next((batch for batch, k in zip(batches, best, strict=True) if k == 0 and batch > batches[0]), None)
    if lost is not None:
        return f"{grid.method}: {first[0].lower() + first[1:]}; from batch {lost} on no K pays."
    return f"{grid.method}: {first[0].lower() + first[1:]} and K={best[-1]} at batch {batches[-1]}; it pays throughout."


def best_at(grid: SpeculationGrid, batch: int) -> int:
    """The best number of draft tokens at one of the grid's batches; 0 where none pays."""
    return grid.best[grid.batches.index(batch)]


def _crossovers(grid: SpeculationGrid) -> Any:
    rows = []
    for k, length, at_batch, rate in zip(
        grid.draft_tokens, grid.acceptance_length, grid.crossover_batch, grid.crossover_rate, strict=True
    ):
        where = (
            f"above {grid.batches[-1]}" if at_batch is None else "never pays" if at_batch == 0 else f"{at_batch:.0f}"
        )
        rows.append((f"{k}", f"{length:.2f}", where, "–" if rate is None else number(rate, 3)))
    heads = ("K", "tokens per step", "batch", "req/s")
    return table(heads, rows, numbers_from=0)


def _flags(values: Values, grid: SpeculationGrid, batch: int) -> Any:
    k = best_at(grid, batch)
    if k == 0:
        return remark(f"At batch {batch} no K pays: leave speculation off.")
    data = scenario_data(values)
    data["speculation"] |= {"num_speculative_tokens": k}
    flags = launch_flags(scenario_from(data, "speculation"))
    parts: list[Any] = [dmc.Text(f"Best at batch {batch}: K={k}.", size="sm")]
    for engine, text in flags.items():
        parts.append(
            dmc.Group(
                [dmc.Text(engine, size="sm", fw=600), dmc.CopyButton(value=text, children="Copy", size="compact-xs")],
                justify="space-between",
            )
        )
        parts.append(dmc.Code(text, block=True, className="flags"))
    return dmc.Stack(parts, gap="xs")


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""
    shown_when(app, NAME, "draft", "method", lambda method: method == "draft-model")
    shown_when(app, NAME, "alpha", "curve", lambda curve: curve == ONE_RATE)
    register_view(app, NAME, CONTROLS, AREAS, FIGURES, partial(compute, context))


PAGE = Page("/speculation", "Speculation", layout, register, STEPS)
