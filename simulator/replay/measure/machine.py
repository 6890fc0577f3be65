"""Profile of this machine as a chip: names, cores and caches, and measured limits."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from datetime import date
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from forerun.errors import ForerunError, install_hint
from hwprofiles import load_chip
from simulator.replay.measure.clocks import CACHE_MULTIPLE, Clock, on_rocm
from simulator.replay.measure.operations import Call, make_call
from simulator.replay.measure.shapes import DTYPES, KernelShape

DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "mps": "mps"}
"""Devices that can be timed, by torch's name: ROCm's are CUDA devices to it."""
FALLBACK_CACHE_BYTES = 32 << 20
"""Size of a CPU's last cache if the system does not report it."""
PROBE_S = 0.3
"""Seconds for each probe of a limit."""
PROBE_WIDTHS = (1024, 2048, 4096)
"""Square matrix products that probe the arithmetic peak."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class MachineLimits(NamedTuple):
    """Limits measured on a CPU."""

    device: str
    cores: int
    """Cores used, one per thread."""
    flops_per_s: dict[str, float]
    """Fastest matrix product by format."""
    bandwidth_bytes_per_s: float
    memory_bytes: float
    cache_bytes: int
    """Size of the last-level cache."""
    cache_bandwidth_bytes_per_s: float
    """Fastest pass over operands in a cache."""
    launch_s: float
    """Duration of the smallest torch call."""


def load_torch() -> Any:
    """The torch module.

    Raises:
        ForerunError: not installed; the message names the optional extra.
    """
    try:
        import torch
    except ImportError:
        raise ForerunError(f"measuring needs torch, which is not installed; {install_hint('measure')}") from None
    return torch


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the CPU; the architecture if the system does not report a name."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    stated = " ".join(match.group(1).split()) if match else _sysctl_brand()
    return stated or platform.processor() or platform.machine() or "CPU"


def _sysctl_brand() -> str:
    """Name of the processor on macOS, such as Apple M3 Max; empty on other systems."""
    try:
        words = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def device_name(torch: Any, device: str) -> str:
    """Name of the device; Metal's GPU is part of the processor."""
    return str(torch.cuda.get_device_name(0)) if DEVICES[device] == "cuda" else cpu_name()


def last_cache_bytes(folder: Path = _CACHES) -> int:
    """Size of the largest cache of a core; ``FALLBACK_CACHE_BYTES`` if the system does not report it."""
    sizes = []
    for file in folder.glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", file.read_text(encoding="utf-8").strip())
        if match:
            sizes.append(int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)])
    return max(sizes, default=0) or FALLBACK_CACHE_BYTES


def memory_bytes() -> float:
    """Main memory of the machine in bytes; 8 GiB if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return 8.0 * 2**30


def probe(torch: Any, clock: Clock, seen: Iterable[tuple[KernelShape, float]], seed: int) -> MachineLimits:
    """Measure the limits of this CPU: large matrix products, passes over memory and over the caches.

    Limits are raised so that no kernel of ``seen`` (with its seconds) is faster.
    """
    generator = torch.Generator().manual_seed(seed)
    cache = last_cache_bytes()
    shapes = [
        KernelShape("gemm", "gemm", dtype, True, {"m": width, "n": width, "k": width})
        for dtype in DTYPES
        if dtype != "fp16"
        for width in PROBE_WIDTHS[: 2 if dtype == "fp32" else 3]
    ]
    large = CACHE_MULTIPLE * 2 * cache
    shapes.append(KernelShape("memcpy", "elementwise", "fp32", False, {"bytes_moved": large}))
    timed = [(shape, _fastest(clock, lambda one=shape: make_call(torch, one, "cpu", generator), shape.warm))  # type: ignore[misc]
             for shape in shapes] + list(seen)  # fmt: skip
    flops: dict[str, float] = {}
    for shape, seconds in timed:
        if shape.flops:
            flops[shape.dtype] = max(flops.get(shape.dtype, 0.0), shape.flops / seconds)
    reads = {size: size / _fastest(clock, _reader(torch, size), True) for size in (1 << 18, 1 << 20, cache // 4, large)}
    passes = [s.operand_bytes / seconds for s, seconds in timed if not s.warm and s.operand_bytes >= cache // 2]
    memory = max(reads[large], *passes)
    inside = [s.operand_bytes / seconds for s, seconds in timed if not s.flops or s.op.startswith("attention")]
    tiny = torch.zeros(1)
    launch = _fastest(clock, lambda: lambda: tiny.add_(1.0), True)
    return MachineLimits(
        cpu_name(),
        torch.get_num_threads(),
        flops,
        memory,
        memory_bytes(),
        cache,
        max(memory, *reads.values(), *inside),
        launch,
    )


def _reader(torch: Any, size: int) -> Callable[[], Call]:
    return lambda: torch.ones(size // 4, dtype=torch.float32).sum


def _fastest(clock: Clock, make: Callable[[], Call], warm: bool) -> float:
    timing = clock.time(make, 1 << 40, warm, PROBE_S)
    assert timing is not None
    return timing.fastest_s


def machine_profile(limits: MachineLimits, method: str) -> str:
    """A chip profile of this CPU as YAML, for ``--chip FILE``; values that cannot be measured are marked as assumed."""
    import yaml

    server = load_chip("cpu")
    share = limits.cores / server.compute.cores
    today = date.today().isoformat()
    measured = {"kind": "measured", "reference": f"{limits.device}, {method}", "date": today}
    from_system = {"kind": "datasheet", "reference": "as the operating system tells it", "date": today}
    assumed = {"kind": "assumed", "reference": "a server CPU's power (catalogue chip 'cpu') per core", "date": today}
    flops = {dtype: _figure(value) for dtype, value in sorted(limits.flops_per_s.items())}
    chip = {
        "name": "this-machine",
        "description": f"{limits.device}, cores used: {limits.cores}, limits as measured",
        "vendor": "unknown",
        "kind": "cpu",
        "compute": {"cores": limits.cores, "dense_flops_per_s": flops, "source": measured},
        "memory": {
            "bandwidth_bytes_per_s": _figure(limits.bandwidth_bytes_per_s),
            "capacity_bytes": limits.memory_bytes,
            "source": measured,
            "field_sources": {"capacity_bytes": from_system},
        },
        "on_chip": {
            "capacity_bytes": float(limits.cache_bytes),
            "bandwidth_bytes_per_s": _figure(limits.cache_bandwidth_bytes_per_s),
            "source": measured,
            "field_sources": {"capacity_bytes": from_system},
        },
        "links": {"source": {"kind": "assumed", "reference": "a single machine", "date": today}},
        "power": {
            "tdp_w": _figure(server.power.tdp_w * share),
            "idle_w": _figure(server.power.idle_w * share),
            "source": assumed,
        },
    }
    head = "# This machine's limits, measured by forerun measure --profile; kernels are fitted by forerun calibrate.\n"
    return head + yaml.safe_dump(_plain(chip), sort_keys=False, width=120, default_flow_style=None)


def _figure(value: float) -> float:
    """Three digits, rounded up, so that a limit is not below the measured value."""
    step = 10.0 ** (floor(log10(value)) - 2)
    return float(f"{ceil(value / step) * step:.3g}")


def _plain(value: Any) -> Any:
    """Copies of nested mappings, so that YAML writes no references between them."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def check_device(torch: Any, device: str) -> None:
    """Raise ForerunError for a device that is not here."""
    if device not in DEVICES:
        raise ForerunError(f"--device: no '{device}'; cpu, cuda, rocm or mps")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ForerunError("--device mps: torch sees no Metal device here; --device cpu times the CPU")
    if device in ("cuda", "rocm") and (not torch.cuda.is_available() or on_rocm(torch) != (device == "rocm")):
        raise ForerunError(f"--device {device}: torch sees no {device.upper()} device here; --device cpu times the CPU")
