"""Confidence-scheduled verification as published, beside simulated runs: speed-ups by streams, and where it wins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from forerun.tables import Table, Value, percent
from forerun.yaml_files import packaged
from simulator.running.build import build_replica
from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.speculation import fit_acceptance_lengths
from simulator.speculation.level_decay import LevelDecay
from simulator.timing import DraftStep, ModelTimer, causal_pairs, decode_step, keys_read
from validation.speculation.published import PACKAGE

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
    """True if the acceptance, or the host time of the rule, was set by this row."""

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.published - 1.0

    @property
    def right_sign(self) -> bool:
        return (self.published > 1.0) == (self.predicted > 1.0)


class PublishedCrossing(NamedTuple):
    """Loads between which adaptive verification overtakes the best fixed K, or a single K falls behind plain decoding;
    None at an end of the ladder."""

    table: str
    what: str
    published: tuple[int | None, int | None]
    predicted: tuple[int | None, int | None]


def adaptive_tables() -> dict[str, Mapping[str, Any]]:
    """The published tables by name."""
    return packaged(PACKAGE, "adaptive.yaml")


def compare_adaptive(advance: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """The JSON of ``forerun validate adaptive``: every cell, scores by table, crossings."""
    tables = adaptive_tables()
    ranges, zero_drafts = packaged(PACKAGE, "ranges.yaml"), packaged(PACKAGE, "zero_drafts.yaml")
    described = tables | ranges | {"dynamic K at 0 drafts": zero_drafts}
    rows: list[AdaptiveRow] = []
    crossings = []
    for number, (name, table) in enumerate(tables.items()):
        runs = _Runs(table)
        rows += _rows(name, table, runs)
        if len(next(iter(table["cells"].values()))) > 3:
            crossings.append(_crossing(name, table, runs))
        advance(number + 1, len(tables))
    return {
        "rows": [row._asdict() | {"error": row.error, "right_sign": row.right_sign} for row in rows],
        "scores": [_score(name, [row for row in rows if row.table == name]) for name in tables],
        "crossings": [crossing._asdict() for crossing in crossings],
        "sources": {name: table["source"] for name, table in described.items()},
        "assumed": {name: table["assumed"] for name, table in described.items()},
        "note": SEEN,
        "ranges": [_range(name, entry) for name, entry in ranges.items()],
        "zero_drafts": _zero_drafts(zero_drafts),
    }


def _range(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The least and the greatest predicted ratio of an entry of ``ranges.yaml``, beside the published ones."""
    metric, ratios = entry.get("metric", "output_throughput"), []
    for point in entry["points"]:
        speeds = []
        for side in ("plain", "drafted"):
            data = _merged(_merged(entry["scenario"], entry[side]), point.get(side, {}))
            if "streams" in point:
                arrivals = {"process": "closed-loop", "max_concurrency": point["streams"]}
                data = _merged(data, {"workload": {"arrivals": arrivals}})
            speeds.append(_figure(json.dumps(data, sort_keys=True), metric))
        ratios.append(speeds[0] / speeds[1] if metric.endswith("_ms") else speeds[1] / speeds[0])
    return {
        "table": name,
        "what": entry["what"],
        "published": entry["published"],
        "predicted": [min(ratios), max(ratios)],
    }


def _merged(data: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with the fields of ``more``, section by section."""
    merged = dict(data)
    for key, value in more.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _zero_drafts(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Milliseconds per token without speculation and with a schedule that never drafts, published and predicted.

    A step decodes one token of each stream; each stream's prompt, of which all but its end is cached, is in one step of
    the answer's tokens.
    """
    timers = []
    for more in ({}, {"speculation": table["speculation"]}):
        timer = build_replica(Scenario.model_validate(table["scenario"] | more)).main.timer
        assert isinstance(timer, ModelTimer)
        timers.append(timer)
    windows, new, output, rows = timers[0].windows, table["new_tokens"], table["output_tokens"], []
    none = (0,) * len(windows)
    for context, streams, *published in table["cells"]:
        alone = decode_step(windows, streams, 1, context + new + output // 2)
        prompts = max(1, round(streams / output))
        mixed = alone._replace(
            prefill_seqs=prompts,
            prefill_tokens=prompts * new,
            prefill_pairs=tuple(prompts * causal_pairs(new, context, w) for w in windows),
            prefill_kv_tokens=tuple(prompts * keys_read(context + new, new, w) for w in windows),
            sampled_prefills=prompts,
            sampled_kv_tokens=tuple(prompts * keys_read(context + new + 1, 1, w) for w in windows),
        )
        share, predicted = min(1.0, streams / output), []
        for timer, draft in zip(timers, ((), (DraftStep(0, 0, 0, 0, none, none),)), strict=True):
            seconds = (float(timer.seconds(step, *draft)) for step in (alone, mixed))
            predicted.append(1e3 * sum(part * s for part, s in zip((1.0 - share, share), seconds, strict=True)))
        fitted = [context, streams] in table["fitted"]
        row = {"context": context, "streams": streams, "published_ms": published, "predicted_ms": predicted}
        rows.append(row | {"fitted": fitted})
    return rows


def adaptive_tables_of(document: Mapping[str, Any]) -> Iterator[Table]:
    """The document as tables."""
    cells: list[list[Value]] = []
    for row in document["rows"]:
        error = "fitted" if row["fitted"] else f"{100 * row['error']:+.1f} %"
        speeds = (f"{row['published']:.2f}x", f"{row['predicted']:.2f}x")
        cells.append([row["table"], row["mode"], row["streams"], *speeds, error, "" if row["right_sign"] else "wrong"])
    yield Table(
        "Over no speculation (glm52_gb200: over fixed K = 16; gemma4_26b_gb10: over K = 2)",
        ("table", "mode", "load", "published", "predicted", "error", "sign"),
        cells,
    )
    scores: list[list[Value]] = [
        [s["table"], s["rows"], percent(s["median"]), percent(s["worst"]), f"{s['right_sign']} of {s['rows']}"]
        for s in document["scores"]
    ]
    yield Table(document["note"], ("table", "rows", "median error", "worst", "side of 1 right"), scores)
    loads: list[list[Value]] = [
        [c["table"], c["what"], _words(c["published"]), _words(c["predicted"])] for c in document["crossings"]
    ]
    yield Table("Crossings", ("table", "what", "published", "predicted"), loads)
    ranges: list[list[Value]] = [
        [r["table"], r["what"], _span(r["published"]), _span(r["predicted"]), _met(r["published"], r["predicted"])]
        for r in document["ranges"]
    ]
    yield Table("Where only a range is stored", ("table", "what", "published", "predicted", ""), ranges)
    costs: list[list[Value]] = []
    for row in document["zero_drafts"]:
        (plain, dynamic), (ours, theirs) = row["published_ms"], row["predicted_ms"]
        taxes = [f"{100 * (dynamic / plain - 1):+.1f} %", f"{100 * (theirs / ours - 1):+.1f} %"]
        note = "sets the constants" if row["fitted"] else ""
        costs.append([row["context"], row["streams"], f"{plain:.1f} ms", f"{ours:.1f} ms", *taxes, note])
    heads = ("context", "streams", "TPOT without", "predicted", "with dynamic K at 0 drafts", "predicted", "")
    yield Table("What dynamic K costs where it never drafts", heads, costs)


def _span(ends: Sequence[float]) -> str:
    low, high = (f"{end:.2f}" for end in ends)
    return f"{low}x" if low == high else f"{low} to {high}x"


def _met(published: Sequence[float], predicted: Sequence[float]) -> str:
    """Verdict on a predicted range: ``hit`` within 12 % of the published one and on the same side of 1, else
    ``miss``."""
    near = predicted[0] >= 0.88 * published[0] and predicted[1] <= 1.12 * published[1]
    return "hit" if near and all((end > 1.0) == (published[0] > 1.0) for end in predicted) else "miss"


def _words(between: tuple[int | None, int | None]) -> str:
    low, high = between
    if low is None:
        return f"from {high} on"
    return f"not up to {low}" if high is None else f"between {low} and {high}"


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
        self._metric, self._process = table.get("metric", "output_throughput"), table.get("arrivals", "closed-loop")
        self._acceptance: dict[Any, Any] = table.get("acceptance", {"alpha": 0.7})
        if "fit" in table:
            self._fit(table["fit"])

    def _fit(self, fit: Mapping[str, Any]) -> None:
        """Set acceptance, and the rule's host time, by the cells at one load."""
        streams, depths = fit["streams"], fit["tokens"]
        # In a closed loop step times do not depend on what is accepted: the ratio of one run gives the length.
        for _ in range(1 if self._process == "closed-loop" else 4):
            lengths = {}
            for tokens in depths:
                lengths[tokens] = self.published(tokens, streams) / self.speedup(tokens, streams) * self._length(tokens)
            if len(lengths) > 1:
                model = fit_acceptance_lengths(lengths).model
            else:
                model = LevelDecay(1.0).with_length(lengths[depths[0]], depths[0])
            self._acceptance = {"alpha": model.level, "decay": model.decay}
        if fit.get("rule"):
            mode = _adaptive(self._table["cells"])
            plain, low, high = self.speed(NONE, streams), 0.0, 0.02
            for _ in range(12):
                self._rule_s = (low + high) / 2
                slow = self.speed(mode, streams) / plain < self.published(mode, streams)
                low, high = (low, self._rule_s) if slow else (self._rule_s, high)

    def speedup(self, mode: Any, streams: int) -> float:
        return self.speed(mode, streams) / self.speed(self._baseline, streams)

    def speed(self, mode: Any, streams: int) -> float:
        """Simulated output tokens per second, or the inverse of the time that the table gives."""
        figure = _figure(json.dumps(self._scenario(mode, streams), sort_keys=True), self._metric)
        return 1.0 / figure if self._metric.endswith("_ms") else figure

    def published(self, mode: Any, streams: int) -> float:
        """The published speed over that of the baseline."""
        cells = self._table["cells"]
        ratio = float(cells[mode][streams] / cells[self._baseline][streams])
        return 1.0 / ratio if self._metric.endswith("_ms") else ratio

    def _length(self, tokens: int) -> float:
        model = LevelDecay(self._acceptance["alpha"], self._acceptance.get("decay", 1.0))
        return 1.0 + float(model.survival(tokens).sum())

    def _scenario(self, mode: Any, streams: int) -> dict[str, Any]:
        base: dict[str, Any] = self._table["scenario"]
        engine = {key: value for key, value in base["engine"].items() if key != "graphs_to"}
        if "graphs_to" in base["engine"]:
            engine["cuda_graph_sizes"] = _graphs(base["engine"]["graphs_to"])
        arrivals: dict[str, Any] = {"process": "closed-loop", "max_concurrency": streams}
        requests = min(base["workload"]["num_requests"], max(240, 4 * streams))
        if self._process != "closed-loop":
            arrivals = {"process": self._process, "request_rate": streams}
            requests = base["workload"]["num_requests"] * streams
        data = base | {
            "engine": engine,
            "workload": base["workload"] | {"arrivals": arrivals, "num_requests": requests},
        }
        if mode == NONE:
            return data
        policy: Any = "fixed"
        if str(mode).startswith(ADAPTIVE):
            policy = {"name": "confidence-budget", "step_s": self._rule_s}
        acceptance = self._acceptance.get(mode, self._acceptance.get(streams, self._acceptance))
        chain = {"num_speculative_tokens": int(str(mode).removeprefix(ADAPTIVE)), "acceptance": acceptance}
        return data | {"speculation": self._table["speculation"] | {"policy": policy, **chain}}


def _graphs(most: int) -> list[int]:
    """Sizes that vLLM captures up to a limit: every 8 tokens to 256, every 16 beyond."""
    return [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]


@lru_cache(maxsize=512)
def _figure(data: str, metric: str) -> float:
    return float(summarise(simulate(Scenario.model_validate_json(data), seed=1))[metric])


def _rows(name: str, table: Mapping[str, Any], runs: _Runs) -> Iterator[AdaptiveRow]:
    fit, cells, baseline = table.get("fit", {}), table["cells"], table.get("baseline", NONE)
    for mode, by_streams in cells.items():
        if mode == baseline:
            continue
        for streams in by_streams:
            set_by = mode in fit.get("tokens", ()) or (bool(fit.get("rule")) and str(mode).startswith(ADAPTIVE))
            published = runs.published(mode, streams)
            fitted = streams == fit.get("streams") and set_by
            yield AdaptiveRow(name, str(mode), streams, published, runs.speedup(mode, streams), fitted)


def _crossing(name: str, table: Mapping[str, Any], runs: _Runs) -> PublishedCrossing:
    cells = table["cells"]
    ladder = list(next(iter(cells.values())))
    adaptive = _adaptive(cells)
    fixed = [mode for mode in cells if mode not in (NONE, adaptive)]
    if adaptive is None:
        behind = [
            list(accumulate((of(fixed[0], n) < 1.0 for n in ladder), or_)) for of in (runs.published, runs.speedup)
        ]
        return PublishedCrossing(
            name, f"K = {fixed[0]} falls behind none", *(_between(ladder, after) for after in behind)
        )
    ahead = [[of(adaptive, n) > max(of(k, n) for k in fixed) for n in ladder] for of in (runs.published, runs.speedup)]
    return PublishedCrossing(name, "adaptive overtakes the best K", *(_between(ladder, after) for after in ahead))


def _adaptive(cells: Mapping[Any, Any]) -> str | None:
    return next((mode for mode in cells if str(mode).startswith(ADAPTIVE)), None)


def _between(ladder: list[int], after: list[bool]) -> tuple[int | None, int | None]:
    """The loads around the last one before a crossing."""
    before = [place for place, crossed in enumerate(after) if not crossed]
    if not before:
        return None, ladder[0]
    return ladder[before[-1]], ladder[before[-1] + 1] if before[-1] + 1 < len(ladder) else None
