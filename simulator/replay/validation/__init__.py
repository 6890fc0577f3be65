"""How far to trust the predictions: what ships compared with measurements, errors on record, and what was fitted."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
