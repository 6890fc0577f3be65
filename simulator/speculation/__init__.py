"""Speculative decoding: what a drafter proposes, what the target accepts, what that is worth."""

from simulator.speculation.acceptance import AcceptanceSampler, acceptance_sampler, survival_rates
from simulator.speculation.closed_form import expected_length, expected_tokens, iid_alpha, speedup
from simulator.speculation.config import AcceptanceConfig, DraftConfig, SpeculationConfig
from simulator.speculation.curves import Curve, curve_names, load_curve
from simulator.speculation.engine_logs import AcceptanceLog, read_acceptance
from simulator.speculation.level_decay import AcceptanceFit, LevelDecay, fit_lengths, fit_survival

__all__ = [
    "AcceptanceConfig",
    "AcceptanceFit",
    "AcceptanceLog",
    "AcceptanceSampler",
    "Curve",
    "DraftConfig",
    "LevelDecay",
    "SpeculationConfig",
    "acceptance_sampler",
    "curve_names",
    "expected_length",
    "expected_tokens",
    "fit_lengths",
    "fit_survival",
    "iid_alpha",
    "load_curve",
    "read_acceptance",
    "speedup",
    "survival_rates",
]
