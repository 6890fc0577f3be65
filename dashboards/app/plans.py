"""A capacity plan as a background run: a first answer where that helps, then the whole of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.app.jobs import ProgressCallback, Teller
from forerun.errors import ForerunError
from simulator.running.metrics.document import json_text
from simulator.running.metrics.files import write_text_atomically
from simulator.running.scenario import Scenario

PLAN_FILE = "plan.json"
REPLICATIONS, FINALISTS, MOST_REPLICAS = 3, 4, 64
FIRST_ANSWER: dict[str, Any] = {
    "requests": 2000,
    "replications": 1,
    "finalists": 2,
    "headroom": False,
    "interval": False,
    "jobs": 1,
}
"""Options of a first answer: few requests, nothing that only refines it."""


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A capacity plan, made in the background; writes what ``forerun plan --out`` writes."""

    scenario: Scenario
    chips: tuple[str, ...]
    rate: float | None
    """Request rate to plan for, requests per second; None: the rate of the log."""
    growth: float
    slo: tuple[str, ...]

    def __call__(self, folder: Path, tell: ProgressCallback) -> None:
        from simulator.studies.plan.command import plan

        wanted: dict[str, Any] = {
            "rate": self.rate,
            "growth": self.growth,
            "slo": self.slo,
            "vary": {"hardware.chip": self.chips},
            "max_replicas": MOST_REPLICAS,
            "progress": tell,
        }
        if self.rate is None:  # the busiest requests of a log answer at once, the whole log later
            with suppress(ForerunError):
                first = plan(self.scenario, **wanted, **FIRST_ANSWER)
                write_text_atomically(folder / PLAN_FILE, json_text(first.document))  # its report would take a second
                if isinstance(tell, Teller):
                    tell.answered()
        plan(self.scenario, **wanted, replications=REPLICATIONS, finalists=FINALISTS).save(folder)
