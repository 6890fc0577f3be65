"""Replay page: predictions compared with measured kernels, benchmark results and engine steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dash_mantine_components as dmc
from dash import Dash, Input, Output

from dashboards.app import controls, replays
from dashboards.app.controls import ChoiceField, Component, Values
from dashboards.app.job_panel import job_panel
from dashboards.app.jobs import Task
from dashboards.app.page import Context, Page, Shown, Start, View, show_while
from dashboards.app.parts import area, figure_card, fold, remark, rests_on, side_by_side, table_stack, tiles
from dashboards.app.served import SAMPLE_CHIP, SAMPLE_TRACE, ServedFolders
from dashboards.figures.replays import coverage_figure, errors_figure, scores_data, scores_figure
from dashboards.recorded_errors import error_tables, error_tiles, errors_sentence, summary_table
from dashboards.replay_report import replay_figures, replay_tables, replay_tiles
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.replay import ReplayReport
from simulator.replay.replay_tables import METRIC_WORDS

NAME = "replay"
VIEWS = ("errors on record", "kernels", "benchmark results and engine steps")
KERNEL_CONTROLS = ("trace", "chip", "library", "device", "layer")
FIELDS = ("file", "model", "runs-chip", "framework", "tp")
STEP = "step_ms"
ON_KERNELS = ("view", lambda view: view == VIEWS[1])
ON_SERVED = ("view", lambda view: view == VIEWS[2])


def devices_of(served: ServedFolders, trace: object) -> list[str]:
    """Devices in a trace; empty if the trace cannot be read (the view of the trace shows the error)."""
    try:
        return replays.devices(served, str(trace or ""))
    except (ForerunError, OSError):
        return []


def known_devices(served: ServedFolders) -> list[str]:
    return sorted({device for trace in served.traces() for device in devices_of(served, trace)})


def made_here(page: str) -> Component:
    """Heading of the controls for computing a new replay."""
    legend = f"What the file does not tell; at most {replays.MOST_RUNS} of its runs."
    parts = [dmc.Divider(label="Make another", mb="sm"), dmc.Text(legend, size="xs", className="muted")]
    return dmc.Box(parts, id=controls.control_id(page, "make"))


def button(page: str) -> Component:
    start = dmc.Button("Replay this file", id={"kind": "replay", "page": page}, fullWidth=True)
    return dmc.Box(start, id=controls.control_id(page, "begin"))


def compute(context: Context, values: Values) -> Shown:
    """The recorded errors, the replay of the chosen trace, or the replay of the chosen benchmark results or steps."""
    if values["view"] == VIEWS[2]:
        return compute_served(context, values)
    return compute_kernels(context, values) if values["view"] == VIEWS[1] else compute_record()


def compute_record() -> Shown:
    """Recorded errors of predictions by predicted quantity, with the name of the worst comparison of each quantity."""
    rows = replays.record()
    notes = [
        f"Scored by python -m validation all; the last on {max(row.date for row in rows)}.",
        "A dot is one comparison: a table of benchmark results or kernels, or a publication. Nothing is left out.",
        "datasheet, extrapolated: no kernel of that chip, format or shape had been measured when it was scored.",
    ]
    return {
        "lead": remark(errors_sentence(rows)),
        "tiles": tiles(error_tiles(rows)),
        "tables": [table_stack([summary_table(rows)]), fold("Every comparison", [table_stack(error_tables(rows))])],
        "basis": rests_on("measured", notes),
        "record": errors_figure(rows),
    }


def compute_kernels(context: Context, values: Values) -> Shown:
    # The list of devices follows the trace a moment later.
    known = devices_of(context.served, values["trace"])
    device = values["device"] if values["device"] in known else next(iter(known), None)
    report = replays.replayed(
        context.served, values["trace"], values["chip"], values["library"], device, values["layer"]
    )
    scores = scores_data(report)
    covered = any(group.coverage90 is not None for group in scores.groups)
    notes = [f"Trace: {Path(report.source).name}; chip: {report.chip}; kernel library: {report.library}."]
    if values["layer"] == replays.FITTED:
        notes.append("Rows that the fit has seen are not scored.")
    elif report.basis == "calibrated":
        notes.append("Rows may be among those that the chip's efficiencies were fitted on; see forerun replay --split.")
    if not covered:
        notes.append("No prediction here has an interval, so there is no coverage to show.")
    shown = {
        **_shown(report.document, report),
        "scores": scores_figure(scores),
        "coverage": coverage_figure(scores) if covered else None,
        "basis": rests_on(report.basis, notes),
    }
    if values["layer"] == replays.PHYSICS and report.basis == "datasheet":
        words = (
            "This profile has no measurement behind it, so its kernels run at the datasheet's limits: predictions are"
        )
        shown["lead"] = remark(
            f"{words} too fast. Prediction: '{replays.FITTED}' shows what calibrating on a trace makes of it."
        )
    return shown


def compute_served(context: Context, values: Values) -> Shown:
    """A replay of benchmark results or engine steps."""
    if not values["replay"]:
        words = "There is no replay here yet: forerun replay requests FILE --scenario SCENARIO --out DIR makes one, "
        return {"lead": remark(words + "or press Replay this file."), "basis": rests_on(None)}
    document = context.served.replay(values["replay"])
    scenario = document["scenario"]
    sources = ", ".join(str(source).rpartition("/")[2] for source in document["sources"])
    notes = [
        f"Measured: {sources}; what it does not tell is from {scenario['model']} on {scenario['hardware']['chip']}.",
        f"Forerun {document['version']}; the dotted lines are 20 % off.",
    ]
    if document.get("split"):
        notes.append("Only configurations held out from any fit are scored.")
    return {**_shown(document), "basis": rests_on(document["basis"], notes)}


def _shown(document: Json, report: ReplayReport | None = None) -> Json:
    figures = replay_figures(document, report)
    return {"tiles": tiles(replay_tiles(document)), "tables": table_stack(replay_tables(document)), **figures}


def make_replay(context: Context, values: Values) -> tuple[Task, str]:
    label, model, chip, framework, tp = (values[name] for name in FIELDS)
    task = replays.replay_task(context.served, str(label or ""), model, chip, framework, int(tp))
    return task, f"replay {task.file.stem}"


def replay_details(app: Dash, context: Context) -> None:
    """Register callbacks for the devices of the chosen trace, and for showing the boxes of a new replay."""

    def devices_now(trace: str | None, before: str | None) -> tuple[list[str], str | None]:
        known = devices_of(context.served, trace)
        return known, before if before in known else next(iter(known), None)

    app.callback(
        Output(controls.state_id(NAME, "device"), "data"),
        Output(controls.state_id(NAME, "device"), "value"),
        Input(controls.state_id(NAME, "trace"), "value"),
        Input(controls.state_id(NAME, "device"), "value"),
        prevent_initial_call=True,
    )(devices_now)
    for box in ("make", "begin"):
        show_while(app, NAME, box, *ON_SERVED)


PAGE = Page(
    NAME,
    "Replay",
    "How far predictions are from measurements: kernels, benchmark results and engine steps of the served folders.",
    [
        ChoiceField("view", "What is replayed", options=lambda _: VIEWS if replays.record() else VIEWS[1:]),
        ChoiceField(
            "trace", "Kernel trace", ON_KERNELS, options=lambda served: list(served.traces()), default=SAMPLE_TRACE
        ),
        replace(controls.ANY_CHIP, default=SAMPLE_CHIP, when=ON_KERNELS),
        ChoiceField("library", "Kernel library", ON_KERNELS, options=("generic", "vllm", "sglang", "trtllm", "nccl")),
        ChoiceField("device", "Device in the trace", ON_KERNELS, options=known_devices),
        ChoiceField("layer", "Prediction", ON_KERNELS, options=replays.LAYERS),
        ChoiceField(
            "replay", "Replay", ON_SERVED, options=lambda served: list(served.replays()), placeholder="none made yet"
        ),
        made_here,
        ChoiceField(
            "file",
            "Measured runs or steps",
            ON_SERVED,
            options=lambda served: list(served.measured()),
            placeholder="none in the served folders",
        ),
        replace(controls.MODEL, when=ON_SERVED),
        replace(controls.CHIP, name="runs-chip", when=ON_SERVED),
        ChoiceField("framework", "Engine", ON_SERVED, options=("vllm", "sglang", "trtllm", "tt-metal", "generic")),
        replace(controls.TENSOR_PARALLEL, when=ON_SERVED),
        button,
    ],
    [
        job_panel,
        *map(area, ("lead", "tiles")),
        figure_card("record", 1060, "Errors on record by what was predicted"),
        side_by_side(
            figure_card("parity", 560, "Predicted against measured seconds"),
            figure_card("errors", 560, "Distribution of errors by operation"),
        ),
        figure_card("scores", 480, "Errors by operation and regime"),
        figure_card("coverage", 480, "Share of measurements inside their interval"),
        side_by_side(
            *(
                figure_card(metric, 480, f"{words[0]}, predicted against measured")
                for metric, words in METRIC_WORDS.items()
                if metric != STEP
            )
        ),
        figure_card(STEP, 560, "Engine steps, predicted against measured"),
        *map(area, ("tables", "basis")),
    ],
    [
        View(
            compute,
            ("view", *KERNEL_CONTROLS, "replay"),
            ("lead", "tiles", "tables", "basis"),
            ("record", "parity", "errors", "scores", "coverage", *METRIC_WORDS),
        )
    ],
    [Start("replay", FIELDS, make_replay, "replay")],
    replay_details,
)
