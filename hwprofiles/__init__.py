"""Chips and links: limits with sources, kernel efficiencies, and the predicted time of one kernel."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
