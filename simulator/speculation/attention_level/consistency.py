"""TP 8 against TP 4 x SP 2, layer by layer, from one documented parameter set: speedup, range, crossover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.attention_level.layer import LayerTimes, Reading, expected_pass_seconds, layer_seconds
from simulator.speculation.attention_level.parameters import ConsistencySet, Parameter

FloatArray = NDArray[np.float64]


class Comparison(NamedTuple):
    """Two layouts at the same contexts; every entry a number or an array over the contexts."""

    serial_s: Any
    """A layer without speculation on all chips."""
    speculative_s: Any
    """A layer with speculation on two groups of half the chips, mean over a pass."""
    speedup: Any
    overhead_reduction: Any
    """What attention adds to a layer, without speculation over with it."""


class Case(NamedTuple):
    """A comparison under changed parameters."""

    name: str
    speedup: float
    overhead_reduction: float


def attention_seconds(
    context_tokens: Any, kv_heads: int, head_bytes_per_s: float, values: Mapping[str, float], head_dim: int
) -> Any:
    """Seconds of decode attention of one sequence in one layer: limited per KV head, and by the chip's DRAM.

    ``max(bytes of all heads / DRAM bandwidth, bytes of a head / bandwidth of the cores that may read it)``: a flash
    decode kernel gives each KV head a limited number of cores, so spreading heads over more chips buys nothing.

    Args:
        context_tokens: keys, a number or an array.
        kv_heads: on one chip.
        head_bytes_per_s: bandwidth for one head.
        values: ``dram_bytes_per_s`` and ``kv_bytes_per_value``.
        head_dim: of a key and of a value.
    """
    head_bytes = context_tokens * 2.0 * head_dim * values["kv_bytes_per_value"]
    return np.maximum(kv_heads * head_bytes / values["dram_bytes_per_s"], head_bytes / head_bytes_per_s)


def group_layer(parameters: ConsistencySet, context_tokens: Any, values: Mapping[str, float]) -> LayerTimes:
    """Times of a layer on one of the two groups (four chips)."""
    exact = attention_seconds(
        context_tokens, parameters.num_kv_heads // 4, values["group_head_bytes_per_s"], values, parameters.head_dim
    )
    skipped = parameters.kernels_per_layer * values["skip_launch_s"]
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
    context_tokens: Any,
    hit_rate: float,
    reading: Reading = "next-attention",
    changes: Mapping[str, float] | None = None,
    whole_pass: bool = True,
) -> Comparison:
    """TP 8 without speculation against TP 4 x SP 2 with it, batch 1.

    Args:
        parameters: the set.
        context_tokens: a number or an array.
        hit_rate: share of layers that pass.
        reading: when a receiver waits.
        changes: parameters in place of the set's values.
        whole_pass: mean over a pass with its first and last layer; else a layer far from both.

    Raises:
        ForerunError: a parameter that the set does not have, or a value that no layer can have.
    """
    values = parameters.values(changes)
    alone = attention_seconds(
        context_tokens, parameters.num_kv_heads // 8, values["serial_head_bytes_per_s"], values, parameters.head_dim
    )
    serial = values["serial_other_s"] + alone
    times = group_layer(parameters, context_tokens, values)
    if whole_pass:
        layers = parameters.num_layers
        speculative = expected_pass_seconds(times, [hit_rate] * layers, reading) / layers
    else:
        speculative = layer_seconds(times, hit_rate, reading)
    return Comparison(serial, speculative, serial / speculative, alone / (speculative - values["group_other_s"]))


def sensitivity(
    parameters: ConsistencySet,
    context_tokens: int,
    hit_rate: float,
    reading: Reading = "next-attention",
    whole_pass: bool = True,
) -> list[Case]:
    """The set's named alternatives, each against the same context and hit rate."""
    found = []
    for name, changes in parameters.cases:
        result = compare_layouts(parameters, context_tokens, hit_rate, reading, changes, whole_pass)
        found.append(Case(name, float(result.speedup), float(result.overhead_reduction)))
    return found


def one_at_a_time(
    parameters: ConsistencySet, context_tokens: int, hit_rate: float, reading: Reading = "next-attention"
) -> list[tuple[Parameter, float, float]]:
    """Speedup with each parameter alone at the low and at the high end of its range; the widest effect first."""
    found = []
    for parameter in parameters.parameters.values():
        if parameter.low == parameter.high:
            continue
        ends = [
            float(compare_layouts(parameters, context_tokens, hit_rate, reading, {parameter.name: end}).speedup)
            for end in (parameter.low, parameter.high)
        ]
        found.append((parameter, ends[0], ends[1]))
    return sorted(found, key=lambda row: abs(row[1] - row[2]), reverse=True)


def speedup_band(
    parameters: ConsistencySet, context_tokens: FloatArray, hit_rate: float, reading: Reading = "next-attention"
) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest speedup over the set's named alternatives, at each context."""
    curves = np.array(
        [
            compare_layouts(parameters, context_tokens, hit_rate, reading, changes).speedup
            for _, changes in parameters.cases
        ]
    )
    return curves.min(axis=0), curves.max(axis=0)


def crossover_context(
    parameters: ConsistencySet,
    hit_rate: float,
    reading: Reading = "next-attention",
    changes: Mapping[str, float] | None = None,
    most_tokens: int = 1 << 20,
) -> float | None:
    """Context from which two groups beat all chips in one; None where they do not up to ``most_tokens``."""
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
    """Crossover context of the set, and the lowest and highest over its alternatives (None: one of them never pays)."""
    every: Sequence[float | None] = [
        crossover_context(parameters, hit_rate, reading, changes) for _, changes in parameters.cases
    ]
    found = [context for context in every if context is not None]
    return every[0], min(found, default=None), None if None in every else max(found)
