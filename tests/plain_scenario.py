"""Equal requests to one model on one chip, in one line: for tests of something else."""

from simulator.running.scenario import scenario_from
from simulator.serving.rules import ROUTING

ROUTINGS = [name for name in ROUTING if name != "scored"]
"""Routings that need no scorers."""


def plain_data(model="llama-3.1-8b", chip="h100-sxm", inputs=8, outputs=8, requests=1, **sections):
    """A burst of equal requests as plain data; fields of ``hardware`` and ``workload`` are added to the usual ones."""
    workload = {"arrivals": {"process": "burst"}, "input_tokens": inputs, "output_tokens": outputs}
    return {
        "model": model,
        **sections,
        "hardware": {"chip": chip} | sections.get("hardware", {}),
        "workload": workload | {"num_requests": requests} | sections.get("workload", {}),
    }


def plain_scenario(*arguments, **sections):
    return scenario_from(plain_data(*arguments, **sections), "test")
