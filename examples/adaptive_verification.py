"""Does adaptive verification beat the best fixed K, and from which load? DeepSeek-V4-Pro on 8 x B300, beside vLLM's.

Run: python examples/adaptive_verification.py [--requests N]

Measured: vLLM blog, 2026-08-14, "DSpark in vLLM: confidence-scheduled verification", figure 3 (output tokens/s).
Acceptance is set by its cells at one stream; prompts and outputs are assumed, as the source leaves them open.
"""

from __future__ import annotations

import argparse
from typing import Any

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario

MEASURED = {
    16: {"none": 1124.2, "K=1": 1408.2, "K=6": 1931.1, "adaptive": 2037.3},
    64: {"none": 2774.4, "K=1": 3864.3, "K=6": 4804.1, "adaptive": 5197.3},
    256: {"none": 6322.8, "K=1": 8618.9, "K=6": 8176.1, "adaptive": 9719.3},
}
BASE = {
    "model": "deepseek-v4-pro",
    "kv_cache_dtype": "fp8",
    "hardware": {"chip": "b300-sxm", "tensor_parallel": 8, "expert_parallel": 8},
    "engine": {
        "framework": "vllm",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 16384,
        "cuda_graph_sizes": [1, 2, 4, *range(8, 256, 8), *range(256, 4097, 16)],
    },
}
ACCEPTANCE = {"alpha": 0.726, "decay": 1.035}
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "K=1": {"num_speculative_tokens": 1},
    "K=6": {"num_speculative_tokens": 6},
    "adaptive": {"num_speculative_tokens": 7, "policy": "confidence-budget"},
}


def throughput(way: str, streams: int, requests: int) -> float:
    """Simulated output tokens per second."""
    outputs = {"distribution": "lognormal", "mean": 800, "cv": 0.7, "max": 2048}
    arrivals = {"process": "closed-loop", "max_concurrency": streams}
    workload = {"arrivals": arrivals, "input_tokens": 300, "output_tokens": outputs, "num_requests": requests}
    data: dict[str, Any] = BASE | {"workload": workload}
    if WAYS[way] is not None:
        data["speculation"] = {"method": "parallel-draft", "acceptance": ACCEPTANCE} | (WAYS[way] or {})
    return float(summarise(simulate(Scenario.model_validate(data), seed=1))["output_throughput"])


def main() -> None:
    """Print speed-ups over no speculation, measured and simulated, and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="requests of each run; default: 4 per stream")
    requests = parser.parse_args().requests
    print("streams   way        measured   simulated")
    ahead = []
    for streams, cells in MEASURED.items():
        rates = {way: throughput(way, streams, requests or 4 * streams) for way in WAYS}
        for way in list(WAYS)[1:]:
            print(f"{streams:7}   {way:8}   {cells[way] / cells['none']:7.2f}x   {rates[way] / rates['none']:8.2f}x")
        if rates["adaptive"] > max(rates["K=1"], rates["K=6"]):
            ahead.append(streams)
    if ahead:
        print(f"Adaptive verification beats the best fixed K at {', '.join(map(str, ahead))} streams.")
    else:
        print("Adaptive verification beats the best fixed K at none of these loads.")


if __name__ == "__main__":
    main()
