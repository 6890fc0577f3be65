"""What a draft tree is worth: chances of its nodes, accepted depth, and draws of the accepted path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.speculation.draws import counter_uniforms
from simulator.speculation.tree import ROOT, DraftTree, RankRates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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


def end_chances(tree: DraftTree, chances: FloatArray) -> FloatArray:
    """Chance that the accepted path ends at the root (first entry) or at each node; sums to 1.

    Args:
        chances: of the nodes to lie on the accepted path, as ``node_chances`` gives them.
    """
    ends = np.concatenate(([1.0], chances))
    for node, parent in enumerate(tree.parents):
        ends[parent + 1] -= chances[node]
    return ends


def expected_tree_length(chances: FloatArray) -> float:
    """Mean tokens of a verify step, bonus token included: ``1 + sum of the nodes' chances``."""
    return float(1.0 + chances.sum())


def survival_by_depth(tree: DraftTree, chances: FloatArray) -> FloatArray:
    """Chance that at least d draft tokens are accepted, d = 1..depth: what ``AcceptanceSampler`` takes."""
    totals = np.bincount(tree.depths, weights=chances, minlength=tree.depth + 1)[1:]
    return np.asarray(totals, dtype=np.float64)


class TreePathSampler:
    """Accepted path of every verify step of every request; the draw depends on seed, request and step alone.

    Args:
        tree: what is verified.
        rates: chances by depth and rank.
        seed: the run's seed.

    Raises:
        ForerunError: rates that are no chances.
    """

    def __init__(self, tree: DraftTree, rates: RankRates, seed: int) -> None:
        ends = end_chances(tree, node_chances(tree, checked_rates(rates)))
        order = np.argsort(np.concatenate(([0], tree.depths)), kind="stable")
        self._order = order - 1
        self._bounds = np.cumsum(np.maximum(ends[order], 0.0))
        self._key = int(np.random.SeedSequence([seed, 0x73EE]).generate_state(1, np.uint64)[0])

    def ends(self, request: int, steps: int, first_step: int = 0) -> IntArray:
        """Last accepted node of each step; ``ROOT`` where nothing is. ``DraftTree.path`` gives the nodes before it."""
        uniforms = counter_uniforms(self._key, request, first_step, steps)
        drawn = np.searchsorted(self._bounds, uniforms * self._bounds[-1], side="right")
        return np.asarray(self._order[np.minimum(drawn, len(self._order) - 1)], dtype=np.int64)
