"""Attention-level speculation as a layout among others: decode steps of scenarios beside each other, with ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hwprofiles import load_chip
from simulator.build import build_alone
from simulator.scenario import Scenario, scenario_from
from simulator.speculation import draft_survival
from simulator.speculation.attention_level import AttentionSpeculationConfig
from simulator.speculation.attention_level.overlap import SpeculativeAttention, costs_at
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
        self._timer = self._build.main.timer
        speculation = scenario.speculation
        self._accepted = 0.0
        if speculation is not None and speculation.method != "none":
            self._accepted = float(sum(draft_survival(speculation)))

    @property
    def basis(self) -> str:
        """What its usual steps rest on."""
        return self._build.basis

    def under(self, config: AttentionSpeculationConfig) -> StepPricer:
        """The same layout with other hit rates, levers or costs of attention-level speculation, nothing built again."""
        other, target = copy(self), self._timer.target
        assert isinstance(target.overlap, SpeculativeAttention)
        other._timer = replace(self._timer, target=target.beside(target.overlap.under(config)))
        return other

    def step(self, batch: int, context_tokens: int) -> DecodeStep:
        """A step of ``batch`` sequences that each end it with ``context_tokens`` in the cache."""
        return self.steps([(batch, context_tokens)])[0]

    def steps(self, cases: Sequence[tuple[int, int]]) -> list[DecodeStep]:
        """The same for many pairs of batch and context at once."""
        limits, windows = self._build.main.limits, self._timer.windows
        query_len, batches = limits.query_len, np.array([batch for batch, _ in cases])
        zero = np.zeros_like(batches)
        none = (zero,) * len(windows)
        read = [[batch * keys_read(context, query_len, window) for batch, context in cases] for window in windows]
        keys = tuple(np.array(row) for row in read)
        costs = self._timer.costs(StepWork(zero, zero, none, none, zero, none, batches, zero + query_len, keys))
        seconds = (costs.device_s + costs.host_s).tolist()
        blocks = [batch * limits.blocks(context + limits.lookahead_tokens) for batch, context in cases]
        return [
            DecodeStep(taken, 1.0 + self._accepted, needed <= limits.num_blocks)
            for taken, needed in zip(seconds, blocks, strict=True)
        ]


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
    return scenario.model_copy(
        update={"attention_speculation": costs_at(config, load_chip(scenario.hardware.chip).kind, end)}
    )


def gains(serial: Scenario, speculative: Scenario, batches: Sequence[int], contexts: Sequence[int]) -> list[Gain]:
    """``lever_gains`` of the scenario as it is."""
    return lever_gains([StepPricer(serial)], speculative, batches, contexts, [{}])[0]


def lever_gains(
    serial: Sequence[StepPricer],
    speculative: Scenario,
    batches: Sequence[int],
    contexts: Sequence[int],
    levers: Sequence[Mapping[str, Any]],
) -> list[list[Gain]]:
    """How much faster tokens come under ``speculative`` than under ``serial``, at each batch size and context.

    Args:
        serial: without attention-level speculation; the fastest of those whose KV fits counts, so that no gain is that
            over a layout nobody would choose.
        speculative: with it.
        batches: sequences of a step.
        contexts: tokens that each of them has in the cache.
        levers: fields of ``attention_speculation`` in place of the scenario's own, once for each list of gains.

    Raises:
        ForerunError: a model that does not fit, or something that is not modelled.
    """
    cases = list(product(batches, contexts))
    alone = zip(*(each.steps(cases) for each in serial), strict=True)
    before = [min(steps, key=lambda step: (not step.fits, step.seconds_per_token)) for steps in alone]
    second = StepPricer(speculative)
    kind, own = load_chip(speculative.hardware.chip).kind, speculative.attention_speculation
    assert own is not None
    found = []
    for lever in levers:
        config = AttentionSpeculationConfig.model_validate({**own.model_dump(exclude_none=True), **lever})
        ends = [costs_at(config, kind, end) for end in ("high", "low")]
        after = [second.under(each).steps(cases) for each in (config, *ends)]
        rows = []
        for number, (batch, context) in enumerate(cases):
            ratios = [before[number].seconds_per_token / steps[number].seconds_per_token for steps in after]
            fits = before[number].fits and after[0][number].fits
            rows.append(Gain(batch, context, ratios[0], min(ratios), max(ratios), fits))
        found.append(rows)
    return found
