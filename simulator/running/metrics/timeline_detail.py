"""Inside the steps of a trace: draft and verify lanes, and the kernels of sampled steps on every chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from simulator.running.step_rows import SampledStep, StepDetail
    from simulator.serving.records import StepRecords
    from simulator.timing import Kernel

Event = dict[str, Any]
DRAFT_TRACK, VERIFY_TRACK, HOST_TRACK, FIRST_CHIP_TRACK = 1001, 1002, 1003, 1010
"""Track numbers beyond those of the engine steps."""
MOST_CHIPS = 8
"""Largest number of chips shown per replica; they all run the same kernels."""
MOST_KERNELS = 4000
"""Kernel slices of one sampled step on one chip."""


def lane_events(steps: StepRecords, detail: StepDetail, replica: int, pid: int) -> Iterator[Event]:
    """Draft and verify slices, in sequence, of each step of ``replica`` that verifies draft tokens."""
    if detail.draft_s is None or len(detail.draft_s) != len(steps):
        return
    rows = np.flatnonzero((steps.replica == replica) & (detail.draft_s > 0))
    if not len(rows):
        return
    yield _track(pid, DRAFT_TRACK, "draft")
    yield _track(pid, VERIFY_TRACK, "verify")
    for row in rows[np.argsort(steps.start_s[rows], kind="stable")].tolist():
        start, seconds, draft = float(steps.start_s[row]), float(steps.seconds[row]), float(detail.draft_s[row])
        about = {"sequences": int(steps.decode_seqs[row]), "tokens each": int(steps.query_len[row])}
        yield _slice("verify", "step", pid, VERIFY_TRACK, start, seconds - draft, about)
        yield _slice("draft", "step", pid, DRAFT_TRACK, start + seconds - draft, draft, about)


def kernel_events(steps: StepRecords, detail: StepDetail, replica: int, pid: int) -> Iterator[Event]:
    """The sampled steps of ``replica``: host work, then the kernels of every chip in the order in which they run.

    Layers of one kind follow each other; a drafter's part comes last. Kernels are laid on the device time of the step.
    """
    samples = [sample for sample in detail.sampled if int(steps.replica[sample.row]) == replica]
    if not samples:
        return
    chips = min(detail.devices, MOST_CHIPS)
    yield _track(pid, HOST_TRACK, "host work of sampled steps")
    for chip in range(chips):
        yield _track(pid, FIRST_CHIP_TRACK + chip, f"chip {chip}: kernels of sampled steps")
    for sample in samples:
        start, seconds = float(steps.start_s[sample.row]), float(steps.seconds[sample.row])
        yield _slice("host", "host", pid, HOST_TRACK, start, sample.host_s, {})
        for chip in range(chips):
            yield from _kernels(sample, pid, FIRST_CHIP_TRACK + chip, start + sample.host_s, start + seconds)


def _kernels(sample: SampledStep, pid: int, track: int, start_s: float, end_s: float) -> Iterator[Event]:
    total = sum(kernel.step_s for kernel in sample.kernels)
    available_s = max(0.0, end_s - start_s - sample.draft_s)
    scale = min(1.0, available_s / total) if total else 1.0
    at = start_s
    for kernel in kernel_layer_order(sample.kernels):
        about = {"bound": kernel.bound, "flops": kernel.flops, "bytes": kernel.bytes, "family": kernel.family}
        if kernel.dtype:
            about["format"] = kernel.dtype
        length = kernel.step_s * scale
        yield _slice(kernel.name, "kernel", pid, track, at, length, about | {"kernels": kernel.times})
        at += length
    if sample.draft_s:
        yield _slice("draft", "kernel", pid, track, end_s - sample.draft_s, sample.draft_s, {})


def kernel_layer_order(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels one after the other, layer by layer: those of equal layers take turns.

    Where that would be too many slices, equal kernels stay together.
    """
    if sum(kernel.times for kernel in kernels) > MOST_KERNELS:
        return list(kernels)
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        last = groups[-1] if groups else []
        together = last and kernel.times > 1 and last[-1].times > 1
        if together and kernel.name not in {one.name for one in last}:
            last.append(kernel)
        else:
            groups.append([kernel])
    return list(chain.from_iterable(_turns(group) for group in groups))


def _turns(group: list[Kernel]) -> Iterator[Kernel]:
    layers = min(kernel.times for kernel in group)
    for layer in range(layers):
        for kernel in group:
            times = kernel.times * (layer + 1) // layers - kernel.times * layer // layers
            yield kernel._replace(times=times)


def _slice(name: str, kind: str, pid: int, track: int, start_s: float, seconds: float, about: Event) -> Event:
    begin, end = round(start_s * 1e9), round((start_s + max(0.0, seconds)) * 1e9)
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": track,
            "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": about}  # fmt: skip


def _track(pid: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": name}}
