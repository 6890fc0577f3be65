"""Published speedups under open-loop arrivals: both engines simulated under one stream of requests."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from simulator.metrics import summarise
from simulator.replay.speculation.published import PublishedSpeedup
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.timing import VLLM_2025, load_draft_overhead


class OpenLoop(NamedTuple):
    """What the sources of a group say of their engine and traffic, and the constants fitted to it."""

    process: str
    seconds: float
    """Of arrivals."""
    engine: dict[str, Any]
    speculation: dict[str, dict[str, Any]]
    """Drafter by method, the acceptance length among it: the one constant of each, fitted at the lowest rate."""
    lengths: dict[str, tuple[int, int]]
    """Prompt and output tokens by method where the rows give none."""


def vllm_2025(method: str) -> dict[str, float]:
    """The ``draft`` block of vLLM's drafters in 2025: two constants each, fitted at K = 2 and 6 of ``vllm20780``."""
    known = load_draft_overhead(VLLM_2025, method)
    return {"step_s": known.step_s, "pass_s": known.pass_s}


OPEN_LOOP = {
    "vllm_blog2024": OpenLoop(
        process="poisson",
        seconds=60.0,
        engine={"framework": "vllm-2024", "scheduler": "prefill-first", "enable_prefix_caching": False},
        speculation={
            "draft": {
                "method": "draft-model",
                "draft": {"model": "qwen2.5-0.5b", "tensor_parallel": 1},
                "acceptance": {"acceptance_length": 3.0},
            },
            "ngram": {"method": "ngram", "acceptance": {"acceptance_length": 4.6}},
        },
        lengths={"draft": (202, 147), "ngram": (950, 148)},
    ),
    "kubecon2025": OpenLoop(
        process="constant",
        seconds=60.0,
        engine={"framework": "vllm-0.11", "max_num_seqs": 128, "max_model_len": 512},
        speculation={
            "eagle3": {
                "method": "eagle3",
                "draft": vllm_2025("eagle3"),
                "acceptance": {"acceptance_length": 1.18},
            }
        },
        lengths={},
    ),
}
"""Open-loop groups. vLLM's blog of 2024: the V0 engine with batch expansion; Qwama-0.5B is priced as Qwen2.5-0.5B on
one chip; ShareGPT's mean prompt (vLLM's blog of 2024-09) and an article's; output lengths, which the source does not
give, solved from the plain run at the lowest rate of each. KubeCon: a drafter of vLLM in 2025 with its two constants
from ``vllm20780``."""


class OpenLoopCase(NamedTuple):
    """A published row as two runs of one stream of requests."""

    row: PublishedSpeedup
    plain: dict[str, Any]
    speculative: dict[str, Any]
    acceptance_length: float


class OpenLoopResult(NamedTuple):
    """Speedup in the row's own metric, and mean seconds per step of both runs."""

    speedup: float
    plain_step_s: float
    verify_step_s: float
    basis: str


def open_loop_case(row: PublishedSpeedup, model: str, chip: str) -> OpenLoopCase:
    """The scenarios of a row of one of the groups above."""
    group = OPEN_LOOP[row.group]
    rate = float(row.load)
    prompt, output = group.lengths.get(row.method, (row.input_tokens or 0, row.output_tokens or 0))
    plain: dict[str, Any] = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": row.chips or 1},
        "engine": {"framework": "vllm"} | group.engine,
        "workload": {
            "arrivals": {"process": group.process, "request_rate": rate},
            "input_tokens": prompt,
            "output_tokens": output,
            "num_requests": max(40, round(rate * group.seconds)),
        },
    }
    drafter = group.speculation[row.method] | {"num_speculative_tokens": int(row.tokens)}
    return OpenLoopCase(row, plain, plain | {"speculation": drafter}, drafter["acceptance"]["acceptance_length"])


def measured_open_loop(case: OpenLoopCase) -> OpenLoopResult:
    """Run both scenarios and compare them as the row does: served rate where it is in req/s, else mean latency."""
    plain, drafted = (_run(json.dumps(data, sort_keys=True)) for data in (case.plain, case.speculative))
    if case.row.unit == "req/s":
        speedup = drafted["request_throughput"] / plain["request_throughput"]
    else:
        speedup = plain["mean_e2el_ms"] / drafted["mean_e2el_ms"]
    return OpenLoopResult(speedup, plain["step_s"], drafted["step_s"], drafted["basis"])


@lru_cache(maxsize=64)
def _run(data: str) -> dict[str, Any]:
    result = simulate(Scenario.model_validate_json(data), seed=0)
    summary = summarise(result)
    output = summary["total_output_tokens"] - summary["completed"]
    mean_tpot_s = summary["mean_tpot_ms"] / 1e3
    length = summary.get("spec_decode_acceptance_length") or 1.0
    return {
        "mean_e2el_ms": summary["mean_e2el_ms"],
        "request_throughput": summary["request_throughput"],
        "step_s": mean_tpot_s * length if output else 0.0,
        "basis": result.basis,
    }
