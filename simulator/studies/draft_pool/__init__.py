"""Drafters on chips of their own that several verifiers share."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
