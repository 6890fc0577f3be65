"""One engine step into kernels into seconds, with the bound that limits each."""

from simulator.timing.config import HardwareConfig
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment, resolve_weight_dtypes
from simulator.timing.drafter_check import check_drafter
from simulator.timing.drafters import (
    AdjustableDrafter,
    AdjustedDrafter,
    Drafter,
    DraftMemory,
    DraftStep,
    DraftTable,
    HeadsDrafter,
    HostDrafter,
    HostOverhead,
    ParallelDrafter,
    Part,
    RemoteDrafter,
    SequentialDrafter,
    drafting_costs,
    drafting_seconds,
    fusion_table,
    host_part,
    layer_weight_bytes,
)
from simulator.timing.engine import EngineTimer, ModelTimer, PipelineTimer, StagedTimer, longest_asked, stage_timers
from simulator.timing.framework import VLLM_2025, DraftOverhead, Framework, load_draft_overhead, load_framework
from simulator.timing.kernels import Costs, Evidence, Kernel, running
from simulator.timing.memory import MemoryPlan, fit_apart, plan_memory
from simulator.timing.step import StepTables, StepTimer, step_timer
from simulator.timing.work import StepWork, causal_pairs, keys_read, one_step, some_steps, usual_steps

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
    "DraftTable",
    "Drafter",
    "EngineTimer",
    "Evidence",
    "Framework",
    "HardwareConfig",
    "HeadsDrafter",
    "HostDrafter",
    "HostOverhead",
    "Kernel",
    "MemoryPlan",
    "ModelTimer",
    "ParallelDrafter",
    "Part",
    "PipelineTimer",
    "RemoteDrafter",
    "SequentialDrafter",
    "StagedTimer",
    "StepTables",
    "StepTimer",
    "StepWork",
    "causal_pairs",
    "check_drafter",
    "drafting_costs",
    "drafting_seconds",
    "fit_apart",
    "fusion_table",
    "host_part",
    "keys_read",
    "layer_weight_bytes",
    "load_draft_overhead",
    "load_framework",
    "longest_asked",
    "one_step",
    "plan_memory",
    "resolve_weight_dtypes",
    "running",
    "some_steps",
    "stage_timers",
    "step_timer",
    "usual_steps",
]
