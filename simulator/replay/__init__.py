"""Predictions against measurements: kernels, and the calibration that follows from them."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
