"""Replays of served runs and engine steps: those that lie in the served folders, and new ones in the background."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dashboards.app.jobs import Tell
from dashboards.app.messages import FOLDERS
from dashboards.app.parts import card, remark, table, tiles
from dashboards.app.served import Served
from dashboards.app.views import Shown
from dashboards.figures.serving_parity import METRIC_WORDS, serving_parity_data, serving_parity_figure
from dashboards.report_parts import ABSENT, number
from dashboards.steps_report import step_parity_data
from simulator.errors import ForerunError
from simulator.scenario import Scenario

MOST_RUNS = 40
"""Measured runs of one file that are served again here, evenly chosen; the command takes them all."""
STEPS, RUNS = "steps", "runs"
Document = dict[str, Any]
SETTINGS = ("model", "chip", "framework", "tensor_parallel", "max_concurrency", "request_rate", "input_tokens",
            "output_tokens")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Measured runs served again, or measured steps predicted, with a scenario for what the file does not tell."""

    file: Path
    steps: bool
    scenario: Scenario

    def __call__(self, folder: Path, tell: Tell) -> None:
        """Replay, and write ``replay.json`` as the command does."""
        from simulator.metrics.document import json_text
        from simulator.metrics.files import write_text_atomically
        from simulator.replay.requests import replay_requests, requests_document
        from simulator.replay.steps import replay_steps, steps_document
        from simulator.workers import Workers, cores
        from traces.servings import read_runs
        from traces.steps import read_steps

        if self.steps:
            document = steps_document(replay_steps([read_steps(self.file)], self.scenario))
        else:
            runs = read_runs(self.file)
            with Workers(cores() if cores() > 1 else 0) as workers:
                start = workers.start if cores() > 1 else None
                report = replay_requests(
                    runs, self.scenario, (self.file.name,), limit=MOST_RUNS, start=start, progress=tell
                )
            document = requests_document(report)
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / "replay.json", json_text(document))


def replay_task(served: Served, label: str, model: str, chip: str, framework: str, tensor_parallel: int) -> ReplayTask:
    """The replay of a served file with this model, chip and engine where the file names none.

    Raises:
        ForerunError: no such file, or no such deployment.
    """
    from simulator.scenario import scenario_from

    file, steps = served.measured_file(label)
    data = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": tensor_parallel},
        "engine": {"framework": framework},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 512, "output_tokens": 128, "num_requests": 100},
    }
    return ReplayTask(file, steps, scenario_from(data, "replay"))


def document_of(served: Served, label: str) -> Document:
    """The ``replay.json`` with this label.

    Raises:
        ForerunError: no such replay, or not one of served runs or steps.
        OSError: it cannot be read.
    """
    path = served.replays().get(label)
    if path is None:
        raise ForerunError(f"replay: no replay '{label[:120]}' in the served folders")
    document = _read(path, path.stat().st_mtime_ns)
    if kind_of(document) is None:
        raise ForerunError(
            f"replay: {label[:120]}: replay.json is not what forerun replay requests or steps --out writes"
        )
    return document


def kind_of(document: Document) -> str | None:
    """``runs``, ``steps`` or None, by what a replay document holds."""
    if {"runs", "scores", "worst", "skipped", "basis"} <= document.keys():
        return RUNS
    return STEPS if {"steps", "groups", "overall", "worst", "basis"} <= document.keys() else None


def shown_replay(document: Document) -> Shown:
    """Figures and tables of a replay; the figures are named by metric."""
    return _runs(document) if kind_of(document) == RUNS else _steps(document)


@lru_cache(maxsize=8)
def _read(path: Path, _modified_ns: int) -> Document:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ForerunError(f"replay: {path.parent.name}: replay.json is not JSON") from None
    return document if isinstance(document, dict) else {}


def _runs(document: Document) -> Shown:
    found = {metric: serving_parity_data(document, metric) for metric in METRIC_WORDS}
    figures = {metric: serving_parity_figure(data) for metric, data in found.items() if data is not None}
    overall = {score["metric"]: score for score in document["scores"] if score["group"] == "all"}
    rows: list[tuple[str, str, str, str]] = [
        (
            METRIC_WORDS[metric][0],
            f"{overall[metric]['mape']:.1f}",
            "% MAPE",
            f"bias {overall[metric]['bias']:+.1f} %, {overall[metric]['n']:,} runs",
        )
        for metric in METRIC_WORDS
        if metric in overall
    ]
    skipped = [(FOLDERS.sub("", reason), f"{count:,}") for reason, count in document["skipped"].items()]
    parts = {
        "tiles": tiles(rows),
        "worst": card("Runs furthest off", _worst_runs(document)),
        "skipped": card("Not simulated", table(("reason", "runs"), skipped)) if skipped else None,
    }
    return parts, figures


def _worst_runs(document: Document) -> Any:
    if not document["worst"]:
        return remark("No run measured a mean latency or the output throughput.")
    rows = []
    for run in document["worst"]:
        metric = run["metric"]
        unit = METRIC_WORDS[metric][1]
        values = (f"{number(run[key].get(metric))} {unit}" for key in ("measured", "predicted"))
        rows.append((run["name"], METRIC_WORDS[metric][0], f"{run['error'][metric]:+.1f}", *values, _settings(run)))
    return table(("run", "metric", "error (%)", "measured", "predicted", "load and engine"), rows, numbers_from=2)


def _settings(run: Document) -> str:
    def words(value: Any) -> str:
        if isinstance(value, list):
            return "-".join(str(part) for part in value)
        return value if isinstance(value, str) else number(value, 4)

    return " ".join(f"{name}={words(run[name])}" for name in SETTINGS if run.get(name) not in (None, "")) or ABSENT


def _steps(document: Document) -> Shown:
    overall = document["overall"]
    rows: list[tuple[str, str, str, str]] = [
        (
            f"{group['kind'].capitalize()} steps",
            f"{group['mape']:.1f}",
            "% MAPE",
            f"bias {group['bias']:+.1f} %, {group['n']:,} steps",
        )
        for group in ({**overall, "kind": "all"}, *document["groups"])
    ]
    worst = [
        (
            row["kind"],
            f"{row['ape']:.1f}",
            *(number(row[key] * 1e3) for key in ("measured_s", "predicted_s")),
            f"{row['prefill_tokens']:,}",
            f"{row['decode_seqs']:,} x {row['query_len']}",
            f"{row['decode_kv_tokens']:,}",
            row["bound"],
        )
        for row in document["worst"]
    ]
    heads = ("step", "error (%)", "measured (ms)", "predicted (ms)", "prompt tokens", "decoding", "keys", "bound")
    skipped = [(FOLDERS.sub("", reason), f"{count:,}") for reason, count in document.get("skipped", {}).items()]
    parts = {
        "tiles": tiles(rows),
        "worst": card("Steps furthest off", table(heads, worst)),
        "skipped": card("Not used", table(("reason", "steps"), skipped)) if skipped else None,
    }
    return parts, {"step_ms": serving_parity_figure(step_parity_data(document))}
