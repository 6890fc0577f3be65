"""Figures of studies drawn in text, for reports in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.figures import studies
from dashboards.figures.load import HoursData
from dashboards.figures.speculation import AdaptiveData
from simulator.studies.paired import HIGHER_IS_BETTER, load_words, metric_words

TEXT_WIDTH = 56
"""Characters of a text figure's axis."""
BAR = 40
"""Characters of the longest bar of a text figure."""
TEXT_ROWS = 20


def forest_text(data: studies.ForestData) -> str:
    """Speedups with their intervals."""
    several = len({row.variant for row in data.rows}) > 1
    rows = [
        (
            f"{row.variant}: {metric_words(row.metric)}" if several else metric_words(row.metric),
            row.low,
            row.ratio,
            row.high,
        )
        for row in data.rows
    ]
    return f"speedup over {data.baseline}, | = 1\n" + text_intervals(rows, 1.0)


def tornado_text(data: studies.TornadoData) -> str:
    """Speedup over the range of each assumed parameter."""
    rows = [
        (row.parameter, min(row.at_low, row.at_high), data.ratio, max(row.at_low, row.at_high)) for row in data.rows
    ]
    return f"{data.variant}: speedup over the range of each assumed parameter\n" + text_intervals(rows, data.ratio)


def load_curve_text(data: studies.LoadCurveData) -> str:
    """Speedup of each variant by load."""
    parts = []
    for name, loads, ratios, lows, highs in data.curves:
        rows = [
            (load_words(data.path, load), low, ratio, high)
            for load, low, ratio, high in zip(loads, lows, ratios, highs, strict=True)
        ]
        parts.append(f"{name}: speedup over load, | = 1\n" + text_intervals(rows, 1.0))
    return "\n\n".join(parts)


def pareto_text(data: studies.ParetoData) -> str:
    """The two figures of every layout at the highest load simulated that meets the SLO, else at its highest."""
    last = {p.layout: p for p in data.points} | {p.layout: p for p in data.points if p.meets}
    heads = [studies.AXIS_WORDS[name] for name in (data.y, data.x)]
    width = max(map(len, last))
    lines = [f"{'':<{width}}  {'req/s':>8}  {heads[0]:>{len(heads[0])}}  {heads[1]}"]
    for name, p in last.items():
        values = "  ".join(f"{value:{len(head)}.3f}" for head, value in zip(heads, (p.y, p.x), strict=True))
        lines.append(f"{name:<{width}}  {p.request_rate:8.3g}  {values}{'' if p.meets else '  misses the SLO'}")
    return "\n".join(lines)


def text_bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Values as bars of text, the longest 40 characters; each row has a label, its value, and words after the bar."""
    longest = max(value for _, value, _ in rows)
    width = max(len(label) for label, *_ in rows)
    bars = [f"{'#' * round(value / longest * BAR):<{BAR + 1}}" for _, value, _ in rows]
    return "\n".join(f"{label:<{width}}  {bar}  {words}" for (label, _, words), bar in zip(rows, bars, strict=True))


def hours_text(data: HoursData) -> str:
    rows = [
        (hour["clock"] or f"{hour['start_s'] / 3600:.3g} h", hour["replicas"], str(hour["replicas"]))
        for hour in data.hours
    ]
    return f"replicas by the hour; fixed: {data.fixed}\n" + text_bars(rows)


def adaptive_text(data: AdaptiveData) -> str:
    """Throughput at each load, of the best fixed K and of adaptive verification."""
    lines = [f"{data.axis:>16} | {'best fixed K':>12} {'adaptive':>12}"]
    rows = zip(data.loads, data.fixed, data.adaptive, strict=True)
    return "\n".join(lines + [f"{load:>16,} | {fixed:>12,.0f} {adaptive:>12,.0f}" for load, fixed, adaptive in rows])


def tuning_text(data: studies.TuningData) -> str:
    """What to draft as a grid of text, contexts down and batches across."""
    lines = [f"{'context':>9} | " + " ".join(f"{text:>10}" for text in data.batches)]
    for context, drafts, speedups in zip(data.cells, data.drafts, data.speedup, strict=True):
        words = [f"{draft} {speedup:.2f}" for draft, speedup in zip(drafts, speedups, strict=True)]
        lines.append(f"{context:>9,} | " + " ".join(f"{text:>10}" for text in words))
    return "\n".join(lines)


def points_text(data: studies.SweepData) -> str:
    """The best points of a sweep."""
    best_first = sorted(data.points, key=lambda row: -row[1] if HIGHER_IS_BETTER[data.metric] else row[1])
    rows = [(name, None, value, None) for name, value in best_first[:TEXT_ROWS]]
    return f"{metric_words(data.metric)}, best first, | = 0\n" + text_intervals(rows, 0.0)


def text_intervals(rows: Sequence[tuple[str, float | None, float, float | None]], mark: float, unit: str = "") -> str:
    """Values with intervals as lines of text on one axis, with a bar at ``mark``.

    Args:
        rows: label, low end, value, high end; ends may be None.
        mark: a value that the axis shows in every line.
        unit: behind every figure.
    """
    known = [mark, *(v for _, low, value, high in rows for v in (low, value, high) if v is not None)]
    least, most = min(known), max(known)
    span = (most - least) or 1.0

    def column(value: float) -> int:
        return round((value - least) / span * (TEXT_WIDTH - 1))

    width = max((len(label) for label, *_ in rows), default=0)
    lines = []
    for label, low, value, high in rows:
        axis = [" "] * TEXT_WIDTH
        axis[column(mark)] = "|"
        if low is not None and high is not None:
            for place in range(column(low), column(high) + 1):
                axis[place] = "-"
        axis[column(value)] = "o"
        lines.append(f"{label:<{width}}  {''.join(axis)}  {value:.3f}{unit}")
    return "\n".join([*lines, f"{'':<{width}}  {least:<{TEXT_WIDTH // 2}.3f}{most:>{TEXT_WIDTH - TEXT_WIDTH // 2}.3f}"])


def bars_text(data: studies.BarsData) -> str:
    width = max((len(name) for name, *_ in data.bars), default=0)
    lines = [f"{name:<{width}}  {value:8.2f}{'' if good else '  !'}" for name, value, good in data.bars]
    return "\n".join([f"{data.unit}; ! = {'misses the SLO' if 'SLO' in data.caption else 'alarm'}", *lines])


def drafting_text(data: studies.DraftingData) -> str:
    return "\n".join(
        f"{name}: " + ", ".join(f"{row['num_speculative_tokens']}: {row['tokens_per_s']:.1f}" for row in rows)
        for name, rows in data.lines.items()
    )
