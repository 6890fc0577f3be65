"""Draft on an N150, verify on an H100: does a drafter on a cheap chip beside the GPU beat one on the GPU itself?

Run: python examples/draft_n150_verify_h100.py [--requests N]
"""

from __future__ import annotations

import argparse
from typing import Any

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario

USERS = (1, 8, 32, 128)
DRAFTS: dict[str, dict[str, Any] | None] = {
    "no draft": None,
    "on the H100": {"model": "llama-3.2-1b"},
    "on an N150": {"model": "llama-3.2-1b", "chip": "n150", "link": "pcie4-x16"},
}
"""Where the same 1B drafter runs."""


def scenario(users: int, draft: dict[str, Any] | None, requests: int) -> Scenario:
    """Users of an 8B chat model in a closed loop."""
    speculation = {
        "method": "draft-model",
        "num_speculative_tokens": 4,
        "draft": draft,
        "acceptance": {"alpha": 0.7},
    }
    return Scenario.model_validate(
        {
            "model": "llama-3.1-8b",
            "hardware": {"chip": "h100-sxm"},
            "speculation": speculation if draft is not None else None,
            "workload": {
                "arrivals": {"process": "closed-loop", "max_concurrency": users},
                "input_tokens": 512,
                "output_tokens": 256,
                "num_requests": requests * users,
            },
        }
    )


def main() -> None:
    """Print output tokens per second by users and place of the drafter, and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4, help="requests per user")
    requests = parser.parse_args().requests
    print("users   " + "   ".join(f"{name:>14}" for name in DRAFTS) + "   tokens/s, gain")
    gains = {}
    for users in USERS:
        speeds = [
            summarise(simulate(scenario(users, draft, requests)))["output_throughput"] for draft in DRAFTS.values()
        ]
        print(f"{users:5d}   " + "   ".join(f"{speed:8.0f} {speed / speeds[0]:.2f}x" for speed in speeds))
        gains[users] = speeds[2] / speeds[1]
    better = [users for users, gain in gains.items() if gain > 1.0]
    if better:
        print(f"Drafting on an N150 beats drafting on the H100 at {', '.join(map(str, better))} users.")
    else:
        slowest, best = min(gains.values()), max(gains.values())
        print(
            f"Drafting on an N150 reaches {slowest:.2f} to {best:.2f} of what drafting on the H100 itself does: the "
            f"drafter and its link are in the way of every step."
        )


if __name__ == "__main__":
    main()
