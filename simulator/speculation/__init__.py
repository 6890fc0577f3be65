"""Speculative decoding: what a drafter proposes, what the target accepts, what that is worth."""

from simulator.speculation.acceptance import AcceptanceSampler, survival_rates
from simulator.speculation.closed_form import expected_tokens, iid_alpha, speedup
from simulator.speculation.config import AcceptanceConfig, DraftConfig, SpeculationConfig

__all__ = [
    "AcceptanceConfig",
    "AcceptanceSampler",
    "DraftConfig",
    "SpeculationConfig",
    "expected_tokens",
    "iid_alpha",
    "speedup",
    "survival_rates",
]
