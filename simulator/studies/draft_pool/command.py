"""``forerun draft-pool`` and ``fr.draft_pool``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from forerun.errors import ArgumentError
from simulator.studies.frame import Option, ProgressCall, study

if TYPE_CHECKING:
    from simulator.studies.draft_pool.pool import DraftPoolResult
    from simulator.studies.study_file import Source


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
    """How many verifiers may share one drafter, waiting for the verdict or drafting ahead of it, and what a loss costs.

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
    from simulator.studies.draft_pool.pool import pool_result
    from simulator.studies.study_file import axis_values, study_of

    shares = axis_values([verifiers], "verifiers") if isinstance(verifiers, str) else sorted(set(verifiers))
    if min(shares, default=0) < 1:
        raise ArgumentError("verifiers", f"at least one is needed (got {min(shares, default=0)})")
    return pool_result(study_of(scenario).scenario, batch, context_tokens, shares, max_batch, seed, progress)
