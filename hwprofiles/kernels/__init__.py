"""Formulas for kernel times, one module per kernel family.

Arguments that the formulas share: ``xp``, functions for numbers or for arrays; ``limits`` of the chip for the math
format used (16 bits in sparse and recurrent kernels); ``parameters``, the fitted set of the library's kernels;
``shape``, heads and sizes of one layer on one chip; ``weight_bytes``, ``activation_bytes`` and ``output_bytes`` of one
element. Sizes are those of the ``KernelLibrary`` method of the same kernel, all above 0.
"""
