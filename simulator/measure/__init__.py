"""Times real kernels with torch on this machine's CPU or GPU into a canonical kernel trace."""

from simulator.measure.machine import MachineLimits, machine_profile
from simulator.measure.record import Measurement, measure, measurement_document
from simulator.measure.shapes import DTYPES, FAMILIES, KernelShape, kernel_shapes

__all__ = [
    "DTYPES",
    "FAMILIES",
    "KernelShape",
    "MachineLimits",
    "Measurement",
    "kernel_shapes",
    "machine_profile",
    "measure",
    "measurement_document",
]
