"""One engine step into kernels into seconds, with the bound that limits each."""

from simulator.timing.config import HardwareConfig
from simulator.timing.costs import Costs
from simulator.timing.deployment import Deployment, resolve_weight_dtypes
from simulator.timing.draft_overheads import DraftOverhead, load_draft_overhead
from simulator.timing.drafter import Drafter, DraftMemory
from simulator.timing.drafter_check import check_drafter
from simulator.timing.drafters import (
    HeadsDrafter,
    HostDrafter,
    HostOverhead,
    ParallelDrafter,
    SequentialDrafter,
    TokenTable,
    fusion_table,
    layer_weight_bytes,
)
from simulator.timing.engine import EngineTimer, ModelTimer
from simulator.timing.framework import Framework, load_framework
from simulator.timing.memory import MemoryPlan, plan_memory
from simulator.timing.pipeline import PipelineTimer, StagedTimer, stage_timers
from simulator.timing.step import StepTimer
from simulator.timing.work import StepWork, causal_pairs, keys_read

__all__ = [
    "Costs",
    "Deployment",
    "DraftMemory",
    "DraftOverhead",
    "Drafter",
    "EngineTimer",
    "Framework",
    "HardwareConfig",
    "HeadsDrafter",
    "HostDrafter",
    "HostOverhead",
    "MemoryPlan",
    "ModelTimer",
    "ParallelDrafter",
    "PipelineTimer",
    "SequentialDrafter",
    "StagedTimer",
    "StepTimer",
    "StepWork",
    "TokenTable",
    "causal_pairs",
    "check_drafter",
    "fusion_table",
    "keys_read",
    "layer_weight_bytes",
    "load_draft_overhead",
    "load_framework",
    "plan_memory",
    "resolve_weight_dtypes",
    "stage_timers",
]
