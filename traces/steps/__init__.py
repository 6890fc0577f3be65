"""Measured engine steps: batch composition and seconds; canonical table and readers."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
