"""A published result compared with the engine's speedup, range and crossover for kernels of that time.

TP 8 against TP 4 x SP 2, batch 1. Every time is the engine's own price for the layers of the set's chip; unknown
parameters have ranges, and named alternatives change one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, did_you_mean
from hwprofiles import AttentionShape, KernelLibrary, load_chip, load_link
from hwprofiles.formulas import Num
from simulator.llm import load_architecture
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig
from simulator.speculation.attention_level.layer import LayerTimes, Reading, expected_pass_seconds
from simulator.speculation.attention_level.overlap import SpeculativeAttention
from simulator.speculation.attention_level.parameters import (
    Parameter,
    mechanism_costs,
    parameter_file,
    source_words,
)
from simulator.timing import Deployment, ModelTimer, StepTimer, decode_work, load_framework, resolve_weight_dtypes

MOST_TOKENS = 16
"""Tokens of a step that the set's timers price; only decode steps of one sequence are priced."""


@dataclass(frozen=True, slots=True)
class ConsistencySet:
    """A published result, the engine's times for it, and plausible alternatives."""

    name: str
    description: str
    label: str
    model: str
    chip: str
    num_layers: int
    kernels_per_layer: int
    window_tokens: int
    parameters: Mapping[str, Parameter]
    """Values from the engine, each with its range."""
    published: Mapping[str, Num]
    cases: tuple[tuple[str, Mapping[str, float]], ...]
    """Named alternatives: the parameters that differ from the set's values."""
    attention_s: Callable[[int, Num, Mapping[str, float]], Num]
    """Exact decode attention of one layer by (chips of a group, context, values)."""

    def values(self, changes: Mapping[str, float] | None = None) -> dict[str, float]:
        """Values of the parameter set, with ``changes`` applied.

        Raises:
            ForerunError: a parameter that the set does not have.
        """
        known = {name: parameter.value for name, parameter in self.parameters.items()}
        for name in (changes or {}).keys() - known.keys():
            raise ForerunError(f"{self.name}: no parameter '{name}'{did_you_mean(name, known)} ({', '.join(known)})")
        return {**known, **(changes or {})}


def consistency_sets() -> tuple[str, ...]:
    """Names of the published results."""
    return tuple(parameter_file()["consistency"])


@cache
def consistency_set(name: str) -> ConsistencySet:
    """A published result by name, priced by the engine.

    Raises:
        ForerunError: no such set.
    """
    sets = parameter_file()["consistency"]
    if name not in sets:
        raise ForerunError(f"no parameter set '{name}'{did_you_mean(name, sets)} (one of {', '.join(sets)})")
    entry = dict(sets[name])
    ranges, dtype = entry.pop("ranges"), entry.pop("dtype")
    alone, group = (_timer(entry["chip"], entry["model"], dtype, chips) for chips in (8, 4))
    mechanism = mechanism_costs(group.deployment.chip.kind)
    shape = _shape(group)
    context, layers = entry["published"]["context_tokens"], group.deployment.architecture.num_layers
    serial, both = _layer(alone, context), _layer(group, context)
    head_bytes = context * shape.kv_bytes_per_token / shape.num_kv_heads
    of_engine = {
        "serial_other_s": float(serial.other_s),
        "group_other_s": float(both.other_s),
        "serial_rest_s": _rest(alone, context, layers),
        "group_rest_s": _rest(group, context, layers),
        "pre_share": float(both.pre_s / both.other_s),
        "serial_head_bytes_per_s": head_bytes / float(serial.exact_s),
        "group_head_bytes_per_s": head_bytes / float(both.exact_s),
        "window_s": float(both.window_s),
    }
    dram = ranges["dram_bytes_per_s"]
    dram = dram | {"high": min(group.deployment.chip.memory.bandwidth_bytes_per_s, dram["high"])}
    parameters = dict(mechanism)
    for key, value in (of_engine | {"dram_bytes_per_s": dram["value"]}).items():
        fields = dram if key == "dram_bytes_per_s" else ranges[key]
        low, high = min(fields.get("low", value), value), max(fields.get("high", value), value)
        parameters[key] = Parameter(key, value, low, high, fields["what"], source_words(fields["source"]))

    def attention_s(chips: int, context_tokens: Num, values: Mapping[str, float]) -> Num:
        timer = alone if chips == 8 else group
        field = "serial_head_bytes_per_s" if chips == 8 else "group_head_bytes_per_s"
        decode = timer.deployment.kernels.attention_decode(_shape(timer), seqs=1, q_len=1, kv_tokens=context_tokens)
        exact = decode.seconds * of_engine[field] / values[field]
        return np.maximum(exact, context_tokens * _shape(timer).kv_bytes_per_token / values["dram_bytes_per_s"])

    cases = tuple((case["name"], case["set"]) for case in entry.pop("cases"))
    return ConsistencySet(
        name=name,
        parameters=parameters,
        cases=cases,
        num_layers=layers,
        kernels_per_layer=group.deployment.framework.kernels_per_layer,
        window_tokens=AttentionSpeculationConfig(hit_rate=1.0).window_tokens,
        attention_s=attention_s,
        **entry,
    )


def _timer(chip_name: str, model: str, dtype: str, chips: int) -> StepTimer:
    chip, architecture = load_chip(chip_name), load_architecture(model)
    assert chip.links.scale_up is not None
    deployment = Deployment(
        architecture=architecture,
        chip=chip,
        kernels=KernelLibrary(chip),
        link=load_link(chip.links.scale_up),
        framework=load_framework("vllm").on(chip),
        tensor_parallel=chips,
        weight_dtypes=resolve_weight_dtypes(architecture, dtype),
        kv_dtype=dtype,
    )
    return StepTimer(deployment, MOST_TOKENS)


def _layer(timer: StepTimer, context_tokens: int) -> LayerTimes:
    attention = SpeculativeAttention(AttentionSpeculationConfig(hit_rate=1.0), timer)
    return attention.layer_times(attention.full_attention[0], 1, 1, context_tokens)


def _shape(timer: StepTimer) -> AttentionShape:
    return timer.deployment.attention_shape(timer.deployment.architecture.layer_groups[0].layer.attention)


def _rest(timer: StepTimer, context_tokens: int, layers: int) -> float:
    """Seconds of a decode step outside its layers: embedding, LM head, sampling, host."""
    work = decode_work(1, 1, (context_tokens,))
    return float(ModelTimer(timer).seconds(work)) - layers * float(_layer(timer, context_tokens).serial_s)


class LayoutComparison(NamedTuple):
    """Two layouts at the same contexts; every entry a number or an array over the contexts."""

    serial_s: Num
    """A layer without speculation on all chips."""
    speculative_s: Num
    """A layer with speculation on two groups of half the chips, mean over a pass."""
    speedup: Num
    """Speed-up of a whole decode step, as the engine prices it."""
    overhead_reduction: Num
    """Ratio of the time that attention adds to a layer, without speculation over with it."""


class SensitivityCase(NamedTuple):
    """A comparison under changed parameters."""

    name: str
    speedup: float
    overhead_reduction: float


def group_layer(parameters: ConsistencySet, context_tokens: Num, values: Mapping[str, float]) -> LayerTimes:
    """Times of a layer on one of the two groups (four chips)."""
    exact = parameters.attention_s(4, context_tokens, values)
    skipped = min(parameters.kernels_per_layer * values["skip_launch_s"], values["group_other_s"])
    share = values["pre_share"]
    return LayerTimes(
        pre_s=share * values["group_other_s"],
        post_s=(1 - share) * values["group_other_s"],
        exact_s=exact,
        window_s=np.minimum(values["window_s"], exact),
        send_s=values["send_s"],
        verify_s=values["verify_s"],
        sync_s=values["sync_s"],
        skip_pre_s=share * skipped,
        skip_post_s=(1 - share) * skipped,
    )


def compare_layouts(
    parameters: ConsistencySet,
    context_tokens: Num,
    hit_rate: float,
    reading: Reading = "next-attention",
    changes: Mapping[str, float] | None = None,
) -> LayoutComparison:
    """TP 8 without speculation against TP 4 x SP 2 with it, batch 1.

    Args:
        parameters: the set.
        context_tokens: a number or an array.
        hit_rate: share of layers that pass.
        reading: when a receiver waits.
        changes: parameters in place of the set's values.

    Raises:
        ForerunError: a parameter that the set does not have, or a value that no layer can have.
    """
    values, layers = parameters.values(changes), parameters.num_layers
    alone = parameters.attention_s(8, context_tokens, values)
    serial = values["serial_other_s"] + alone
    times = group_layer(parameters, context_tokens, values)
    speculative = expected_pass_seconds(times, [hit_rate] * layers, reading) / layers
    speedup = (layers * serial + values["serial_rest_s"]) / (layers * speculative + values["group_rest_s"])
    return LayoutComparison(serial, speculative, speedup, alone / (speculative - values["group_other_s"]))


def sensitivity(
    parameters: ConsistencySet, context_tokens: int, hit_rate: float, reading: Reading = "next-attention"
) -> list[SensitivityCase]:
    """The set's named alternatives, each against the same context and hit rate."""
    cases = []
    for name, changes in parameters.cases:
        result = compare_layouts(parameters, context_tokens, hit_rate, reading, changes)
        cases.append(SensitivityCase(name, float(result.speedup), float(result.overhead_reduction)))
    return cases


def speedup_band(
    parameters: ConsistencySet, context_tokens: FloatArray, hit_rate: float, reading: Reading = "next-attention"
) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest speedup over the set's named alternatives, at each context."""
    cases = [compare_layouts(parameters, context_tokens, hit_rate, reading, changes) for _, changes in parameters.cases]
    curves = np.array([case.speedup for case in cases])
    return curves.min(axis=0), curves.max(axis=0)


def crossover_context(
    parameters: ConsistencySet,
    hit_rate: float,
    reading: Reading = "next-attention",
    changes: Mapping[str, float] | None = None,
    most_tokens: int = 1 << 20,
) -> float | None:
    """Minimum context at which two groups beat one group of all chips; None if they do not up to ``most_tokens``."""
    contexts = np.unique(np.geomspace(1, most_tokens, 4001).round())
    gain = compare_layouts(parameters, contexts, hit_rate, reading, changes).speedup - 1.0
    above = np.flatnonzero(gain >= 0)
    if not len(above):
        return None
    first = int(above[0])
    if first == 0:
        return float(contexts[0])
    low, high = gain[first - 1], gain[first]
    return float(contexts[first - 1] + (contexts[first] - contexts[first - 1]) * -low / (high - low))


def crossover_range(
    parameters: ConsistencySet, hit_rate: float, reading: Reading = "next-attention"
) -> tuple[float | None, float | None, float | None]:
    """Crossover context of the set, and the lowest and highest over its alternatives (None: one never pays)."""
    every = [crossover_context(parameters, hit_rate, reading, changes) for _, changes in parameters.cases]
    crossovers = [context for context in every if context is not None]
    return every[0], min(crossovers, default=None), None if None in every else max(crossovers)
