"""How many H100s does a chat product need? Azure's conversation trace, eight times as busy, planned for an SLO.

Run: python examples/capacity_plan_azure.py [--growth G] [--requests N]
The same from the command line: forerun plan examples/chat-h100.yaml --growth 8 --slo p99_tpot_ms=60
"""

from __future__ import annotations

import argparse

from simulator.scenario import Scenario
from simulator.studies.plan.document import plan_document
from simulator.studies.plan.objectives import objective_of
from simulator.studies.plan.search import PlanOptions, make_plan
from simulator.studies.study_file import StudyFile

SCENARIO = Scenario.model_validate(
    {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm"},
        "workload": {"trace": "azure-conv-2023"},
        "prices": {"usd_per_chip_hour": 2.5},
    }
)
SLO = ("p99_ttft_ms=1000", "p99_tpot_ms=60")
SEARCHED = {"hardware.tensor_parallel": (1, 2), "engine.max_num_batched_tokens": (2048, 8192)}


def main() -> None:
    """Print the layouts that hold the SLO, cheapest first, and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", type=float, default=8.0, help="how many times today's traffic")
    parser.add_argument("--requests", type=int, help="only the first N requests of the trace")
    arguments = parser.parse_args()
    options = PlanOptions(mode="own", growth=arguments.growth, requests=arguments.requests)
    document = plan_document(make_plan(StudyFile("plan", SCENARIO, SEARCHED, ()), objective_of({}, SLO), options))
    print("layout                                    $/h   $/M tokens   max req/s   p99 TTFT   p99 TPOT")
    for row in document["candidates"]:
        if row["meets_slo"]:
            ttft, tpot = row["values"]["p99_ttft_ms"], row["values"]["p99_tpot_ms"]
            price = f"{row['usd_per_hour']:5.2f}   {row['usd_per_million_output_tokens']:10.3f}"
            print(f"{row['layout']:<38} {price}   {row['max_rate']:9.1f}   {ttft:5.0f} ms   {tpot:5.1f} ms")
    if document["best"] is not None:
        print(f"\nOne replica: {document['best']['flags']['vllm']}\n")
    print(document["conclusion"])


if __name__ == "__main__":
    main()
