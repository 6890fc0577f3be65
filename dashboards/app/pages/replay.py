"""Replay: predictions beside measured kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import Dash, Input, Output

from dashboards.app import choices
from dashboards.app.context import Context, Page
from dashboards.app.parts import (
    card,
    columns,
    figure_card,
    page_frame,
    remark,
    rests_on,
    select,
    state_id,
    table,
    tiles,
    with_controls,
)
from dashboards.app.replays import FITTED, LAYERS, devices, replayed
from dashboards.app.served import SAMPLE_CHIP, SAMPLE_TRACE
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.parity import error_data, error_figure, parity_data, parity_figure
from dashboards.figures.scores import coverage_figure, scores_data, scores_figure
from dashboards.report_parts import ABSENT, number
from hwprofiles import ProfileError
from simulator.errors import ForerunError
from simulator.replay import ReplayReport, report_document
from traces import TraceError

NAME = "replay"
CONTROLS = ("trace", "chip", "library", "device", "layer")
LIBRARIES = ("generic", "vllm", "sglang", "trtllm", "nccl")
AREAS = ("tiles", "worst", "skipped", "basis")
FIGURES = ("parity", "errors", "scores", "coverage")


def layout(params: Params, context: Context) -> Any:
    """The page."""
    traces, chips = list(context.served.traces()), choices.chips_and_sample()
    trace = params.choice("trace", traces, SAMPLE_TRACE)
    known = _devices(context, trace)
    controls = [
        select(NAME, "trace", "Kernel trace", traces, trace),
        select(NAME, "chip", "Chip", chips, params.choice("chip", chips, SAMPLE_CHIP)),
        select(NAME, "library", "Kernel library", LIBRARIES, params.choice("library", LIBRARIES, "generic")),
        select(NAME, "device", "Device in the trace", known, params.choice_or_none("device", known, _first(known))),
        select(NAME, "layer", "Prediction", LAYERS, params.choice("layer", LAYERS, LAYERS[0])),
    ]
    content = [
        message_area(NAME),
        area(NAME, "tiles"),
        columns(
            figure_card(NAME, "parity", 560, "Predicted against measured seconds"),
            figure_card(NAME, "errors", 560, "Distribution of errors by operation"),
        ),
        figure_card(NAME, "scores", 480, "Errors by operation and regime"),
        figure_card(NAME, "coverage", 480, "Share of measurements inside their interval"),
        card("Worst rows", area(NAME, "worst")),
        card("Rows that are not scored", area(NAME, "skipped")),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Replay",
        "How far predictions are from measured kernels: traces of the served folders, and one that ships.",
        with_controls(controls, content),
    )


def compute(context: Context, values: Values) -> Shown:
    """The replay of the chosen trace."""
    device = values["device"] or None
    report = replayed(
        context.served,
        str(values["trace"]),
        str(values["chip"]),
        str(values["library"]),
        device,
        str(values["layer"]),
    )
    scores = scores_data(report)
    covered = any(bar.coverage90 is not None for bar in scores.bars)
    notes = [f"Trace: {report.source.split('/')[-1]}; chip: {report.chip}; kernel library: {report.library}."]
    if values["layer"] == FITTED:
        notes.append("Rows that the fit has seen are not scored.")
    elif report.basis == "calibrated":
        notes.append("Rows may be among those that the chip's efficiencies were fitted on; see forerun replay --split.")
    if not covered:
        notes.append("No prediction here has an interval, so there is no coverage to show.")
    shown = {
        "tiles": _tiles(report),
        "worst": _worst(report),
        "skipped": _skipped(report),
        "basis": rests_on(report.basis, notes),
    }
    figures = {
        "parity": parity_figure(parity_data(report)),
        "errors": error_figure(error_data(report)),
        "scores": scores_figure(scores),
        "coverage": coverage_figure(scores) if covered else None,
    }
    return shown, figures


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""

    def known_devices(trace: str | None, before: str | None) -> tuple[list[str], str | None]:
        known = _devices(context, trace or "")
        return known, before if before in known else _first(known)

    app.callback(
        Output(state_id(NAME, "device"), "data"),
        Output(state_id(NAME, "device"), "value"),
        Input(state_id(NAME, "trace"), "value"),
        Input(state_id(NAME, "device"), "value"),
        prevent_initial_call=True,
    )(known_devices)
    register_view(app, NAME, CONTROLS, AREAS, FIGURES, partial(compute, context))


def _devices(context: Context, trace: str) -> list[str]:
    try:
        return devices(context.served, trace)
    except (ForerunError, TraceError, ProfileError, OSError):
        return []


def _first(names: list[str]) -> str | None:
    return names[0] if names else None


def _tiles(report: ReplayReport) -> Any:
    score = report.overall
    coverage = ABSENT if score.coverage90 is None else f"{score.coverage90:.0f}"
    return tiles(
        [
            ("Rows scored", f"{score.n:,}", "", f"{sum(report.skipped.values()):,} not scored"),
            ("Mean error", number(score.mape, 3), "%", "MAPE"),
            ("Median error", number(score.median_ape, 3), "%", "of the measurement"),
            ("p90 error", number(score.p90_ape, 3), "%", "nine of ten are below"),
            ("Bias", f"{score.bias:+.1f}", "%", "predicted over measured"),
            ("Coverage", coverage, "%" if score.coverage90 is not None else "", "of the 90 % interval"),
        ]
    )


def _worst(report: ReplayReport) -> Any:
    hidden = ("op", "dtype", "measured_s", "predicted_s", "ape", "basis", "regime", "library", "cache", "device")
    rows = []
    for row in report_document(report)["worst"]:
        shape = " ".join(f"{key}={row[key]}" for key in row if key not in (*hidden, "source", "name"))
        times = (f"{row[key] * 1e6:,.4g}" for key in ("measured_s", "predicted_s"))
        rows.append((row["op"], row["dtype"], f"{row['ape']:.1f}", *times, row["regime"], row["basis"], shape))
    heads = ("op", "format", "error (%)", "measured (us)", "predicted (us)", "regime", "basis", "shape")
    return table(heads, rows, numbers_from=2)


def _skipped(report: ReplayReport) -> Any:
    if not report.skipped:
        return remark("Every row of the trace is scored.")
    return table(("reason", "rows"), [(reason, f"{rows:,}") for reason, rows in report.skipped.items()])


PAGE = Page("/replay", "Replay", layout, register)
