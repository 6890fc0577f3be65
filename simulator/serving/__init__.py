"""The serving engine in simulated time: replicas, schedulers, KV blocks, routing."""

from simulator.serving.cluster import Cluster
from simulator.serving.config import EngineConfig
from simulator.serving.drafting import DraftingRule
from simulator.serving.limits import EngineLimits
from simulator.serving.log import FULL_ROWS, RunLog, StepLog
from simulator.serving.records import (
    EngineCounters,
    GapCounts,
    KvCacheReport,
    RequestRecords,
    SpeculationCounters,
    StepRecords,
)

__all__ = [
    "FULL_ROWS",
    "Cluster",
    "DraftingRule",
    "EngineConfig",
    "EngineCounters",
    "EngineLimits",
    "GapCounts",
    "KvCacheReport",
    "RequestRecords",
    "RunLog",
    "SpeculationCounters",
    "StepLog",
    "StepRecords",
]
