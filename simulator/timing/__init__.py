"""Time of an engine step: its kernels, their seconds, and the limiting resource of each kernel."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
