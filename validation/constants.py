"""Constants of engines: what each was fitted on, and how far figures move with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.yaml_files import packaged
from hwprofiles import ProfileError
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from simulator.timing import load_framework
from simulator.timing.framework import HOST_COSTS
from validation.facts import facts

MORE = 1.25
"""Factor on a constant: the upper 90 % end of host costs that were fitted."""
LOADS = {"8 streams": 8, "256 streams": 256}
CHIPS = {"llama.cpp": "rtx-4090", "mlx": "apple-m4-max", "tt-metal": "n150", "vllm-2024": "a100-sxm-80gb"}
"""Chips other than an H100, by the beginning of an engine's name."""
FIGURES = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms", "throughput": "output_throughput"}
SHOWN = 0.002
"""Least change of a figure that is listed."""


def constants_table() -> Table:
    """Change of figures if one constant of an engine is a quarter larger, largest first.

    The figures are those of Llama-3.1-8B on one chip, with 1,000 prompt and 200 output tokens.
    """
    columns = ("engine", "constant", "value", "at", *(f"{name} %" for name in FIGURES), "fitted on")
    lines = [line for name in packaged("simulator.timing", "frameworks.yaml") for line in _lines(name)]
    return Table("Constants of engines: a quarter more of each", columns, sorted(lines, key=_largest, reverse=True))


def _lines(name: str) -> Iterator[list[Value]]:
    framework = load_framework(name)
    words = "; ".join(dict.fromkeys(f.table for f in facts() if f.constant == f"frameworks.yaml: {name}"))
    for load, streams in LOADS.items():
        for constant in HOST_COSTS:
            value = getattr(framework, constant)
            if not value or (before := _figures(name, streams, "")) is None:
                continue
            after = _figures(name, streams, constant) or before
            moved = [100 * (after[key] / before[key] - 1) for key in FIGURES.values()]
            if max(map(abs, moved)) >= 100 * SHOWN:
                shown = [round(one, 1) for one in moved]
                yield [name, constant, f"{value:.3g}", load, *shown, words or framework.source.kind]


def _largest(line: Sequence[Value]) -> float:
    return max(abs(float(str(one))) for one in line[4:7])


@cache
def _figures(name: str, streams: int, constant: str) -> dict[str, float] | None:
    """Figures of a closed loop with a constant a quarter larger; None if the engine serves no such loop."""
    try:
        run = simulate(_scenario(name, streams), factors={f"{name}.{constant}": MORE} if constant else {})
    except (ForerunError, ProfileError):
        return None
    return {key: float(run.summary[key] or 1.0) for key in FIGURES.values()}


def _scenario(name: str, streams: int) -> Scenario:
    chip = next((chip for start, chip in CHIPS.items() if name.startswith(start)), "h100-sxm")
    loop = {"process": "closed-loop", "max_concurrency": streams}
    workload = {"arrivals": loop, "input_tokens": 1000, "output_tokens": 200, "num_requests": 4 * streams}
    data = {"model": "llama-3.1-8b", "hardware": {"chip": chip}, "engine": {"framework": name}, "workload": workload}
    return scenario_from(data, name)
