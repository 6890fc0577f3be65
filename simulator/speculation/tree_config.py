"""The ``speculation.tree`` section of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simulator.settings import PositiveFloat, Section
from simulator.speculation.dynamic_tree import GrowthPlan
from simulator.speculation.tree import DraftTree, load_tree, tree_from_choices

Rank = Annotated[int, Field(ge=0, le=1000)]
GROWTH = ("depth", "top_k", "nodes")
CONCENTRATION = 3.0
"""How sharply the drafter's confidence differs from node to node, unless given (``drawn_confidences``). With it and
EAGLE's own chain rates a tree of 60 nodes accepts 4.2 to 5.0 tokens per step on Vicuna-7B; measured were 4.34
(Spec-Bench) and 4.98 (EAGLE-2's paper). The length moves by under 10 % between 1 and 100."""
MOST_NODES = 4096


class TreeConfig(Section):
    """A published static tree by name, a static tree by its nodes, or a tree grown anew in each step (EAGLE-2)."""

    name: str | None = None
    """``medusa-63``, ``eagle-25``."""
    choices: Annotated[list[Annotated[list[Rank], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Each node as the ranks along its path, as Medusa's ``medusa_choices``: ``[[0], [1], [0, 0]]``."""
    depth: Annotated[int, Field(gt=0, le=64)] | None = None
    """Grown tree: sequential draft passes."""
    top_k: Annotated[int, Field(gt=0, le=64)] | None = None
    """Grown tree: nodes expanded per layer, and candidates of each."""
    nodes: Annotated[int, Field(gt=0, le=MOST_NODES)] | None = None
    """Grown tree: draft tokens verified, the likeliest of all that were drafted."""
    concentration: PositiveFloat | None = None
    """Grown tree: of the beta-distributed confidence; default 3."""

    @model_validator(mode="after")
    def _one_kind(self) -> TreeConfig:
        grown = [field for field in (*GROWTH, "concentration") if getattr(self, field) is not None]
        kinds = [field for field in ("name", "choices") if getattr(self, field) is not None] + grown[:1]
        if len(kinds) != 1:
            raise ValueError(
                f"give one of name, choices, or depth with top_k and nodes (got {', '.join(kinds) or 'none'})"
            )
        missing = [field for field in GROWTH if getattr(self, field) is None]
        if grown and missing:
            raise ValueError(f"a grown tree needs depth, top_k and nodes ({', '.join(missing)} missing)")
        static = self.static
        if static is not None and static.num_nodes > MOST_NODES:
            raise ValueError(f"a tree of {static.num_nodes} nodes; at most {MOST_NODES}")
        return self

    @property
    def static(self) -> DraftTree | None:
        """The tree, where it is the same in every step."""
        if self.name is not None:
            return load_tree(self.name)
        return tree_from_choices(self.choices) if self.choices is not None else None

    @property
    def growth(self) -> GrowthPlan | None:
        """How it is grown, where it is not."""
        if self.depth is None or self.top_k is None or self.nodes is None:
            return None
        return GrowthPlan(self.depth, self.top_k, self.nodes)

    @property
    def longest_path(self) -> int:
        """Most draft tokens that one step can accept."""
        static = self.static
        return static.depth if static is not None else min(self.depth or 0, self.nodes or 0)
