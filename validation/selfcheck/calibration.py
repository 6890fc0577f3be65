"""Results of a calibration run of the reference engine: host time of a step and acceptance rates of drafts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from validation.selfcheck.engine import EngineRun, EngineStep


class HostCosts(NamedTuple):
    """Host seconds that no kernel holds: per step, per sequence of it, and per step that drafts."""

    step_s: float
    sequence_s: float
    draft_step_s: float


def host_costs(plain: list[EngineStep], drafting: list[EngineStep]) -> HostCosts:
    """Fit the host time of observed steps, i.e. the time not spent in kernels.

    Args:
        plain: steps without a drafter.
        drafting: steps with one.
    """
    sequences, rest = _host_seconds(plain)
    slope, start = np.polyfit(sequences, rest, 1) if len(set(sequences)) > 1 else (0.0, float(np.mean(rest)))
    slope = max(0.0, float(slope))
    start = max(0.0, float(np.mean(rest - slope * sequences)))
    own_sequences, own = _host_seconds(drafting)
    return HostCosts(start, slope, max(0.0, float(np.mean(own - start - slope * own_sequences))))


def _host_seconds(steps: list[EngineStep]) -> tuple[FloatArray, FloatArray]:
    sequences = np.array([step.decode_seqs + step.prefill_seqs for step in steps], dtype=np.float64)
    rest = np.array([step.seconds - (step.kernels_s or 0.0) for step in steps])
    typical = rest <= 5.0 * np.median(rest)
    return sequences[typical], rest[typical]


class Acceptance(NamedTuple):
    """Share of drafts in which position i is accepted, and the acceptance length with its standard error."""

    per_position: tuple[float, ...]
    length: float
    standard_error: float
    drafts: int


def expected_acceptance(runs: list[EngineRun]) -> Acceptance:
    """Acceptance as the distributions of calibration runs say it: the chance of every draft, not its outcome.

    Its mean over steps is unbiased for the rates that counting would give (Rao-Blackwell), with less noise.
    """
    survival = np.concatenate([np.array(run.survival) for run in runs])
    rates = np.minimum.accumulate(survival.mean(0))
    per_step = survival.sum(1)
    error = float(per_step.std(ddof=1) / np.sqrt(len(per_step)))
    return Acceptance(tuple(float(rate) for rate in rates), 1.0 + float(per_step.mean()), error, len(per_step))


def counted_acceptance(runs: list[EngineRun]) -> Acceptance:
    """Acceptance counted from the outcomes of drafts."""
    accepted = np.concatenate([np.array(run.accepted) for run in runs])
    positions = runs[0].survival[0].shape[0]
    rates = tuple(float((accepted >= place).mean()) for place in range(1, positions + 1))
    error = float(accepted.std(ddof=1) / np.sqrt(len(accepted)))
    return Acceptance(rates, 1.0 + float(accepted.mean()), error, len(accepted))
