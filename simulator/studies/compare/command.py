"""``forerun compare`` and ``fr.compare``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from simulator.studies.frame import Interval, Jobs, Option, ProgressCall, Values, study

if TYPE_CHECKING:
    from simulator.running.scenario import Scenario, ScenarioSource
    from simulator.studies.compare.document import CompareResult
    from simulator.studies.study_file import Source, Variant


@study(
    "compare",
    help="Compare variants of a scenario on the same traffic, with confidence intervals.",
    source="A scenario or study file; or several files to compare.",
    progress="comparing",
    files="compare.json, study.yaml",
    examples="Examples: forerun compare chat.yaml --vary engine.max_num_seqs=16,256  |  "
    "forerun compare a.yaml b.yaml --out out/a-b",
)
def compare(
    scenarios: "Source | Mapping[str, Scenario] | Sequence[Variant | ScenarioSource]",
    *,
    vary: Values = None,
    seed: Annotated[int, Option("First seed; every variant gets the same ones.", min=0)] = 0,
    replications: Annotated[int, Option("Pairs of runs, with seeds SEED, SEED+1, ...", min=1, max=10_000)] = 5,
    metric: Annotated[
        str | None,
        Option(
            "Metric to judge by; default: the study file's, else mean_e2el_ms, or output_throughput offline.",
            "KEY",
            resolved=True,
        ),
    ] = None,
    crossover: Annotated[
        str,
        Option(
            "Field to find a crossover in: auto (the load), none, a field, PATH=LOW..HIGH or PATH=V1,V2",
            "PATH[=VALUES]",
        ),
    ] = "auto",
    sensitivity: Annotated[bool, Option("Do not try the assumed parameters over their ranges.")] = True,
    interval: Interval = True,
    jobs: Jobs = None,
    progress: ProgressCall | None = None,
) -> "CompareResult":
    """Run every variant on the same seeds and compare each with the first.

    Seed n gives every variant the same arrivals, lengths and acceptance draws, request by request, so most of the noise
    cancels in the difference of two variants.

    Args:
        scenarios: a scenario or study (or its file) whose fields vary; or a list of scenarios, or scenarios by name,
            the baseline first.
        vary: values by dotted path, such as ``{"speculation.method": ["none", "eagle3"]}``; each combination is a
            variant.
        seed: the first seed; every variant gets the same seeds.
        replications: pairs of runs, with seeds ``seed``, ``seed + 1``, ...
        metric: metric of conclusion, crossover and sensitivity; default: the study's metric, else output throughput for
            closed loops and bursts, and mean end-to-end latency otherwise.
        crossover: ``auto`` (along the load), ``none``, ``PATH`` (a grid around the scenario's value), or
            ``PATH=V1,V2,...`` / ``PATH=LOW..HIGH``.
        sensitivity: try every assumed parameter at both ends of its range.
        interval: include the model error in the intervals, and report the probability that a variant is better.
        jobs: processes; default: one per core. Results do not depend on it.
        progress: called with (runs done, runs started so far).

    Raises:
        ForerunError: nothing varies, or a variant cannot be run; the message begins with its name.
    """
    from simulator.studies.compare import comparison

    variants, judged_by = comparison.chosen_variants(scenarios, vary, metric)
    return comparison.compare_variants(
        variants,
        judged_by,
        crossover,
        range(seed, seed + replications),
        sensitivity=sensitivity,
        interval=interval,
        jobs=jobs,
        progress=progress,
    )
