"""Tasks of pages in separate processes: a capacity plan with a first answer, and adaptive verification."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dashboards.app.jobs import ProgressCallback, Teller
from forerun.document import Json, json_text
from forerun.errors import ForerunError
from simulator.running.metrics.files import write_text_atomically
from simulator.running.scenario import Scenario

PLAN_FILE = "plan.json"
REPLICATIONS, FINALISTS, MOST_REPLICAS = 3, 4, 64
FIRST_ANSWER: Json = {
    "requests": 1000,
    "replications": 1,
    "finalists": 1,
    "headroom": False,
    "interval": False,
    "jobs": 1,
}
"""Options of ``plan`` for a first answer: few requests, and no steps that only refine it."""
FIRST_VARIED = {"engine.max_num_batched_tokens": (2048,)}
"""Values that the first answer of a plan varies; fewer than in the full plan."""


@dataclass(frozen=True, slots=True)
class PlanTask:
    """Background task that computes a capacity plan and writes the same files as ``forerun plan --out``."""

    scenario: Scenario
    chips: tuple[str, ...]
    rate: float | None
    """Request rate to plan for, requests per second; None = the rate of the log."""
    growth: float
    slo: tuple[str, ...]

    def __call__(self, folder: Path, tell: ProgressCallback) -> None:
        from simulator.studies.plan.command import plan

        wanted: Json = {
            "rate": self.rate,
            "growth": self.growth,
            "slo": self.slo,
            "vary": {"hardware.chip": self.chips},
            "max_replicas": MOST_REPLICAS,
            "progress": tell,
        }
        if self.rate is None:  # the busiest requests of a log answer at once, the whole log later
            with suppress(ForerunError):
                varied = wanted["vary"] | FIRST_VARIED
                first = plan(self.scenario, **(wanted | {"vary": varied}), **FIRST_ANSWER)
                write_text_atomically(folder / PLAN_FILE, json_text(first.document))  # its report would take a second
                if isinstance(tell, Teller):
                    tell.answered()
        plan(self.scenario, **wanted, replications=REPLICATIONS, finalists=FINALISTS).save(folder)


def adaptive_throughput(
    loads: Sequence[int], fixed: Sequence[int], scenario: str, confidence: str, prompt: int, output: int
) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Simulate output tokens per second over concurrent requests, and the basis of the last run.

    Returns:
        Throughputs with the best of ``fixed``, and with its last number verified by confidence; evidence level.
    """
    from simulator.running.metrics import summarise
    from simulator.running.run import simulate
    from simulator.speculation.speculation_config import CONFIDENCE_BUDGET

    data = json.loads(scenario)

    def throughput(load: int, k: int, policy: dict[str, str]) -> tuple[float, str]:
        drafter = data["speculation"] | {"num_speculative_tokens": k, "policy": policy}
        workload = {
            "arrivals": {"process": "closed-loop", "max_concurrency": load},
            "num_requests": load + 2 * min(load, 64),
        }
        lengths = {"input_tokens": prompt, "output_tokens": output}
        run = simulate(data | {"speculation": drafter, "workload": workload | lengths}, 0)
        return float(summarise(run)["output_throughput"]), run.basis

    adaptive = [throughput(load, fixed[-1], {"name": CONFIDENCE_BUDGET, "confidence": confidence}) for load in loads]
    best = [max(throughput(load, k, {"name": "fixed"})[0] for k in fixed) for load in loads]
    return tuple(best), tuple(rate for rate, _ in adaptive), adaptive[-1][1]
