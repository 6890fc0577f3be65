"""Does speculation change what a model says? It does not: a toy target, a bad drafter, and samplers put to the test.

A sampler passes when the distribution of its first two tokens lies within a distance of the target's that an exact
sampler exceeds in one run out of a million, whatever the seed. A last sampler forgets what every implementation must
remember, to leave what was already offered out after a rejection, and is found out.

Run: python examples/lossless_sampling.py [--draws N] [--seed N]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from simulator.speculation.sampling import (
    Model,
    acceptance_chance,
    chain_step,
    draw,
    generate,
    token_distribution,
    total_variation,
    tree_step,
)

VOCABULARY = 5
LEVEL = 1e-6
"""Chance that an exact sampler is called wrong."""
Step = Callable[[tuple[int, ...]], tuple[int, ...]]


def toy_model(seed: int) -> Model:
    """A language model of five tokens that looks at the last token only."""
    logits = np.random.default_rng(seed).normal(scale=1.5, size=(VOCABULARY, VOCABULARY))
    table = [token_distribution(row) for row in logits]
    return lambda context: table[context[-1]]


def forgetful_step(
    target: Model, drafter: Model, context: tuple[int, ...], generator: np.random.Generator
) -> tuple[int, ...]:
    """A chain of one whose rejected token may come back: it is drawn from the target, not from the residual."""
    p, q = target(context), drafter(context)
    token = draw(q, generator)
    if generator.random() * q[token] < p[token]:
        return token, draw(target((*context, token)), generator)
    return (draw(p, generator),)


def allowed_distance(draws: int, outcomes: int, level: float) -> float:
    """Total variation that ``draws`` exact draws of ``outcomes`` kinds exceed with a chance of ``level`` at most.

    Holds for every distribution and every number of draws: ``sqrt(ln((2^outcomes - 2) / level) / (2 draws))``.

    Source: Weissman et al., "Inequalities for the L1 deviation of the empirical distribution", HPL-2003-97R1, 2003.
    """
    return math.sqrt(math.log((2.0**outcomes - 2.0) / level) / (2.0 * draws))


def measure(step: Step, draws: int) -> tuple[np.ndarray, float]:
    """Shares of the first two tokens, [first, second], and tokens per verify step."""
    counts, produced, steps = np.zeros((VOCABULARY, VOCABULARY)), 0, 0
    for _ in range(draws):
        first = step((0,))
        more, _ = generate(step, (0, *first), max(0, 2 - len(first)))
        tokens = first + more
        counts[tokens[0], tokens[1]] += 1
        produced, steps = produced + len(first), steps + 1
    return counts / draws, produced / steps


def main() -> None:
    """Print the acceptance of one token, and for each sampler how far its output lies from the target's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, help="pairs of tokens to draw from each sampler")
    parser.add_argument("--seed", type=int, default=0, help="of the draws; the verdicts do not hang on it")
    options = parser.parse_args()
    target, drafter, generator = toy_model(1), toy_model(2), np.random.default_rng(options.seed)
    p, q = target((0,)), drafter((0,))
    print(f"One draft token is accepted in {acceptance_chance(p, q):.1%}: 1 - TV = {1 - total_variation(p, q):.1%}")
    samplers: dict[str, Step] = {
        "no draft": lambda context: chain_step(target, drafter, context, 0, generator),
        "chain of 3": lambda context: chain_step(target, drafter, context, 3, generator),
        "tree 3x2x1": lambda context: tree_step(target, drafter, context, (3, 2, 1), generator),
        "forgetful": lambda context: forgetful_step(target, drafter, context, generator),
    }
    exact = np.array([p[first] * target((first,)) for first in range(VOCABULARY)])
    allowed = allowed_distance(options.draws, exact.size, LEVEL)
    print("sampler       tokens per first step   distance to the target   allowed   verdict")
    for name, step in samplers.items():
        shares, tokens = measure(step, options.draws)
        distance = total_variation(exact, shares)
        verdict = "same distribution" if distance <= allowed else "another distribution"
        print(f"{name:<13} {tokens:21.2f}   {distance:22.4f}   {allowed:7.4f}   {verdict}")


if __name__ == "__main__":
    main()
