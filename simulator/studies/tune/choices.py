"""Alternatives to a scenario's drafts: shorter and longer chains, smaller trees, each with its acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ArgumentError, ForerunError
from simulator.running.scenario import Scenario
from simulator.speculation import LevelDecay, SpeculationConfig, draft_survival
from simulator.speculation.context import ContextFall, context_drift
from simulator.speculation.proposal import drafter_survival, proposal
from simulator.speculation.provenance import measured_with
from simulator.speculation.speculation_config import ACCEPTANCE_SOURCES, GRAMMAR, OF_THIS_TREE

USUAL_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Numbers of draft tokens tried by default, in addition to the scenario's own."""
SMALLEST_TREE = 4


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """One way to draft: a chain or a tree with its acceptance."""

    name: str
    tokens: int
    """Number of draft tokens that a step verifies: K, or the nodes of the tree."""
    scenario: Scenario
    survival: FloatArray
    """Probability that at least 1, 2, ... draft tokens are accepted."""
    drift: ContextFall | None

    def length(self, contexts: IntArray, factor: float = 1.0) -> FloatArray:
        """Tokens per verify step, the bonus token included, at each context.

        Args:
            contexts: tokens in the cache.
            factor: factor on every conditional acceptance rate, for intervals; no rate rises above 1.
        """
        before = np.concatenate(([1.0], self.survival[:-1]))
        rates = np.divide(self.survival, before, out=np.zeros_like(self.survival), where=before > 0.0)
        if self.drift is None:
            falls = np.ones(len(contexts))
        else:
            falls = np.array([self.drift.factor(self.drift.cell(int(context))) for context in contexts])
        conditional = np.minimum(1.0, rates[None, :] * (falls * factor)[:, None])
        length: FloatArray = 1.0 + np.cumprod(conditional, axis=1).sum(axis=1)
        return length


def draft_choices(scenario: Scenario, tokens: Sequence[int] | None = None) -> tuple[DraftChoice, ...]:
    """Chains or trees to choose from, fewest tokens first.

    Shorter chains use the scenario's own acceptance: the first positions' acceptance does not depend on how many
    follow. Longer chains are tried only if the acceptance extends to further positions. Trees are not changed; only
    dynamic trees whose acceptance is given by the drafter's rates are also tried with fewer nodes.
    """
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        raise ForerunError(
            "speculation: there is no drafter to tune; give a method and its acceptance, for example "
            "{method: eagle3, num_speculative_tokens: 3, acceptance: {alpha: 0.7}}"
        )
    if speculation.method == GRAMMAR:
        raise ForerunError(
            "speculation.method: a grammar alone verifies what it forces and has nothing to tune; compare it with none"
        )
    if speculation.tree is not None:
        if tokens is not None:
            raise ForerunError("--tokens: the scenario drafts a tree; --tokens goes with num_speculative_tokens")
        return _trees(scenario, speculation)
    return _chains(scenario, speculation, tokens)


def _chains(
    scenario: Scenario, speculation: SpeculationConfig, tokens: Sequence[int] | None
) -> tuple[DraftChoice, ...]:
    depth, known = speculation.depth, _known_positions(speculation)
    lengths = tuple(tokens) if tokens is not None else (*(k for k in USUAL_TOKENS if k <= known), depth)
    deepest = max(lengths)
    if deepest > known:
        raise ArgumentError(
            "tokens",
            f"{deepest}: the scenario's acceptance is known for {known} draft tokens; give "
            f"speculation.acceptance another position, or extrapolate: true",
        )
    survival = _deep_survival(speculation, deepest)
    return tuple(_chain_choice(_with_chain(scenario, survival[:k])) for k in sorted(set(lengths)))


def _chain_choice(scenario: Scenario) -> DraftChoice:
    assert scenario.speculation is not None
    return _choice(scenario, draft_survival(scenario.speculation))


def _known_positions(speculation: SpeculationConfig) -> int:
    """Maximum number of draft tokens for which acceptance is known."""
    acceptance = speculation.acceptance
    assert acceptance is not None
    if acceptance.extrapolate or acceptance.alpha is not None or acceptance.acceptance_length is not None:
        return 1024
    return max(acceptance.positions or 0, speculation.depth)


def _deep_survival(speculation: SpeculationConfig, deepest: int) -> FloatArray:
    """Survival up to depth ``deepest``; a measured acceptance length determines the rates at the scenario's K."""
    acceptance = speculation.acceptance
    assert acceptance is not None
    if acceptance.acceptance_length is not None:
        survival = drafter_survival(speculation)
        if deepest <= len(survival):
            return survival
        rates = LevelDecay(float(survival[0]), acceptance.decay or 1.0).conditional(deepest)
        longer: FloatArray = np.concatenate((survival, survival[-1] * np.cumprod(rates[len(survival) :])))
        return longer
    deep = speculation.model_dump(exclude_unset=True) | {"num_speculative_tokens": max(deepest, speculation.depth)}
    return drafter_survival(SpeculationConfig.model_validate(deep))[:deepest]


def _with_chain(scenario: Scenario, survival: FloatArray) -> Scenario:
    """Copy of the scenario with a fixed chain of exactly these rates."""
    speculation = scenario.speculation
    assert speculation is not None
    assert speculation.acceptance is not None
    of_the_rates = {*ACCEPTANCE_SOURCES, "decay", "extrapolate", "other_ranks", "spread", "autocorrelation"}
    method, model = measured_with(speculation.acceptance)
    acceptance = speculation.acceptance.model_dump(exclude_unset=True, exclude=of_the_rates)
    acceptance |= {"method": method, "model": model, "per_position": np.minimum.accumulate(survival).tolist()}
    chain = {"num_speculative_tokens": len(survival), "acceptance": acceptance, "policy": "fixed"}
    return scenario.with_values({f"speculation.{name}": value for name, value in chain.items()})


def _trees(scenario: Scenario, speculation: SpeculationConfig) -> tuple[DraftChoice, ...]:
    scenario = scenario.with_values({"speculation.policy": "fixed"})
    tree, acceptance = speculation.tree, speculation.acceptance
    assert tree is not None
    assert acceptance is not None
    trees = [_choice(scenario)]
    of_this_tree = any(getattr(acceptance, name) is not None for name in OF_THIS_TREE)
    if tree.growth is not None and not of_this_tree:
        nodes = tree.growth.nodes // 2
        while nodes >= max(SMALLEST_TREE, tree.growth.depth):
            trees.insert(0, _choice(scenario.with_values({"speculation.tree.nodes": nodes})))
            nodes //= 2
    return tuple(trees)


def _choice(scenario: Scenario, survival: FloatArray | None = None) -> DraftChoice:
    """Draft choice of a scenario: a chain with this survival, or its tree."""
    speculation = scenario.speculation
    assert speculation is not None
    assert speculation.acceptance is not None
    nodes, drift = proposal(speculation).nodes, context_drift(speculation.acceptance, speculation.draft)
    if survival is None:
        return DraftChoice(f"tree of {nodes}", nodes, scenario, draft_survival(speculation), drift)
    return DraftChoice(f"K={nodes}", nodes, scenario, survival, drift)
