"""Origin of acceptance rates: they belong to one method and target model, and their use with others is reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from forerun.errors import ForerunError, did_you_mean
from simulator.llm import published_repositories
from simulator.llm.load import readable_checkpoint
from simulator.speculation.closed_form import expected_length
from simulator.speculation.context import context_drift
from simulator.speculation.curves import curve_names, load_curve
from simulator.speculation.level_decay import conditional_rates
from simulator.speculation.methods import METHODS
from simulator.speculation.proposal import draft_survival
from simulator.speculation.speculation_config import (
    ACCEPTANCE_SOURCES,
    GRAMMAR,
    AcceptanceConfig,
    DraftConfig,
    SpeculationConfig,
)

SAME_DRAFTER = {"eagle2": "eagle"}
"""Methods that draft with another's weights: EAGLE-2 grows its trees from the heads of EAGLE."""


def borrowed_acceptance(config: SpeculationConfig | None, model: object) -> str | None:
    """Note on acceptance that was measured with another method or on another model; None otherwise."""
    if config is None or config.method == "none" or config.acceptance is None:
        return None
    acceptance = config.acceptance
    rates = "its rates were" if acceptance.curve is None else f"curve {acceptance.curve} was"
    method, target = measured_with(acceptance)
    own = model_name(model)
    foreign = []
    if method is not None and _drafter(method) != _drafter(config.method):
        foreign.append(f"with {method}, not with {config.method}")
    if target is not None and not same_model(model, target):
        foreign.append(f"on {target}, not on {own}")
    words = f"acceptance is borrowed: {rates} measured {' and '.join(foreign)}" if foreign else None
    if acceptance.instead_of is None:
        return words
    swap = (
        f"the acceptance of {acceptance.instead_of.get('method', 'another method')} does not hold for {config.method}: "
        f"{_choice_words(config.method, model, config.depth)} stands in"
    )
    return swap if words is None else f"{swap}; {words}"


def measured_with(acceptance: AcceptanceConfig) -> tuple[str | None, str | None]:
    """Method and target model that an acceptance section was measured with; None if it is the scenario's own."""
    if acceptance.curve is None:
        return acceptance.method, acceptance.model
    curve = load_curve(acceptance.curve)
    return curve.method, curve.target


def window_note(config: SpeculationConfig | None, prompts: IntArray) -> str | None:
    """Warning that prompts are longer than the drafter's training context.

    Args:
        config: the scenario's speculation.
        prompts: tokens of each prompt.

    Returns:
        None if all prompts lie within the window, or if a sliding window or an engine log covers long prompts.
    """
    if config is None or config.method == "none" or config.acceptance is None or not len(prompts):
        return None
    draft = config.draft or DraftConfig()
    usual, own = METHODS[config.method].trained_window, draft.trained_window
    window = own or usual
    longest = int(np.max(prompts))
    if not window or draft.windowed or draft.kv_tokens is not None or longest <= window:
        return None
    share = float(np.mean(np.asarray(prompts) > window))
    beyond = f"speculation: {max(1, round(100 * share))} % of the prompts are longer than the {window:,} tokens that "
    if own is not None:
        fall = context_drift(config.acceptance, draft)
        assert fall is not None
        rates = np.asarray(conditional_rates(draft_survival(config).tolist()))
        lengths = expected_length(rates), expected_length(rates * fall.factor(fall.cell(longest)))
        return (
            f"{beyond}the drafter was trained on: tokens per step fall from {lengths[0]:.2f} to {lengths[1]:.2f} at "
            f"{longest:,} tokens (speculation.draft.trained_window)"
        )
    if config.acceptance.log is not None or config.acceptance.context_decay is not None:
        return None
    return (
        f"{beyond}{config.method} heads are usually trained on, where acceptance falls; it is taken to hold as given "
        f"(speculation.draft.trained_window lets it fall, with windowed: true it holds)"
    )


def carry_acceptance(before: Mapping[str, object], data: dict[str, Any], paths: Iterable[str]) -> None:
    """Keep acceptance with its method and target if settings change these without setting acceptance. Another method
    takes the catalogue's own curve, on the same target if there is one, and gets its former acceptance back when it is
    set again; rates carried to another model are labelled with their origin.
    """
    old, new = before.get("speculation"), data.get("speculation")
    if not (isinstance(old, Mapping) and isinstance(new, dict) and isinstance(new.get("acceptance"), Mapping)):
        return
    own = {"speculation", "speculation.acceptance", *(f"speculation.acceptance.{name}" for name in ACCEPTANCE_SOURCES)}
    if not own.isdisjoint(paths):
        return
    acceptance, method = dict(new["acceptance"]), new.get("method")
    measured = "curve" not in acceptance  # a curve names its method and target itself
    if measured and before.get("model") != data.get("model") and before.get("model") is not None:
        acceptance.setdefault("model", model_name(before["model"]))
    origin = _origin(acceptance, old.get("method"))
    if method != old.get("method") and origin is not None:
        if measured:
            acceptance.setdefault("method", origin)
        if isinstance(method, str) and method != "none" and _drafter(origin) != _drafter(method):
            acceptance = _own_acceptance(method, data.get("model"), _depth(new), origin, acceptance)
    new["acceptance"] = acceptance


def _own_acceptance(
    method: str, model: object, depth: int, origin: str, acceptance: Mapping[str, object]
) -> dict[str, Any]:
    """Acceptance of a method that replaces another: its earlier acceptance here, else a curve of the catalogue."""
    former = acceptance.get("instead_of")
    if not isinstance(former, Mapping):
        former = {"method": origin, "acceptance": acceptance}
    elif _drafter(str(former.get("method"))) == _drafter(method):
        return dict(former["acceptance"])
    if method not in METHODS:
        raise ForerunError(
            f"speculation.method: no method '{method}'{did_you_mean(method, METHODS)} (one of {', '.join(METHODS)})"
        )
    if method == GRAMMAR:
        return {"alpha": 0.0, "instead_of": former}
    ranked = _own_curves(method, model, depth)
    if not ranked:
        raise ForerunError(
            f"speculation.acceptance: was given for another method, and the catalogue has no curve of {method}; set "
            f"speculation.acceptance together with speculation.method"
        )
    return {"curve": _middle(ranked), "extrapolate": True, "instead_of": former}


def same_model(model: object, target: str) -> bool:
    """True if a scenario's model is the one that a curve names. By catalogue name, repository or name of its file."""
    names = {model_name(model).lower()}
    if isinstance(model, str):
        names |= {repository.split("/")[-1].lower() for repository in published_repositories(model)}
        names |= {checkpoint.model} if (checkpoint := readable_checkpoint(model)) else set()
    return target.lower() in names or model_name(target).lower() in names


def model_name(model: object) -> str:
    """A model in words: the last part of its name, repository or path."""
    if not isinstance(model, str):
        own = "a model of the scenario's own"
        return str(model.get("name", own)) if isinstance(model, Mapping) else own
    parts = [part for part in model.replace("\\", "/").split("/") if part]
    if len(parts) > 1 and parts[-1] == "config.json":
        return parts[-2]
    return parts[-1].removesuffix(".json").removesuffix(".yaml") if parts else model


def _origin(acceptance: Mapping[str, object], method: object) -> str | None:
    name = acceptance.get("curve")
    if isinstance(name, str) and name in curve_names():
        return load_curve(name).method
    drafted_by = acceptance.get("method", method)
    return drafted_by if isinstance(drafted_by, str) and drafted_by != "none" else None


def _drafter(method: str) -> str:
    return SAME_DRAFTER.get(method, method)


def _depth(speculation: Mapping[str, object]) -> int:
    """Number of draft tokens at which curves are compared: the chain's, else three."""
    tokens = speculation.get("num_speculative_tokens")
    return tokens if isinstance(tokens, int) and 0 < tokens <= 1024 else 3


def _own_curves(method: str, model: object, depth: int) -> list[tuple[float, str]]:
    """Acceptance length and name of the method's curves, ascending; only curves of the model, if there are any."""
    curves = [curve for curve in map(load_curve, curve_names()) if _drafter(curve.method) == _drafter(method)]
    same = [c for c in curves if isinstance(model, str | Mapping) and same_model(model, c.target)]
    return sorted((1.0 + float(curve.survival(depth).sum()), curve.name) for curve in same or curves)


def _middle(ranked: list[tuple[float, str]]) -> str:
    """Name of the median curve; of an even number, the lower of the middle two."""
    return ranked[(len(ranked) - 1) // 2][1]


def _choice_words(method: str, model: object, depth: int) -> str:
    ranked = _own_curves(method, model, depth)
    if not ranked:
        return "what the scenario gives"
    name = _middle(ranked)
    if len(ranked) == 1:
        return f"the catalogue's only curve of it, {name},"
    return (
        f"{name}, the middle one of {len(ranked)} curves of it ({ranked[0][0]:.2f} to {ranked[-1][0]:.2f} tokens per "
        f"step of {depth}),"
    )
