"""Laws that every finished run must keep: light speed, conservation, order in time, capacity, Little's law.

They are looked at after each simulation, as cheap sums over its records. A run that breaks one is a fault of the
simulator, never of its input: it raises with the scenario attached instead of handing out numbers.
"""

from __future__ import annotations

from simulator.errors import LawBrokenError
from simulator.laws import conservation, physics, queueing
from simulator.laws.outcome import Outcome
from simulator.scenario import Scenario

__all__ = ["LAWS", "Outcome", "check_laws"]

LAWS = (
    conservation.requests,
    queueing.order,
    queueing.little,
    conservation.handover,
    conservation.tokens,
    conservation.drafts,
    physics.light_speed,
    conservation.blocks,
    physics.one_step_at_a_time,
    physics.busy_time,
    physics.utilisation,
)
"""Each takes an outcome and names what is wrong with it, if anything."""


def check_laws(scenario: Scenario, seed: int, outcome: Outcome) -> None:
    """Raise for the first law that a finished run breaks.

    Args:
        scenario: what was run, for whoever reproduces it.
        seed: the run's.
        outcome: what it left behind.

    Raises:
        LawBrokenError: naming the law, the place and the numbers.
    """
    for law in LAWS:
        for problem in law(outcome):
            raise LawBrokenError(problem, scenario.model_dump_json(exclude_unset=True), seed)
