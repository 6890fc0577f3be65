"""Trees and confidences that only tests need, and trees grown one at a time: the oracle of ``grown_survival``."""

from typing import NamedTuple

import numpy as np

from simulator.speculation.tree import ROOT, DraftTree, checked_rates, survival_by_depth, tree_from_choices


def full_tree(widths):
    """Every node at depth d has the candidates of rank 0..widths[d]-1 below it."""
    paths, layer = [], [()]
    for width in widths:
        layer = [(*path, rank) for path in layer for rank in range(width)]
        paths += layer
    return tree_from_choices(paths)


def length(chances):
    """Mean tokens of a verify step, bonus token included, from the nodes' chances."""
    return 1.0 + chances.sum()


def steady(rates):
    """The same confidence at every node of a depth."""

    def confidences(depth, parents):
        return np.tile(np.asarray(rates[depth] if depth < len(rates) else [0.0]), (parents, 1))

    return confidences


class GrownTree(NamedTuple):
    """A tree and the chance that the drafter gives each of its nodes to be accepted."""

    tree: DraftTree
    chances: np.ndarray


def grow_tree(plan, confidences):
    """Expand the ``top_k`` likeliest nodes of each layer, then keep the ``nodes`` likeliest of all.

    A node is never likelier than its parent, and of equals the shallower is kept, so the kept nodes form a tree.
    """
    chances, parents, ranks = [], [], []
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


def drawn_confidences(rates, concentration, generator):
    """Confidence around its mean by depth and rank; the first candidate\'s is beta-distributed."""
    table = [np.asarray(row, dtype=np.float64) for row in checked_rates(rates)]

    def confidences(depth, parents):
        row = table[depth] if depth < len(table) else np.zeros(1)
        mean = float(row[0])
        if not 0.0 < mean < 1.0:
            return np.tile(row, (parents, 1))
        first = generator.beta(mean * concentration, (1.0 - mean) * concentration, size=parents)
        others = (1.0 - first)[:, None] * (row[1:] / (1.0 - mean))[None, :]
        return np.concatenate((first[:, None], others), axis=1)

    return confidences


def grown_one_by_one(plan, rates, concentration, steps, seed=0):
    """Survival by depth, the mean over trees grown one at a time."""
    confidences = drawn_confidences(rates, concentration, np.random.default_rng([seed, 0xD7EE]))
    grown = [grow_tree(plan, confidences) for _ in range(steps)]
    survival = np.zeros(plan.depth)
    for tree, chances in grown:
        by_depth = survival_by_depth(tree, chances)
        survival[: len(by_depth)] += by_depth
    return survival / steps


def nodes_by_depth(tree):
    return np.bincount(tree.depths)[1:].tolist()
