"""One engine step into kernels into seconds, with the bound that limits each."""

from simulator.timing.adjusted import AdjustedDrafter
from simulator.timing.config import HardwareConfig
from simulator.timing.costs import Costs
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment, resolve_weight_dtypes
from simulator.timing.draft_overheads import VLLM_2025, DraftOverhead, load_draft_overhead
from simulator.timing.draft_parts import HostOverhead, TokenTable, fusion_table, layer_weight_bytes
from simulator.timing.drafter import AdjustableDrafter, Drafter, DraftMemory, DraftStep
from simulator.timing.drafter_check import check_drafter
from simulator.timing.drafters import (
    HeadsDrafter,
    HostDrafter,
    ParallelDrafter,
    SequentialDrafter,
)
from simulator.timing.engine import EngineTimer, ModelTimer, longest_asked
from simulator.timing.framework import Framework, load_framework
from simulator.timing.light_speed import LightSpeed, light_speed, stage_light_speeds
from simulator.timing.memory import MemoryPlan, fit_apart, plan_memory
from simulator.timing.pipeline import PipelineTimer, StagedTimer, stage_timers
from simulator.timing.remote_drafter import RemoteDrafter
from simulator.timing.step import StepTimer
from simulator.timing.work import StepWork, causal_pairs, keys_read, one_step, some_steps

__all__ = [
    "ACTIVATION_BYTES",
    "VLLM_2025",
    "AdjustableDrafter",
    "AdjustedDrafter",
    "Costs",
    "Deployment",
    "DraftMemory",
    "DraftOverhead",
    "DraftStep",
    "Drafter",
    "EngineTimer",
    "Framework",
    "HardwareConfig",
    "HeadsDrafter",
    "HostDrafter",
    "HostOverhead",
    "LightSpeed",
    "MemoryPlan",
    "ModelTimer",
    "ParallelDrafter",
    "PipelineTimer",
    "RemoteDrafter",
    "SequentialDrafter",
    "StagedTimer",
    "StepTimer",
    "StepWork",
    "TokenTable",
    "causal_pairs",
    "check_drafter",
    "fit_apart",
    "fusion_table",
    "keys_read",
    "layer_weight_bytes",
    "light_speed",
    "load_draft_overhead",
    "load_framework",
    "longest_asked",
    "one_step",
    "plan_memory",
    "resolve_weight_dtypes",
    "some_steps",
    "stage_light_speeds",
    "stage_timers",
]
