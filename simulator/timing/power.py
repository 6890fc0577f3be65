"""Power of a board during engine steps, from its idle power, its TDP and three shares (``power.yaml``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.yaml_files import packaged
from hwprofiles import BASES, Chip


def full_power_s(seconds: FloatArray, bound_s: FloatArray, arithmetic_s: FloatArray) -> FloatArray:
    """Seconds at TDP whose energy above idle power equals that of each step.

    ``at_work * seconds + kernels * bound_s + arithmetic * arithmetic_s``, at most ``seconds``. The terms: clocks,
    leakage and schedulers of a busy chip; cores, caches and memory in kernels bound by compute or memory; arithmetic.

    Args:
        seconds: duration of each step.
        bound_s: part of ``seconds`` in kernels bound by compute or memory, without launches, links and host work.
        arithmetic_s: seconds of the step's FLOPs at the chip's dense peak.
    """
    shares = _shares()
    drawn = shares["at_work"] * seconds + shares["kernels"] * bound_s + shares["arithmetic"] * arithmetic_s
    return np.asarray(np.minimum(drawn, seconds))


def power_evidence(chip: Chip) -> tuple[str, tuple[float, float]]:
    """Evidence level of a chip's predicted power, and its 90 % interval as factors on the power."""
    measured = chip.name in _shares()["chips"]
    low, high = _shares()["ends"]["measured" if measured else "other"]
    return BASES[0 if measured else 1], (low, high)


def _shares() -> dict[str, Any]:
    shares: dict[str, Any] = packaged("simulator.timing", "power.yaml")["board"]
    return shares
