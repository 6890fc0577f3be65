"""Confidence-scheduled verification as published, beside simulated runs: speed-ups by streams, and where it wins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from forerun.tables import Table, Value, percent
from forerun.yaml_files import parse
from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.speculation import fit_acceptance_lengths
from simulator.speculation.level_decay import LevelDecay
from validation.speculation.published import FOLDER

NONE, ADAPTIVE = "none", "adaptive "
SEEN = "acceptance.autocorrelation 0.8 was chosen looking at these rows: no row is held out from that choice"


class AdaptiveRow(NamedTuple):
    """A published throughput over that without speculation, beside the simulated one."""

    table: str
    mode: str
    streams: int
    published: float
    predicted: float
    fitted: bool
    """Whether the acceptance, or the host time of the rule, was set by this row."""

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.published - 1.0

    @property
    def right_sign(self) -> bool:
        return (self.published > 1.0) == (self.predicted > 1.0)


class Overtaking(NamedTuple):
    """Loads between which adaptive verification overtakes the best fixed K; None at an end of the ladder."""

    table: str
    published: tuple[int | None, int | None]
    predicted: tuple[int | None, int | None]


def adaptive_tables() -> dict[str, Mapping[str, Any]]:
    """The published tables by name."""
    tables: dict[str, Mapping[str, Any]] = parse(FOLDER.joinpath("adaptive.yaml").read_text(encoding="utf-8"))
    return tables


def compare_adaptive(advance: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """The JSON of ``forerun validate adaptive``: every cell, scores by table, crossings."""
    tables = adaptive_tables()
    rows: list[AdaptiveRow] = []
    crossings = []
    for number, (name, table) in enumerate(tables.items()):
        runs = _Runs(table)
        rows += _rows(name, table, runs)
        if "crossing" in table or len(table["cells"][_adaptive(table)]) > 2:
            crossings.append(_crossing(name, table, runs))
        advance(number + 1, len(tables))
    return {
        "rows": [row._asdict() | {"error": row.error, "right_sign": row.right_sign} for row in rows],
        "scores": [_score(name, [row for row in rows if row.table == name]) for name in tables],
        "crossings": [crossing._asdict() for crossing in crossings],
        "sources": {name: table["source"] for name, table in tables.items()},
        "assumed": {name: table["assumed"] for name, table in tables.items()},
        "note": SEEN,
    }


def adaptive_tables_of(document: Mapping[str, Any]) -> Iterator[Table]:
    """The document as tables."""
    cells: list[list[Value]] = []
    for row in document["rows"]:
        error = "fitted" if row["fitted"] else f"{100 * row['error']:+.1f} %"
        speeds = (f"{row['published']:.2f}x", f"{row['predicted']:.2f}x")
        cells.append([row["table"], row["mode"], row["streams"], *speeds, error, "" if row["right_sign"] else "wrong"])
    yield Table(
        "Over no speculation (glm52_gb200: over fixed K = 16)",
        ("table", "mode", "streams", "published", "predicted", "error", "sign"),
        cells,
    )
    scores: list[list[Value]] = [
        [s["table"], s["rows"], percent(s["median"]), percent(s["worst"]), f"{s['right_sign']} of {s['rows']}"]
        for s in document["scores"]
    ]
    yield Table(document["note"], ("table", "rows", "median error", "worst", "side of 1 right"), scores)
    loads: list[list[Value]] = [
        [c["table"], _words(c["published"]), _words(c["predicted"])] for c in document["crossings"]
    ]
    yield Table("Adaptive overtakes the best fixed K", ("table", "published", "predicted"), loads)


def _words(between: tuple[int | None, int | None]) -> str:
    low, high = between
    if low is None:
        return f"from {high} streams on"
    return f"not up to {low} streams" if high is None else f"between {low} and {high} streams"


def _score(name: str, rows: list[AdaptiveRow]) -> dict[str, Any]:
    scored = [row for row in rows if not row.fitted]
    errors = np.abs([row.error for row in scored])
    right = sum(row.right_sign for row in scored)
    figures = {"median": float(np.median(errors)), "worst": float(errors.max()), "right_sign": right}
    return {"table": name, "rows": len(scored), **figures}


class _Runs:
    """Runs of one table, with what its fitted cells say."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self._rule_s = 0.0
        self._baseline = table.get("baseline", NONE)
        self._acceptance: dict[str, Any] = table.get("acceptance", {"alpha": 0.7})
        if "fit" in table:
            self._fit(table["fit"])

    def _fit(self, fit: Mapping[str, Any]) -> None:
        """Set acceptance, and the rule's host time, by the cells at one load."""
        streams, depths = fit["streams"], fit["tokens"]
        lengths = {}
        for tokens in depths:  # step times do not depend on what is accepted, so the ratio of one run gives the length
            lengths[tokens] = self._target(tokens, streams) / self.speedup(tokens, streams) * self._length(tokens)
        if len(lengths) > 1:
            model = fit_acceptance_lengths(lengths).model
        else:
            model = LevelDecay(1.0).with_length(lengths[depths[0]], depths[0])
        self._acceptance = {"alpha": model.level, "decay": model.decay}
        if fit.get("rule"):
            mode = _adaptive(self._table)
            plain, low, high = self.throughput(NONE, streams), 0.0, 0.02
            for _ in range(12):
                self._rule_s = (low + high) / 2
                slow = self.throughput(mode, streams) / plain < self._target(mode, streams)
                low, high = (low, self._rule_s) if slow else (self._rule_s, high)

    def speedup(self, mode: Any, streams: int) -> float:
        return self.throughput(mode, streams) / self.throughput(self._baseline, streams)

    def throughput(self, mode: Any, streams: int) -> float:
        """Simulated output tokens per second."""
        return _throughput(json.dumps(self._scenario(mode, streams), sort_keys=True))

    def _target(self, mode: Any, streams: int) -> float:
        cells = self._table["cells"]
        return float(cells[mode][streams] / cells[NONE][streams])

    def _length(self, tokens: int) -> float:
        return 1.0 + float(LevelDecay(self._acceptance["alpha"]).survival(tokens).sum())

    def _scenario(self, mode: Any, streams: int) -> dict[str, Any]:
        base: dict[str, Any] = self._table["scenario"]
        engine = {key: value for key, value in base["engine"].items() if key != "graphs_to"}
        engine["cuda_graph_sizes"] = _graphs(base["engine"]["graphs_to"])
        arrivals = {"process": "closed-loop", "max_concurrency": streams}
        requests = min(base["workload"]["num_requests"], max(240, 4 * streams))
        data = base | {
            "engine": engine,
            "workload": base["workload"] | {"arrivals": arrivals, "num_requests": requests},
        }
        if mode == NONE:
            return data
        policy: Any = "fixed"
        if str(mode).startswith(ADAPTIVE):
            policy = {"name": "confidence-budget", "step_s": self._rule_s}
        chain = {"num_speculative_tokens": int(str(mode).removeprefix(ADAPTIVE)), "acceptance": self._acceptance}
        return data | {"speculation": self._table["speculation"] | {"policy": policy, **chain}}


def _graphs(most: int) -> list[int]:
    """Sizes that vLLM captures up to a limit: every 8 tokens to 256, every 16 beyond."""
    return [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]


@lru_cache(maxsize=256)
def _throughput(data: str) -> float:
    return float(summarise(simulate(Scenario.model_validate_json(data), seed=1))["output_throughput"])


def _rows(name: str, table: Mapping[str, Any], runs: _Runs) -> Iterator[AdaptiveRow]:
    fit, cells, baseline = table.get("fit", {}), table["cells"], table.get("baseline", NONE)
    for mode, by_streams in cells.items():
        if mode == baseline:
            continue
        for streams, tokens_per_s in by_streams.items():
            set_by = mode in fit.get("tokens", ()) or (bool(fit.get("rule")) and str(mode).startswith(ADAPTIVE))
            published = tokens_per_s / cells[baseline][streams]
            fitted = streams == fit.get("streams") and set_by
            yield AdaptiveRow(name, str(mode), streams, published, runs.speedup(mode, streams), fitted)


def _crossing(name: str, table: Mapping[str, Any], runs: _Runs) -> Overtaking:
    cells = table["cells"]
    adaptive = _adaptive(table)
    fixed = [mode for mode in cells if mode not in (NONE, adaptive)]
    ladder = list(cells[adaptive])
    if "crossing" in table:
        ladder = [load for load in (4, 8, 16, 32, 64, 128, 256) if ladder[0] <= load <= ladder[-1]]
        published = tuple(table["crossing"])
    else:
        published = _between(ladder, [cells[adaptive][n] > max(cells[k][n] for k in fixed) for n in ladder])
    ahead = [runs.throughput(adaptive, n) > max(runs.throughput(k, n) for k in fixed) for n in ladder]
    return Overtaking(name, published, _between(ladder, ahead))


def _adaptive(table: Mapping[str, Any]) -> str:
    return next(str(mode) for mode in table["cells"] if str(mode).startswith(ADAPTIVE))


def _between(ladder: list[int], ahead: list[bool]) -> tuple[int | None, int | None]:
    """The loads around the last one at which adaptive verification is not ahead."""
    behind = [place for place, wins in enumerate(ahead) if not wins]
    if not behind:
        return None, ladder[0]
    return ladder[behind[-1]], ladder[behind[-1] + 1] if behind[-1] + 1 < len(ladder) else None
