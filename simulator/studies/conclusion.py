"""What a comparison says, in one sentence for a design review."""

from __future__ import annotations

from typing import Any

METRIC_WORDS = {
    "request_throughput": "request throughput",
    "request_goodput": "goodput",
    "output_throughput": "output throughput",
    "total_token_throughput": "total token throughput",
    "duration": "duration",
    "usd_per_million_output_tokens": "cost per output token",
    "energy_joules": "energy",
}
LATENCY_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "end-to-end latency"}
STATISTIC_WORDS = {"std": "spread of"}
LOAD_WORDS = {
    "workload.arrivals.request_rate": "{} req/s",
    "workload.arrivals.max_concurrency": "{} concurrent requests",
    "workload.arrivals.rate_scale": "{} times the trace's rate",
}


def metric_words(metric: str) -> str:
    """A summary key in words, e.g. ``p99 TTFT``."""
    if metric in METRIC_WORDS:
        return METRIC_WORDS[metric]
    statistic, name, _ = metric.split("_")
    return f"{STATISTIC_WORDS.get(statistic, statistic)} {LATENCY_WORDS[name]}"


def load_words(path: str, value: float | None) -> str:
    """A load in words, e.g. ``41 req/s``."""
    shown = "?" if value is None else f"{value:.3g}"
    return LOAD_WORDS.get(path, path.rsplit(".", 1)[-1] + " {}").format(shown)


def times(ratio: float) -> str:
    """A speedup in words, e.g. ``1.32x``; fine enough that a small effect shows."""
    return f"{ratio:.3f}x" if abs(ratio - 1.0) < 0.05 else f"{ratio:.2f}x"


def compare_sentence(document: dict[str, Any]) -> str:
    """The verdict on the baseline, the crossover, and whether an assumption could turn it over."""
    metric, base = document["metric"], document["baseline"]
    rows = [(v["name"], v["speedup"][metric]) for v in document["variants"][1:] if v["speedup"][metric] is not None]
    if not rows:
        return f"No variant measures {metric_words(metric)}, so none can be compared with {base}."
    best, speedup = max(rows, key=lambda row: row[1]["ratio"])
    verdict = _verdict(speedup)
    where = f" in {metric_words(metric)}"
    interval = _interval(speedup)
    if verdict > 0:
        text = f"{best} improves {metric_words(metric)} {times(speedup['ratio'])} over {base}{interval}"
    elif verdict < 0:
        others = "" if len(rows) == 1 else " and the others worse still"
        text = f"{base} stays ahead: {best} reaches {times(speedup['ratio'])}{where}{interval}{others}"
    elif len(rows) == 1:
        text = f"{best} does not differ surely from {base}{where}: {times(speedup['ratio'])}{interval}"
    else:
        text = f"no variant beats {base} surely{where}; the best, {best}, reaches {times(speedup['ratio'])}{interval}"
    return text + _crossover_words(document, best) + _sensitivity_words(document, best, verdict)


def _crossover_words(document: dict[str, Any], best: str) -> str:
    crossover = document["crossover"]
    if crossover is None:
        return ""
    own = [c for c in crossover["all"] if c["variant"] == best]
    crossing = crossover if crossover["variant"] == best or not own else own[0]
    subject = "it pays" if crossing["variant"] == best else f"{crossing['variant']} pays"
    path = crossover["path"]
    text = f"; {subject} {crossing['better']} about {load_words(path, crossing['value'])}"
    if crossing["low"] is not None and crossing["high"] is not None:
        text += f" ({crossing['low']:.3g} to {crossing['high']:.3g})"
    worst = _worst_beyond(document, crossing)
    other = "above" if crossing["better"] == "below" else "below"
    return text + (f"; {other} it costs up to {worst:.0%}" if worst is not None and worst >= 0.005 else "")


def _worst_beyond(document: dict[str, Any], crossing: dict[str, Any]) -> float | None:
    """Largest loss on the side of a crossing where the variant does not pay, as a share."""
    curves = document["load_curves"]["curves"]
    points = next(curve["points"] for curve in curves if curve["variant"] == crossing["variant"])
    below = crossing["better"] == "below"
    beyond = [p["ratio"] for p in points if (p["value"] > crossing["value"]) == below]
    return 1.0 - min(beyond) if beyond else None


def _sensitivity_words(document: dict[str, Any], best: str, verdict: int) -> str:
    rows = document["sensitivity"]
    if not rows or verdict == 0:
        return "."
    flipping = [row["parameter"] for row in rows if best in row["flips"]]
    if not flipping:
        return ". No assumed parameter turns this over within its range."
    names = ", ".join(flipping[:3]) + (" and others" if len(flipping) > 3 else "")
    return f". It rests on {names}: within the assumed range the verdict turns over."


def _verdict(speedup: dict[str, Any]) -> int:
    low = speedup["ratio"] if speedup["low"] is None else speedup["low"]
    high = speedup["ratio"] if speedup["high"] is None else speedup["high"]
    return 1 if low > 1.0 else -1 if high < 1.0 else 0


def _interval(speedup: dict[str, Any]) -> str:
    if speedup["low"] is None:
        return ""
    return f" (95 % interval {times(speedup['low'])} to {times(speedup['high'])})"
