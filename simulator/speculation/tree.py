"""Draft trees, static or grown from the drafter's confidence: nodes, and distribution of the accepted depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged

RankRates = Sequence[Sequence[float]]
"""Per depth, chance that the candidate of rank 0, 1, 2 ... is accepted after its parent. The candidates of one parent
exclude each other, so the chances of a depth sum to at most 1."""

ROOT = -1
"""Parent of the first draft tokens: the last token already accepted."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of draft tokens below the last certain token; a chain is the tree of width one.

    Nodes are numbered so that parents come before their children.
    """

    parents: tuple[int, ...]
    """Parent of each node; ``ROOT`` for children of the last certain token."""
    ranks: tuple[int, ...]
    """Rank of each node among the drafter's candidates at its parent, 0 = the likeliest."""

    @property
    def num_nodes(self) -> int:
        """Draft tokens that the target verifies, not counting the last certain token."""
        return len(self.parents)

    @property
    def depths(self) -> IntArray:
        """Depth of each node, from 1."""
        depths = np.zeros(len(self.parents), dtype=np.int64)
        for node, parent in enumerate(self.parents):
            depths[node] = 1 if parent == ROOT else depths[parent] + 1
        return depths

    @property
    def depth(self) -> int:
        """Longest path: most draft tokens that one step can accept."""
        return int(self.depths.max(initial=0))


def chain(num_speculative_tokens: int) -> DraftTree:
    """A chain: one draft token per depth, each the drafter's first candidate."""
    return DraftTree(tuple(range(ROOT, num_speculative_tokens - 1)), (0,) * num_speculative_tokens)


def tree_from_choices(choices: Iterable[Sequence[int]]) -> DraftTree:
    """Static tree in Medusa's notation: each node as the ranks along its path, e.g. ``[[0], [1], [0, 0]]``."""
    paths = sorted({tuple(path) for path in choices}, key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): ROOT}
    parents: list[int] = []
    ranks: list[int] = []
    for path in paths:
        if path[:-1] not in index:
            raise ForerunError(f"tree choices: {list(path)} hangs on {list(path[:-1])}, which is not in the tree")
        index[path] = len(parents)
        parents.append(index[path[:-1]])
        ranks.append(path[-1])
    return DraftTree(tuple(parents), tuple(ranks))


def load_tree(name: str) -> DraftTree:
    """A published static tree by name."""
    trees = packaged("simulator.speculation", "trees.yaml")
    if name not in trees:
        raise ForerunError(f"no tree '{name[:80]}'{did_you_mean(name, trees)} (trees: {', '.join(trees)})")
    return tree_from_choices([int(digit) for digit in word] for word in str(trees[name]["choices"]).split())


def checked_rates(rates: RankRates) -> RankRates:
    """Return the rates after checking them."""
    for depth, row in enumerate(rates, start=1):
        if any(not 0.0 <= rate <= 1.0 for rate in row) or sum(row) > 1.0 + 1e-9:
            raise ForerunError(
                f"acceptance by rank at depth {depth}: the candidates of one parent exclude each other, so their "
                f"chances lie in 0 to 1 and sum to at most 1 (got {', '.join(f'{rate:g}' for rate in row)})"
            )
    return rates


def rates_by_rank(conditional: Sequence[float], catch: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Chances by depth and rank for a drafter with known acceptance of first candidates only.

    Args:
        conditional: chance that the first candidate of depth d is accepted, given its parent.
        catch: share of what ranks 0..r-1 missed that rank r catches, r = 1, 2, ...; for the first head of Medusa on
            Vicuna-7B 0.25, 0.17, 0.12, 0.08 (curve ``medusa-vicuna-7b``).
    """
    table = []
    for first in conditional:
        row, missed = [first], 1.0 - first
        for share in catch:
            row.append(missed * share)
            missed *= 1.0 - share
        table.append(tuple(row))
    return tuple(table)


def node_chances(tree: DraftTree, rates: RankRates) -> FloatArray:
    """Chance that each node is on the accepted path; 0 for depths and ranks without rates."""
    chances = np.zeros(tree.num_nodes)
    depths = tree.depths
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        depth = int(depths[node]) - 1
        if depth < len(rates) and rank < len(rates[depth]):
            chances[node] = (1.0 if parent == ROOT else chances[parent]) * rates[depth][rank]
    return chances


def survival_by_depth(tree: DraftTree, chances: FloatArray) -> FloatArray:
    """Chance that at least d draft tokens are accepted, d = 1..depth: what ``AcceptanceSampler`` takes."""
    totals = np.bincount(tree.depths, weights=chances, minlength=tree.depth + 1)[1:]
    return np.asarray(totals, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """Plan by which a tree is grown. EAGLE-2 uses depth 6, top_k 10 and 60 nodes for 7B models (50 for 13B, 48 for
    70B).

    Source: Li et al., "EAGLE-2", 2024, arXiv:2406.16858, sections 4.1, 4.2 and 5.
    """

    depth: int
    top_k: int
    nodes: int

    @property
    def drafted_nodes(self) -> int:
        return self.top_k + (self.depth - 1) * self.top_k**2


def grown_survival(
    plan: GrowthPlan, rates: RankRates, concentration: float, steps: int = 400, seed: int = 0
) -> FloatArray:
    """Chance that at least d draft tokens of grown trees are accepted, d = 1..depth, over ``steps`` steps.

    A layer's ``top_k`` likeliest nodes are expanded, then the ``nodes`` likeliest of all are kept; of equals the
    shallower, and no node is likelier than its parent, so that they form a tree. The drafter's confidence differs from
    node to node around its mean by depth and rank, and is right on average: the first candidate's is beta-distributed,
    the others share what it leaves in fixed proportion. That confidence is close to the chance of acceptance is
    EAGLE-2's observation (below 0.05: accepted in 4 %; above 0.95: in 98 %).

    Args:
        plan: parameters of growing a tree.
        rates: mean chance by depth and rank.
        concentration: parameter of the beta distribution, > 0; small: confidence near 0 or 1; large: always the mean.
        steps: number of grown trees.
        seed: seed of the drawn confidences.

    Source: Li et al., "EAGLE-2", 2024, arXiv:2406.16858, figure 6 and sections 4.1, 4.2.
    """
    generator = np.random.default_rng([seed, 0xD7EE])
    layers = _layers(plan, rates)
    most = max(1, CANDIDATES_AT_ONCE // sum(parents * len(row) for parents, row in layers))
    depths = np.repeat(np.arange(1, plan.depth + 1), [parents * len(row[: plan.top_k]) for parents, row in layers])
    survivals = []
    for first in range(0, steps, most):
        chances = _drawn_chances(layers, plan.top_k, concentration, min(most, steps - first), generator)
        kept = np.sort(np.argsort(-chances, axis=1, kind="stable")[:, : plan.nodes], axis=1)
        scores, at = np.take_along_axis(chances, kept, axis=1), depths[kept]
        cells = (np.arange(len(at))[:, None] * plan.depth + at - 1).ravel()
        by_depth = np.bincount(cells, weights=scores.ravel(), minlength=len(at) * plan.depth)
        survivals.append(by_depth.reshape(len(at), -1))
    return np.asarray(np.concatenate(survivals).sum(axis=0) / steps, dtype=np.float64)


CANDIDATES_AT_ONCE = 1_000_000


def _layers(plan: GrowthPlan, rates: RankRates) -> list[tuple[int, FloatArray]]:
    """Per depth: number of parents that get candidates, and mean acceptance probability of each rank of a parent."""
    table = [np.asarray(row, dtype=np.float64) for row in checked_rates(rates)]
    layers, parents = [], 1
    for depth in range(plan.depth):
        row = table[depth] if depth < len(table) else np.zeros(1)
        layers.append((parents, row))
        parents = min(plan.top_k, parents * min(plan.top_k, len(row)))
    return layers


def _drawn_chances(
    layers: Sequence[tuple[int, FloatArray]],
    top_k: int,
    concentration: float,
    steps: int,
    generator: np.random.Generator,
) -> FloatArray:
    """Chance that every candidate is on the accepted path, shape (steps, candidates), shallow ones first."""
    drawn = [(parents, row[0]) for parents, row in layers if 0.0 < row[0] < 1.0]
    means = np.repeat([mean for _, mean in drawn], [parents for parents, _ in drawn])
    firsts = generator.beta(means * concentration, (1.0 - means) * concentration, size=(steps, len(means)))
    chances, reach, taken = [], np.ones((steps, 1)), 0
    for parents, row in layers:
        if 0.0 < row[0] < 1.0:
            first = firsts[:, taken : taken + parents, None]
            taken += parents
            others = (1.0 - first) * (row[1:] / (1.0 - row[0]))
            confidences = np.concatenate((first, others), axis=2)[:, :, :top_k]
        else:
            confidences = np.broadcast_to(row[:top_k], (steps, parents, len(row[:top_k])))
        layer = (confidences * reach[:, :, None]).reshape(steps, -1)
        chances.append(layer)
        likeliest = np.argsort(-layer, axis=1, kind="stable")[:, :top_k]
        reach = np.take_along_axis(layer, likeliest, axis=1)
    return np.concatenate(chances, axis=1)
