"""The serving engine in simulated time: replicas, schedulers, KV blocks, routing."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
