"""Check of free memory before a large allocation."""

from __future__ import annotations

import os
from pathlib import Path

from forerun.errors import ForerunError

GROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files in which Linux states the memory limit and use of a container."""


def free_bytes() -> int | None:
    """Available memory in bytes; None if the system does not report it.

    Source: ``MemAvailable`` of proc(5), and the memory controller of cgroups(7).
    """
    limits = []
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) << 10)
    for limit, used in GROUP_LIMITS:
        numbers = (_text(limit).strip(), _text(used).strip())
        if all(number.isdigit() for number in numbers):
            limits.append(max(0, int(numbers[0]) - int(numbers[1])))
    if not limits and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def refuse_if_larger_than_memory(needed_bytes: float, what: str) -> None:
    """Raise an error if an allocation would be larger than the available memory."""
    free = free_bytes()
    if free is not None and needed_bytes > free:
        raise ForerunError(
            f"{what} need about {needed_bytes / 2**30:.3g} GiB of memory, {free / 2**30:.3g} GiB are free; ask for less"
        )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
