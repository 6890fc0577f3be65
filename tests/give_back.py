"""Memory that a worker gives back between tests, for the conftest of each folder of tests."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

STATM = Path("/proc/self/statm")
GROWTH = 256 << 20
"""Bytes by which a worker may grow before it gives memory back."""
CACHES = (
    ("simulator.running.build", "_LATELY"),
    ("simulator.timing.step", "_LATELY"),
    ("simulator.speculation.attention_level.overlap", "_RECENT_KINDS"),
    ("simulator.studies.steady_state.estimate", "_BUILDS"),
    ("simulator.studies.steady_state.estimate", "_REPLICAS"),
    ("forerun_research.race", "_built"),
)
"""Bounded caches of timers and replicas, tens of megabytes each."""
_resident = [0]


def resident_bytes() -> int:
    """Memory of this process."""
    return int(STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def empty(cache: Any) -> None:
    """Forget the results of a deque, a function's cache, or ``RecentResults``."""
    if hasattr(cache, "cache_clear"):
        cache.cache_clear()
    else:
        getattr(cache, "_values", cache).clear()


def pytest_runtest_teardown() -> None:
    """Empty the caches, and return free pages, which glibc keeps between live objects, to the system."""
    if STATM.exists() and resident_bytes() > _resident[0] + GROWTH:
        for module, name in CACHES:
            if module in sys.modules:
                empty(getattr(sys.modules[module], name))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _resident[0] = resident_bytes()
