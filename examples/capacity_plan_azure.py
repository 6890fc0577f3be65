"""How many H100s does a chat product need? Azure's conversation trace, eight times as busy, planned for an SLO.

Run: python examples/capacity_plan_azure.py [--growth G] [--requests N]
The same from the command line: forerun plan examples/chat-h100.yaml --growth 8 --slo p99_tpot_ms=60
"""

from __future__ import annotations

import argparse

import forerun as fr

SCENARIO = fr.Scenario.model_validate(
    {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm"},
        "workload": {"trace": "azure-conv-2023"},
        "prices": {"usd_per_chip_hour": 2.5},
    }
)
SLO = {"p99_ttft_ms": 1000, "p99_tpot_ms": 60}
SEARCHED = {"hardware.tensor_parallel": (1, 2), "engine.max_num_batched_tokens": (2048, 8192)}


def main() -> None:
    """Print the layouts that hold the SLO, cheapest first, and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", type=float, default=8.0, help="how many times today's traffic")
    parser.add_argument("--requests", type=int, help="only the first N requests of the trace")
    arguments = parser.parse_args()
    plan = fr.plan(SCENARIO, growth=arguments.growth, requests=arguments.requests, slo=SLO, vary=SEARCHED)
    print("layout                                    $/h   $/M tokens   max req/s   p99 TTFT   p99 TPOT")
    for row in plan.to_arrow().to_pylist():
        if row["status"] == "meets":
            price = f"{row['usd_per_hour']:5.2f}   {row['usd_per_million_output_tokens']:10.3f}"
            latency = f"{row['p99_ttft_ms']:5.0f} ms   {row['p99_tpot_ms']:5.1f} ms"
            print(f"{row['layout']:<38} {price}   {row['max_rate']:9.1f}   {latency}")
    if plan.best is not None:
        print(f"\nOne replica: {plan.best.launch_command('vllm')}\n")
    print(plan.conclusion)


if __name__ == "__main__":
    main()
