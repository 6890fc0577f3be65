"""The measurement: kernels timed one after the other, and the finished ones as a canonical trace with provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from simulator.replay.measure.clocks import Clock, CpuClock, CudaClock, MetalClock, Timing
from simulator.replay.measure.machine import (
    MachineLimits,
    check_device,
    device_name,
    last_cache_bytes,
    load_torch,
    probe,
    usable_cores,
)
from simulator.replay.measure.operations import KERNEL_NAMES, make_call
from simulator.replay.measure.shapes import KernelShape
from traces.kernels import KernelTable, make_table, words

BUDGET_S = {True: 0.06, False: 0.15}
"""Seconds of repeats per kernel, by ``--quick``."""
METHODS = {
    "cpu": "wall time per call, medians; cold: a buffer of three times the last cache is read before each call; warm: "
    "the same operands again; calls during which the system took a core away are dropped",
    "mps": "events around many queued kernels, medians; cold: operands rotate over three times the largest system "
    "cache; warm: the same operands again",
    "rocm": "HIP graphs timed by events, medians; cold: operands rotate over three times the largest cache beyond L2; "
    "warm: the same operands again",
    "cuda": "CUDA graphs timed by events, medians; cold: operands rotate over three times the L2 cache; warm: the same "
    "operands again",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Kernels timed on one device, with the torch version, threads, date and method (``provenance``)."""

    rows: tuple[tuple[KernelShape, Timing], ...]
    device_name: str
    provenance: dict[str, Any]
    skipped: dict[str, int]
    """Kernels that were not timed, by reason."""
    complete: bool
    """False after Ctrl-C."""
    limits: MachineLimits | None

    def table(self) -> KernelTable:
        """The canonical trace."""
        names = sorted({name for shape, _ in self.rows for name in shape.sizes})
        about = self.provenance
        count = about["threads"]
        where = f"{count} thread{'s' * (count > 1)}, " if about["device"] == "cpu" else ""
        return make_table(
            np.array([_digits(timing.median_s) for _, timing in self.rows]),
            words([shape.op for shape, _ in self.rows]),
            {name: np.array([shape.sizes.get(name, 0) for shape, _ in self.rows]) for name in names},
            {
                "dtype": words([shape.dtype for shape, _ in self.rows]),
                "cache": words(["warm" if shape.warm else "cold" for shape, _ in self.rows]),
                "name": words([KERNEL_NAMES[shape.family] for shape, _ in self.rows]),
                "device": self.device_name,
                "source": f"forerun measure, torch {about['torch']}, {where}{about['date']}",
            },
            "forerun measure",
            "forerun",
            np.array([_digits(timing.std_s) for _, timing in self.rows]),
            np.array([timing.repeats for _, timing in self.rows], dtype=np.int64),
        )


def _digits(seconds: float) -> float:
    """Four digits: no clock is better."""
    return float(f"{seconds:.4g}")


def measure(
    shapes: Sequence[KernelShape],
    device: str = "cpu",
    quick: bool = False,
    seed: int = 0,
    limits: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Time kernels with torch; Ctrl-C ends the measurement and keeps what is finished.

    Args:
        shapes: kernels, in the order in which they are timed.
        device: ``cpu``, ``cuda``, ``rocm`` or ``mps``.
        quick: fewer repeats.
        seed: seed of the operands' values.
        limits: also measure what this CPU can reach at most.
        threads: CPU threads; default: all usable cores.
        progress: called with (kernels done, kernels).

    Raises:
        ForerunError: torch or the device is missing.
    """
    torch = load_torch()
    check_device(torch, device)
    torch.set_num_threads(threads or usable_cores())
    clocks = {"cuda": CudaClock, "rocm": CudaClock, "mps": MetalClock}
    clock: Clock = clocks[device](torch) if device in clocks else CpuClock(torch, last_cache_bytes())
    name = device_name(torch, device)
    provenance = {
        "device": device,
        "device_name": name,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "date": date.today().isoformat(),
        "method": METHODS[device],
        "seed": seed,
    }
    rows: list[tuple[KernelShape, Timing]] = []
    skipped = Counter[str]()
    complete, machine_limits = True, None
    with torch.inference_mode():
        try:
            _warm_up(torch, clock.device)
            for done, shape in enumerate(shapes):
                if progress is not None:
                    progress(done, len(shapes))
                _time_one(torch, clock, shape, BUDGET_S[quick], seed, rows, skipped)
            if limits:
                machine_limits = probe(torch, clock, [(shape, timing.median_s) for shape, timing in rows], seed)
        except KeyboardInterrupt:
            complete = False
    return Measurement(tuple(rows), name, provenance, dict(skipped), complete, machine_limits)


def _time_one(
    torch: Any,
    clock: Clock,
    shape: KernelShape,
    budget_s: float,
    seed: int,
    rows: list[tuple[KernelShape, Timing]],
    skipped: Counter[str],
) -> None:
    generator = torch.Generator(device=clock.device).manual_seed(seed)
    reason = f"{shape.family}: too small for cold operands"
    try:
        timing = clock.time(
            lambda: make_call(torch, shape, clock.device, generator), shape.operand_bytes, shape.warm, budget_s
        )
    except (MemoryError, torch.OutOfMemoryError):
        timing, reason = None, f"{shape.family}: not enough memory"
    if timing is None:
        skipped[reason] += 1
    else:
        rows.append((shape, timing))


def _warm_up(torch: Any, device: str) -> None:
    """Let threads start and clocks rise before anything is timed."""
    values = torch.ones(1024, 1024, device=device)
    for _ in range(20):
        torch.mm(values, values)
    if device != "cpu":
        getattr(torch, device).synchronize()


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """The JSON of ``forerun measure``."""
    counts = Counter(shape.family for shape, _ in measurement.rows)
    limits = measurement.limits
    return {
        "rows": len(measurement.rows),
        "families": dict(sorted(counts.items())),
        "complete": measurement.complete,
        "skipped": measurement.skipped,
        "provenance": measurement.provenance,
        "limits": None if limits is None else limits._asdict(),
    }
