"""Request traces: the canonical table, readers for common formats, statistics and fits."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
