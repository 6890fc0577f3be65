"""Conformance checks for plug-ins: each runs one on small inputs and raises an error that names the rule it breaks."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
