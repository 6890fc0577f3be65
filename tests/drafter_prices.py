"""What a drafter's parts come to: in one step, in many, and when it catches up."""

from typing import Any

from simulator.timing import Costs, drafting_costs, drafting_seconds


def seconds(drafter: Any, work: Any) -> Any:
    return drafting_seconds(drafter.parts(work))


def costs(drafter: Any, work: Any) -> Costs:
    return drafting_costs(drafter.parts(work), len(work.decode_seqs))


def caught_up(drafter: Any, draft: Any) -> Costs:
    return drafting_costs(drafter.catch_up(draft), len(draft.skipped_tokens))
