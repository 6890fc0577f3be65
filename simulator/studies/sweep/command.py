"""``forerun sweep`` and ``fr.sweep``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from forerun.errors import ForerunError
from simulator.studies.frame import Jobs, Mode, Option, ProgressCall, study

if TYPE_CHECKING:
    from simulator.studies.study_file import Range, Source
    from simulator.studies.sweep.study import SweepResult

ON_CLUSTER = Mode(
    "with the address of a cluster, which has its own workers",
    lambda arguments: arguments["cluster"] not in (None, "local"),
    ("jobs",),
)
IN_MEMORY = Mode("without a store", lambda arguments: arguments["store"] is None, ("retry_failed",))


def _finish(result: "SweepResult") -> int:
    if not result.document["counts"]["done"]:
        first = result.failed[0]
        raise ForerunError(f"every point failed; the first, {first.name}: {first.error}")
    return 0


@study(
    "sweep",
    help="Run every combination of values. An interrupted sweep resumes with the same command.",
    source="A scenario or study file, YAML or JSON.",
    progress="sweeping",
    files="sweep.json, study.yaml",
    examples="Examples: forerun sweep chat.yaml --vary hardware.tensor_parallel=1,2,4 --vary "
    "engine.max_num_seqs=64,256 --store chat.sweep  |  forerun sweep chat.yaml --vary "
    "workload.arrivals.request_rate=1..50:log --design latin-hypercube --samples 100 --store chat.sweep",
    modes=(ON_CLUSTER, IN_MEMORY),
    finish=_finish,
)
def sweep(
    scenario: "Source",
    vary: Annotated[
        "Mapping[str, Sequence[Any] | Range] | None",
        Option("Values of a field, as YAML, or LOW..HIGH[:log]; repeatable.", "PATH=V1,V2,...", text=list[str]),
    ] = None,
    *,
    store: Annotated[
        str | Path | None,
        Option(
            "Where results are kept and resumed from; default: SCENARIO's name + .sweep.",
            "FILE",
            text=Path,
            unset=lambda scenario: Path(f"{scenario.stem}.sweep"),
        ),
    ] = None,
    design: Annotated[
        Literal["grid", "random", "latin-hypercube"],
        Option("grid, random or latin-hypercube; the latter two need --samples.", "NAME", text=str),
    ] = "grid",
    samples: Annotated[int | None, Option("Points that a random design draws.", "N")] = None,
    seed: Annotated[int, Option("First seed of every point, and of the draws.", min=0)] = 0,
    replications: Annotated[int, Option("Runs of every point, with seeds SEED, SEED+1, ...", min=1, max=10_000)] = 1,
    metric: Annotated[str, Option("Metric that the best point is named by.", "KEY")] = "mean_e2el_ms",
    jobs: Jobs = None,
    cluster: Annotated[
        str | None, Option("Dask scheduler such as tcp://host:8786, or local for one started here.", "ADDRESS")
    ] = None,
    retry_failed: Annotated[bool, Option("Run points again that failed before.")] = False,
    progress: ProgressCall | None = None,
) -> "SweepResult":
    """Run every combination of values.

    Args:
        scenario: a scenario or study, or the file of one.
        vary: values or a ``Range`` by dotted path, such as ``{"engine.max_num_seqs": [64, 256]}``.
        store: file with results that calls and processes share, so that no point is run twice; None = results stay in
            memory.
        design: ``grid``, ``random`` or ``latin-hypercube``; the latter two draw ``samples`` points.
        samples: points to draw.
        seed: first seed of every point, and of the draws.
        replications: runs of every point.
        metric: metric that selects the best point.
        jobs: processes; default: one per core. Results do not depend on it.
        cluster: ``local`` or the address of a Dask scheduler, in place of processes of this machine.
        retry_failed: whether to run points again that failed before.
        progress: called with (points finished, points in all).

    Raises:
        ForerunError: a path that does not exist, an empty design, or an unusable store or cluster.
    """
    from simulator.studies.paired import checked_metric
    from simulator.studies.sweep.study import Study

    checked_metric(metric)
    points = Study(scenario, vary, design=design, samples=samples, seed=seed, replications=replications)
    return points.run(store, jobs, cluster, progress, retry_failed, metric)
