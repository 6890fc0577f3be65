"""Does speculation change what a model says? It does not: a toy target, a bad drafter, and a chi-square test.

Run: python examples/lossless_sampling.py [--draws N]
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import chisquare

from simulator.speculation.sampling import (
    Model,
    acceptance_chance,
    generate,
    token_distribution,
    total_variation,
    tree_step,
)

VOCABULARY = 5
SHAPES = {"no draft": (), "chain of 3": (1, 1, 1), "tree 3x2x1": (3, 2, 1)}
"""Candidates per node, by depth."""


def toy_model(seed: int) -> Model:
    """A language model of five tokens that looks at the last token only."""
    logits = np.random.default_rng(seed).normal(scale=1.5, size=(VOCABULARY, VOCABULARY))
    table = [token_distribution(row) for row in logits]
    return lambda context: table[context[-1]]


def main() -> None:
    """Print the acceptance of one token, and for each shape how its output compares with the target's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4_000, help="pairs of tokens to draw for each shape")
    draws = parser.parse_args().draws
    target, drafter, generator = toy_model(1), toy_model(2), np.random.default_rng(0)
    p, q = target((0,)), drafter((0,))
    print(f"One draft token is accepted in {acceptance_chance(p, q):.1%}: 1 - TV = {1 - total_variation(p, q):.1%}")
    pairs = np.array([p[first] * target((first,)) for first in range(VOCABULARY)])
    print("shape         tokens per step   p-value of 'same distribution as the target'")
    for shape, widths in SHAPES.items():
        counts, steps = np.zeros((VOCABULARY, VOCABULARY)), 0
        for _ in range(draws):
            tokens, taken = generate(
                lambda context, widths=widths: tree_step(target, drafter, context, widths, generator), (0,), 12
            )
            counts[tokens[0], tokens[1]] += 1
            steps += taken
        p_value = chisquare(counts.ravel(), pairs.ravel() * draws).pvalue
        print(f"{shape:<13} {12 * draws / steps:15.2f}   {p_value:.2f}")


if __name__ == "__main__":
    main()
