"""Long-context agents on Mooncake's conversation trace: what is the prefix cache worth, and what do fp8 keys add?

Run: python examples/agents_mooncake.py [--requests N] [--chips TP]
"""

from __future__ import annotations

import argparse

from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.running.scenario import Scenario

CASES = {
    "no prefix cache": {"engine.enable_prefix_caching": False},
    "prefix cache": {},
    "prefix cache, fp8 KV": {"kv_cache_dtype": "fp8"},
}
"""What each case changes. Half the bytes per key let the cache keep twice the prompts."""


def scenario(chips: int, requests: int | None) -> Scenario:
    """Agents with prompts of some 12,000 tokens, at the trace's own pace."""
    workload = {"trace": "mooncake-conversation"} | ({} if requests is None else {"num_requests": requests})
    return Scenario.model_validate(
        {
            "model": "llama-3.1-8b",
            "hardware": {"chip": "h200-sxm", "tensor_parallel": chips},
            "engine": {"max_model_len": 131072},
            "workload": workload,
            "prices": {"usd_per_chip_hour": 3.2},
        }
    )


def main() -> None:
    """Print one row per case and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="only the first N requests of the trace")
    parser.add_argument("--chips", type=int, default=4, help="chips that share the model")
    arguments = parser.parse_args()
    plain = scenario(arguments.chips, arguments.requests)
    values = {}
    print("case                    hits   median TTFT      p99 TTFT   mean TPOT   $/M output tokens")
    for name, changes in CASES.items():
        document = run_document(simulate(plain.with_values(changes)))
        summary = values[name] = document["summary"]
        hits = document["kv_cache"]["prefix_hit_rate"] or 0.0
        print(
            f"{name:<22} {hits:5.1%}   {summary['median_ttft_ms']:8.0f} ms   {summary['p99_ttft_ms']:8.0f} ms"
            f"   {summary['mean_tpot_ms']:6.1f} ms   {document['usd_per_million_output_tokens']:17.2f}"
        )
    without, cached = (values[name]["mean_ttft_ms"] for name in ("no prefix cache", "prefix cache"))
    words = "shortens" if cached < without else "lengthens"
    print(
        f"On this traffic the prefix cache {words} the mean TTFT by {abs(1 - cached / without):.0%}, to "
        f"{cached:,.0f} ms on {arguments.chips} x h200-sxm."
    )


if __name__ == "__main__":
    main()
