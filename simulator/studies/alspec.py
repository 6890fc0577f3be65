"""Attention-level speculation as a layout among others: decode steps of scenarios beside each other, with ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hwprofiles import load_chip
from simulator.build import build_alone
from simulator.scenario import Scenario, scenario_from
from simulator.speculation import draft_survival
from simulator.speculation.attention_level import mechanism_costs
from simulator.timing import StepWork, keys_read

WORKLOAD = {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1}
"""Stands in where only steps are priced."""


class DecodeStep(NamedTuple):
    """One decode step of equal sequences."""

    seconds: float
    tokens: float
    """Tokens that a sequence gains by it, bonus token included."""
    fits: bool
    """Whether the KV of the batch fits beside the weights."""
    basis: str

    @property
    def seconds_per_token(self) -> float:
        """TPOT while such steps repeat."""
        return self.seconds / self.tokens


class Gain(NamedTuple):
    """A layout against another at one batch size and context."""

    batch: int
    context_tokens: int
    speedup: float
    """TPOT of the first over that of the second."""
    low: float
    """The same with every assumed cost of the mechanism at the slow end of its range."""
    high: float
    fits: bool
    """Whether both layouts hold the KV."""


class StepPricer:
    """Decode steps of a scenario, built once.

    Args:
        scenario: whose model, hardware, engine and speculation count; its workload does not.

    Raises:
        ForerunError: the model does not fit, or what the scenario asks for is not modelled.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._build = build_alone(scenario, seed=0)
        speculation = scenario.speculation
        self._accepted = 0.0
        if speculation is not None and speculation.method != "none":
            self._accepted = float(sum(draft_survival(speculation)))

    def step(self, batch: int, context_tokens: int) -> DecodeStep:
        """A step of ``batch`` sequences that each end it with ``context_tokens`` in the cache."""
        cluster = self._build.main
        query_len = cluster.limits.query_len
        timer = cluster.timer
        zeros = (0,) * len(timer.windows)
        keys = tuple(batch * keys_read(context_tokens, query_len, window) for window in timer.windows)
        work: StepWork[Any] = StepWork(0, 0, zeros, zeros, 0, zeros, batch, query_len, keys)
        blocks = batch * cluster.limits.blocks(context_tokens + cluster.limits.lookahead_tokens)
        return DecodeStep(
            float(timer.seconds(work)), 1.0 + self._accepted, blocks <= cluster.limits.num_blocks, self._build.basis
        )


def layout(base: Mapping[str, Any], **sections: Any) -> Scenario:
    """A scenario from plain data without a workload, with whole sections replaced; None takes one out.

    Raises:
        ForerunError: a field that is wrong.
    """
    data = {"workload": WORKLOAD, **base, **sections}
    return scenario_from({name: value for name, value in data.items() if value is not None}, "layout")


def at_range_end(scenario: Scenario, end: str) -> Scenario:
    """The scenario with every assumed cost of the mechanism at the ``low`` or the ``high`` end of its range.

    What the scenario gives itself stays.
    """
    config = scenario.attention_speculation
    if config is None:
        return scenario
    costs = mechanism_costs(load_chip(scenario.hardware.chip).kind)
    return scenario.with_values(
        {
            f"attention_speculation.{name}": getattr(parameter, end)
            for name, parameter in costs.items()
            if getattr(config, name) is None
        }
    )


def gains(serial: Scenario, speculative: Scenario, batches: Sequence[int], contexts: Sequence[int]) -> list[Gain]:
    """How much faster tokens come under ``speculative`` than under ``serial``, at each batch size and context.

    Raises:
        ForerunError: a model that does not fit, or something that is not modelled.
    """
    first = StepPricer(serial)
    second, slow, fast = (
        StepPricer(s) for s in (speculative, at_range_end(speculative, "high"), at_range_end(speculative, "low"))
    )
    found = []
    for batch in batches:
        for context in contexts:
            before = first.step(batch, context)
            after, *ends = (pricer.step(batch, context) for pricer in (second, slow, fast))
            ratios = [before.seconds_per_token / end.seconds_per_token for end in (after, *ends)]
            found.append(Gain(batch, context, ratios[0], min(ratios), max(ratios), before.fits and after.fits))
    return found
