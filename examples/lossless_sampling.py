"""Does speculation change what a model says? It does not: a toy target, a bad drafter, and samplers put to the test.

A sampler passes when the distribution of its first two tokens lies within a distance of the target's that an exact
sampler exceeds in one run out of a million, whatever the seed. A last sampler forgets what every implementation must
remember, to leave what was already offered out after a rejection, and is found out.

Chains are verified by rejection sampling (Leviathan et al. 2023; Chen et al. 2023). Trees are verified by *recursive
rejection sampling without replacement* (Jeon et al., "Recursive Speculative Decoding", 2024; Chen et al., "Sequoia",
2024): siblings are distinct candidates drawn one after the other; after each rejection the target's distribution
becomes the normalised residual and the drafter's loses the rejected token. Multi-round rejection with replacement, as
in SpecInfer (Miao et al. 2023), is the same loop in which the drafter's distribution stays: ``replacement=True``.
Temperature 0 is the limit in which the target is certain: a draft token is accepted if it is the target's likeliest.

Run: python examples/lossless_sampling.py [--draws N] [--seed N]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Model = Callable[[tuple[int, ...]], FloatArray]
"""Distribution of the next token after a context."""

VOCABULARY = 5
LEVEL = 1e-6
"""Chance that an exact sampler is called wrong."""
Step = Callable[[tuple[int, ...]], tuple[int, ...]]


def token_distribution(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Softmax of logits at a temperature; temperature 0 puts everything on the likeliest token, the first of equals."""
    if temperature == 0.0:
        certain = np.zeros(len(logits))
        certain[int(np.argmax(logits))] = 1.0
        return certain
    scaled = np.exp((logits - logits.max()) / temperature)
    return np.asarray(scaled / scaled.sum(), dtype=np.float64)


def total_variation(target: FloatArray, draft: FloatArray) -> float:
    """Half the summed difference of two distributions, in [0, 1]."""
    return float(0.5 * np.abs(target - draft).sum())


def acceptance_chance(target: FloatArray, draft: FloatArray) -> float:
    """Chance that one token drawn from the drafter is accepted: ``sum min(p, q) = 1 - TV(p, q)``.

    Source: Leviathan et al. 2023, theorem 3.5.
    """
    return float(np.minimum(target, draft).sum())


def residual(target: FloatArray, draft: FloatArray) -> FloatArray:
    """What the target samples from after a rejection: ``max(p - q, 0)``, normalised.

    Where the two are equal nothing is ever rejected, and the target itself is returned.
    """
    left = np.maximum(target - draft, 0.0)
    total = float(left.sum())
    return np.asarray(left / total, dtype=np.float64) if total > 0.0 else target


def draw(distribution: FloatArray, generator: np.random.Generator) -> int:
    """One token; never one of probability 0."""
    bounds = np.cumsum(distribution)
    token = int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))
    return min(token, int(np.flatnonzero(distribution)[-1]))


def draw_candidates(
    draft: FloatArray, count: int, generator: np.random.Generator, replacement: bool = False
) -> list[int]:
    """Candidates for one position, in the order in which they are to be verified.

    Without replacement they are distinct, and fewer where the drafter gives fewer tokens a chance.
    """
    candidates: list[int] = []
    left = draft
    for _ in range(count):
        if left.sum() <= 0.0:
            break
        candidates.append(draw(left, generator))
        left = left if replacement else without(left, candidates[-1])
    return candidates


def without(draft: FloatArray, token: int) -> FloatArray:
    """The drafter's distribution given that it is not ``token``; all zeros where nothing else had a chance."""
    left = draft.copy()
    left[token] = 0.0
    total = float(left.sum())
    return np.asarray(left / total, dtype=np.float64) if total > 0.0 else left


def verify_candidates(
    candidates: Sequence[int],
    target: FloatArray,
    draft: FloatArray,
    generator: np.random.Generator,
    replacement: bool = False,
) -> tuple[int, bool]:
    """The token of one position, and whether it is one of the candidates.

    Each candidate x in turn is accepted with chance ``min(1, p(x) / q(x))``; after a rejection p becomes the residual
    and q loses x. When all are rejected the token is drawn from what is left of p. Either way it is distributed as the
    target's own.

    Args:
        candidates: as ``draw_candidates`` drew them from ``draft``.
        target: p.
        draft: q.
        generator: source of randomness.
        replacement: whether the candidates were drawn with replacement.
    """
    for token in candidates:
        if generator.random() * draft[token] < target[token]:
            return token, True
        target = residual(target, draft)
        draft = draft if replacement else without(draft, token)
    return draw(target, generator), False


def chain_step(
    target: Model, drafter: Model, context: tuple[int, ...], num_speculative_tokens: int, generator: np.random.Generator
) -> tuple[int, ...]:
    """The tokens of one verify step of a chain: the accepted ones and one more, which is never a draft's.

    The last is drawn from the residual after a rejection, or is the bonus token after K acceptances.
    """
    return tree_step(target, drafter, context, (1,) * num_speculative_tokens, generator)


def tree_step(
    target: Model,
    drafter: Model,
    context: tuple[int, ...],
    widths: Sequence[int],
    generator: np.random.Generator,
    replacement: bool = False,
) -> tuple[int, ...]:
    """The tokens of one verify step of a tree with ``widths[d]`` candidates below every node of depth d.

    The drafter sees its own candidates only, never the target's answer: the tree is drafted first, verified then.

    Args:
        target: distribution of the next token after a context.
        drafter: the same of the drafter, over the same tokens.
        context: tokens so far.
        widths: candidates per node, by depth; ones make a chain.
        generator: source of randomness.
        replacement: whether siblings are drawn with replacement (SpecInfer) or without (the default).
    """
    tree = _draft_tree(drafter, context, widths, generator, replacement)
    tokens: tuple[int, ...] = ()
    while tokens in tree:
        here = context + tokens
        token, accepted = verify_candidates(tree[tokens], target(here), drafter(here), generator, replacement)
        tokens += (token,)
        if not accepted:
            return tokens
    return (*tokens, draw(target(context + tokens), generator))


def _draft_tree(
    drafter: Model, context: tuple[int, ...], widths: Sequence[int], generator: np.random.Generator, replacement: bool
) -> dict[tuple[int, ...], list[int]]:
    """Candidates below each drafted path."""
    tree: dict[tuple[int, ...], list[int]] = {}
    layer: list[tuple[int, ...]] = [()]
    for width in widths:
        for path in layer:
            tree[path] = draw_candidates(drafter(context + path), width, generator, replacement)
        layer = [(*path, token) for path in layer for token in dict.fromkeys(tree[path])]
    return tree


def generate(
    step: Callable[[tuple[int, ...]], tuple[int, ...]], context: tuple[int, ...], tokens: int
) -> tuple[tuple[int, ...], int]:
    """``tokens`` tokens after a context by repeated verify steps, and the number of steps taken."""
    produced: tuple[int, ...] = ()
    steps = 0
    while len(produced) < tokens:
        produced += step(context + produced)
        steps += 1
    return produced[:tokens], steps


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
