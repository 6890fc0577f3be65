"""Trees and confidences that only tests need."""

import numpy as np

from simulator.speculation.tree import tree_from_choices


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
