"""Speculation as published: every speedup found in print or in a log, beside what the model says."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
