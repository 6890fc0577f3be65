"""A language model on a laptop: what one user of an Apple M3 Max waits for, by model and by prompt.

Run: python examples/laptop_inference.py [--requests N]
"""

from __future__ import annotations

import argparse

from simulator.errors import ForerunError
from simulator.metrics import summarise
from simulator.run import simulate
from simulator.scenario import Scenario

MODELS = {
    "llama-3.2-3b": "bf16",
    "llama-3.1-8b": "int4",
    "gpt-oss-20b": None,
    "qwen3-30b-a3b": "int4",
    "qwen3-32b": "int4",
}
"""Weights as laptops run them; None keeps the checkpoint's own."""
PROMPTS = (200, 4_000)
READING_TOKENS_PER_S = 10.0
"""Somewhat faster than people read."""


def scenario(model: str, weights: str | None, prompt: int, requests: int) -> Scenario:
    """One user, one question after the other."""
    return Scenario.model_validate(
        {
            "model": model,
            "weights_dtype": weights,
            "hardware": {"chip": "apple-m3-max"},
            "engine": {"framework": "generic", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 8192},
            "workload": {
                "arrivals": {"process": "closed-loop", "max_concurrency": 1},
                "input_tokens": prompt,
                "output_tokens": 200,
                "num_requests": requests,
            },
        }
    )


def main() -> None:
    """Print one row per model and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5, help="questions")
    requests = parser.parse_args().requests
    comfortable = []
    print("model            weights   tokens/s   " + "   ".join(f"TTFT of {prompt:,} tokens" for prompt in PROMPTS))
    for model, weights in MODELS.items():
        try:
            short, long = (summarise(simulate(scenario(model, weights, p, requests))) for p in PROMPTS)
        except ForerunError as error:
            print(f"{model:<16} {error}")
            continue
        speed = 1e3 / short["mean_tpot_ms"]
        waits = "   ".join(f"{summary['mean_ttft_ms'] / 1e3:15.2f} s" for summary in (short, long))
        print(f"{model:<16} {weights or 'own':<7}   {speed:8.1f}   {waits}")
        if speed >= READING_TOKENS_PER_S:
            comfortable.append(model)
    print(
        f"On an M3 Max these write faster than {READING_TOKENS_PER_S:.0f} tokens/s, as fast as one reads: "
        f"{', '.join(comfortable) or 'none'}."
    )


if __name__ == "__main__":
    main()
