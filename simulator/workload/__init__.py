"""Workloads: request lengths and arrival times, synthetic or from a trace."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
