"""Draft trees: which tokens are verified together, and which of them hang on which."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.yaml_files import parse
from simulator.errors import ForerunError, did_you_mean

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
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children."""
        inner = set(self.parents)
        return tuple(node for node in range(len(self.parents)) if node not in inner)

    @property
    def attended_pairs(self) -> int:
        """(query, key) pairs among the draft tokens that the tree mask admits: each node sees its path and itself."""
        return int(self.depths.sum())

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from below the root down to ``node``; empty for ``ROOT``."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def mask(self) -> NDArray[np.bool_]:
        """Tree attention mask, shape (nodes, nodes): whether a node (row) sees another (column)."""
        mask = np.eye(len(self.parents), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask


def chain(num_speculative_tokens: int) -> DraftTree:
    """The sequence of so many first candidates."""
    return DraftTree(tuple(range(ROOT, num_speculative_tokens - 1)), (0,) * num_speculative_tokens)


def full_tree(widths: Sequence[int]) -> DraftTree:
    """Every node at depth d has the candidates of rank 0..widths[d]-1 below it."""
    parents: list[int] = []
    ranks: list[int] = []
    layer = [ROOT]
    for width in widths:
        below = []
        for parent in layer:
            for rank in range(width):
                below.append(len(parents))
                parents.append(parent)
                ranks.append(rank)
        layer = below
    return DraftTree(tuple(parents), tuple(ranks))


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


def best_tree(rates: RankRates, num_nodes: int) -> DraftTree:
    """The static tree of so many nodes that is accepted deepest on average: the likeliest paths, taken greedily.

    A path is never likelier than its parent, so the greedy choice is the optimum. Smaller where the rates hold fewer
    nodes with a chance.

    Source: Cai et al., "Medusa", 2024, section 3.3; Chen et al., "Sequoia", 2024, proposition 3.4, without the limit
    on depth.
    """
    parents: list[int] = []
    ranks: list[int] = []
    waiting: list[tuple[float, int, int, int]] = []

    def offer(chance: float, depth: int, parent: int) -> None:
        if depth < len(rates):
            for rank, rate in enumerate(rates[depth]):
                if chance * rate > 0.0:
                    heapq.heappush(waiting, (-chance * rate, depth, parent, rank))

    offer(1.0, 0, ROOT)
    while waiting and len(parents) < num_nodes:
        negative, depth, parent, rank = heapq.heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        offer(-negative, depth + 1, len(parents) - 1)
    return DraftTree(tuple(parents), tuple(ranks))


def tree_names() -> tuple[str, ...]:
    """Published static trees."""
    return tuple(_trees())


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
