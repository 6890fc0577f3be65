"""Reasoning: outputs of 8,192 to 32,768 tokens. How many chains of thought fit at once, and what else helps?

A chain is preempted when the KV memory is full, and computed again. Letting no more run than fit, or storing keys and
values in fp8, leaves more of the chips for new tokens.

Run: python examples/reasoning_outputs.py [--requests N]
"""

from __future__ import annotations

import argparse

from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.studies.steady_state.estimate import estimate

SHORTEST, LONGEST = 8_192, 32_768


def scenario(kv_dtype: str, requests: int, longest: int) -> Scenario:
    """All questions at once: the engine runs as many chains as its limits and its KV memory allow."""
    return Scenario.model_validate(
        {
            "model": "qwen3-32b",
            "kv_cache_dtype": kv_dtype,
            "hardware": {"chip": "h100-sxm", "tensor_parallel": 2},
            "workload": {
                "arrivals": {"process": "burst"},
                "input_tokens": 512,
                "output_tokens": {"distribution": "uniform", "min": min(SHORTEST, longest), "max": longest},
                "num_requests": requests,
            },
        }
    )


def main() -> None:
    """Print one row per KV dtype and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=96, help="questions")
    parser.add_argument("--longest", type=int, default=LONGEST, help="longest chain, tokens")
    arguments = parser.parse_args()
    plain, narrow = (scenario(dtype, arguments.requests, arguments.longest) for dtype in ("bf16", "fp8"))
    fitting = estimate(plain).max_batch
    cases = {
        "as it is": plain,
        f"max_num_seqs {fitting}": plain.with_values({"engine.max_num_seqs": fitting}),
        "fp8 KV": narrow,
        f"fp8 KV, max_num_seqs {2 * fitting}": narrow.with_values({"engine.max_num_seqs": 2 * fitting}),
    }
    rates = {}
    print("case                       preemptions   tokens/s   minutes per chain   mean TPOT")
    for name, requested in cases.items():
        document = run_document(simulate(requested))
        summary = document["summary"]
        rates[name] = summary["output_throughput"]
        print(
            f"{name:<26} {document['kv_cache']['preemptions']:11d}   {rates[name]:8.0f}"
            f"   {summary['mean_e2el_ms'] / 60e3:17.1f}   {summary['mean_tpot_ms']:6.1f} ms"
        )
    best = max(rates, key=rates.__getitem__)
    print(
        f"About {fitting} chains of up to {arguments.longest:,} tokens fit 2 x h100-sxm at once; '{best}' serves "
        f"{rates[best] / rates['as it is']:.2f} times the tokens per second of the engine as it is."
    )


if __name__ == "__main__":
    main()
