"""The serving engine in simulated time: replicas, schedulers, KV blocks, routing."""

from simulator.serving.cluster import Cluster
from simulator.serving.config import EngineConfig
from simulator.serving.faults import Faults
from simulator.serving.fleet import Fleet
from simulator.serving.fleet_config import FaultsConfig, KvTransferConfig, PoolConfig, RouterConfig
from simulator.serving.limits import EngineLimits
from simulator.serving.log import FULL_ROWS, RunLog, StepLog
from simulator.serving.pool import Pool
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
    "EngineConfig",
    "EngineCounters",
    "EngineLimits",
    "Faults",
    "FaultsConfig",
    "Fleet",
    "GapCounts",
    "KvCacheReport",
    "KvTransferConfig",
    "Pool",
    "PoolConfig",
    "RequestRecords",
    "RouterConfig",
    "RunLog",
    "SpeculationCounters",
    "StepLog",
    "StepRecords",
]
