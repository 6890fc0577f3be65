"""Speculative decoding: what a drafter proposes, what the target accepts, what that is worth."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {"fit_lengths": "fit_acceptance_lengths", "speedup": "chain_speedup"}
)
