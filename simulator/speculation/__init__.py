"""Speculative decoding: proposals of drafters, acceptance by the target, and the resulting gain."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {"fit_lengths": "fit_acceptance_lengths", "speedup": "chain_speedup"}
)
