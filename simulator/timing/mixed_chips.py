"""Machines with different chips: the layers of each chip, and kernels that several chips run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hwprofiles import Chip, KernelLibrary, KernelTime, Link
from hwprofiles.formulas import Num, times_where

STREAMED_ROWS = 32
"""Minimum rows at which a card computes products with weights from host memory, after copying the weights to the card.

Source: ``ggml_backend_cuda_device_offload_op`` of llama.cpp (``min_batch_size``); ``--no-op-offload`` turns it off."""


class OtherDevice(NamedTuple):
    """Layers that another chip runs: whole layers before the own chip's, or the experts of the first layers."""

    chip: Chip
    kernels: KernelLibrary
    layers: int
    link: Link
    experts: bool = False


class HostKernels(KernelLibrary):
    """Kernels of a host's cores, except for products with many rows: a card copies the weights and computes these.

    Args:
        host: kernels of the host.
        card: kernels of the card.
        link: link between host and card.
    """

    def __init__(self, host: KernelLibrary, card: KernelLibrary, link: Link) -> None:
        super().__init__(host.chip, host.library, corrected=host.corrected, flash=host.flash)
        self._card, self._link = card, link

    def gemm(self, m: Num, n: Num, k: Num, dtype: str = "bf16") -> KernelTime:
        """See :class:`KernelLibrary`."""
        return self._either(m, super().gemm(m, n, k, dtype), lambda: self._card.gemm(m, n, k, dtype))

    def moe(self, **sizes: Num) -> KernelTime:
        """See :class:`KernelLibrary`."""
        return self._either(sizes["tokens"], super().moe(**sizes), lambda: self._card.moe(**sizes))

    def sol_seconds(self, time: KernelTime, dtype: str = "") -> Num:
        """Lower of the speed-of-light times of host and card."""
        return np.minimum(super().sol_seconds(time, dtype), self._card.sol_seconds(time, dtype))

    def _either(self, rows: Num, on_host: KernelTime, on_card: Callable[[], KernelTime]) -> KernelTime:
        """Time on the host for few rows; for many rows, time on the card plus transfer of the operands."""
        if np.max(rows, initial=0) < STREAMED_ROWS:
            return on_host
        far = on_card()
        copied = far.bytes / self._link.bandwidth_bytes_per_s
        far = far._replace(seconds=far.seconds + copied, memory_s=far.memory_s + copied)
        return times_where(np.asarray(rows) >= STREAMED_ROWS, far, on_host)


class SlowestKernels(KernelLibrary):
    """Kernels that different chips run in parallel on equal shares: a kernel takes as long as on the slowest chip.

    Args:
        libraries: kernel libraries of the chips, the deployment's own first.
    """

    def __init__(self, libraries: Sequence[KernelLibrary]) -> None:
        first = libraries[0]
        super().__init__(first.chip, first.library, corrected=first.corrected, flash=first.flash)
        self._all = tuple(libraries)

    def one_pass(self, shape: Num) -> bool:
        """True if every chip serves prompts and single queries in one pass."""
        return all(one.one_pass(shape) for one in self._all)


def _slowest(name: str) -> Callable[..., KernelTime]:
    """Method that returns the slowest result of the method ``name`` over all libraries."""

    def method(self: SlowestKernels, *sizes: Num, **named: Num) -> KernelTime:
        times: list[KernelTime] = [getattr(one, name)(*sizes, **named) for one in self._all]
        first = times[0]
        for other in times[1:]:
            first = times_where(np.asarray(other.seconds > first.seconds), other, first)
        return first

    method.__doc__ = "See :class:`KernelLibrary`."
    return method


SPREAD = tuple(
    name
    for name, method in vars(KernelLibrary).items()
    if not name.startswith("_") and getattr(method, "__annotations__", {}).get("return") is KernelTime
)
"""Methods for kernels that every rank of a tensor-parallel group runs on its share: all timed methods of a library."""
for _name in SPREAD:
    setattr(SlowestKernels, _name, _slowest(_name))
