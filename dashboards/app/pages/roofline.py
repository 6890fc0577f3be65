"""Roofline: the kernels of one prefill, decode and verify step, and measured kernels beside predicted ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import Dash

from dashboards.app import choices
from dashboards.app.context import Context, Page
from dashboards.app.parts import at, card, figure_card, page_frame, rests_on, select, slider, table, with_controls
from dashboards.app.replays import replayed
from dashboards.app.steps import phases, priced
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.roofline import measured_points, roofline_data, roofline_figure
from dashboards.report_parts import number, percent

NAME = "roofline"
NO_TRACE = "none"
CONTROLS = ("chip", "model", "tp", "dtype", "batch", "context", "k", "prompt", "trace")
STEPS = {
    "batch": choices.BATCHES,
    "context": choices.CONTEXTS,
    "k": choices.DRAFT_TOKENS,
    "prompt": choices.CONTEXTS[:8],
}


def layout(params: Params, context: Context) -> Any:
    """The page."""
    traces = [NO_TRACE, *context.served.traces()]
    chips = choices.chips_and_sample()
    controls = [
        select(NAME, "chip", "Chip", chips, params.choice("chip", chips, choices.DEFAULT_CHIP)),
        select(
            NAME, "model", "Model", choices.models(), params.choice("model", choices.models(), choices.DEFAULT_MODEL)
        ),
        select(
            NAME, "tp", "Tensor parallel", choices.TENSOR_PARALLEL, params.choice("tp", choices.TENSOR_PARALLEL, "1")
        ),
        select(NAME, "dtype", "Weights", choices.DTYPES, params.choice("dtype", choices.DTYPES, choices.DTYPES[0])),
        slider(NAME, "batch", "Batch (decode, verify)", STEPS["batch"], params.number("batch", 1, 512, 16)),
        slider(NAME, "context", "Context", STEPS["context"], params.number("context", 1, 131072, 2048), "tokens"),
        slider(NAME, "k", "Draft tokens K", STEPS["k"], params.number("k", 1, 16, 3)),
        slider(NAME, "prompt", "Prompt", STEPS["prompt"], params.number("prompt", 1, 16384, 1024), "tokens"),
        select(NAME, "trace", "Measured kernels", traces, params.choice("trace", traces, NO_TRACE)),
    ]
    content = [
        message_area(NAME),
        figure_card(NAME, "roofline", 540, "Kernels on the roofline of the chip"),
        card("Kernels of one step", area(NAME, "kernels")),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Roofline",
        "What each kernel of a step is bound by, and how far it stays below its chip's limits.",
        with_controls(controls, content),
    )


def compute(context: Context, values: Values) -> Shown:
    """Kernels of the three phases, with measured ones where a trace is chosen."""
    chip = context.served.chip(str(values["chip"]))
    dtype = None if values["dtype"] == choices.DTYPES[0] else str(values["dtype"])
    ready = priced(str(values["model"]), chip, int(values["tp"]), dtype)
    batch, length, k, prompt = (int(at(STEPS[name], values[name])) for name in ("batch", "context", "k", "prompt"))
    kernels = phases(ready, batch, max(length, k + 1), k, prompt)
    measured, notes = None, list(ready.notes)
    if values["trace"] not in (None, NO_TRACE):
        report = replayed(context.served, str(values["trace"]), str(values["chip"]), "generic")
        measured = measured_points(report)
        device = report.table.row(0).get("device") or "a device that the trace does not name"
        name = report.source.rpartition("/")[2]
        notes.append(f"Measured kernels: {measured.rows:,} of {name}, timed on {device}, predicted for {report.chip}.")
    data = roofline_data(ready.chip, kernels, measured, ready.basis)
    notes.append("Times of one chip; host work and drafter are not on the roofline.")
    rows = []
    for phase, part in kernels.items():
        total_s = sum(kernel.times * kernel.seconds for kernel in part)
        for kernel in sorted(part, key=lambda kernel: -kernel.times * kernel.seconds):
            share = kernel.times * kernel.seconds / total_s
            each = number(kernel.seconds * 1e6)
            rows.append((phase, kernel.name, kernel.dtype, f"{kernel.times}", each, percent(share), kernel.bound))
    columns = ("phase", "kernel", "format", "count", "each (us)", "of the step", "bound")
    shown = {"kernels": table(columns, rows, numbers_from=3), "basis": rests_on(ready.basis, notes)}
    return shown, {"roofline": roofline_figure(data)}


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""
    register_view(app, NAME, CONTROLS, ("kernels", "basis"), ("roofline",), partial(compute, context))


PAGE = Page("/roofline", "Roofline", layout, register, STEPS)
