"""Records of a finished run, from which its metrics, document and tables derive."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypedDict

from forerun.result import Result
from hwprofiles import Chip
from simulator.running.build import PoolBuild
from simulator.running.scenario import Scenario
from simulator.running.step_rows import StepDetail, StepTotals
from simulator.serving import (
    EngineCounters,
    GapCounts,
    KvCacheReport,
    ReplicaUse,
    RequestRecords,
    ScalingLog,
    SpeculationCounters,
    StepRecords,
    TransferReport,
)
from simulator.serving.fleet.fleet_config import Role
from simulator.serving.log import Span
from simulator.timing import Evidence, MemoryPlan


class ErrorSource(TypedDict):
    """A component of step times and the range of its error."""

    name: str
    family: str
    """Sources of one family have ``ALIKE`` of their variance in common."""
    draws: str
    """Name of its random draws. Kernels of one chip under two names, or of a chip and another that extends it, have
    the same draws: what one is off by, the other is too."""
    share: dict[str, float]
    """Share of the seconds of each kind of step."""
    low: dict[str, float]
    """Factor at the lower end of its 90 % interval, by kind of step."""
    high: dict[str, float]


class Axis(TypedDict):
    """A direction of variation of step times, and the response of the run's figures."""

    name: str
    deviation: float
    """Standard deviation along it, in logarithms."""
    direction: list[float]
    """Unit vector over ``KINDS``; empty for what is no step's time."""
    response: dict[str, list[float]]
    """Logarithm of each figure's factor at the lower and the upper end of the 90 % interval along it."""


class ModelError(TypedDict):
    """Model error of a run, as plain JSON values."""

    level: float
    sources: list[ErrorSource]
    axes: list[Axis]
    sampling: dict[str, float]
    """Standard error of each figure over stretches of its requests, in logarithms."""
    requests: int
    """Number of requests that were served again for every direction."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool of identical replicas of a finished run, without the objects that built it."""

    name: str
    role: Role
    replicas: int
    chips: int
    """Chips of one replica."""
    chip: Chip
    memory: MemoryPlan
    usd_per_chip_hour: float | None
    peak_flops_per_s: float

    @classmethod
    def of(cls, pool: PoolBuild) -> PoolFacts:
        """The facts of a pool that are kept after the run."""
        return cls(*(getattr(pool, field.name) for field in fields(cls)))


@dataclass(frozen=True, eq=False, repr=False)
class RunRecords(Result):
    """Records of a finished run."""

    kind = "run"

    scenario: Scenario
    seed: int
    requests: RequestRecords
    steps: StepRecords
    totals: StepTotals
    """Sums over all engine steps, whichever rows were kept."""
    gaps: GapCounts
    kv: KvCacheReport
    speculation: SpeculationCounters | None
    engine: EngineCounters
    basis: str
    """The weakest evidence level behind more than a twentieth of the device time."""
    evidence: Evidence
    """``datasheet``, ``calibrated`` or ``extrapolated``: the weakest that the kernel times rest on."""
    notes: tuple[str, ...]
    chips: int
    pools: tuple[PoolFacts, ...]
    """The kinds of replicas, in the order of their numbers."""
    replicas: tuple[ReplicaUse, ...]
    """Usage of each replica."""
    transfers: TransferReport | None
    """KV that moved between pools; None without disaggregated prefill and decode."""
    restarts: int
    """Times that a request started again because its replica failed."""
    spans: tuple[Span, ...] = ()
    """KV transfers and failures, for the timeline."""
    steps_kept: bool = True
    """Whether ``steps`` has a row per engine step (or per few of them), not only sums over very many."""
    scaling: ScalingLog | None = None
    """Log of the autoscaler; None without one."""
    detail: StepDetail | None = None
    """Parts of its steps, for the timeline."""
    model_error: ModelError | None = None
    """Estimated error of its figures; None without ``intervals``."""
