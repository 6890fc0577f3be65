"""``forerun race`` and ``fr.race``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from forerun.errors import ArgumentError
from simulator.studies.frame import Jobs, Mode, Option, ProgressCall, study

if TYPE_CHECKING:
    from simulator.studies.race.race import RaceResult
    from simulator.studies.study_file import Source

REPLAYED = Mode(
    "with --replay, which has its own traffic",
    lambda arguments: arguments["replay"] is not None,
    ("patterns", "requests", "seed", "jobs"),
)


@study(
    "race",
    help="Compare speculation policies on traffic that was searched for their worst case.",
    source="Scenario or study file with a drafter, YAML or JSON.",
    progress="racing",
    files="race.json, study.yaml, closest.csv",
    examples="Examples: forerun race chat.yaml  |  forerun race chat.yaml --controller goodput --controller "
    "mine:policy --patterns 100 --out out/race  |  forerun race chat.yaml --replay out/race/closest.csv",
    modes=(REPLAYED,),
)
def race(
    scenario: "Source",
    *,
    controllers: Annotated[
        Sequence[str],
        Option(
            "A policy, or module:factory of your own; repeatable. Default: all policies.",
            "NAME",
            flag="--controller",
            text=list[str],
        ),
    ] = (),
    patterns: Annotated[int, Option("Patterns of traffic, half of them searched for.", min=1, max=10_000)] = 24,
    requests: Annotated[int, Option("Requests of a pattern.", min=8, max=100_000)] = 160,
    seed: Annotated[int, Option("Seed of the patterns.", min=0)] = 0,
    replay: Annotated[
        str | Path | None, Option("Run the pattern that an earlier race wrote (closest.csv).", "FILE", text=Path)
    ] = None,
    jobs: Jobs = None,
    progress: ProgressCall | None = None,
) -> "RaceResult":
    """Run controllers of speculation over the same traffic and say how far each falls behind the best fixed K.

    Half of the patterns are drawn, the others searched for: what hurt some controller most is changed a little and run
    again. All controllers see the same requests and the same acceptance draws.

    Args:
        scenario: with a drafter; its own arrivals and lengths are not used, its policy sets the costs of switching.
        controllers: policies by name, or one of your own as ``module:factory``; default: all. Off and every fixed K
            always run.
        patterns: number of patterns.
        requests: requests of each pattern.
        seed: seed of the random patterns.
        replay: a pattern that an earlier race wrote, in place of patterns of its own.
        jobs: processes; default: one per core. Results do not depend on it.
        progress: called with (patterns done, patterns).

    Raises:
        ForerunError: a scenario without a drafter, or an unknown controller.
    """
    from simulator.studies.race import race as racing
    from simulator.studies.study_file import study_of

    base = racing.drafting_scenario(study_of(scenario, None).scenario)
    names = racing.checked_controllers(controllers or racing.CONTROLLERS)
    if replay is not None:
        return racing.replayed_race(base, names, Path(replay))
    if patterns < 1 or requests < 8:
        raise ArgumentError("patterns" if patterns < 1 else "requests", "a race needs a pattern of 8 requests or more")
    return racing.searched_race(base, names, patterns, requests, seed, jobs, progress)
