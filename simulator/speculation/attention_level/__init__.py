"""Attention-level speculation: one device group exact, one ahead on a guess; closed forms, events, evidence."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
