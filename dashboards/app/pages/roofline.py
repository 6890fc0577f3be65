"""Roofline page: predicted kernels of one prefill, decode and verify step, and measured kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dashboards.app import controls
from dashboards.app.controls import ChoiceField, Number, Values
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.parts import area, figure_card, remark, rests_on, table_panel
from dashboards.app.replays import replayed
from dashboards.figures.roofline import measured_points, roofline_data, roofline_figure
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.tables import Table, number, percent
from hwprofiles import Chip
from simulator.running.build import build_replica
from simulator.running.scenario import scenario_from
from simulator.studies.steady_state.prices import decode_steps, prompt_chunks
from simulator.timing import Kernel, ModelTimer, StepTimer, running, some_steps

NO_TRACE = "none"
MOST_STEP_TOKENS = 16384


class Priced(NamedTuple):
    """A model on its chips with a step timer."""

    timer: StepTimer
    chip: Chip
    basis: str
    notes: tuple[str, ...]


@lru_cache(maxsize=16)
def priced_kernels(model: str, chip: str, tensor_parallel: int, dtype: str | None) -> Priced:
    """The step timer of a deployment."""
    data: Json = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": tensor_parallel},
        "engine": {"max_num_batched_tokens": MOST_STEP_TOKENS, "max_num_seqs": 512},
        "workload": controls.ONE_REQUEST,
    }
    scenario = scenario_from(data | ({"weights_dtype": dtype} if dtype else {}), "deployment")
    build = build_replica(scenario, 0)
    timer = build.main.timer
    if not isinstance(timer, ModelTimer):
        raise ForerunError("deployment: its timer does not say what its kernels are")
    return Priced(timer.target, timer.target.deployment.chip, build.basis, build.notes)


def phases(ready: Priced, batch: int, context: int, draft_tokens: int, prompt_tokens: int) -> dict[str, list[Kernel]]:
    """Kernels of a step that prefills a prompt, of one that decodes, and of one that verifies draft tokens."""
    windows = ready.timer.windows
    contexts = np.array([context])
    work = {
        "prefill": prompt_chunks(windows, min(prompt_tokens, MOST_STEP_TOKENS), MOST_STEP_TOKENS),
        "decode": decode_steps(windows, np.array([batch]), 1, contexts + 1),
        "verify": decode_steps(windows, np.array([batch]), draft_tokens + 1, contexts + draft_tokens + 1),
    }
    return {phase: running(ready.timer.kernels(some_steps(steps, slice(0, 1)))) for phase, steps in work.items()}


def compute(context: Context, values: Values) -> Shown:
    """Kernels of the three phases, with measured kernels if a trace is chosen."""
    served = context.served
    dtype = controls.weights_of(values).get("weights_dtype")
    ready = priced_kernels(values["model"], served.chip(values["chip"]), int(values["tp"]), dtype)
    kernels = phases(ready, values["batch"], max(values["context"], values["k"] + 1), values["k"], values["prompt"])
    measured, notes = None, list(ready.notes)
    if values["trace"] not in (None, NO_TRACE):
        report = replayed(served, values["trace"], values["chip"], "generic")
        measured = measured_points(report)
        device = report.rows.row(0).get("device") or "a device that the trace does not name"
        name = report.source.rpartition("/")[2]
        notes.append(f"Measured kernels: {measured.rows:,} of {name}, timed on {device}, predicted for {report.chip}.")
    notes.append("Times of one chip; host work and drafter are not on the roofline.")
    return {
        "lead": remark(bounds_sentence(kernels, values["k"])),
        "kernels": table_panel(kernel_table(kernels)),
        "basis": rests_on(ready.basis, notes),
        "roofline": roofline_figure(roofline_data(ready.chip, kernels, measured, ready.basis)),
    }


def bounds_sentence(phase_kernels: dict[str, list[Kernel]], draft_tokens: int) -> str:
    """Sentence with the main bound of each phase, and the time of a verify step relative to a decode step."""
    seconds = {phase: sum(kernel.step_s for kernel in kernels) for phase, kernels in phase_kernels.items()}
    parts = []
    for phase, kernels in phase_kernels.items():
        shares: dict[str, float] = {}
        for kernel in kernels:
            shares[kernel.bound] = shares.get(kernel.bound, 0.0) + kernel.step_s / seconds[phase]
        bound = max(shares, key=lambda name: shares[name])
        parts.append(f"{phase} {number(1e3 * seconds[phase], 3)} ms, {shares[bound]:.0%} bound by {bound}")
    words = f"One step: {'; '.join(parts)}. Verifying K={draft_tokens} takes "
    return f"{words}{seconds['verify'] / seconds['decode']:.2f}x the time of decoding."


def kernel_table(phase_kernels: dict[str, list[Kernel]]) -> Table:
    """Every kernel of each phase, the longest first."""
    rows = []
    for phase, kernels in phase_kernels.items():
        total_s = sum(kernel.step_s for kernel in kernels)
        for kernel in sorted(kernels, key=lambda kernel: -kernel.step_s):
            share = percent(kernel.step_s / total_s)
            each = number(kernel.seconds * 1e6)
            rows.append((f"{phase}: {kernel.name}", kernel.dtype, kernel.times, each, share, kernel.bound))
    return Table("Kernels of one step", ("kernel", "format", "count", "each (us)", "of the step", "bound"), rows)


PAGE = Page(
    "roofline",
    "Roofline",
    "What each kernel of a step is bound by, and how far it stays below its chip's limits.",
    [
        controls.ANY_CHIP,
        controls.MODEL,
        controls.TENSOR_PARALLEL,
        controls.WEIGHTS,
        Number("batch", "Batch (decode, verify)", stops=controls.BATCHES, default=16, low=1, high=512),
        Number("context", "Context", stops=controls.CONTEXTS, default=2048, unit="tokens", low=1, high=1_000_000),
        Number("k", "Draft tokens K", stops=controls.DRAFT_TOKENS, default=3, low=1, high=64),
        Number(
            "prompt", "Prompt", stops=controls.CONTEXTS[:8], default=1024, unit="tokens", low=1, high=MOST_STEP_TOKENS
        ),
        ChoiceField("trace", "Measured kernels", options=lambda served: [NO_TRACE, *served.traces()], default=NO_TRACE),
    ],
    [area("lead"), figure_card("roofline", 540, "Kernels on the roofline of the chip"), area("kernels"), area("basis")],
    [
        View(
            compute,
            ("chip", "model", "tp", "dtype", "batch", "context", "k", "prompt", "trace"),
            ("lead", "kernels", "basis"),
            ("roofline",),
        )
    ],
)
