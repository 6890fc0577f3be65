"""Trees grown from the drafter's confidence, as EAGLE-2 and EAGLE-3 grow them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.speculation.tree import ROOT, DraftTree, RankRates
from simulator.speculation.tree_acceptance import checked_rates, survival_by_depth

FloatArray = NDArray[np.float64]
Confidences = Callable[[int, int], FloatArray]
"""(depth from 0, parents) -> chance of each candidate below each parent, shape (parents, candidates)."""


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """How a tree is grown. EAGLE-2 uses depth 6, top_k 10 and 60 nodes for 7B models (50 for 13B, 48 for 70B).

    Source: Li et al., "EAGLE-2", 2024, arXiv:2406.16858, sections 4.1, 4.2 and 5.
    """

    depth: int
    """Sequential draft passes."""
    top_k: int
    """Nodes of a layer that are expanded, and candidates that each gets."""
    nodes: int
    """Draft tokens that are verified: the likeliest of all that were drafted."""

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < 1:
                raise ForerunError(f"tree.{name}: must be >= 1 (got {getattr(self, name)})")

    @property
    def drafted_nodes(self) -> int:
        """Nodes that the drafter scores before the choice."""
        return self.top_k + (self.depth - 1) * self.top_k**2


class GrownTree(NamedTuple):
    """A tree and the chance that the drafter gives each of its nodes to be accepted."""

    tree: DraftTree
    chances: FloatArray


def grow_tree(plan: GrowthPlan, confidences: Confidences) -> GrownTree:
    """Expand the ``top_k`` likeliest nodes of each layer, then keep the ``nodes`` likeliest of all.

    A node is never likelier than its parent, and of equals the shallower is kept, so the kept nodes form a tree.
    """
    chances: list[float] = []
    parents: list[int] = []
    ranks: list[int] = []
    layer, reach = [ROOT], np.ones(1)
    for depth in range(plan.depth):
        rows = confidences(depth, len(layer))[:, : plan.top_k] * reach[:, None]
        first = len(chances)
        parents += [parent for parent in layer for _ in range(rows.shape[1])]
        ranks += list(range(rows.shape[1])) * len(layer)
        chances += rows.ravel().tolist()
        likeliest = np.argsort(-rows.ravel(), kind="stable")[: plan.top_k]
        layer, reach = (first + likeliest).tolist(), rows.ravel()[likeliest]
    scores = np.asarray(chances)
    kept = np.sort(np.argsort(-scores, kind="stable")[: plan.nodes])
    kept = kept[scores[kept] > 0.0]
    number = {int(node): i for i, node in enumerate(kept)} | {ROOT: ROOT}
    tree = DraftTree(tuple(number[parents[node]] for node in kept), tuple(ranks[node] for node in kept))
    return GrownTree(tree, scores[kept])


def fixed_confidences(rates: RankRates) -> Confidences:
    """The same confidence at every step: the grown tree is then always the same."""
    table = [np.asarray(row, dtype=np.float64) for row in checked_rates(rates)]

    def confidences(depth: int, parents: int) -> FloatArray:
        row = table[depth] if depth < len(table) else np.zeros(1)
        return np.tile(row, (parents, 1))

    return confidences


def drawn_confidences(rates: RankRates, concentration: float, generator: np.random.Generator) -> Confidences:
    """Confidence that differs from node to node around its mean by depth and rank, and is right on average.

    The first candidate's confidence is beta-distributed; the others share what it leaves in fixed proportion, so every
    rank keeps its mean. That the drafter's confidence is close to the chance of acceptance is EAGLE-2's observation
    (below 0.05: accepted in 4 %; above 0.95: in 98 %).

    Args:
        rates: mean chance by depth and rank.
        concentration: of the beta distribution, > 0; small: confidence is near 0 or 1; large: always the mean.
        generator: source of randomness.

    Source: Li et al., "EAGLE-2", 2024, arXiv:2406.16858, figure 6.
    """
    table = [np.asarray(row, dtype=np.float64) for row in checked_rates(rates)]

    def confidences(depth: int, parents: int) -> FloatArray:
        row = table[depth] if depth < len(table) else np.zeros(1)
        mean = float(row[0])
        if not 0.0 < mean < 1.0:
            return np.tile(row, (parents, 1))
        first = generator.beta(mean * concentration, (1.0 - mean) * concentration, size=parents)
        others = (1.0 - first)[:, None] * (row[1:] / (1.0 - mean))[None, :]
        return np.concatenate((first[:, None], others), axis=1)

    return confidences


class GrownAcceptance(NamedTuple):
    """Averages over trees grown at many steps."""

    acceptance_length: float
    """Tokens per verify step, bonus token included."""
    standard_error: float
    survival: FloatArray
    """Chance that at least d draft tokens are accepted: what ``AcceptanceSampler`` takes."""
    nodes: float
    """Draft tokens verified per step."""
    attended_pairs: float
    """(query, key) pairs among them that the tree mask admits."""


def grown_acceptance(
    plan: GrowthPlan, rates: RankRates, concentration: float, steps: int = 400, seed: int = 0
) -> GrownAcceptance:
    """Mean acceptance of trees grown step by step; the same seed gives the same numbers."""
    generator = np.random.default_rng([seed, 0xD7EE])
    confidences = drawn_confidences(rates, concentration, generator)
    lengths, nodes, pairs = np.empty(steps), 0, 0
    survival = np.zeros(plan.depth)
    for step in range(steps):
        tree, chances = grow_tree(plan, confidences)
        lengths[step] = 1.0 + chances.sum()
        by_depth = survival_by_depth(tree, chances)
        survival[: len(by_depth)] += by_depth
        nodes += tree.num_nodes
        pairs += tree.attended_pairs
    error = float(lengths.std(ddof=1) / np.sqrt(steps)) if steps > 1 else float("nan")
    return GrownAcceptance(float(lengths.mean()), error, survival / steps, nodes / steps, pairs / steps)
