"""The serving engine in simulated time: replicas, schedulers, KV blocks, routing."""

from simulator.serving.config import EngineConfig
from simulator.serving.drafting import DraftingRule
from simulator.serving.faults import Faults
from simulator.serving.fleet import Fleet
from simulator.serving.fleet_config import FaultsConfig, KvTransferConfig, PoolConfig, RouterConfig
from simulator.serving.host_cache import OffloadSpace
from simulator.serving.limits import EngineLimits
from simulator.serving.log import FULL_ROWS, RunLog, ScalingLog, StepLog
from simulator.serving.pool import Pool
from simulator.serving.records import (
    EngineCounters,
    GapCounts,
    HostCacheReport,
    KvCacheReport,
    ReplicaUse,
    RequestRecords,
    SpeculationCounters,
    StepRecords,
    TransferReport,
)
from simulator.serving.swap import SwapSpace
from simulator.serving.transfer import KvLink

__all__ = [
    "FULL_ROWS",
    "DraftingRule",
    "EngineConfig",
    "EngineCounters",
    "EngineLimits",
    "Faults",
    "FaultsConfig",
    "Fleet",
    "GapCounts",
    "HostCacheReport",
    "KvCacheReport",
    "KvLink",
    "KvTransferConfig",
    "OffloadSpace",
    "Pool",
    "PoolConfig",
    "ReplicaUse",
    "RequestRecords",
    "RouterConfig",
    "RunLog",
    "ScalingLog",
    "SpeculationCounters",
    "StepLog",
    "StepRecords",
    "SwapSpace",
    "TransferReport",
]
