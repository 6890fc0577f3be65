"""One engine step into kernels into seconds, with the bound that limits each."""

from simulator.timing.config import HardwareConfig
from simulator.timing.deployment import Deployment, resolve_weight_dtypes
from simulator.timing.engine import EngineTimer, ModelTimer
from simulator.timing.framework import Framework, load_framework
from simulator.timing.memory import MemoryPlan, plan_memory
from simulator.timing.step import Costs, StepTimer
from simulator.timing.work import StepWork, causal_pairs, keys_read

__all__ = [
    "Costs",
    "Deployment",
    "EngineTimer",
    "Framework",
    "HardwareConfig",
    "MemoryPlan",
    "ModelTimer",
    "StepTimer",
    "StepWork",
    "causal_pairs",
    "keys_read",
    "load_framework",
    "plan_memory",
    "resolve_weight_dtypes",
]
