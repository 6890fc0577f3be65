"""Attention-level speculation: what two groups of chips gain by context and hit rate, and how sure that is."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import Dash

from dashboards.app import choices
from dashboards.app.context import Context, Page
from dashboards.app.parts import (
    at,
    columns,
    figure_card,
    page_frame,
    remark,
    rests_on,
    select,
    slider,
    with_controls,
)
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.attention_gantt import gantt_data, gantt_figure
from dashboards.figures.attention_map import attention_map_data, attention_map_figure
from dashboards.figures.attention_speculation import (
    GainData,
    gain_figure,
    sensitivity_data,
    sensitivity_figure,
    speedup_data,
    speedup_figure,
    tokens,
)
from simulator.speculation.attention_level import READINGS, compare_layouts, consistency_set, consistency_sets
from simulator.speculation.attention_level.consistency import group_layer
from simulator.studies.alspec import StepPricer, gains
from simulator.studies.alspec import layout as layout_scenario

NAME = "attention"
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
RATES = (0.0, 0.25, 0.5, 0.625, 0.65, 0.75, 0.8, 0.85, 0.875, 0.9, 0.95, 1.0)
TENSOR_PARALLEL = ("2", "4", "8", "16")
BATCHES = (1, 4, 16, 64)
LONG = (8192, 32768, 131072, 524288)
ENGINE = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
STEPS = {"context": CONTEXTS, "rate": RATES}
PUBLISHED = ("set", "reading", "context", "rate")
OWN = ("rate", "chip", "model", "tp", "dtype")


def layout(params: Params, _context: Context) -> Any:
    """The page."""
    sets, chips, models = list(consistency_sets()), choices.chips(), choices.models()
    controls = [
        slider(NAME, "rate", "Hit rate", RATES, params.number("rate", 0, 1, 0.875)),
        slider(NAME, "context", "Context", CONTEXTS, params.number("context", 1, 131072, 131072), "tokens"),
        select(NAME, "set", "Documented parameters", sets, params.choice("set", sets, sets[0])),
        select(NAME, "reading", "What waits for the check", READINGS, params.choice("reading", READINGS, READINGS[0])),
        select(NAME, "chip", "Other chip", chips, params.choice("chip", chips, choices.DEFAULT_CHIP)),
        select(NAME, "model", "Model", models, params.choice("model", models, choices.DEFAULT_MODEL)),
        select(NAME, "tp", "Chips", TENSOR_PARALLEL, params.choice("tp", TENSOR_PARALLEL, "8")),
        select(NAME, "dtype", "Weights", choices.DTYPES, params.choice("dtype", choices.DTYPES, choices.DTYPES[0])),
    ]
    content = [
        message_area(NAME),
        area(NAME, "lead"),
        figure_card(NAME, "map", 420, "Speedup by context and hit rate"),
        figure_card(NAME, "gantt", 540, "What both groups do in a layer that hits and one that misses"),
        columns(
            figure_card(NAME, "speedup", 560, "Speedup by context, with the band of plausible parameters"),
            figure_card(NAME, "sensitivity", 560, "Speedup under other plausible parameters"),
        ),
        message_area(NAME, "own"),
        figure_card(NAME, "gain", 500, "Speedup on another chip by batch and context"),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Attention-level speculation",
        "What a second group of chips gains by running ahead on approximate attention, and how far that is known.",
        with_controls(controls, content),
    )


def compute(_context: Context, values: Values) -> Shown:
    """The documented parameter set at the chosen context and hit rate."""
    parameters = consistency_set(str(values["set"]))
    reading = next(name for name in READINGS if name == values["reading"])
    context, rate = int(at(CONTEXTS, values["context"])), float(at(RATES, values["rate"]))
    found = compare_layouts(parameters, context, rate, reading)
    own = parameters.label.split(":")[0]
    lead = (
        f"At {tokens(context)} tokens and {rate:.1%} hits two groups gain {float(found.speedup):.2f}x, and cut "
        f"what attention adds {float(found.overhead_reduction):.1f}x."
    )
    notes = [
        f"{parameters.description}; {parameters.label}.",
        *(
            f"{name}: {p.what}: {p.value:g} ({p.low:g} to {p.high:g}); {p.source}"
            for name, p in parameters.parameters.items()
        ),
    ]
    gantt = gantt_data(group_layer(parameters, context, parameters.values()), reading, own)
    figures = {
        "map": attention_map_figure(attention_map_data(parameters, CONTEXTS, reading)),
        "gantt": gantt_figure(gantt),
        "speedup": speedup_figure(speedup_data(parameters, reading)),
        "sensitivity": sensitivity_figure(sensitivity_data(parameters, context, rate, reading)),
    }
    return {"lead": remark(lead), "basis": rests_on(own, notes)}, figures


def compute_own(_context: Context, values: Values) -> Shown:
    """The chosen chip and model: all chips in one group against two groups of half of them."""
    chips, chip = int(values["tp"]), str(values["chip"])
    dtype = None if values["dtype"] == choices.DTYPES[0] else str(values["dtype"])
    base = {"model": str(values["model"]), "weights_dtype": dtype, "engine": ENGINE}
    alone = layout_scenario(base, hardware={"chip": chip, "tensor_parallel": chips})
    both = layout_scenario(
        base,
        hardware={"chip": chip, "tensor_parallel": chips // 2, "speculative_parallel": 2},
        attention_speculation={"hit_rate": float(at(RATES, values["rate"]))},
    )
    rows = tuple(gains(alone, both, BATCHES, LONG))
    title = f"{chip}: TP {chips // 2} x SP 2 over TP {chips}"
    basis = StepPricer(both).step(1, CONTEXTS[0]).basis
    return {}, {"gain": gain_figure(GainData(title, str(values["model"]), rows, basis))}


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""
    figures = ("map", "gantt", "speedup", "sensitivity")
    register_view(app, NAME, PUBLISHED, ("lead", "basis"), figures, partial(compute, context))
    register_view(app, NAME, OWN, (), ("gain",), partial(compute_own, context), message_at="own")


PAGE = Page("/attention", "Attention speculation", layout, register, STEPS)
