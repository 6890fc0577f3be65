"""Conformance checks for plug-ins: each runs a plug-in on small inputs and raises an error about a broken rule."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
