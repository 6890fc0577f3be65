"""The prediction: a scenario on the calibrated profile, run through the simulator, for requests of known lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.summary import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from validation.selfcheck.engine import EngineRun
from validation.selfcheck.sizes import CheckLoad, Sizes

BLOCK_SIZE = 16
REPLICATIONS = 8
"""Simulated runs whose mean is the prediction: each draws its own acceptance."""
COMPARED = ("mean_tpot_ms", "mean_ttft_ms", "output_throughput")


def write_trace(lengths: list[tuple[int, int]], file: Path) -> Path:
    """Prompt and answer lengths as a request trace, all sent at once or as a closed loop lets them."""
    rows = "".join(f"0,{tokens},{answer}\n" for tokens, answer in lengths)
    write_text_atomically(file, "arrival_s,input_tokens,output_tokens\n" + rows)
    return file


def scenario(
    sizes: Sizes,
    load: CheckLoad,
    dtype: str,
    profile: Path,
    trace: Path,
    acceptance: tuple[float, ...] | None = None,
    draft_step_s: float = 0.0,
) -> Scenario:
    """The run as a scenario; with ``acceptance`` (share of drafts accepted per position) the first layers draft."""
    lookahead = 1 + 2 * sizes.num_speculative_tokens
    blocks = load.concurrency * -(-(load.longest + lookahead) // BLOCK_SIZE)
    data: dict[str, Any] = {
        "model": sizes.target.described(),
        "weights_dtype": dtype,
        "kv_cache_dtype": dtype,
        "hardware": {"chip": str(profile)},
        "engine": {
            "framework": "reference",
            "max_num_seqs": load.concurrency,
            "max_num_batched_tokens": load.max_num_batched_tokens,
            "block_size": BLOCK_SIZE,
            "num_kv_blocks": blocks,
            "enable_prefix_caching": False,
            "cuda_graphs": False,
        },
        "workload": {
            "trace": str(trace),
            "arrivals": {"process": "closed-loop", "max_concurrency": load.concurrency},
        },
    }
    if acceptance is not None:
        draft = profile.with_name("draft-model.yaml")
        described = yaml.safe_dump(sizes.target.first(sizes.draft_layers).described(), sort_keys=False)
        write_text_atomically(draft, described)
        data["speculation"] = {
            "method": "draft-model",
            "num_speculative_tokens": sizes.num_speculative_tokens,
            "draft": {"model": str(draft), "weights_dtype": dtype, "step_s": draft_step_s},
            "acceptance": {"per_position": list(acceptance)},
        }
    return scenario_from(data, "selfcheck")


def write_scenario(scenario: Scenario, file: Path) -> None:
    """Write a scenario beside the files it names, by their bare names, so that the folder can be moved."""
    data = scenario.model_dump(mode="json", exclude_unset=True)
    places = [(data["hardware"], "chip"), (data["workload"], "trace")]
    if "speculation" in data:
        places.append((data["speculation"]["draft"], "model"))
    for holder, key in places:
        holder[key] = Path(holder[key]).name
    write_text_atomically(file, json.dumps(data, indent=2) + "\n")


def equal_batches(scenario: Scenario, run: EngineRun) -> tuple[int, int]:
    """Steps of a real run without speculation whose batch the simulator had too, and steps of the real run.

    Compared are prompt chunks and their tokens, decoding sequences and the keys they read.
    """
    steps = simulate(scenario.with_values({"engine.stepping": "exact-steps"})).steps
    columns = (steps.prefill_seqs, steps.prefill_tokens, steps.decode_seqs, steps.decode_kv_tokens)
    simulated = list(zip(*(column.tolist() for column in columns), strict=True))
    real = [(s.prefill_seqs, s.prefill_tokens, s.decode_seqs, s.decode_kv_tokens) for s in run.steps]
    return sum(one == other for one, other in zip(real, simulated, strict=False)), len(real)


def predicted(scenario: Scenario, seed: int) -> tuple[dict[str, float], str]:
    """Mean of the compared metrics over simulated runs, and the basis; one run if nothing is random."""
    replications = REPLICATIONS if scenario.speculation is not None else 1
    results = [simulate(scenario, seed + number) for number in range(replications)]
    summaries = [summarise(result) for result in results]
    names = [*COMPARED, *(["spec_decode_acceptance_length"] if scenario.speculation is not None else [])]
    return {name: float(np.mean([summary[name] for summary in summaries])) for name in names}, results[0].basis
