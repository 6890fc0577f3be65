"""Seconds of kernels by what bounds them, and the useful work, of many steps at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwprofiles import KernelTime

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(slots=True)
class Costs:
    """Seconds by bound, and useful work, accumulated over kernels; every entry an array over the same axis."""

    compute_s: FloatArray
    memory_s: FloatArray
    interconnect_s: FloatArray
    latency_s: FloatArray
    host_s: FloatArray
    flops: FloatArray
    bytes: FloatArray

    @classmethod
    def zeros(cls, size: int) -> Costs:
        """No work, ``size`` times."""
        return cls(*(np.zeros(size) for _ in range(7)))

    def add_kernel(self, time: KernelTime, count: float = 1.0) -> None:
        """Add ``count`` equal kernels: launches to latency, the rest to whichever of compute and memory is longer."""
        body = count * (np.asarray(time.seconds) - time.launch_s)
        computing = np.asarray(time.compute_s) >= np.asarray(time.memory_s)
        self.compute_s += np.where(computing, body, 0.0)
        self.memory_s += np.where(computing, 0.0, body)
        self.latency_s += count * np.asarray(time.launch_s)
        self.flops += count * np.asarray(time.flops)
        self.bytes += count * np.asarray(time.bytes)

    @property
    def device_s(self) -> FloatArray:
        """Seconds on the device."""
        return self.compute_s + self.memory_s + self.interconnect_s + self.latency_s

    def add(self, other: Costs, times: FloatArray | float = 1.0) -> None:
        """Add all of ``other``, ``times`` over."""
        for name in self.__slots__:
            getattr(self, name).__iadd__(getattr(other, name) * times)

    def rows(self, index: IntArray) -> Costs:
        """The costs of the named entries."""
        return Costs(*(getattr(self, name)[index] for name in self.__slots__))
