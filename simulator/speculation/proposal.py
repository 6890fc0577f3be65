"""Draft tokens that a scenario's speculation section proposes in each step, and their acceptance by depth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from simulator.speculation.acceptance import survival_rates
from simulator.speculation.curves import load_curve
from simulator.speculation.grammar import forced_survival
from simulator.speculation.level_decay import LevelDecay
from simulator.speculation.speculation_config import (
    CONCENTRATION,
    OF_THIS_TREE,
    AcceptanceConfig,
    SpeculationConfig,
    TreeConfig,
)
from simulator.speculation.tree import (
    DraftTree,
    RankRates,
    chain,
    checked_rates,
    grown_survival,
    node_chances,
    rates_by_rank,
    survival_by_depth,
)

OTHER_RANKS = (0.2533, 0.1692, 0.1202, 0.0833, 0.05, 0.05, 0.05, 0.05, 0.05)
"""Share of the tokens that earlier candidates missed which rank 1, 2, ... catches; assumed beyond the fifth. The first
head of Medusa on Vicuna-7B (curve ``medusa-vicuna-7b``: 0.5604, 0.6717, 0.7271, 0.7599, 0.7799 of tokens among 1 to 5
candidates)."""
LENGTH_STEPS = 200
LEVEL_ERROR = 1e-9
GROWN_LEVEL_ERROR = 1e-3
"""Tolerance of the search for the level; a grown tree's average is not smooth on finer scales."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft tokens of one verify step."""

    nodes: int
    """Draft tokens that the target verifies."""
    depth: int
    """Maximum number of draft tokens that one step can accept."""
    pass_widths: tuple[int, ...]
    """Tokens per sequence that a sequential drafter computes for depth 2, 3, ...: 1 in a chain, expanded nodes in a
    tree."""


def proposal(config: SpeculationConfig) -> Proposal:
    """Draft tokens that a method other than ``none`` proposes per step; a chain is a tree of width one."""
    growth = config.tree.growth if config.tree is not None else None
    if growth is not None:
        nodes = min(growth.nodes, growth.drafted_nodes)
        return Proposal(nodes, min(growth.depth, nodes), (growth.top_k,) * (growth.depth - 1))
    static = None if config.tree is None else config.tree.static
    tree = static or chain(config.num_speculative_tokens or 0)
    return Proposal(tree.num_nodes, tree.depth, expanded_nodes(tree))


def input_slots(config: SpeculationConfig | None, framework: str) -> int:
    """Extra tokens of a step's budget that each sequence takes for the drafter's first pass.

    Source: ``max_num_new_slots_for_drafting`` of vllm/config/speculative.py, taken from the budget with each request
        that is scheduled (vllm-project/vllm#51256, #52922; vLLM 0.28).
    """
    if config is None or framework != "vllm":
        return 0
    return {"draft-model": 1, "parallel-draft": config.depth - 1}.get(config.method, 0)


def expanded_nodes(tree: DraftTree) -> tuple[int, ...]:
    """Number of nodes with children at each depth from 1, which a drafter computes to propose the next depth."""
    inner = sorted({parent for parent in tree.parents if parent >= 0})
    return tuple(np.bincount(tree.depths[inner], minlength=tree.depth)[1:].tolist()) if inner else ()


def draft_survival(config: SpeculationConfig) -> FloatArray:
    """Chance that at least d draft tokens are accepted, d = 1..depth, as input for ``AcceptanceSampler``.

    Combines the drafter's chance (``drafter_survival``) with tokens that a grammar forces.
    """
    survival = drafter_survival(config)
    if config.grammar is None:
        return survival
    before = np.concatenate(([1.0], survival[:-1]))
    conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0.0)
    return forced_survival(np.minimum(conditional, 1.0), config.grammar.forced)


def drafter_survival(config: SpeculationConfig) -> FloatArray:
    """Chance that at least d draft tokens of the drafter alone are accepted, d = 1..depth.

    ``per_position`` and ``log`` describe the drafted tree itself, and ``acceptance_length`` is its length. Other
    sources are rates of the first candidate of each depth; in a tree the other candidates catch a share of its misses
    (``other_ranks``, or the curve's own shares if it was measured by rank).

    Raises:
        ForerunError: rates that end before the depth, or a length that the tree cannot give.
    """
    acceptance = config.acceptance
    assert acceptance is not None
    tree = config.tree
    static = None if tree is None else tree.static
    if tree is None or (static is not None and static == chain(static.num_nodes)):
        return survival_rates(acceptance, config.depth)
    if acceptance.acceptance_length is not None:
        return _with_length(tree, acceptance, config.depth)
    if any(getattr(acceptance, name) is not None for name in OF_THIS_TREE):
        return survival_rates(acceptance, config.depth)
    return tree_survival(tree, _rank_rates(acceptance, config.depth))


def tree_survival(tree: TreeConfig, rates: RankRates, steps: int = 400) -> FloatArray:
    """Chance that at least d draft tokens are accepted, for rates by depth and rank. Of a grown tree over ``steps``."""
    static, growth, checked = tree.static, tree.growth, checked_rates(rates)
    if static is not None:
        return survival_by_depth(static, node_chances(static, checked))
    assert growth is not None
    concentration = CONCENTRATION if tree.concentration is None else tree.concentration
    return grown_survival(growth, checked, concentration, steps)[: tree.longest_path]


def _rank_rates(acceptance: AcceptanceConfig, depth: int) -> RankRates:
    if acceptance.curve is not None and acceptance.other_ranks is None:
        curve = load_curve(acceptance.curve)
        if curve.heads is not None and len(curve.heads) >= depth:
            return curve.rank_rates()
    survival = survival_rates(acceptance, depth)
    before = np.concatenate(([1.0], survival[:-1]))
    conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0.0)
    return _with_ranks(conditional, acceptance)


def _with_ranks(conditional: FloatArray, acceptance: AcceptanceConfig) -> RankRates:
    ranks = OTHER_RANKS if acceptance.other_ranks is None else acceptance.other_ranks
    return rates_by_rank(np.minimum(conditional, 1.0).tolist(), ranks)


def _with_length(tree: TreeConfig, acceptance: AcceptanceConfig, depth: int) -> FloatArray:
    """Survival at the level of the first candidates that gives a measured acceptance length with this tree."""
    length = acceptance.acceptance_length
    assert length is not None
    decay = 1.0 if acceptance.decay is None else acceptance.decay

    def survival(level: float) -> FloatArray:
        rates = _with_ranks(LevelDecay(level, decay).conditional(depth), acceptance)
        return tree_survival(tree, rates, LENGTH_STEPS)

    most = 1.0 + float(survival(1.0).sum())
    if not 1.0 <= length <= most:
        raise ForerunError(
            f"speculation.acceptance.acceptance_length {length:g} is impossible with this tree: it counts the bonus "
            f"token and lies between 1 and {most:.2f}; change decay or the tree"
        )
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if 1.0 + float(survival(middle).sum()) < length:
            low = middle
        else:
            high = middle
        if high - low < (LEVEL_ERROR if tree.static is not None else GROWN_LEVEL_ERROR):
            break
    highest = survival(high)
    # A grown tree's average jumps a little with the level, and siblings catch something even at level 0: meet the
    # measured length exactly.
    return np.minimum(highest * ((length - 1.0) / float(highest.sum())), 1.0) if highest.sum() > 0.0 else highest


def scaled_survival(survival: list[float], factor: float) -> list[float]:
    """Chances that at least i tokens are accepted when each conditional rate is multiplied, to at most 1."""
    rates = [here / before if before > 0 else 0.0 for before, here in pairwise([1.0, *survival])]
    return list(accumulate((min(1.0, rate * factor) for rate in rates), mul))
