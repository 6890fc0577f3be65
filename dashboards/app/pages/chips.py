"""Chips page: throughput and cost over the speed of one user, for many chips, without a plan."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.app import controls
from dashboards.app.controls import Several, Values
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.parts import area, figure_card, remark, rests_on, table_panel
from dashboards.figures.studies import AXIS_WORDS, PER_CHIP, PER_MILLION, PER_USER
from dashboards.theme import RUN_COLOURS, Look, add_line, captioned
from forerun.errors import ForerunError
from forerun.tables import Table, number
from hwprofiles import load_chip, weakest
from simulator.running.scenario import scenario_from
from simulator.studies.steady_state.estimate import steady_parts

DEFAULTS = ("h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "mi355x", "l40s")
STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DASHES = ("solid", "dash", "dot")


class ChipCurve(NamedTuple):
    """Points of a chip over concurrent requests per replica."""

    chips: int
    """Chips of one replica: the fewest of 1, 2, 4, 8 that hold the model."""
    per_user: tuple[float, ...]
    """Output tokens per second of one user."""
    per_chip: tuple[float, ...]
    usd: tuple[float | None, ...]
    """US dollars per million output tokens."""
    basis: str


@lru_cache(maxsize=256)
def chip_curve(model: str, chip: str, prompt: float, output: float, dtype: str | None) -> ChipCurve:
    """Steady states of one replica with a constant number of concurrent requests; an error if no replica fits."""
    price, reason = load_chip(chip).price, ""
    for chips in (1, 2, 4, 8):
        hardware = {"chip": chip, "tensor_parallel": chips}
        workload = controls.poisson_workload({"prompt": prompt, "output": output}, 1.0, 500)
        data = {"model": model, "hardware": hardware, "workload": workload}
        try:
            build, lengths, steady = steady_parts(
                scenario_from(data | ({"weights_dtype": dtype} if dtype else {}), chip)
            )
        except ForerunError as error:
            reason = str(error)
            continue
        averages = [steady.closed_loop(streams) for streams in STREAMS if streams <= steady.most]
        known = [(one.tpot_s, one.rate * lengths.output_tokens.mean() / chips) for one in averages if one.tpot_s]
        usd = None if price is None else price.usd_per_hour
        cost = tuple(None if usd is None else usd / rate / 3600 * 1e6 for _, rate in known)
        users, rates = tuple(1 / tpot for tpot, _ in known), tuple(float(rate) for _, rate in known)
        return ChipCurve(chips, users, rates, cost, build.basis)
    raise ForerunError(f"{chip}: {reason}")


def chips_figure(curves: dict[str, ChipCurve], title: str) -> go.Figure:
    """Throughput per chip above, and cost below, over the speed of one user; a line per chip."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    for index, (name, curve) in enumerate(curves.items()):
        colour, dash = RUN_COLOURS[index % len(RUN_COLOURS)], DASHES[index // len(RUN_COLOURS) % len(DASHES)]
        for row, values in enumerate((curve.per_chip, curve.usd), start=1):
            look: Look = {
                "mode": "lines+markers",
                "line": {"color": colour, "width": 2, "dash": dash},
                "legendgroup": name,
            }
            hover = "%{y:.4g} at %{x:.3g} tokens/s per user"
            add_line(figure, curve.per_user, values, name, colour, hover, **look, showlegend=row == 1, row=row, col=1)
    for row, metric in enumerate((PER_CHIP, PER_MILLION), start=1):
        figure.update_yaxes(title=AXIS_WORDS[metric], type="log", tickformat="~s" if row == 1 else "~g", row=row, col=1)
    figure.update_xaxes(title=AXIS_WORDS[PER_USER], row=2, col=1)
    caption = f"{title}; points: 1, 2, 4 ... concurrent requests on one replica"
    basis = weakest([curve.basis for curve in curves.values()])
    return captioned(figure, "Throughput and cost over interactivity", caption, basis, 720, hovermode="closest")


def compute(context: Context, values: Values) -> Shown:
    """Curves of the chosen chips, the best figures of each, and the chips that cannot hold the model."""
    curves, notes = dict[str, ChipCurve](), []
    dtype = controls.weights_of(values).get("weights_dtype")
    for chip in values["chips"]:
        try:
            curve = chip_curve(values["model"], chip, values["prompt"], values["output"], dtype)
            curves[f"{chip} TP{curve.chips}"] = curve
        except ForerunError as error:
            notes.append(str(error))
    if not curves:
        raise ForerunError(notes[0])
    cheapest = {name: min(curve.usd) for name, curve in curves.items() if None not in curve.usd}  # type: ignore[type-var]
    words = f"At most throughput: {max(curves, key=lambda name: max(curves[name].per_chip))}"
    words += f"; at least cost: {min(cheapest, key=lambda name: cheapest[name] or 0.0)}" if cheapest else ""
    words += f"; fastest for one user: {max(curves, key=lambda name: max(curves[name].per_user))}."
    rows = [(name, max(one.per_chip), max(one.per_user), cheapest.get(name), one.basis) for name, one in curves.items()]
    columns = ("", "most tokens/s per chip", "most tokens/s per user", "least $/Mtok", "basis")
    title = f"{values['model']}, {number(values['prompt'])} in, {number(values['output'])} out"
    return {
        "lead": remark(words),
        "table": table_panel(Table("Best of each chip, each at a load of its own", columns, rows)),
        "basis": rests_on(weakest([curve.basis for curve in curves.values()]), notes),
        "curves": chips_figure(curves, title),
    }


PAGE = Page(
    "chips",
    "Chips",
    "Throughput over the speed that one user sees, for many chips in one chart, with the cost below.",
    [
        controls.MODEL,
        controls.PROMPT,
        controls.OUTPUT,
        controls.WEIGHTS,
        Several("chips", "Chips", options=controls.CHIP.options, defaults=DEFAULTS, most=60),
    ],
    [
        area("lead"),
        figure_card("curves", 720, "Tokens per second per chip, and cost, over tokens per second per user"),
        area("table"),
        area("basis"),
    ],
    [View(compute, ("model", "prompt", "output", "dtype", "chips"), ("lead", "table", "basis"), ("curves",))],
)
