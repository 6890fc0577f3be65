"""Figures and reports, created from results or from the files that runs write."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
