"""Measured kernels: the canonical table and readers for other formats."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
