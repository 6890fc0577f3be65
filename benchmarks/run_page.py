"""Seconds that the server spends on the run page of a large run: its summary, its requests, its engine steps.

Run: python benchmarks/run_page.py DIR [--json FILE]      (DIR: a run folder, as forerun run --out DIR writes it)
 or: python benchmarks/run_page.py --requests 1000000     (makes records of that many requests first)

CPU is that of this process, wall is what a browser waits for; the second look at the same run shows what is kept.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboards.app.page import Context
from dashboards.app.pages import run_explorer
from dashboards.app.parts import spec
from dashboards.app.served import ServedFolders
from simulator.running.metrics import run_document
from simulator.running.metrics.run_folder import write_run
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from

VIEWS: dict[str, Callable[..., Any]] = {
    "summary": run_explorer.compute,
    "requests": run_explorer.compute_requests,
    "steps": run_explorer.compute_steps,
}


def make_run(folder: Path, requests: int) -> None:
    """Simulate a busy chip and write its run folder."""
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm"},
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": 24.0},
            "input_tokens": {"distribution": "lognormal", "mean": 226, "cv": 1.8, "max": 2048},
            "output_tokens": {"distribution": "lognormal", "mean": 201, "cv": 1.1, "max": 1024},
            "num_requests": requests,
        },
    }
    result = simulate(scenario_from(data, "benchmark"))
    write_run(folder, result, run_document(result))


def measure(folder: Path) -> list[dict[str, Any]]:
    """One row per view and look: CPU and wall seconds, and bytes sent to the browser."""
    rows = []
    with tempfile.TemporaryDirectory() as session:
        context = Context(ServedFolders.of([folder.parent], Path(session)))
        values = {"run": folder.name, "request": None, "beside": "none", "latency": "ttft"}
        for look in ("first", "second"):
            for name, view in VIEWS.items():
                cpu, wall = time.process_time(), time.perf_counter()
                figures = [part for part in view(context, values).values() if isinstance(part, go.Figure)]
                sent = json.dumps([spec(figure) for figure in figures], default=_plain)
                rows.append(
                    {
                        "view": name,
                        "look": look,
                        "cpu_s": round(time.process_time() - cpu, 3),
                        "wall_s": round(time.perf_counter() - wall, 3),
                        "sent_bytes": len(sent),
                    }
                )
    return rows


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def main() -> None:
    """Measure, and print a row per view."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a run folder")
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests of the run that is made without one")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder
        if folder is None:
            folder = Path(made) / "run"
            make_run(folder, arguments.requests)
        rows = measure(folder.resolve())
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak {peak:.0f} MB")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows, "peak_mb": round(peak)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
