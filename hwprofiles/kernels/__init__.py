"""Formulas for kernel times, one module per kernel family."""
