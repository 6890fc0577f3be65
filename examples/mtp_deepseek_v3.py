"""Is DeepSeek-V3's own multi-token prediction worth switching on? Eight H200s, from one user to many.

Acceptance as measured on DeepSeek-R1 with one MTP module run again for each depth (curve mtp-deepseek-r1-1k-2k).

Run: python examples/mtp_deepseek_v3.py [--requests N]
"""

from __future__ import annotations

import argparse

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario

USERS = (1, 4, 16, 64)
DEPTHS = (0, 1, 2, 3)


def scenario(users: int, depth: int, requests: int) -> Scenario:
    """So many users in a closed loop, and so many MTP tokens per step."""
    speculation = {
        "method": "mtp",
        "num_speculative_tokens": depth,
        "acceptance": {"curve": "mtp-deepseek-r1-1k-2k"},
    }
    return Scenario.model_validate(
        {
            "model": "deepseek-v3",
            "hardware": {"chip": "h200-sxm", "tensor_parallel": 8},
            "speculation": speculation if depth else None,
            "workload": {
                "arrivals": {"process": "closed-loop", "max_concurrency": users},
                "input_tokens": 1024,
                "output_tokens": 512,
                "num_requests": requests * users,
            },
        }
    )


def main() -> None:
    """Print output tokens per second by users and depth, and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4, help="requests per user")
    requests = parser.parse_args().requests
    print("users   " + "   ".join(f"{'no MTP' if d == 0 else f'K={d}':>12}" for d in DEPTHS) + "   tokens/s, gain")
    best = {}
    for users in USERS:
        speeds = [summarise(simulate(scenario(users, depth, requests)))["output_throughput"] for depth in DEPTHS]
        cells = [f"{speed:6.0f} {speed / speeds[0]:.2f}x" for speed in speeds]
        print(f"{users:5d}   " + "   ".join(f"{cell:>12}" for cell in cells))
        fastest = max(range(len(DEPTHS)), key=speeds.__getitem__)
        best[users] = (DEPTHS[fastest], speeds[fastest] / speeds[0])
    words = ", ".join(
        f"K={depth} for {users} at once ({gain:.2f}x)" if depth else f"none for {users} at once"
        for users, (depth, gain) in best.items()
    )
    print(f"Best MTP depth of DeepSeek-V3 on 8 x h200-sxm: {words}.")


if __name__ == "__main__":
    main()
