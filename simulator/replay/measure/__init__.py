"""Times real kernels with torch on this machine's CPU or GPU into a canonical kernel trace."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
