"""Public draft heads by the name of their repository: sizes as their config.json states them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import parse
from simulator.llm.architecture import Architecture
from simulator.llm.draft_heads import HeadSizes


class PublishedHead(NamedTuple):
    """One public draft head."""

    method: str
    """Method of the head, as in ``speculation.method``."""
    hidden_size: int
    sizes: HeadSizes
    source: str
    default_for: str | None = None
    """Target model for which this head is the default; None for no target."""


def published_head_names() -> tuple[str, ...]:
    """Repositories in the catalogue, in alphabetical order."""
    return tuple(sorted(_heads()))


def published_head(name: str, method: str, target: Architecture) -> PublishedHead:
    """A public head, checked to fit its target.

    Args:
        name: repository of its weights.
        method: ``speculation.method``; EAGLE-2 runs EAGLE's heads.
        target: model that it drafts for.

    Raises:
        ForerunError: no such head, of another method, or for a target of another hidden size.
    """
    heads = _heads()
    if name not in heads:
        raise ForerunError(
            f"model: no public draft head '{name[:120]}'{did_you_mean(name, heads)}; leave model out to derive the "
            f"sizes from the target, or give them ({', '.join(field.name for field in fields(HeadSizes))})"
        )
    head = heads[name]
    if head.method != ("eagle" if method == "eagle2" else method):
        raise ForerunError(f"model: {name} is a head of method {head.method}, not {method}")
    if head.hidden_size != target.hidden_size:
        raise ForerunError(
            f"model: {name} reads hidden states of size {head.hidden_size}, {target.name} has {target.hidden_size}"
        )
    return head


def usual_head(method: str, target: Architecture) -> PublishedHead | None:
    """Default public head for a target; None if there is none, so that sizes are derived from the target."""
    return next((h for h in _heads().values() if (h.method, h.default_for) == (method, target.name)), None)


@cache
def _heads() -> dict[str, PublishedHead]:
    text = (resources.files("simulator.llm") / "draft_heads.yaml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = parse(text)["heads"]
    known = [field.name for field in fields(HeadSizes)]
    return {
        name: PublishedHead(
            row["method"],
            row["hidden_size"],
            HeadSizes(**{k: row[k] for k in known if k in row}),
            row["source"],
            row.get("default_for"),
        )
        for name, row in rows.items()
    }
