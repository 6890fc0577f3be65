"""The studies: ``forerun race``, ``draft-pool`` and ``rollouts``, in Python ``fr.race`` and so on."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from forerun.studies import ArgumentError, Jobs, Mode, Option, ProgressCall, study

if TYPE_CHECKING:
    from forerun.studies import Source
    from forerun_research.draft_pool import DraftPoolResult
    from forerun_research.race import RaceResult
    from forerun_research.rollouts import RolloutsResult

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
    import forerun_research.race as racing
    from forerun.studies import study_of

    base = racing.drafting_scenario(study_of(scenario, None).scenario)
    names = racing.checked_controllers(controllers or racing.CONTROLLERS)
    if replay is not None:
        return racing.replayed_race(base, names, Path(replay))
    if patterns < 1 or requests < 8:
        raise ArgumentError("patterns" if patterns < 1 else "requests", "a race needs a pattern of 8 requests or more")
    return racing.searched_race(base, names, patterns, requests, seed, jobs, progress)


@study(
    "draft-pool",
    help="Find how many verifiers a drafter on separate chips can serve.",
    source="Scenario file with speculation.draft.chip, YAML or JSON.",
    progress="drafting",
    files="draft-pool.json, study.yaml",
    examples="Examples: forerun draft-pool examples/draft-pool.yaml  |  forerun draft-pool pool.yaml --batch 1 "
    "--verifiers 1,4,16 --set speculation.draft.chip=n150 --out out/pool",
)
def draft_pool(
    scenario: "Source",
    *,
    batch: Annotated[int, Option("Sequences of each verifier.", min=1)] = 16,
    context_tokens: Annotated[int, Option("Tokens of context of each sequence.", min=1, flag="--context")] = 2048,
    verifiers: Annotated[
        Sequence[int] | str, Option("Verifiers per drafter to try: 1,8,64 or doubling 1..256.", "N1,N2,...", text=str)
    ] = "1..64",
    max_batch: Annotated[int, Option("Verifiers whose drafts one pass computes.", min=1)] = 8,
    seed: Annotated[int, Option("Seed of how many drafts made ahead are kept.", min=0)] = 0,
    progress: ProgressCall | None = None,
) -> "DraftPoolResult":
    """Find how many verifiers may share one drafter, with and without drafting ahead, and the cost of a loss.

    Args:
        scenario: has a drafter on separate chips; its workload is ignored.
        batch: sequences in the batch of each verifier.
        context_tokens: tokens in the cache of each sequence.
        verifiers: per drafter, to try; also as text, ``1,8,64`` or doubling ``1..256``.
        max_batch: verifiers whose drafts a drafter computes in one pass.
        seed: seed of the draws that decide which drafts made ahead are kept.
        progress: called with (pools done, pools).

    Raises:
        ForerunError: no drafter on chips of its own, or a batch that does not fit.
    """
    from forerun.studies import axis_values, study_of
    from forerun_research.draft_pool import pool_result

    shares = axis_values([verifiers], "verifiers") if isinstance(verifiers, str) else sorted(set(verifiers))
    if min(shares, default=0) < 1:
        raise ArgumentError("verifiers", f"at least one is needed (got {min(shares, default=0)})")
    return pool_result(study_of(scenario).scenario, batch, context_tokens, shares, max_batch, seed, progress)


@study(
    "rollouts",
    help="Predict how long the responses of a reinforcement-learning step take, and when to draft.",
    source="Scenario file whose num_requests are the responses of a training step, YAML or JSON.",
    progress="rolling out",
    files="rollouts.json, study.yaml",
    examples="Examples: forerun rollouts examples/rl-rollouts.yaml  |  forerun rollouts grpo.yaml --group 16 "
    "--oversample 1.5 --train-s 60 --acceptance-loss 0.02 --drafter-every 10 --out out/rollouts",
)
def rollouts(
    scenario: "Source",
    *,
    group: Annotated[int, Option("Responses to each prompt; they share its KV.", min=1)] = 8,
    oversample: Annotated[
        float,
        Option("Responses in progress over those that a step needs; the rest continue in the next step.", min=1),
    ] = 1.0,
    train_s: Annotated[float, Option("Seconds of training per step, not overlapped with generation.", min=0)] = 0.0,
    sync_gb_s: Annotated[float, Option("GB/s at which each chip receives new weights.", min=0.001)] = 25.0,
    acceptance_loss: Annotated[
        float,
        Option("Share of each acceptance rate lost per step since the drafter's training.", min=0, max=0.99),
    ] = 0.0,
    drafter_every: Annotated[int, Option("Steps between two trainings of the drafter.", min=1)] = 1,
    seed: Annotated[int, Option("Seed of lengths and acceptance.", min=0)] = 0,
    progress: ProgressCall | None = None,
) -> "RolloutsResult":
    """Predict a step of reinforcement learning without drafts, with drafts, and with drafts in its tail alone.

    All prompts of a step are sent at once. The batch is full at first and falls as responses end, so drafts that lose
    in the full phase may win in the tail.

    Args:
        scenario: its ``workload.num_requests`` are the responses that a step needs, sent as a burst; its speculation,
            where it has any, is compared with none.
        group: responses to each prompt.
        oversample: responses in progress at the start of a step over those that it needs, >= 1. The step ends when it
            has the responses it needs; the others continue in the next step, their KV computed again (partial
            rollouts).
        train_s: seconds of training per step.
        sync_gb_s: GB/s at which each chip receives its share of new weights; the default is one NIC of 200 Gb/s.
        acceptance_loss: share of each acceptance rate lost per training step since the drafter was trained.
        drafter_every: training steps between two trainings of the drafter.
        seed: seed of lengths and acceptance.
        progress: called with (runs done, runs).

    Raises:
        ForerunError: arrivals that are no burst, a draft policy, responses that do not fill a group.
    """
    from forerun.studies import study_of
    from forerun_research.rollouts import rollouts_result

    options = {"group": group, "oversample": oversample, "train_s": train_s, "sync_gb_s": sync_gb_s}
    options |= {"acceptance_loss": acceptance_loss, "drafter_every": drafter_every}
    return rollouts_result(study_of(scenario).scenario, options, seed, progress)
