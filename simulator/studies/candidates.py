"""A capacity plan as data: how it is made, what became of each candidate, which one wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.studies.layouts import Layout
from simulator.studies.objectives import Objective
from simulator.studies.study_file import StudyFile
from simulator.studies.trials import Verdict

ProgressCall = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a plan is made."""

    mode: str = "rate"
    """``rate``: hold ``rate``. ``own``: hold the scenario's own arrivals. ``max-rate``: find the highest rate."""
    rate: float | None = None
    growth: float = 1.0
    """Factor on the rate, or on the speed of the trace."""
    seed: int = 0
    replications: int = 5
    requests: int | None = None
    finalists: int = 5
    """Layouts that hold the SLO, the winner included, after which no others are tried."""
    max_replicas: int = 64
    jobs: int | None = None
    headroom: bool = True
    """Find the highest rate of every finalist."""


@dataclass(slots=True)
class Candidate:
    """A layout with a number of replicas, and what became of it."""

    layout: Layout
    replicas: int
    status: str
    """``meets``, ``misses``, ``pruned``, ``refused`` or ``not simulated``."""
    reason: str | None = None
    verdict: Verdict | None = None
    max_rate: float | None = None
    at_least: bool = False
    """Whether ``max_rate`` is as far as the requests allow to look, and still holds."""
    rate: float | None = None
    """Requests per second of the verdict."""

    @property
    def name(self) -> str:
        """Layout and replicas."""
        return self.layout.named(self.replicas)

    @property
    def chips(self) -> int:
        """Of all replicas."""
        return self.layout.chips * self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Of all replicas."""
        return None if self.layout.usd_per_hour is None else self.layout.usd_per_hour * self.replicas


@dataclass(slots=True)
class Plan:
    """A finished plan, best candidate first."""

    study: StudyFile
    objective: Objective
    options: PlanOptions
    rate: float | None
    """Requests per second planned for; None where the highest is sought."""
    by_price: bool
    """Whether cost is US dollars per hour; else chips."""
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0

    @property
    def best(self) -> Candidate | None:
        """The winner; None where no candidate holds the SLO."""
        first = self.candidates[0] if self.candidates else None
        return first if first is not None and first.status == "meets" else None

    def cost(self, candidate: Candidate) -> float:
        """US dollars per hour, or chips where not every layout has a price."""
        usd = candidate.usd_per_hour
        return float(usd) if self.by_price and usd is not None else float(candidate.chips)
