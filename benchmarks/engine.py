"""CPU seconds and memory of whole `forerun run` processes, at growing sizes and in the situations that cost most.

Run: python benchmarks/engine.py [--cases REGEX] [--json FILE] [--mooncake TRACE] [--growth]

CPU is user + system of the whole process, start-up and summary included; memory is its peak resident set. ``loops`` is
CPU time over that of a plain Python loop of 30 million additions in the same run. With ``--growth`` each kind of work
is run at 10,000, 30,000 and 100,000 requests, and 8 to 512 replicas on 200 requests each; the exponents of CPU time,
less start-up, are printed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traces import sample_path

FORERUN = str(Path(sys.executable).with_name("forerun"))
PROBE = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}))
"""

CHAT = {
    "input_tokens": {"distribution": "lognormal", "mean": 225.9, "cv": 1.795, "max": 2048},
    "output_tokens": {"distribution": "lognormal", "mean": 201.3, "cv": 1.116, "max": 1024},
}
"""ShareGPT-like lengths: lognormal mu 4.70 sigma 1.20 in, mu 4.90 sigma 0.90 out."""
CONSTANT = {"input_tokens": 512, "output_tokens": 256}
EAGLE_LIKE = {
    "method": "draft-model",
    "num_speculative_tokens": 3,
    "draft": {"model": "llama-3.2-1b"},
    "acceptance": {"per_position": [0.73, 0.52, 0.35]},
}


def scenario(
    lengths: dict[str, Any], requests: int, rate: float, replicas: int = 1, speculation: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Llama-3.1-8B on H100s under Poisson arrivals."""
    return {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm", "replicas": replicas},
        "engine": {"routing": "least-outstanding" if replicas > 1 else "round-robin"},
        "speculation": speculation,
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": rate},
            "num_requests": requests,
            **lengths,
        },
    }


EAGLE3 = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "acceptance": {"per_position": [0.73, 0.52, 0.35], "spread": 0.1},
}
DRAFT_MODEL = {
    "method": "draft-model",
    "num_speculative_tokens": 4,
    "draft": {"model": "llama-3.2-1b"},
    "acceptance": {"alpha": 0.7},
}
GROWN_TREE = {
    "method": "eagle2",
    "tree": {"depth": 6, "top_k": 10, "nodes": 60},
    "acceptance": {"acceptance_length": 4.0},
}
DISAGGREGATED = {
    "p": {"role": "prefill", "hardware": {"replicas": 2}},
    "d": {"role": "decode", "hardware": {"replicas": 2}},
}
SESSIONS = {
    "arrivals": {"process": "poisson", "request_rate": 20.0},
    "sessions": {"turns": 6, "think_time_s": 5.0, "system_prompt_tokens": 512, "system_prompts": 8},
    "input_tokens": 200,
    "output_tokens": 150,
    "num_requests": 20_000,
}
SLOW_ONCE = {
    "sglang": scenario(CHAT, 20_000, 40.0) | {"engine": {"scheduler": "sglang", "framework": "sglang"}},
    "prefill-first": scenario(CHAT, 20_000, 40.0) | {"engine": {"scheduler": "prefill-first"}},
    "swap": scenario(CHAT, 20_000, 40.0) | {"engine": {"preemption": "swap", "num_kv_blocks": 3000}},
    "pipeline": scenario(CHAT, 20_000, 40.0) | {"hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}},
    "disaggregated": scenario(CHAT, 20_000, 100.0) | {"pools": DISAGGREGATED},
    "failures": scenario(CHAT, 20_000, 100.0, replicas=4) | {"faults": {"mtbf_s": 60.0, "mttr_s": 5.0}},
}
"""What ran step by step, 5 to 40 times slower, before there was one engine."""

CASES = {
    **{f"chat-busy-{n}": scenario(CHAT, n, 60.0) for n in (1_000, 10_000, 100_000, 1_000_000, 10_000_000)},
    "chat-idle-10000": scenario(CHAT, 10_000, 2.0),
    "chat-overload-100000": scenario(CHAT, 100_000, 200.0),
    "constant-busy-100000": scenario(CONSTANT, 100_000, 33.0),
    "chat-speculation-100000": scenario(CHAT, 100_000, 50.0, speculation=EAGLE_LIKE),
    "eagle3-spread-100000": scenario(CHAT, 100_000, 60.0, speculation=EAGLE3),
    "draft-model-100000": scenario(CHAT, 100_000, 40.0, speculation=DRAFT_MODEL),
    "grown-tree-20000": scenario(CHAT, 20_000, 20.0, speculation=GROWN_TREE),
    "sessions-8-replicas-20000": scenario(CHAT, 1, 1.0, replicas=8)
    | {"engine": {"routing": "prefix-aware"}, "workload": SESSIONS},
    **{f"{name}-20000": case for name, case in SLOW_ONCE.items()},
    "chat-64-replicas-200000": scenario(CHAT, 200_000, 64 * 60.0, replicas=64),
}


LOOP = "total = 0\nfor number in range(30_000_000): total += number"
"""A plain Python loop, whose time in the same run makes figures of different machines comparable."""
GROWN = (
    "chat-busy-100000",
    "constant-busy-100000",
    "eagle3-spread-100000",
    "draft-model-100000",
    "grown-tree-20000",
    "sessions-8-replicas-20000",
    *(f"{name}-20000" for name in SLOW_ONCE),
)
SIZES = (10_000, 30_000, 100_000)
FLEETS = (8, 64, 512)
EACH = 200
"""Requests of each of their replicas: fewer to each would be more steps to a request, as batches never fill."""

MOONCAKE = "mooncake-prefix-cache-100000"


def repeated_trace(trace: Path, requests: int, folder: Path) -> Path:
    """The rows of a Mooncake trace over and over, each round after the one before, with the same hashes."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    round_ms = rows[-1]["timestamp"] + 3000
    path = folder / "repeated.jsonl"
    with path.open("w") as file:
        for number in range(requests):
            row = rows[number % len(rows)]
            file.write(json.dumps(row | {"timestamp": row["timestamp"] + number // len(rows) * round_ms}) + "\n")
    return path


def start_up() -> dict[str, float]:
    """CPU seconds of `forerun --help`, of the smallest run, and of a plain loop (the least of three)."""
    tiny = scenario(CONSTANT, 1, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.json"
        file.write_text(json.dumps(tiny))
        return {
            "help_cpu_s": timed([FORERUN, "--help"])["cpu_s"],
            "first_run_cpu_s": timed([FORERUN, "run", str(file), "--no-progress"])["cpu_s"],
            "loop_cpu_s": min(timed([sys.executable, "-c", LOOP])["cpu_s"] for _ in range(3)),
        }


def timed(command: list[str]) -> dict[str, float]:
    """CPU seconds and peak memory of a command, as the operating system counts them for the finished process."""
    probe = subprocess.run([sys.executable, "-c", PROBE, *command], check=True, stdout=subprocess.PIPE, text=True)
    usage: dict[str, float] = json.loads(probe.stdout)
    return usage


def measure(case: dict[str, Any], folder: Path) -> dict[str, float]:
    """Run one case in a process of its own."""
    file, out = folder / "scenario.json", folder / "summary.json"
    file.write_text(json.dumps(case))
    custom = timed([FORERUN, "run", str(file), "--no-progress", "--json", str(out)])
    document = json.loads(out.read_text())
    cpu = custom["cpu_s"]
    requests = document["summary"]["completed"]
    return {
        "requests": requests,
        "cpu_s": cpu,
        "requests_per_cpu_s": requests / cpu,
        "output_tokens_per_cpu_s": document["summary"]["total_output_tokens"] / cpu,
        "peak_mb": custom["peak_kb"] / 1024,
        "steps": document["engine"]["steps"],
    }


def growth(results: dict[str, Any], folder: Path, wanted: str) -> None:
    """Exponents of CPU time over requests at one load, and over replicas that have as many requests each."""
    start = results["start-up"]["first_run_cpu_s"]
    for name in GROWN:
        if not re.search(wanted, name):
            continue
        case, spent = CASES[name], []
        for size in SIZES:
            grown = case | {"workload": case["workload"] | {"num_requests": size}}
            spent.append(measure(grown, folder)["cpu_s"] - start)
        results[f"growth {name}"] = growth_of(name, "requests", SIZES, spent)
    if not re.search(wanted, "replicas"):
        return
    spent = [measure(scenario(CHAT, EACH * n, 60.0 * n, replicas=n), folder)["cpu_s"] - start for n in FLEETS]
    results["growth replicas"] = growth_of("chat, least outstanding", "replicas", FLEETS, spent)


def growth_of(name: str, what: str, sizes: Sequence[int], spent: Sequence[float]) -> dict[str, Any]:
    """Print and hand back CPU seconds and their exponent (slope of the logarithms, least squares)."""
    exponent = float(np.polyfit(np.log(sizes), np.log(np.maximum(spent, 1e-3)), 1)[0])
    figures = ", ".join(f"{size}: {cpu_s:.2f} s" for size, cpu_s in zip(sizes, spent, strict=True))
    print(f"{name}: CPU ~ {what}^{exponent:.2f} ({figures})", flush=True)
    return {"exponent": exponent, "cpu_s": dict(zip(map(str, sizes), spent, strict=True))}


def main() -> None:
    """Measure the chosen cases and print them as a table, and as JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="only cases whose name matches")
    parser.add_argument("--growth", action="store_true", help="exponents over requests and replicas instead")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--mooncake", type=Path, default=sample_path("mooncake-conversation"), help="trace to repeat")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {"start-up": start_up()}
    words = "--help {help_cpu_s:.2f} CPU s, smallest run {first_run_cpu_s:.2f}, plain loop {loop_cpu_s:.2f}"
    print("start-up:", words.format(**results["start-up"]))
    if not arguments.growth:
        print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.growth:
            growth(results, Path(folder), arguments.cases)
        for name, case in {} if arguments.growth else {**CASES, MOONCAKE: None}.items():
            if not re.search(arguments.cases, name):
                continue
            if case is None:
                trace = repeated_trace(arguments.mooncake, 100_000, Path(folder))
                case = scenario(CONSTANT, 1, 1.0) | {"workload": {"trace": str(trace)}}
            row = results[name] = measure(case, Path(folder))
            print(
                f"{name:28} {row['cpu_s']:8.2f} {row['requests_per_cpu_s']:10.0f} "
                f"{row['output_tokens_per_cpu_s']:12.0f} {row['peak_mb']:7.0f} {row['steps']:9.0f} "
                f"{row['cpu_s'] / results['start-up']['loop_cpu_s']:7.2f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


HEADER = f"{'case':28} {'cpu s':>8} {'req/cpu s':>10} {'tok/cpu s':>12} {'MB':>7} {'steps':>9} {'loops':>7}"


if __name__ == "__main__":
    main()
