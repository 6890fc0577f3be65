"""Timing of one kernel: repeats on a CPU or GPU, with operands in the cache or in memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from forerun.arrays import FloatArray
from simulator.replay.measure.operations import Call

MIN_REPEATS = 5
MAX_REPEATS = 200
BURST_S = 2e-4
"""Shorter warm kernels run several times per sample, so that reading the clock does not count."""
CACHE_MULTIPLE = 3
"""Bytes that pass between two cold calls, in sizes of the last cache."""
INFINITY_CACHE_BYTES = 256 << 20
"""Size of AMD's largest cache beyond L2 (MI300X; Radeon has up to 128 MiB); torch does not report it."""
SYSTEM_CACHE_BYTES = 96 << 20
"""Size of Apple's largest system-level cache (M1 Ultra and later Ultras); no API reports it."""
MOST_COPIES = 1024
"""Maximum number of operand copies that a cold GPU kernel rotates over."""


class Timing(NamedTuple):
    """Repeats of one kernel: median and standard deviation in seconds, how many, and the fastest."""

    median_s: float
    std_s: float
    repeats: int
    fastest_s: float


class Clock(Protocol):
    """Times a kernel on one device."""

    device: str

    def time(self, make: Callable[[], Call], operand_bytes: int, warm: bool, budget_s: float) -> Timing | None:
        """Time the kernel that ``make`` prepares, on its own operands; None if this clock cannot set the cache state.

        ``operand_bytes`` counts one call. A ``warm`` call repeats on the same operands; otherwise operands come from
        memory. Repeats take up to ``budget_s``, but at least ``MIN_REPEATS`` are made.
        """
        ...


def timing_of(samples: FloatArray) -> Timing:
    """Median, spread, count and fastest of some samples in seconds."""
    return Timing(float(np.median(samples)), float(np.std(samples)), len(samples), float(samples.min()))


def involuntary_switches() -> int:
    """Number of times the system took a core away from this process; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


class CpuClock:
    """Wall time of calls on the CPU. Before each cold call a buffer larger than the last cache is read through.

    Calls during which the system gave a core to another process are dropped. If fewer than ``MIN_REPEATS`` calls
    remain, the machine is busy and the faster half of all calls counts; fewer threads than cores help then.
    """

    device = "cpu"

    def __init__(self, torch: Any, cache_bytes: int) -> None:
        self._torch = torch
        self._cache_bytes = cache_bytes
        self._eviction = torch.ones(CACHE_MULTIPLE * cache_bytes // 4, dtype=torch.float32)

    def time(self, make: Callable[[], Call], operand_bytes: int, warm: bool, budget_s: float) -> Timing:
        call = make()
        call()
        once = self._seconds(call, 1)
        calls = max(1, int(BURST_S / max(once, 1e-7))) if warm else 1
        evict = not warm and operand_bytes < 2 * CACHE_MULTIPLE * self._cache_bytes
        clean: list[float] = []
        disturbed: list[float] = []
        gc.disable()
        try:
            until = time.perf_counter() + budget_s
            while len(clean) + len(disturbed) < MAX_REPEATS:
                if evict:
                    self._eviction.sum()
                before = involuntary_switches()
                seconds = self._seconds(call, calls)
                (disturbed if involuntary_switches() > before else clean).append(seconds)
                enough = len(clean) >= MIN_REPEATS or len(clean) + len(disturbed) >= 4 * MIN_REPEATS
                if enough and time.perf_counter() > until:
                    break
        finally:
            gc.enable()
        if len(clean) < MIN_REPEATS:
            everything = np.sort(np.array(clean + disturbed))
            return timing_of(everything[: max(MIN_REPEATS, len(everything) // 2)])
        return timing_of(np.array(clean))

    @staticmethod
    def _seconds(call: Call, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls


class CudaClock:
    """Time per kernel inside a captured CUDA graph, by events around its replay; HIP graphs where torch runs on ROCm.

    Cold: the graph rotates over enough copies of the operands that each has left the last cache before its reuse.
    """

    device = "cuda"

    def __init__(self, torch: Any) -> None:
        self._gpu = torch.cuda
        self._cache_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
        if on_rocm(torch):
            self._cache_bytes = max(self._cache_bytes, INFINITY_CACHE_BYTES)

    def time(self, make: Callable[[], Call], operand_bytes: int, warm: bool, budget_s: float) -> Timing | None:
        copies = 1 if warm else -(-CACHE_MULTIPLE * self._cache_bytes // operand_bytes) + 1
        if copies > MOST_COPIES:
            return None
        calls = [make() for _ in range(copies)]
        rounds = max(1, 20 // copies)
        replay = self._prepared(calls, rounds)
        launches = rounds * copies
        replay()
        samples = [self._seconds(replay) / launches]
        until = time.perf_counter() + budget_s
        while len(samples) < MIN_REPEATS or (len(samples) < MAX_REPEATS and time.perf_counter() < until):
            samples.append(self._seconds(replay) / launches)
        return timing_of(np.array(samples))

    def _prepared(self, calls: list[Call], rounds: int) -> Callable[[], Any]:
        """A function that runs all calls in sequence, ``rounds`` times."""
        cuda = self._gpu
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for call in calls[:3]:
                call()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        replay: Callable[[], Any] = graph.replay
        return replay

    def _seconds(self, replay: Callable[[], Any]) -> float:
        gpu = self._gpu
        start, end = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        gpu.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


class MetalClock(CudaClock):
    """Time per kernel on Metal by events around many of them in one queue: there are no graphs to capture.

    A kernel shorter than the host's time to encode it gets that encoding time.
    """

    device = "mps"

    def __init__(self, torch: Any) -> None:
        self._gpu = torch.mps
        self._cache_bytes = SYSTEM_CACHE_BYTES

    def _prepared(self, calls: list[Call], rounds: int) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        return run


def on_rocm(torch: Any) -> bool:
    """True if torch's CUDA devices are AMD's."""
    return bool(getattr(torch.version, "hip", None))
