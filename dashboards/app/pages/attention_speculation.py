"""Attention-level speculation: speedup of two groups of chips by context and hit rate, with its uncertainty."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import plotly.graph_objects as go

from dashboards.app import controls
from dashboards.app.controls import ChoiceField, Number, Values
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.parts import area, figure_card, heading, message_area, remark, rests_on, side_by_side
from dashboards.figures import attention
from dashboards.figures.attention import GainData
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.speculation.attention_level import READINGS, Reading, compare_layouts, consistency_set, consistency_sets
from simulator.speculation.attention_level.consistency import group_layer
from simulator.studies.alspec import ATLAS_CONTEXTS, ATLAS_GROUPS, ATLAS_MODELS, StepPricer, atlas_gains, lever_gains
from simulator.studies.alspec import layout as layout_scenario

MAP_CONTEXTS = controls.CONTEXTS[3:]
RATES = (0.0, 0.25, 0.5, 0.625, 0.65, 0.75, 0.8, 0.85, 0.875, 0.9, 0.95, 1.0)
BATCHES = (1, 4, 16, 64)
TOLERANCES = (0.02, 0.05, 0.1, 0.2, 0.3)
WINDOWS = (64, 128, 256, 512, 1024, 2048)
ENGINE = {"framework": "vllm", "max_num_seqs": 64, "max_num_batched_tokens": 2048}


def compute(_context: Context, values: Values) -> Shown:
    """Figures of the documented parameter set at the chosen context and hit rate."""
    parameters = consistency_set(values["set"])
    reading = next(name for name in READINGS if name == values["reading"])
    context, rate = values["context"], values["rate"]
    comparison = compare_layouts(parameters, context, rate, reading)
    label_start = parameters.label.split(":")[0]
    lead = (
        f"At {attention.token_grid(context)} tokens and {rate:.1%} hits two groups gain "
        f"{float(comparison.speedup):.2f}x, and cut what attention adds {float(comparison.overhead_reduction):.1f}x."
    )
    notes = [
        f"{parameters.description}; {parameters.label}.",
        *(
            f"{name}: {p.what}: {p.value:g} ({p.low:g} to {p.high:g}); {p.source}"
            for name, p in parameters.parameters.items()
        ),
    ]
    gain_map, gains = _over_contexts(values["set"], reading)
    return {
        "lead": remark(lead),
        "basis": rests_on(label_start, notes),
        "map": gain_map,
        "gantt": _gantt(values["set"], reading, context),
        "speedup": gains,
        "sensitivity": attention.sensitivity_figure(attention.sensitivity_data(parameters, context, rate, reading)),
    }


@lru_cache(maxsize=16)
def _over_contexts(name: str, reading: Reading) -> tuple[go.Figure, go.Figure]:
    """Map and curves over contexts and hit rates; they do not depend on the chosen context and hit rate."""
    parameters = consistency_set(name)
    data = attention.attention_map_data(parameters, MAP_CONTEXTS, reading)
    curves = attention.context_gain_data(parameters, reading)
    return attention.attention_map_figure(data), attention.context_gain_figure(curves)


@lru_cache(maxsize=16)
def _gantt(name: str, reading: Reading, context: int) -> go.Figure:
    parameters = consistency_set(name)
    layer = group_layer(parameters, context, parameters.values())
    return attention.gantt_figure(attention.gantt_data(layer, reading, parameters.label.split(":")[0]))


def compute_own(_context: Context, values: Values) -> Shown:
    """Figures of the chosen chip and model: two groups of half the chips each against one group of all."""
    chips, chip = int(values["tp"]), values["chip"]
    base = {"model": values["model"], **controls.weights_of(values), "engine": ENGINE}
    unsplit = StepPricer(layout_scenario(base, hardware={"chip": chip, "tensor_parallel": chips}))
    both = StepPricer(
        layout_scenario(
            base,
            hardware={"chip": chip, "tensor_parallel": chips // 2, "speculative_parallel": 2},
            attention_speculation={"hit_rate": values["rate"]},
        )
    )
    (rows,) = lever_gains([unsplit], both, BATCHES, ATLAS_CONTEXTS)
    fitting = tuple(row for row in rows if row.fits)
    if not fitting:
        raise ForerunError(f"{chip}: the KV of {values['model']} does not fit on {chips} chips; choose more of them")
    title = f"{chip}: TP {chips // 2} x SP 2 over TP {chips}"
    words = attention.region_words({"gains": [row._asdict() for row in rows]}, BATCHES[0])
    sentence = (
        f"On {chips} {chip}, attention-level speculation {words} "
        f"({values['model']}, batch {BATCHES[0]}, {values['rate']:.1%} of the layers hit)."
    )
    figure = attention.gain_figure(GainData(title, values["model"], fitting, both.basis))
    return {"own-lead": remark(sentence), "gain": figure}


@lru_cache(maxsize=64)
def _fitting(chip: str, batch: int, tolerance: float, window: int) -> tuple[Json, ...]:
    """Layouts of the atlas whose KV fits at some context, with their gains; cached, because pricing takes seconds."""
    levers = {"lambda": tolerance, "window_tokens": window, "speculation": None}
    layouts = [{"chip": chip, "model": m, "chips": n} | levers for m, n in product(ATLAS_MODELS, ATLAS_GROUPS)]
    priced = (case for one in layouts for case in atlas_gains([one], [batch]) if "gains" in case)
    return tuple(case for case in priced if any(row["fits"] for row in case["gains"]))


def compute_atlas(_context: Context, values: Values) -> Shown:
    """Figures of every model of the atlas on the chosen chip, in groups of several sizes."""
    chip, batch = values["chip"], values["batch"]
    fitting = _fitting(chip, batch, values["lambda"], values["window"])
    if not fitting:
        raise ForerunError(f"{chip}: no model of the atlas fits with its KV at batch {batch}; choose a smaller one")
    names = [f"{case['model']} · {case['chips']}" for case in fitting]
    title = f"{chip}: two groups over the fastest one"
    caption = f"gsm8k's hits at lambda {values['lambda']:g}, S = {values['window']}, batch {batch}"
    data = attention.atlas_data(fitting, names, batch, title, caption)
    best = int(np.argmax(np.nanmax(data.speedup, axis=1)))
    paying = int(np.sum(np.nanmax(data.speedup, axis=1) >= attention.PAYS))
    words = (
        f"It pays in {paying} of {len(fitting)} layouts (model · chips) of {chip} that hold their KV. The most gains "
        f"{names[best]} chips: {attention.region_words(fitting[best], batch)}."
    )
    return {"regions": remark(words), "atlas": attention.atlas_figure(data)}


PAGE = Page(
    "attention",
    "Attention speculation",
    "What a second group of chips gains by running ahead on approximate attention, and how far that is known.",
    [
        replace(controls.CHIP, default="n150"),
        controls.MODEL,
    ],
    [
        message_area("own"),
        area("own-lead"),
        figure_card("gain", 500, "Speedup on this chip by batch and context"),
        heading("Every model on this chip"),
        message_area("everywhere"),
        area("regions"),
        figure_card("atlas", 780, "Where it pays on this chip, by model, number of chips and context", least=760),
        heading("The published case: eight n150"),
        area("lead"),
        figure_card("map", 420, "Speedup by context and hit rate"),
        figure_card("gantt", 540, "What both groups do in a layer that hits and one that misses"),
        side_by_side(
            figure_card("speedup", 560, "Speedup by context, with the band of plausible parameters"),
            figure_card("sensitivity", 560, "Speedup under other plausible parameters"),
        ),
        area("basis"),
    ],
    [
        View(
            compute,
            ("set", "reading", "context", "rate"),
            ("lead", "basis"),
            ("map", "gantt", "speedup", "sensitivity"),
        ),
        View(compute_own, ("rate", "chip", "model", "tp", "dtype"), ("own-lead",), ("gain",), message_at="own"),
        View(compute_atlas, ("chip", "lambda", "window", "batch"), ("regions",), ("atlas",), message_at="everywhere"),
    ],
    title="Attention-level speculation",
    folded=[
        replace(controls.TENSOR_PARALLEL, label="Chips", options=("2", "4", "8", "16"), default="8"),
        Number("rate", "Hit rate", stops=RATES, default=0.875, high=1.0, whole=False),
        controls.WEIGHTS,
        Number("lambda", "Map: lambda", stops=TOLERANCES, default=0.1, low=0.01, high=1.0, whole=False),
        Number("window", "Map: S", stops=WINDOWS, default=128, unit="tokens", low=16, high=8192),
        Number("batch", "Map: batch", stops=BATCHES[:3], default=1, unit="sequences", low=1, high=16),
        Number("context", "Context", stops=MAP_CONTEXTS, default=131072, unit="tokens", low=256, high=2**20),
        ChoiceField("set", "Documented parameters", options=lambda _: list(consistency_sets())),
        ChoiceField("reading", "What waits for the check", options=READINGS),
    ],
)
