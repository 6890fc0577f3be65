"""Single runs of studies, each executed once by worker processes."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from forerun.document import Json
from forerun.errors import ForerunError, WorkerDiedError
from forerun.workers import Workers
from simulator.running.assumptions import Factors
from simulator.running.scenario import Scenario
from simulator.studies.frame import ProgressCall
from simulator.studies.paired import COSTS

Document = Json


Need = Literal["summary", "document"]
"""Part of a run that a study reads: the summary, or the whole run."""
NEEDS = get_args(Need)


class SeededRun(NamedTuple):
    """One simulation: a scenario under a seed, with factors on assumed parameters."""

    scenario: Scenario
    seed: int
    factors: tuple[tuple[str, float], ...] = ()
    intervals: bool = False
    """True if the run also estimates its model error."""
    need: Need = "document"
    """Part of the run's document that the study reads. Runs that differ only in this field count as the same run."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Cache key of everything that the result depends on; the seed is included only if the run is random."""
        seed = self.seed if self.intervals or self.scenario.random else None
        return (
            json.dumps(self.scenario.model_dump(mode="json", exclude_none=True), sort_keys=True),
            seed,
            self.factors,
            self.intervals,
        )


def needed_for(metric: str) -> Need:
    """Part of the runs' documents that a comparison by one metric needs."""
    return "document" if metric in COSTS else "summary"


def with_seeds(scenario: Scenario, seeds: Iterable[int], need: Need, factors: Factors | None = None) -> list[SeededRun]:
    pairs = tuple(sorted((factors or {}).items()))
    return [SeededRun(scenario, seed, pairs, need=need) for seed in seeds]


class RunPool:
    """Runs simulations on worker processes and remembers their documents."""

    def __init__(self, workers: Workers, progress: ProgressCall | None = None) -> None:
        self._workers = workers
        self._progress = progress
        self._known: dict[Any, tuple[int, Document]] = {}
        self._failed: dict[Any, ForerunError] = {}
        self._started = 0

    def document(self, run: SeededRun, name: str) -> Document:
        (document,) = self.documents_if_any([run])
        if document is not None:
            return document
        error = self._failed[run.key]
        kind = WorkerDiedError if isinstance(error, WorkerDiedError) else ForerunError
        raise kind(f"{name}: {error}")

    def documents_if_any(self, runs: Sequence[SeededRun]) -> list[Document | None]:
        """Document of each run, in order; None for a failed run, as may occur at the end of a range."""
        keys = [run.key for run in runs]
        wanted: dict[Any, SeededRun] = {}
        for key, run in zip(keys, runs, strict=True):
            most = max(self._known.get(key, (-1,))[0], NEEDS.index(wanted[key].need) if key in wanted else -1)
            if key not in self._failed and most < NEEDS.index(run.need):
                wanted[key] = run
        waiting = {key: self._workers.start(run_document_of, *run) for key, run in wanted.items()}
        self._started += len(waiting)
        for key, result in waiting.items():
            try:
                self._known[key] = NEEDS.index(wanted[key].need), result()
            except ForerunError as error:
                self._failed[key] = error
            if self._progress is not None:
                self._progress(len(self._known) + len(self._failed), self._started)
        known = [self._known.get(key) for key in keys]
        return [one and one[1] | {"seed": run.seed} for one, run in zip(known, runs, strict=True)]


def run_document_of(
    scenario: Scenario,
    seed: int,
    factors: tuple[tuple[str, float], ...] = (),
    intervals: bool = False,
    need: Need = "document",
) -> Document:
    from simulator.running.metrics import run_document, summarise
    from simulator.running.metrics.conclusion import load_section
    from simulator.running.run import serve, simulate

    if need == "summary" and not intervals:
        served = serve(scenario, seed, factors=dict(factors))
        document: Document = {"summary": summarise(served), "load": load_section(served.requests, scenario.workload)}
    else:
        document = run_document(
            simulate(scenario, seed, full_step_rows=0, factors=dict(factors), intervals=intervals, cost_notes=False)
        )
    gc.collect(1)  # a run leaves reference cycles, which hold large arrays but are too few to start the collector
    return document


def nested_value(data: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path of plain data; None if the path does not exist."""
    here: Any = data
    for name in path.split("."):
        if not isinstance(here, Mapping) or name not in here:
            return None
        here = here[name]
    return here
