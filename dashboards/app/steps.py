"""Kernels of single steps for the roofline, kept while the deployment stays the same."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hwprofiles import Chip
from simulator.build import build_alone
from simulator.errors import ForerunError
from simulator.scenario import scenario_from
from simulator.studies.steady_state.prices import decode_steps, prompt_chunks
from simulator.timing import Kernel, ModelTimer, StepTimer, StepWork, running, some_steps


class Priced(NamedTuple):
    """A model on its chips, ready to price steps."""

    timer: StepTimer
    chip: Chip
    basis: str
    notes: tuple[str, ...]
    max_tokens: int


@lru_cache(maxsize=16)
def priced(model: str, chip: str, tensor_parallel: int, dtype: str | None) -> Priced:
    """The step timer of a deployment.

    Raises:
        ForerunError: unknown model, or it does not fit.
        ProfileError: unknown chip, or one that cannot compute in ``dtype``.
    """
    data: dict[str, Any] = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": tensor_parallel},
        "engine": {"max_num_batched_tokens": 16384, "max_num_seqs": 512},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1},
    }
    scenario = scenario_from(data | ({"weights_dtype": dtype} if dtype else {}), "deployment")
    build = build_alone(scenario, 0)
    timer = build.main.timer
    if not isinstance(timer, ModelTimer):
        raise ForerunError("deployment: its timer does not say what its kernels are")
    return Priced(timer.target, timer.target.deployment.chip, build.basis, build.notes, 16384)


def phases(ready: Priced, batch: int, context: int, draft_tokens: int, prompt_tokens: int) -> dict[str, list[Kernel]]:
    """Kernels of a step that prefills a prompt, of one that decodes, and of one that verifies draft tokens."""
    windows = ready.timer.windows
    prompt = prompt_chunks(windows, min(prompt_tokens, ready.max_tokens), ready.max_tokens)
    contexts = np.array([context])
    work = {
        "prefill": prompt,
        "decode": decode_steps(windows, np.array([batch]), 1, contexts + 1),
        "verify": decode_steps(windows, np.array([batch]), draft_tokens + 1, contexts + draft_tokens + 1),
    }
    return {phase: running(ready.timer.kernels(first_step(steps))) for phase, steps in work.items()}


def first_step(steps: StepWork[Any]) -> StepWork[Any]:
    """The first of several steps."""
    return some_steps(steps, slice(0, 1))
