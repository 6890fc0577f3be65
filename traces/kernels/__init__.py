"""Measured kernels: the canonical table and the readers of others' formats."""

from traces.kernels.canonical import write_kernels
from traces.kernels.columns import COLLECTIVES, OPS, OTHER, SIZES, WORDS
from traces.kernels.names import kernel_class
from traces.kernels.read import KERNEL_FORMATS, read_kernels, recognise_columns
from traces.kernels.silicon import silicon_folder
from traces.kernels.table import KernelTable, Words, concatenate, make_table, words

__all__ = [
    "COLLECTIVES",
    "KERNEL_FORMATS",
    "OPS",
    "OTHER",
    "SIZES",
    "WORDS",
    "KernelTable",
    "Words",
    "concatenate",
    "kernel_class",
    "make_table",
    "read_kernels",
    "recognise_columns",
    "silicon_folder",
    "words",
    "write_kernels",
]
