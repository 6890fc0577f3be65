"""One engine step into kernels into seconds, with the bound that limits each."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
