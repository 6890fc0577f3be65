"""Speculation settings as flags of the engines that people run."""

from __future__ import annotations

import json

from simulator.speculation import SpeculationConfig

VLLM_METHODS = {
    "draft-model": "draft_model",
    "ngram": "ngram",
    "suffix": "suffix",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
}
"""Our methods in vLLM's ``--speculative-config`` (docs.vllm.ai, features/spec_decode; v0.11 and later)."""
SGLANG_METHODS = {
    "draft-model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle2": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}
"""Our methods in SGLang's ``--speculative-algorithm`` (docs.sglang.ai, advanced_features/speculative_decoding)."""
WITHOUT_WEIGHTS = ("ngram", "suffix", "mtp")


def engine_flags(config: SpeculationConfig) -> dict[str, str]:
    """Flags by engine for a chain of draft tokens; engines that do not know the method are left out.

    Where the scenario derives a drafter's sizes instead of naming one, ``PATH_OF_THE_DRAFTER`` stands for its weights.
    """
    tokens = config.num_speculative_tokens
    if config.method == "none" or tokens is None:
        return {}
    model = None
    if config.method not in WITHOUT_WEIGHTS:
        model = (config.draft.model if config.draft is not None else None) or "PATH_OF_THE_DRAFTER"
    found = {}
    if config.method in VLLM_METHODS:
        settings = {"method": VLLM_METHODS[config.method], **({"model": model} if model else {})}
        text = json.dumps(settings | {"num_speculative_tokens": tokens})
        found["vLLM"] = f"--speculative-config '{text}'"
    if config.method in SGLANG_METHODS:
        parts = [f"--speculative-algorithm {SGLANG_METHODS[config.method]}"]
        if model:
            parts.append(f"--speculative-draft-model-path {model}")
        if config.method != "ngram":
            parts += [f"--speculative-num-steps {tokens}", "--speculative-eagle-topk 1"]
        parts.append(f"--speculative-num-draft-tokens {tokens + 1}")
        found["SGLang"] = " ".join(parts)
    return found
