"""From a published row to scenarios that can be priced: names matched, gaps filled by rule, refusals with a reason."""

from __future__ import annotations

import re
from importlib import resources
from math import log2
from typing import Any, NamedTuple

from hwprofiles import load_chip
from simulator.llm import architecture_names, load_architecture
from simulator.replay.speculation.open_loop import OPEN_LOOP, OpenLoopCase, open_loop_case, vllm_2025
from simulator.replay.speculation.published import PublishedSpeedup
from simulator.speculation import expected_tokens, load_curve
from simulator.speculation.config import DRAFT_FIELDS

CHIPS = {
    "H100": "h100-sxm",
    "H100 (implied)": "h100-sxm",
    "H800": "h100-sxm",
    "H200": "h200-sxm",
    "h200": "h200-sxm",
    "B200": "b200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "GB200": "gb200",
    "A100": "a100-sxm-80gb",
    "A100 80GB": "a100-sxm-80gb",
    "A100-40GB": "a100-sxm-40gb",
    "RTX3090 (text) / A100 (caption)": "a100-sxm-80gb",
    "RTX3090": "rtx-3090",
    "RTX3090 24GB": "rtx-3090",
    "RTX4090": "rtx-4090",
    "MI300X": "mi300x",
    "": "a100-sxm-80gb",
}
"""Hardware as published -> catalogue. Where a paper names none, an A100 is assumed."""

MODELS = {
    "DeepSeek-R1-Distill-LLaMA-8B": "llama-3.1-8b",
    "LLaMA-3.1-8B": "llama-3.1-8b",
    "LLaMA-3.1-8B-Instruct": "llama-3.1-8b",
    "LLaMA-3-8B-Instruct": "llama-3-8b",
    "LLaMA3-8B": "llama-3-8b",
    "LLaMA3-70B": "llama-3-70b",
    "Llama-3-70B-Instruct": "llama-3-70b",
    "LLaMA-3.3-70B": "llama-3.3-70b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.1-70B (per blog)": "llama-3.1-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
    "LLaMA2-Chat-7B": "llama-2-7b",
    "LLaMA2-Chat-13B": "llama-2-13b",
    "LLaMA2-Chat-70B": "llama-2-70b",
    "LLaMA-2-7B-32K": "llama-2-7b",
    "Mistral-7B-Instruct": "mistral-7b",
    "Qwen3-8B-FP8": "qwen3-8b",
    "Qwen3-Coder-30B-A3B": "qwen3-30b-a3b",
    "DeepSeek-R1 671B": "deepseek-r1",
    "DeepSeek-R1-0528": "deepseek-r1",
    "DeepSeek-R1-FP4": "deepseek-r1",
    "DeepSeek-V3 671B": "deepseek-v3",
    "Llama-4-Scout-17B-16E": "llama-4-scout",
}
"""Model as published -> catalogue, where lower case and the version after ``-v`` do not already say it."""

WEIGHTS: dict[str, Any] = {
    "Qwen3-8B-FP8": "fp8",
    "DeepSeek-R1-FP4": {"default": "bf16", "expert": "fp4"},
    "DeepSeek-R1 671B": {"default": "bf16", "expert": "fp4"},
}
"""Weights that differ from the checkpoint's own (TensorRT-LLM's DeepSeek-R1 tables run the FP4 checkpoint)."""

GROWN = {"eagle2": (6, 10, 60), "hass": (6, 10, 60), "eagle3": (8, 10, 60)}
"""Trees of the research code: depth, branches, nodes (EAGLE-2, arXiv:2406.16858, section 5; EAGLE-3's repository)."""
FEWER_NODES = {"13b": 50, "33b": 48, "70b": 48}
"""Nodes on larger targets (EAGLE-2, arXiv:2406.16858, section 5: 60, 50 and 48)."""
ENGINE_FRAMEWORKS = (
    ("trt", "trtllm"),
    ("TensorRT", "trtllm"),
    ("vLLM V1 2025", "vllm-0.11"),
    ("vLLM", "vllm"),
    ("SGLang", "sglang"),
    ("sglang", "sglang"),
)
GROUP_FRAMEWORKS = {"eagle3_t5": "vllm-2024"}
"""Groups whose source names an engine but no version. EAGLE-3 (2025-03-03) is older than the plan for trained heads in
vLLM's V1 engine (vllm-project/vllm#14719, 2025-03-13), so its table 5 ran V0."""
RESEARCH = "transformers"
"""Framework of rows whose source ran its own PyTorch code."""
CHAT_TOKENS = (128, 256)
"""Prompt and output where a row gives none: about MT-bench."""
CURVES = {
    ("eagle", "llama-3.1-8b"): "eagle-llama-3.1-8b-mt-bench",
    ("eagle3", "llama-3.1-8b"): "eagle3-llama-3.1-8b-mt-bench",
    ("mtp", "deepseek-r1"): "mtp-deepseek-r1-1k-2k",
}
"""Published acceptance of the same drafter on the same target, for rows that give none (chains only)."""
OTHER_BASELINES = {
    "peagle_vs_eagle3": "the baseline is EAGLE-3 at its best K",
    "trtllm_dsr1_relaxed": "the baseline is strict MTP",
}
"""Groups whose baseline is not plain decoding."""
PROFILES = resources.files("simulator.replay.speculation")
SERVED_EXPERTS = {
    "gptoss_h200": {
        "chip": str(PROFILES.joinpath("gptoss-h200.yaml")),
        "expert_routing": "zipf-1.0",
        "draft": {"step_s": 4.7e-4, "draft_vocab_size": 201088},
    }
}
"""Groups whose routed experts were fitted to what was served without speculation (K = 0, concurrency 1 to 128: five
parameters of one kernel set under Zipf's law of expert popularity), and the drafter's host time per step, fitted at
K = 1 and concurrency 1 only."""
MAGICDEC = {
    "kv_tokens": 512,
    "context_from": 4096,
    "context_decay": 0.987,
    "alpha": 0.84,
}
"""A target that drafts for itself from 512 tokens of KV: acceptance of LLaMA-3.1-8B on PG-19 from 4k tokens on
(Infini-AI-Lab/MagicDec); taken for LLaMA-2-7B-32K too, whose acceptance is not published."""
RESEARCH_LOOPS = ("specbench", "hass")
RESEARCH_PASS_S = 2.8e-3
"""Host seconds per draft pass of Spec-Bench's Python loop, beside the launches: fitted to EAGLE on Vicuna-7B and one
A100 only (``specbench-097``); HASS, measured with the same kind of loop, is predicted with it."""
MAGICDEC_CHIPS = {"A100": "magicdec-a100.yaml", "H100": "magicdec-h100.yaml"}
"""Its verify attention: one constant per GPU, fitted to one row of each (``magicdec-05`` and ``magicdec-14``)."""
COMPILED = ("MagicDec",)
"""Research code that runs captured graphs, priced as framework ``generic``."""
MEMORY_SHARE = 0.75
"""Of a chip's memory that weights may take when the number of chips is not published."""


class Case(NamedTuple):
    """A published row as two scenarios of one load."""

    row: PublishedSpeedup
    plain: dict[str, Any]
    speculative: dict[str, Any]
    sequences: int
    input_tokens: int
    output_tokens: int
    acceptance_length: float
    """The row's own, else that of the same drafter on the same target in the catalogue."""


class Unpredicted(NamedTuple):
    """A row that is not predicted, and why."""

    row: PublishedSpeedup
    reason: str


def case_of(row: PublishedSpeedup) -> Case | OpenLoopCase | Unpredicted:
    """The scenarios of ``row``, or the reason why it has none."""
    chip = CHIPS.get(row.hardware)
    if chip is None:
        return Unpredicted(row, f"hardware {row.hardware} is not in the catalogue")
    model = _model(row.model)
    if model is None:
        return Unpredicted(row, f"model {row.model} is not in the catalogue")
    if row.group in OTHER_BASELINES:
        return Unpredicted(row, OTHER_BASELINES[row.group])
    sequences = re.fullmatch(r"\d+", row.load)
    if row.load_type == "qps" and row.group in OPEN_LOOP:
        return open_loop_case(row, model, chip)
    if row.load_type not in ("batch", "concurrency") or sequences is None:
        return Unpredicted(row, f"load '{row.load_type} {row.load}' is no fixed number of sequences")
    speculation = _speculation(row, model)
    if isinstance(speculation, str):
        return Unpredicted(row, speculation)
    depth = speculation.get("num_speculative_tokens") or speculation["tree"].get("depth", 5)
    length = row.acceptance_length or _curve_length(speculation, model) or _self_drafted_length(speculation, row)
    if length is None:
        return Unpredicted(row, "the source gives no acceptance length")
    if length > depth + 1:
        return Unpredicted(row, f"{length:g} tokens per step from {depth} draft positions")
    speculation["acceptance"] = {"acceptance_length": length}
    if row.engine.startswith("vLLM V1 2025") and speculation["method"] in ("eagle", "eagle3"):
        speculation["draft"] = vllm_2025(speculation["method"])
    if row.group in RESEARCH_LOOPS and "pass_s" in DRAFT_FIELDS[speculation["method"]]:
        speculation["draft"] = {"pass_s": RESEARCH_PASS_S}
    served = SERVED_EXPERTS.get(row.group)
    if served is not None:
        speculation["draft"] = served["draft"]
    prompt, output = row.input_tokens or CHAT_TOKENS[0], row.output_tokens or CHAT_TOKENS[1]
    framework = GROUP_FRAMEWORKS.get(row.group) or next(
        (name for text, name in ENGINE_FRAMEWORKS if text in row.engine), RESEARCH
    )
    if row.engine.startswith(COMPILED):
        framework = "generic"
    plain: dict[str, Any] = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": row.chips or _fewest_chips(model, chip)},
        "engine": {
            "framework": framework,
            "moe_backend": "auto" if served is None else "triton",
            "cuda_graphs": framework != RESEARCH,
            "num_kv_blocks": 10**6,
            "max_num_seqs": max(int(row.load), 8),
            "max_num_batched_tokens": max(8192, 128 * int(row.load)),
        },
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 8, "output_tokens": 8, "num_requests": 1},
    }
    if row.group == "magicdec" and row.hardware in MAGICDEC_CHIPS:
        plain["hardware"]["chip"] = str(PROFILES.joinpath(MAGICDEC_CHIPS[row.hardware]))
    if served is not None:
        plain["hardware"] |= {"chip": served["chip"], "expert_routing": served["expert_routing"]}
    if row.model in WEIGHTS:
        plain["weights_dtype"] = WEIGHTS[row.model]
    return Case(row, plain, plain | {"speculation": speculation}, int(row.load), prompt, output, length)


def _self_drafted_length(speculation: dict[str, Any], row: PublishedSpeedup) -> float | None:
    """Tokens per step of a target that drafts for itself, at the row's context."""
    if speculation["method"] != "draft-model" or row.input_tokens is None:
        return None
    doublings = max(0.0, log2(row.input_tokens / MAGICDEC["context_from"]))
    rate = MAGICDEC["alpha"] * MAGICDEC["context_decay"] ** doublings
    return expected_tokens(rate, speculation["num_speculative_tokens"])


def _curve_length(speculation: dict[str, Any], model: str) -> float | None:
    """Tokens per step of the same chain as another source published it."""
    tokens, name = speculation.get("num_speculative_tokens"), CURVES.get((speculation["method"], model))
    if tokens is None or name is None:
        return None
    return 1.0 + float(load_curve(name).survival(tokens).sum())


def _model(name: str) -> str | None:
    plain = re.sub(r"-v\d+(\.\d+)?$", "", name).lower()
    for candidate in (MODELS.get(name), plain):
        if candidate in architecture_names():
            return candidate
    return None


def _fewest_chips(model: str, chip: str) -> int:
    """The smallest power of two of chips that holds the weights in 16 bits."""
    need = 2.0 * load_architecture(model).parameters().total
    have = MEMORY_SHARE * load_chip(chip).memory.capacity_bytes
    chips = 1
    while chips * have < need:
        chips *= 2
    return chips


def _speculation(row: PublishedSpeedup, model: str) -> dict[str, Any] | str:
    """The ``speculation`` section without acceptance, or why there is none."""
    method = row.method.replace("-", "").replace("_", "")
    research = row.engine in ("", "PyTorch")
    tokens = re.fullmatch(r"\d+", row.tokens)
    if method in ("medusa", "medusa1", "medusa2"):
        return {"method": "medusa", "tree": {"name": "medusa-63"}}
    if method in GROWN and research:
        depth, branches, nodes = GROWN[method]
        size = next((n for text, n in FEWER_NODES.items() if text in row.model.lower()), nodes)
        name = "eagle3" if method == "eagle3" else "eagle2"
        return {"method": name, "tree": {"depth": depth, "top_k": branches, "nodes": row.nodes or size}}
    if method == "eagle" and research:
        return {"method": "eagle", "tree": {"name": "eagle-25"}}
    if method in ("eagle", "eagle3") and tokens:
        return {"method": method, "num_speculative_tokens": int(row.tokens)}
    if method == "eagle3" and row.nodes:
        return {"method": method, "tree": {"depth": 7, "top_k": 10, "nodes": row.nodes}}
    if method.startswith("mtp") and "heads" not in method and tokens:
        return {"method": "mtp", "num_speculative_tokens": int(row.tokens)}
    if method.startswith("sparsekvdraft") and tokens:
        draft: dict[str, Any] = {"model": model, "kv_tokens": MAGICDEC["kv_tokens"]}
        if " " in row.method:
            draft |= {"model": row.method.split(" ")[1], "tensor_parallel": 4}  # its four KV heads divide no further
        return {"method": "draft-model", "num_speculative_tokens": int(row.tokens), "draft": draft}
    if method in ("ngram", "pld"):
        return {"method": "ngram", "num_speculative_tokens": int(row.tokens) if tokens else 10}
    if method == "suffix":
        return {"method": "suffix", "num_speculative_tokens": int(row.tokens) if tokens else 16}
    if method in ("dflash", "pegagle", "peagle") and (tokens or row.nodes):
        return {"method": "parallel-draft", "num_speculative_tokens": int(row.tokens) if tokens else row.nodes}
    return (
        f"method {row.method} {'with these tokens per step ' if tokens is None else ''}is not described by the source"
    )
