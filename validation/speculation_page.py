"""The page of published speculation, by table, failures left in; and every row beside its prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from forerun.tables import Table
from simulator.running.metrics.uncertainty import LEAST_SURE, MOST_SURE
from simulator.studies.unshared import DEPLOYMENT, DRAFTING, known_errors
from validation.facts import facts, fitted_words
from validation.speculation import (
    ALL,
    FITTED_DEPTH,
    Comparison,
    CurveScore,
    GroupScore,
    Unpredicted,
    adaptive_tables_of,
    group_score,
    group_scores,
    load_published,
)
from validation.speculation.ratios import (
    Reliability,
    left_out_probabilities,
    load_ratios,
    probability,
    reliability,
    ten_bins,
)


def speculation_page(
    comparisons: Sequence[Comparison],
    left: Sequence[Unpredicted],
    curves: Sequence[CurveScore],
    over_load: Mapping[str, Any],
    version: str,
) -> str:
    """The page in Markdown; ``over_load`` is the document of ``compare_adaptive``."""
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").replace("VERSION", version)
    sources = sorted({item.row.source for item in comparisons} | {item.row.source for item in left})
    listed = ("## Sources", "", *(f"* {source}" for source in sources))
    parts = {
        "tables": _tables(comparisons),
        "reliability": _reliability(),
        "over load": _over_load(over_load),
        "rows": (*_curves(curves), *_refused(left), *listed),
    }
    for name, lines in parts.items():
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    return page


def _tables(comparisons: Sequence[Comparison]) -> Iterator[str]:
    groups = {row.group for row in load_published()}
    for fact in facts():
        if fact.table in groups:
            yield f"* `{fact.table}`, {fact.rows}: {fact.constant}."
    yield from ("", "## By source", "")
    yield "| table | rows | MAPE | bias | side of 1 right | fitted |"
    yield "|---|---:|---:|---:|---:|---|"
    used: dict[str, set[str]] = {}
    for item in comparisons:
        used.setdefault(item.row.group, set()).update(item.constants)
    for score in group_scores(comparisons):
        yield f"{_score(score, score.group)} {fitted_words(score.group, used[score.group])} |"
    if comparisons:
        yield f"{_score(group_score(ALL, comparisons), f'**{ALL}**')} |"
    yield ""


def _score(score: GroupScore, name: str) -> str:
    return f"| {name} | {score.rows} | {score.mape:.1f} % | {score.bias:+.1f} % | {score.right_sign:.0f} % |"


def _reliability() -> Iterator[str]:
    """Reliability of stated probabilities: ten bins with a diagram, groups, and ratios below 1."""
    rows = load_ratios()
    without = dict(zip(rows, left_out_probabilities(rows), strict=True))
    for kind, title in ((DRAFTING, "Drafting over not drafting"), (DEPLOYMENT, "Tensor parallelism over less of it")):
        own = [row for row in rows if row.kind == kind]
        bins = reliability(own, [without[row] for row in own], ten_bins)
        yield from (f"**{title}**", "", *_diagram(bins), "", *_lines("probability", bins), "")
        for name in ("evidence", "framework", "method", "chips"):
            yield from (*_lines(name, reliability(own, [without[row] for row in own], attrgetter(name))), "")
    losses = {row: probability(row, known_errors()) for row in rows if row.published < 1.0}
    sides = Counter((p >= MOST_SURE) - (p <= LEAST_SURE) for p in losses.values())
    yield f"Of {len(losses)} published ratios below 1, {sides[-1]} are called worse, {sides[0]} undecided, {sides[1]} "
    yield from ("better. Those that were predicted above 1:", "", "| table | row | published | predicted | P |")
    yield "|---|---|---:|---:|---:|"
    for row, stated in losses.items():
        if row.predicted > 1.0:
            yield f"| {row.table} | {row.id} | {row.published:.2f} | {row.predicted:.2f} | {stated:.2f} |"
    tables: dict[str, dict[str, None]] = {}
    for row in rows:
        tables.setdefault(row.source, {})[row.table] = None
    yield from ("", *(f"* {source}: {', '.join(names)}" for source, names in tables.items() if source), "")


def _lines(name: str, groups: Sequence[Reliability]) -> Iterator[str]:
    yield f"| {name} | rows | tables | stated | came true | by chance |"
    yield "|---|---:|---:|---:|---:|---:|"
    for one in groups:
        shares = f"{one.stated:.0%} | {one.observed:.0%} | ± {one.chance:.0%}"
        yield f"| {one.name} | {one.rows} | {one.tables} | {shares} |"


def _diagram(groups: Sequence[Reliability]) -> Iterator[str]:
    """Reliability diagram: came true over stated; areas of the circles by the number of tables."""
    yield '<div><svg viewBox="0 0 320 320" width="320" role="img" aria-label="came true over stated">'
    yield '<path d="M40 280H280M40 280V40M40 280L280 40" stroke="gray" fill="none"/>'
    for one in groups:
        x, y = 40 + 240 * one.stated, 280 - 240 * one.observed
        yield f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{2 + 2 * one.tables**0.5:.1f}" fill="teal" fill-opacity="0.5"/>'
    yield '<text x="40" y="300">0 stated</text><text x="264" y="300">1</text><text x="4" y="36">came true</text>'
    yield "</svg></div>"


def _over_load(document: Mapping[str, Any]) -> Iterator[str]:
    for table in adaptive_tables_of(document):
        yield from (f"**{table.title}**", "", table.markdown(), "")
    yield from (
        f"* `{name}`: {source}. Assumed: {document['assumed'][name]}." for name, source in document["sources"].items()
    )
    yield ""


def _curves(curves: Sequence[CurveScore]) -> Iterator[str]:
    yield from (f"## Acceptance beyond the fitted depths (fitted on K = 1 to {FITTED_DEPTH})", "")
    if not curves:
        return
    errors = [abs(curve.error) for curve in curves]
    yield f"{len(curves)} curves; median error {100 * np.median(errors):.1f} %, worst {100 * max(errors):.1f} %."
    yield from ("", "| curve | K | published | predicted | error |", "|---|---:|---:|---:|---:|")
    for curve in sorted(curves, key=lambda c: -abs(c.error)):
        lengths = f"{curve.published:.2f} | {curve.predicted:.2f}"
        yield f"| {curve.curve} | {curve.depth} | {lengths} | {100 * curve.error:+.1f} % |"
    yield ""


def speculation_rows(comparisons: Sequence[Comparison]) -> Table:
    """Every published speed-up beside its prediction."""
    columns = ("id", "model", "hardware", "engine", "method", "K or nodes", "load", "length", "published", "predicted",
               "error %", "source")  # fmt: skip
    lines = []
    for item in comparisons:
        row = item.row
        hardware = f"{row.chips or ''}{' x ' if row.chips else ''}{row.hardware or 'not stated'}"
        numbers = (round(item.acceptance_length, 2), row.speedup, round(item.predicted, 2), round(100 * item.error))
        lines.append([row.id, row.model, hardware, row.engine or "own code", row.method, row.tokens or row.nodes or "",
                      f"{row.load_type} {row.load}", *numbers, row.source])  # fmt: skip
    return Table("Published speed-ups", columns, lines)


def _refused(left: Sequence[Unpredicted]) -> Iterator[str]:
    yield from ("## Not predicted", "", "| rows | reason |", "|---:|---|")
    for reason, count in Counter(item.reason for item in left).most_common():
        yield f"| {count} | {reason} |"
    yield ""
