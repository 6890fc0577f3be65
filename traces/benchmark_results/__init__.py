"""Measured serving runs: one canonical record per run, readers for benchmark results and published tables."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
