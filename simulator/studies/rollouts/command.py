"""``forerun rollouts`` and ``fr.rollouts``."""

from typing import TYPE_CHECKING, Annotated

from simulator.studies.frame import Option, ProgressCall, study

if TYPE_CHECKING:
    from simulator.studies.rollouts.rollouts import RolloutsResult
    from simulator.studies.study_file import Source


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
    """How long a step of reinforcement learning takes without drafts, with drafts, and with drafts in its tail alone.

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
    from simulator.studies.rollouts.rollouts import rollouts_result
    from simulator.studies.study_file import study_of

    options = {"group": group, "oversample": oversample, "train_s": train_s, "sync_gb_s": sync_gb_s}
    options |= {"acceptance_loss": acceptance_loss, "drafter_every": drafter_every}
    return rollouts_result(study_of(scenario).scenario, options, seed, progress)
