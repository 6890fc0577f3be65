"""Draft trees, static or grown from the drafter's confidence: their nodes, and how deep they are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.yaml_files import parse
from simulator.errors import ForerunError, did_you_mean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RankRates = Sequence[Sequence[float]]
"""Per depth, chance that the candidate of rank 0, 1, 2 ... is the accepted one when its parent was accepted. The
candidates of one parent exclude each other, so the chances of a depth sum to at most 1."""

ROOT = -1
"""Parent of the first draft tokens: the last token that is already certain."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of draft tokens below the last certain token; a chain is the tree of width one.

    Nodes are numbered so that parents come before their children.
    """

    parents: tuple[int, ...]
    """Parent of each node; ``ROOT`` for those below the last certain token."""
    ranks: tuple[int, ...]
    """Rank of each node among the drafter's candidates at its parent, 0 = the likeliest."""

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.ranks):
            raise ForerunError(f"a tree of {len(self.parents)} parents and {len(self.ranks)} ranks")
        seen: set[tuple[int, int]] = set()
        for node, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not ROOT <= parent < node or rank < 0:
                raise ForerunError(f"tree node {node}: parent {parent} must come before it, and rank {rank} be >= 0")
            if (parent, rank) in seen:
                raise ForerunError(f"tree node {node}: a second candidate of rank {rank} below node {parent}")
            seen.add((parent, rank))

    @property
    def num_nodes(self) -> int:
        """Draft tokens that the target verifies, beside the last certain token."""
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

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes at each depth, from 1."""
        return tuple(np.bincount(self.depths, minlength=1)[1:].tolist())

    @property
    def attended_pairs(self) -> int:
        """(query, key) pairs among the draft tokens that the tree mask admits: each node sees its path and itself."""
        return int(self.depths.sum())


def chain(num_speculative_tokens: int) -> DraftTree:
    """The sequence of so many first candidates."""
    return DraftTree(tuple(range(ROOT, num_speculative_tokens - 1)), (0,) * num_speculative_tokens)


def tree_from_choices(choices: Iterable[Sequence[int]]) -> DraftTree:
    """A static tree given as Medusa gives it: each node as the ranks along its path, such as ``[[0], [1], [0, 0]]``.

    Raises:
        ForerunError: a node whose parent is not in the list, or one given twice.
    """
    paths = sorted({tuple(path) for path in choices}, key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): ROOT}
    parents: list[int] = []
    ranks: list[int] = []
    for path in paths:
        if not path:
            raise ForerunError("tree choices: an empty path; the root is implied")
        if path[:-1] not in index:
            raise ForerunError(f"tree choices: {list(path)} hangs on {list(path[:-1])}, which is not in the tree")
        index[path] = len(parents)
        parents.append(index[path[:-1]])
        ranks.append(path[-1])
    return DraftTree(tuple(parents), tuple(ranks))


def load_tree(name: str) -> DraftTree:
    """A published static tree by name.

    Raises:
        ForerunError: no such tree; with the nearest name.
    """
    trees = _trees()
    if name not in trees:
        raise ForerunError(f"no tree '{name[:80]}'{did_you_mean(name, trees)} (trees: {', '.join(trees)})")
    return tree_from_choices([int(digit) for digit in word] for word in str(trees[name]["choices"]).split())


@cache
def _trees() -> dict[str, Any]:
    text = (resources.files("simulator.speculation") / "trees.yaml").read_text(encoding="utf-8")
    trees: dict[str, Any] = parse(text)
    return trees


def checked_rates(rates: RankRates) -> RankRates:
    """The same rates.

    Raises:
        ForerunError: a chance outside 0 to 1, or candidates of one parent that are accepted more often than always.
    """
    for depth, row in enumerate(rates, start=1):
        if any(not 0.0 <= rate <= 1.0 for rate in row) or sum(row) > 1.0 + 1e-9:
            raise ForerunError(
                f"acceptance by rank at depth {depth}: the candidates of one parent exclude each other, so their "
                f"chances lie in 0 to 1 and sum to at most 1 (got {', '.join(f'{rate:g}' for rate in row)})"
            )
    return rates


def rates_by_rank(conditional: Sequence[float], catch: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Chances by depth and rank for a drafter of which only the first candidates' acceptance is known.

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
    """Chance of each node to lie on the accepted path; 0 for depths and ranks that the rates do not have."""
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
