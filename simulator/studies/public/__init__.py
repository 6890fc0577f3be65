"""Public names of the studies, as exported by ``forerun``, ``simulator`` and the command line."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
