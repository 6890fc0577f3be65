"""From a published row to scenarios that can be priced: names matched, gaps filled by rule, refusals with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log2
from typing import Any, NamedTuple

from hwprofiles import chip_name, chip_names, load_chip
from simulator.llm import load_architecture
from simulator.llm.load import catalogue_model
from simulator.running.measured_runs import other_engine
from simulator.speculation import expected_tokens, load_curve
from simulator.speculation.methods import METHODS
from simulator.timing import VLLM_2025, load_draft_overhead
from validation.speculation.published import FOLDER, PublishedSpeedup, constants_of

CHIPS = {"": "a100-sxm-80gb", "H800": "h100-sxm"}
"""Hardware that a published name leaves open. Without any an A100 is assumed, and an H800 computes as an H100."""
MODELS = {
    "LLaMA2-Chat-7B": "llama-2-7b",
    "LLaMA2-Chat-13B": "llama-2-13b",
    "LLaMA2-Chat-70B": "llama-2-70b",
    "LLaMA-2-7B-32K": "llama-2-7b",
    "Llama-3.1-70B (per blog)": "llama-3.1-70b",
    "Qwen3-Coder-30B-A3B": "qwen3-30b-a3b",
    "DeepSeek-R1 671B": "deepseek-r1",
    "DeepSeek-V3 671B": "deepseek-v3",
    "Qwen3-8B Q4_K_M": "qwen3-8b",
}
"""Models as these sources alone write them."""
WEIGHTS: dict[str, Any] = {
    "Qwen3-8B-FP8": "fp8_block",
    "DeepSeek-R1-FP4": {"default": "bf16", "expert": "fp4"},
    "DeepSeek-R1 671B": {"default": "bf16", "expert": "fp4"},
    "Qwen3-8B Q4_K_M": "q4_k_m",
}
"""Weights that differ from the checkpoint's own (TensorRT-LLM's DeepSeek-R1 tables run the FP4 checkpoint)."""
GROUP_WEIGHTS = {"llama_cpp25173": "q8_0"}
"""Weights of tables whose format is read from their rate without drafts: two thirds of the same chip's Q4_K_M."""
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
    ("llama.cpp", "llama.cpp"),
)
GROUP_FRAMEWORKS = {"eagle3_t5": "vllm-2024"}
"""Groups whose source names an engine but no version. EAGLE-3 (2025-03-03) is older than the plan for trained heads in
vLLM's V1 engine (vllm-project/vllm#14719, 2025-03-13), so its table 5 ran V0."""
GROUP_ENGINES = {"gptoss_h200": {"moe_backend": "marlin"}}
"""Settings of servers that InferenceX's scripts started (``inferencex_recipes.yaml``)."""
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
COMPILED = ("MagicDec",)
"""Research code that runs captured graphs, priced as framework ``generic``."""
MEMORY_SHARE = 0.75
"""Share of a chip's memory that weights may take when the number of chips is not published."""


class Case(NamedTuple):
    """A published row as two scenarios of one load; ``sequences`` is None under open-loop arrivals."""

    row: PublishedSpeedup
    plain: dict[str, Any]
    speculative: dict[str, Any]
    sequences: int | None
    input_tokens: int
    output_tokens: int
    acceptance_length: float
    """Acceptance length of the row, else of the same drafter on the same target in the catalogue."""
    constants: tuple[str, ...]
    """Constants of the prediction that may have been fitted, by file and name."""


class Unpredicted(NamedTuple):
    """A row that is not predicted, and why."""

    row: PublishedSpeedup
    reason: str


def case_of(row: PublishedSpeedup) -> Case | Unpredicted:
    """The scenarios of ``row``, or the reason why it has none."""
    chip = CHIPS.get(row.hardware) or chip_name(row.hardware, chip_names())
    if chip is None:
        return Unpredicted(row, f"hardware {row.hardware} is not in the catalogue")
    model = _model(row.model)
    if model is None:
        return Unpredicted(row, f"model {row.model} is not in the catalogue")
    if row.group in OTHER_BASELINES:
        return Unpredicted(row, OTHER_BASELINES[row.group])
    if other_engine(row.engine):
        return Unpredicted(row, f"engine {row.engine} is not known")
    constants = constants_of(row.group)
    open_loop = next((entry["open_loop"] for entry in constants.values() if "open_loop" in entry), None)
    if row.load_type == "qps" and open_loop is not None:
        return _open_loop_case(row, model, chip, open_loop, tuple(constants))
    if row.load_type not in ("batch", "concurrency") or re.fullmatch(r"\d+", row.load) is None:
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
    return _closed_case(row, model, chip, speculation, length, constants)


def _closed_case(
    row: PublishedSpeedup,
    model: str,
    chip: str,
    speculation: dict[str, Any],
    length: float,
    constants: Mapping[str, Mapping[str, Any]],
) -> Case:
    """The case of a row with a fixed number of concurrent sequences."""
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
            "cuda_graphs": framework != RESEARCH,
            "num_kv_blocks": 10**6,
            "max_num_seqs": max(int(row.load), 8),
            "max_num_batched_tokens": max(8192, 128 * int(row.load)),
            **GROUP_ENGINES.get(row.group, {}),
        },
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 8, "output_tokens": 8, "num_requests": 1},
    }
    used = [
        f"frameworks.yaml: {framework}",
        f"{model}.yaml: expert_routing",
        *(f"constants.yaml: {name}" for name in constants),
    ]
    overheads = framework
    if row.engine.startswith("vLLM V1 2025") and speculation["method"] in ("eagle", "eagle3"):
        speculation["draft"], overheads = _overheads(VLLM_2025, speculation["method"]), VLLM_2025
    used.append(f"draft_overheads.yaml: {overheads}.{speculation['method']}")
    for entry in constants.values():
        draft = entry.get("draft", {})
        if draft and set(draft) <= set(METHODS[speculation["method"]].fields):
            speculation["draft"] = draft
        if chip in entry.get("profiles", {}):
            plain["hardware"]["chip"] = str(FOLDER.joinpath(entry["profiles"][chip]))
            used.append(entry["profiles"][chip])
    weights = WEIGHTS.get(row.model) or GROUP_WEIGHTS.get(row.group)
    if weights is not None:
        plain["weights_dtype"] = weights
    prompt, output = row.input_tokens or CHAT_TOKENS[0], row.output_tokens or CHAT_TOKENS[1]
    speculative = plain | {"speculation": speculation}
    return Case(row, plain, speculative, int(row.load), prompt, output, length, tuple(used))


def _overheads(framework: str, method: str) -> dict[str, float]:
    """The ``draft`` block of an engine's drafters: host seconds per step and per pass."""
    known = load_draft_overhead(framework, method)
    return {"step_s": known.step_s, "pass_s": known.pass_s}


def _open_loop_case(
    row: PublishedSpeedup, model: str, chip: str, group: Mapping[str, Any], constants: tuple[str, ...]
) -> Case:
    """A row under open-loop arrivals: two runs of one stream of requests."""
    rate = float(row.load)
    prompt, output = group["lengths"].get(row.method, (row.input_tokens or 0, row.output_tokens or 0))
    plain: dict[str, Any] = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": row.chips or 1},
        "engine": {"framework": "vllm"} | group["engine"],
        "workload": {
            "arrivals": {"process": group["process"], "request_rate": rate},
            "input_tokens": prompt,
            "output_tokens": output,
            "num_requests": max(40, round(rate * group["seconds"])),
        },
    }
    drafter = group["speculation"][row.method] | {"num_speculative_tokens": int(row.tokens)}
    overheads = group.get("overheads")
    if overheads is not None:
        drafter["draft"] = _overheads(overheads, drafter["method"])
    framework = plain["engine"]["framework"]
    drafting = f"draft_overheads.yaml: {overheads or framework}.{drafter['method']}"
    used = (f"frameworks.yaml: {framework}", drafting, *(f"constants.yaml: {name}" for name in constants))
    length = drafter["acceptance"]["acceptance_length"]
    return Case(row, plain, plain | {"speculation": drafter}, None, prompt, output, length, used)


def grows_trees(row: PublishedSpeedup) -> bool:
    """True if predicting the row grows draft trees from sampled confidences, thousands of times."""
    case = case_of(row)
    return isinstance(case, Case) and "top_k" in case.speculative["speculation"].get("tree", {})


def _self_drafted_length(speculation: dict[str, Any], row: PublishedSpeedup) -> float | None:
    """Tokens per step of a target that drafts for itself, at the row's context."""
    known = constants_of(row.group).get("magicdec_acceptance")
    if speculation["method"] != "draft-model" or row.input_tokens is None or known is None:
        return None
    doublings = max(0.0, log2(row.input_tokens / known["context_from"]))
    return expected_tokens(known["alpha"] * known["context_decay"] ** doublings, speculation["num_speculative_tokens"])


def _curve_length(speculation: dict[str, Any], model: str) -> float | None:
    """Tokens per step of the same chain as another source published it."""
    tokens, name = speculation.get("num_speculative_tokens"), CURVES.get((speculation["method"], model))
    return None if tokens is None or name is None else 1.0 + float(load_curve(name).survival(tokens).sum())


def _model(name: str) -> str | None:
    """The catalogue's model of a published name, whose version after ``-v`` does not matter."""
    return MODELS.get(name) or catalogue_model(re.sub(r"-v\d+(\.\d+)?$", "", name)) or catalogue_model(name)


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
    grown = re.fullmatch(r"(\d+) steps of top-(\d+)", row.tokens)
    if method == "eagle3" and grown and row.nodes:
        return {"method": method, "tree": {"depth": int(grown[1]), "top_k": int(grown[2]), "nodes": row.nodes}}
    if method in ("eagle", "eagle3") and tokens:
        return {"method": method, "num_speculative_tokens": int(row.tokens)}
    if method == "eagle3" and row.nodes:
        return {"method": method, "tree": {"depth": 7, "top_k": 10, "nodes": row.nodes}}
    if method.startswith("mtp") and "heads" not in method and tokens:
        return {"method": "mtp", "num_speculative_tokens": int(row.tokens)}
    if method.startswith("sparsekvdraft") and tokens:
        known = constants_of(row.group)["magicdec_acceptance"]
        draft: dict[str, Any] = {"model": model, "kv_tokens": known["kv_tokens"]}
        if " " in row.method:
            draft |= {"model": row.method.split(" ")[1], "tensor_parallel": 4}  # its four KV heads divide no further
        return {"method": "draft-model", "num_speculative_tokens": int(row.tokens), "draft": draft}
    if method in ("ngram", "pld"):
        return {"method": "ngram", "num_speculative_tokens": int(row.tokens) if tokens else 10}
    if method == "suffix":
        return {"method": "suffix", "num_speculative_tokens": int(row.tokens) if tokens else 16}
    if method in ("dflash", "dspark", "pegagle", "peagle") and (tokens or row.nodes):
        head = {"draft": {"markov_rank": 256}} if method == "dspark" else {}
        return {"method": "parallel-draft", "num_speculative_tokens": int(row.tokens) if tokens else row.nodes} | head
    return (
        f"method {row.method} {'with these tokens per step ' if tokens is None else ''}is not described by the source"
    )
