"""The studies: what ``forerun``, ``simulator`` and the command line lend, a line each."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
