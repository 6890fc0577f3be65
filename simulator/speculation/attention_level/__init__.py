"""Attention-level speculation: one device group exact, one ahead on a guess; closed forms, events, evidence."""

from simulator.speculation.attention_level.config import AttentionSpeculationConfig
from simulator.speculation.attention_level.consistency import (
    Case,
    Comparison,
    ConsistencySet,
    compare_layouts,
    consistency_set,
    consistency_sets,
    crossover_context,
    crossover_range,
    sensitivity,
    speedup_band,
)
from simulator.speculation.attention_level.events import Bar, PassTrace, SyncParts, simulate_pass
from simulator.speculation.attention_level.hit_rates import published_hit_rate, published_hit_rates
from simulator.speculation.attention_level.layer import (
    READINGS,
    LayerTimes,
    Reading,
    expected_pass_seconds,
    hit_seconds,
    layer_seconds,
    miss_seconds,
    pass_seconds,
)
from simulator.speculation.attention_level.parameters import Parameter, mechanism_costs

__all__ = [
    "READINGS",
    "AttentionSpeculationConfig",
    "Bar",
    "Case",
    "Comparison",
    "ConsistencySet",
    "LayerTimes",
    "Parameter",
    "PassTrace",
    "Reading",
    "SyncParts",
    "compare_layouts",
    "consistency_set",
    "consistency_sets",
    "crossover_context",
    "crossover_range",
    "expected_pass_seconds",
    "hit_seconds",
    "layer_seconds",
    "mechanism_costs",
    "miss_seconds",
    "pass_seconds",
    "published_hit_rate",
    "published_hit_rates",
    "sensitivity",
    "simulate_pass",
    "speedup_band",
]
