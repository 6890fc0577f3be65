"""This machine for the check: the clock, the format it is fast in, and its limits as a chip."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hwprofiles import Chip
from hwprofiles.catalogue import load_chip
from simulator.replay.measure.machine import MachineLimits, cpu_name, last_cache_bytes, machine_profile, memory_bytes
from validation.selfcheck.sizes import DTYPE_BYTES

PROBES = 7
HEADROOM = 1.02
"""Limits lie so far above the fastest thing seen."""
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
"""``cpu``: seconds during which this process had a core. Other work on the machine counts only through caches and
memory; ``wall``: seconds on the wall, the only choice with several threads."""


def clock_for(threads: int) -> str:
    """The clock that tells a step's time: processor seconds of several threads add up, so those need the wall."""
    return "cpu" if threads == 1 else "wall"


def fast_dtype(clock: Callable[[], float]) -> str:
    """bf16 where this machine multiplies a few rows by a matrix faster in it, else fp32."""
    return min(DTYPE_BYTES, key=lambda dtype: _fastest(clock, _product(dtype, 8, 1024, 4096)))


def machine_limits(clock: Callable[[], float]) -> MachineLimits:
    """Bandwidth of memory and of a cache, and FLOP/s of large matrix products, on this machine."""
    cache = last_cache_bytes()
    flops = {dtype: 2.0 * 1024**3 / _fastest(clock, _product(dtype, 1024, 1024, 1024)) for dtype in DTYPE_BYTES}
    memory, kept = (size / _fastest(clock, _reader(size)) for size in (4 * cache, 1 << 18))
    tiny = torch.zeros(1)
    return MachineLimits(
        cpu_name(),
        torch.get_num_threads(),
        {dtype: HEADROOM * value for dtype, value in flops.items()},
        HEADROOM * memory,
        memory_bytes(),
        cache,
        HEADROOM * max(kept, memory),
        _fastest(clock, lambda: tiny.add_(1.0)),
    )


def machine_chip(limits: MachineLimits, method: str, folder: Path) -> Chip:
    """The machine as a chip profile, written to ``folder`` as ``limits.yaml``."""
    file = folder / "limits.yaml"
    file.write_text(machine_profile(limits, method), encoding="utf-8")
    return load_chip(str(file))


def _fastest(clock: Callable[[], float], call: Callable[[], Any]) -> float:
    with torch.inference_mode():
        call()
        times = []
        for _ in range(PROBES):
            start = clock()
            call()
            times.append(clock() - start)
    return max(1e-9, min(times))


def _product(dtype: str, m: int, n: int, k: int) -> Callable[[], Any]:
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    x, weight = torch.ones(m, k, dtype=kind), torch.ones(n, k, dtype=kind)
    return lambda: torch.nn.functional.linear(x, weight)


def _reader(size: int) -> Callable[[], Any]:
    values = torch.ones(size // 4)
    return lambda: values.sum()
