"""Inside some steps of a finished run: the drafter's part of every step, and the kernels of one step of each kind."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.serving import RunLog
from simulator.timing import EngineTimer, ModelTimer, StagedTimer, StepWork
from simulator.timing.step_kernels import StepKernel, step_kernels

FloatArray = NDArray[np.float64]
MOST_ROWS = 50_000
"""Step rows of a run that is looked into; longer ones are not."""
TOLERANCE = 0.05
"""A step whose parts do not add up to its seconds within this share is not shown in parts."""


class SampledStep(NamedTuple):
    """One engine step in parts; seconds."""

    row: int
    """Of the run's step records."""
    host_s: float
    draft_s: float
    kernels: tuple[StepKernel, ...]
    """Of every chip that shares the step."""


class StepDetail(NamedTuple):
    """What a run's timeline shows inside its steps."""

    draft_s: FloatArray | None
    """Seconds that the drafter adds to each step row; None without a drafter."""
    sampled: tuple[SampledStep, ...]
    """The step of median length of each kind."""
    devices: int
    """Chips that run the same kernels side by side."""


def step_detail(log: RunLog, timer: EngineTimer) -> StepDetail | None:
    """Look into the steps of a run; None where the run is too long, or its timer does not say what its kernels are.

    No step is taken apart where kernels run side by side: on the stages of a pipeline, or with speculated attention.
    """
    steps = log.steps
    if not isinstance(timer, ModelTimer) or not 0 < len(steps) <= MOST_ROWS:
        return None
    work, draft = steps.work(slice(None)), steps.draft(slice(None))
    draft_s = timer.exposed_drafting_s(work, draft)
    if draft_s is not None:
        draft_s = np.minimum(draft_s * steps.column("steps"), steps.column("seconds"))
    sampled: list[SampledStep] = []
    beside = timer.target.make_overlap is not None or (isinstance(timer, StagedTimer) and timer.stages > 1)
    for row in (
        []
        if beside
        else median_rows(
            work, steps.column("seconds"), np.where(steps.column("copies_s") > 0, 0.0, steps.column("steps"))
        )
    ):
        found = _sampled(row, timer, work, float(steps.column("seconds")[row]), draft_s)
        if found is not None:
            sampled.append(found)
    return StepDetail(draft_s, tuple(sampled), timer.target.deployment.group_chips)


def median_rows(work: StepWork[Any], seconds: FloatArray, steps: FloatArray) -> list[int]:
    """The row of median length among the single steps of each kind: prompts, decoding or verifying, and both."""
    prompts, decodes, single = work.prefill_tokens > 0, work.decode_seqs > 0, steps == 1
    rows = []
    for kind in (prompts & ~decodes, decodes & ~prompts, prompts & decodes):
        found = np.flatnonzero(kind & single)
        if len(found):
            rows.append(int(found[np.argsort(seconds[found], kind="stable")[len(found) // 2]]))
    return rows


def _sampled(
    row: int, timer: ModelTimer, work: StepWork[Any], seconds: float, draft_s: FloatArray | None
) -> SampledStep | None:
    single: list[Any] = [
        tuple(int(x[row]) for x in part[: len(timer.target.windows)]) if isinstance(part, tuple) else int(part[row])
        for part in work
    ]
    kernels = step_kernels(timer.target, StepWork(*single))
    device_s = sum(kernel.times * kernel.seconds for kernel in kernels)
    drafting = 0.0 if draft_s is None else float(draft_s[row])
    host_s = seconds - device_s - drafting
    if host_s < -TOLERANCE * seconds:
        return None
    return SampledStep(row, max(0.0, host_s), drafting, tuple(kernels))
