"""Speculative decoding: what a drafter proposes, what the target accepts, what that is worth."""

from simulator.speculation.acceptance import (
    AcceptanceSampler,
    ContextDrift,
    acceptance_sampler,
    sampler_of,
    survival_rates,
)
from simulator.speculation.closed_form import expected_length, expected_tokens, iid_alpha, speedup
from simulator.speculation.config import AcceptanceConfig, DraftConfig, PolicyConfig, SpeculationConfig, TreeConfig
from simulator.speculation.curves import Curve, curve_names, load_curve
from simulator.speculation.engine_logs import AcceptanceLog, read_acceptance
from simulator.speculation.level_decay import AcceptanceFit, LevelDecay, fit_lengths, fit_survival
from simulator.speculation.policies import Batch, DraftPolicy, PolicyFactory, check_policy, policy_factory
from simulator.speculation.proposal import Proposal, draft_survival, proposal, scaled_survival, tree_survival
from simulator.speculation.provenance import borrowed_acceptance, carry_acceptance

__all__ = [
    "AcceptanceConfig",
    "AcceptanceFit",
    "AcceptanceLog",
    "AcceptanceSampler",
    "Batch",
    "ContextDrift",
    "Curve",
    "DraftConfig",
    "DraftPolicy",
    "LevelDecay",
    "PolicyConfig",
    "PolicyFactory",
    "Proposal",
    "SpeculationConfig",
    "TreeConfig",
    "acceptance_sampler",
    "borrowed_acceptance",
    "carry_acceptance",
    "check_policy",
    "curve_names",
    "draft_survival",
    "expected_length",
    "expected_tokens",
    "fit_lengths",
    "fit_survival",
    "iid_alpha",
    "load_curve",
    "policy_factory",
    "proposal",
    "read_acceptance",
    "sampler_of",
    "scaled_survival",
    "speedup",
    "survival_rates",
    "tree_survival",
]
