"""Replay: predictions beside measured kernels, served runs and engine steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output

from dashboards.app import choices, job_panel
from dashboards.app.context import Context, Page
from dashboards.app.parts import (
    card,
    columns,
    control_id,
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
from dashboards.app.served_replays import MOST_RUNS, document_of, replay_task, shown_replay
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.parity import error_data, error_figure, parity_data, parity_figure
from dashboards.figures.scores import coverage_figure, scores_data, scores_figure
from dashboards.figures.serving_parity import METRIC_WORDS
from dashboards.report_parts import ABSENT, number
from hwprofiles import ProfileError
from simulator.errors import ForerunError
from simulator.replay import ReplayReport, report_document
from traces import TraceError

NAME = "replay"
KERNELS, SERVED = "kernels", "served runs and engine steps"
VIEWS = (KERNELS, SERVED)
KERNEL_CONTROLS = ("trace", "chip", "library", "device", "layer")
SERVED_CONTROLS = ("replay", "file", "model", "runs-chip", "framework", "tp")
CONTROLS = ("view", *KERNEL_CONTROLS, "replay")
ASKED = ("file", "model", "runs-chip", "framework", "tp")
FRAMEWORKS = ("vllm", "sglang", "trtllm", "generic")
LIBRARIES = ("generic", "vllm", "sglang", "trtllm", "nccl")
AREAS = ("tiles", "worst", "skipped", "basis")
FIGURES = ("parity", "errors", "scores", "coverage")
STEP = "step_ms"
SERVED_FIGURES = tuple(METRIC_WORDS)


def layout(params: Params, context: Context) -> Any:
    """The page."""
    traces, chips = list(context.served.traces()), choices.chips_and_sample()
    trace = params.choice("trace", traces, SAMPLE_TRACE)
    known = _devices(context, trace)
    replays, files = list(context.served.replays()), list(context.served.measured())
    models, catalogue = choices.models(), choices.chips()
    view = params.choice("view", VIEWS, KERNELS)
    controls = [
        select(NAME, "view", "What is replayed", VIEWS, view),
        select(NAME, "trace", "Kernel trace", traces, trace),
        select(NAME, "chip", "Chip", chips, params.choice("chip", chips, SAMPLE_CHIP)),
        select(NAME, "library", "Kernel library", LIBRARIES, params.choice("library", LIBRARIES, "generic")),
        select(NAME, "device", "Device in the trace", known, params.choice_or_none("device", known, _first(known))),
        select(NAME, "layer", "Prediction", LAYERS, params.choice("layer", LAYERS, LAYERS[0])),
        select(
            NAME,
            "replay",
            "Replay",
            replays,
            params.choice_or_none("replay", replays, replays[0] if replays else None),
            placeholder="none made yet",
        ),
        dmc.Box(
            [
                dmc.Divider(label="Make another", mb="sm"),
                dmc.Text(f"What the file does not tell; at most {MOST_RUNS} of its runs.", size="xs", c="dimmed"),
            ],
            id=control_id(NAME, "make"),
        ),
        select(
            NAME,
            "file",
            "Measured runs or steps",
            files,
            params.choice_or_none("file", files, files[0] if files else None),
            placeholder="none in the served folders",
        ),
        select(NAME, "model", "Model", models, params.choice("model", models, choices.DEFAULT_MODEL)),
        select(NAME, "runs-chip", "Chip", catalogue, params.choice("runs-chip", catalogue, choices.DEFAULT_CHIP)),
        select(NAME, "framework", "Engine", FRAMEWORKS, params.choice("framework", FRAMEWORKS, FRAMEWORKS[0])),
        select(
            NAME, "tp", "Tensor parallel", choices.TENSOR_PARALLEL, params.choice("tp", choices.TENSOR_PARALLEL, "1")
        ),
        dmc.Box(
            [
                dmc.Button("Replay this file", id={"kind": "replay", "page": NAME}, fullWidth=True),
                area(NAME, "started"),
                job_panel.job_panel(NAME),
            ],
            id=control_id(NAME, "begin"),
        ),
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
        columns(
            *(
                figure_card(NAME, metric, 480, f"{words[0]}, predicted against measured")
                for metric, words in METRIC_WORDS.items()
                if metric != STEP
            )
        ),
        figure_card(NAME, STEP, 560, "Engine steps, predicted against measured"),
        area(NAME, "worst"),
        area(NAME, "skipped"),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Replay",
        "How far predictions are from measurements: kernels, served runs and engine steps of the served folders.",
        with_controls(controls, content),
    )


def compute(context: Context, values: Values) -> Shown:
    """The replay of the chosen trace, or of the chosen served runs or steps."""
    if values["view"] == SERVED:
        return compute_served(context, values)
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
        "worst": card("Worst rows", _worst(report)),
        "skipped": card("Rows that are not scored", _skipped(report)),
        "basis": rests_on(report.basis, notes),
    }
    figures = {
        "parity": parity_figure(parity_data(report)),
        "errors": error_figure(error_data(report)),
        "scores": scores_figure(scores),
        "coverage": coverage_figure(scores) if covered else None,
    }
    return shown, figures


def compute_served(context: Context, values: Values) -> Shown:
    """A replay of served runs or engine steps."""
    if not values["replay"]:
        raise ForerunError(
            "There is no replay here yet: forerun replay requests FILE --scenario SCENARIO --out DIR makes one, "
            "or press Replay this file."
        )
    document = document_of(context.served, str(values["replay"]))
    shown, figures = shown_replay(document)
    scenario = document["scenario"]
    sources = ", ".join(str(source).rpartition("/")[2] for source in document["sources"])
    notes = [
        f"Measured: {sources}; what it does not tell is from {scenario['model']} on {scenario['hardware']['chip']}.",
        f"Forerun {document['version']}; the dotted lines are 20 % off.",
    ]
    if document.get("split"):
        notes.append("Only configurations held out from any fit are scored.")
    return {**shown, "basis": rests_on(document["basis"], notes)}, figures


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""

    def make(given: Values) -> job_panel.Asked:
        label, model, chip, framework, tp = given.values()
        task = replay_task(context.served, str(label or ""), str(model), str(chip), str(framework), int(tp))
        return task, f"replay {task.file.stem}"

    def which_controls(view: str | None) -> list[dict[str, str]]:
        hidden = {"display": "none"}
        served = view == SERVED
        parts = [hidden if served else {} for _ in KERNEL_CONTROLS]
        return [*parts, *({} if served else hidden for _ in (*SERVED_CONTROLS, "make", "begin"))]

    def known_devices(trace: str | None, before: str | None) -> tuple[list[str], str | None]:
        known = _devices(context, str(trace or ""))
        return known, before if before in known else _first(known)

    app.callback(
        Output(state_id(NAME, "device"), "data"),
        Output(state_id(NAME, "device"), "value"),
        Input(state_id(NAME, "trace"), "value"),
        Input(state_id(NAME, "device"), "value"),
        prevent_initial_call=True,
    )(known_devices)
    register_view(app, NAME, CONTROLS, AREAS, (*FIGURES, *SERVED_FIGURES), partial(compute, context))
    app.callback(
        [Output(control_id(NAME, name), "style") for name in (*KERNEL_CONTROLS, *SERVED_CONTROLS, "make", "begin")],
        Input(state_id(NAME, "view"), "value"),
    )(which_controls)
    job_panel.register_start(app, context, NAME, "replay", ASKED, make)
    job_panel.register_finished(app, NAME, "replay", context.served.replays)


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
        times = (number(row[key] * 1e6) for key in ("measured_s", "predicted_s"))
        rows.append((row["op"], row["dtype"], shape, f"{row['ape']:.1f}", *times, row["regime"]))
    heads = ("op", "format", "shape", "error (%)", "measured (us)", "predicted (us)", "regime")
    return table(heads, rows, numbers_from=3)


def _skipped(report: ReplayReport) -> Any:
    if not report.skipped:
        return remark("Every row of the trace is scored.")
    return table(("reason", "rows"), [(reason, f"{rows:,}") for reason, rows in report.skipped.items()])


PAGE = Page("/replay", "Replay", layout, register)
