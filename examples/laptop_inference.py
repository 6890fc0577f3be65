"""A language model on a laptop or a gaming card: what llama.cpp writes per second there, beside what was measured.

Run: python examples/laptop_inference.py [--requests N]
"""

from __future__ import annotations

import argparse

import numpy as np

from forerun.errors import ForerunError
from simulator import simulate, tune_machine
from simulator.running.metrics import summarise
from simulator.running.scenario import Scenario, scenario_from

MEASURED = (
    ("apple-m1-pro-14", "llama-2-7b", "f16", 12.75),
    ("apple-m1-pro-14", "llama-2-7b", "q4_0", 35.52),
    ("apple-m2-ultra", "qwen2.5-7b", "q8_0", 76.4),
    ("apple-m3-max", "llama-3-8b", "q4_k_m", 48.97),
    ("apple-m4-max", "qwen2.5-7b", "q4_0", 91.4),
    ("apple-m5", "mistral-7b-v0.1", "q4_0", 26.6),
    ("rtx-3060", "llama-2-7b", "q4_0", 75.6),
    ("rtx-4090", "llama-3-8b", "q4_k_m", 130.6),
    ("rtx-5080", "llama-2-7b", "q4_0", 184.7),
    ("rx-9070-xt", "llama-3.1-8b", "q4_k_m", 119.6),
    ("strix-halo", "llama-2-7b", "q4_0", 48.0),
    ("gb10", "gpt-oss-20b", "mxfp4_moe", 84.1),
)
"""Chip, model, GGUF file type, and llama.cpp's tokens per second as published in its discussions 4167 and 15013, its
benches and pull request 15857, draftbench, and community repositories (see the validation page). M1 Pro and M3 Max ran
builds of 2023 and 2024, which started one operation after the other on Metal; what is predicted are builds since
September 2025."""
READING_TOKENS_PER_S = 10.0
"""Somewhat faster than people read."""


def scenario(chip: str, model: str, weights: str, requests: int) -> Scenario:
    """One user of llama.cpp, one short question after the other."""
    engine = {"framework": "llama.cpp", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 4096}
    arrivals = {"process": "closed-loop", "max_concurrency": 1}
    lengths = {"input_tokens": 16, "output_tokens": 128, "num_requests": requests}
    data = {"model": model, "weights_dtype": weights, "hardware": {"chip": chip}, "engine": engine}
    return scenario_from(data | {"workload": {"arrivals": arrivals} | lengths}, chip)


def drafted(chip: str) -> Scenario:
    """The same with a small model that drafts."""
    plain = scenario(chip, "qwen2.5-14b", "q4_k_m", 1)
    draft = {"model": "qwen2.5-0.5b", "weights_dtype": "q8_0"}
    acceptance = {"alpha": 0.75}
    return plain.with_values(
        {
            "speculation": {
                "method": "draft-model",
                "num_speculative_tokens": 2,
                "draft": draft,
                "acceptance": acceptance,
            }
        }
    )


def main() -> None:
    """Print one row per machine, and whether drafting pays on two of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2, help="questions")
    requests = parser.parse_args().requests
    errors = []
    print("chip             model           weights     predicted   measured   error   first token after 16")
    for chip, model, weights, measured in MEASURED:
        try:
            run = summarise(simulate(scenario(chip, model, weights, requests)))
        except ForerunError as error:
            print(f"{chip:<16} {error}")
            continue
        speed = 1e3 / run["mean_tpot_ms"]
        errors.append(speed / measured - 1)
        wait = f"{run['mean_ttft_ms'] / 1e3:.2f} s"
        print(f"{chip:<16} {model:<15} {weights:<9} {speed:8.1f}/s {measured:8.1f}/s   {errors[-1]:+5.0%}   {wait:>8}")
    for chip in ("apple-m4-max", "rtx-4090"):
        print(f"{chip}: {tune_machine(drafted(chip), p_min=[0.0]).conclusion}")
    print(
        f"Median error {np.median(np.abs(errors)):.0%}; all write faster than the {READING_TOKENS_PER_S:.0f} one reads."
    )


if __name__ == "__main__":
    main()
