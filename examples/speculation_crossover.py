"""Where does a draft model stop paying? Llama-3.1-8B on one H100, with and without a 1B drafter, load by load.

Run: python examples/speculation_crossover.py [--requests N]
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import numpy as np

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPECULATION = {
    "method": "draft-model",
    "num_speculative_tokens": 4,
    "draft": {"model": "llama-3.2-1b"},
    "acceptance": {"alpha": 0.7},
}


def scenario(concurrency: int, requests: int, speculation: dict[str, Any] | None) -> Scenario:
    """Chat-like requests in a closed loop of ``concurrency``."""
    return Scenario.model_validate(
        {
            "model": "llama-3.1-8b",
            "hardware": {"chip": "h100-sxm"},
            "speculation": speculation,
            "workload": {
                "arrivals": {"process": "closed-loop", "max_concurrency": concurrency},
                "input_tokens": 512,
                "output_tokens": 256,
                "num_requests": requests * concurrency,
            },
        }
    )


def speedups(requests: int) -> list[tuple[int, float, float]]:
    """For each load: concurrency, output tokens per second without speculation, and its gain in throughput."""
    rows = []
    for load in LOADS:
        plain, drafted = (
            summarise(simulate(scenario(load, requests, block)))["output_throughput"] for block in (None, SPECULATION)
        )
        rows.append((load, plain, drafted / plain))
    return rows


def crossover(rows: list[tuple[int, float, float]]) -> float | None:
    """Concurrency at which the gain passes 1, interpolated in the logarithm of the load; None where it never does."""
    for (low, _, above), (high, _, below) in pairwise(rows):
        if above >= 1 > below:
            share = (above - 1) / (above - below)
            return float(np.exp((1 - share) * np.log(low) + share * np.log(high)))
    return None


def main() -> None:
    """Print the table and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=8, help="requests per concurrent user")
    rows = speedups(parser.parse_args().requests)
    print("concurrency   tok/s without   gain with K=4")
    for load, plain, gain in rows:
        print(f"{load:11d}   {plain:13.0f}   {gain:13.2f}x")
    where = crossover(rows)
    if where is None:
        print("The draft model pays at every load tried.")
    else:
        print(f"The draft model pays below about {where:.0f} concurrent requests and costs throughput above.")


if __name__ == "__main__":
    main()
