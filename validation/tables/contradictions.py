"""Rows of one table that contradict one another: the same configuration, measured with results far apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace

from traces.benchmark_results import MeasuredRun

LEAST_RATIO = 3.0
"""Ratio of two results of one configuration from which neither is believed."""
LEAST_SHARE = 0.5
"""Share of a release's repeated configurations that contradict themselves from which none of its rows is believed."""
CONTRADICTED = "contradicted by a run of the same configuration"
OF_RELEASE = "its release contradicts itself in this table"
_OF_RESULTS = {"name", "place", "measured", "derived", "steady", "unusable", "notes"}
_CONFIGURATION = [one.name for one in fields(MeasuredRun) if one.name not in _OF_RESULTS]


def without_contradictions(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs of a table, where those that contradict one another are unusable; predictions play no part.

    Two runs whose statements are equal in every field contradict each other where a latency per token or request, or a
    throughput, differs by ``LEAST_RATIO``; TTFT may, as it is mostly waiting. Rows without a release are not compared,
    as their builds may differ.
    """
    same: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.unusable is None and run.framework_version:
            same[repr([getattr(run, name) for name in _CONFIGURATION])].append(run)
    repeated: dict[tuple[str | None, str | None], list[bool]] = defaultdict(list)
    places = set[str]()
    for group in same.values():
        if len(group) > 1:
            contradict = _apart(group) >= LEAST_RATIO
            repeated[group[0].framework, group[0].framework_version].append(contradict)
            places |= {run.place for run in group} if contradict else set()
    releases = {release for release, found in repeated.items() if sum(found) >= LEAST_SHARE * len(found) > 0}
    reasons = {run.place: OF_RELEASE for run in runs if (run.framework, run.framework_version) in releases}
    reasons |= dict.fromkeys(places, CONTRADICTED)
    return [replace(run, unusable=run.unusable or reasons.get(run.place)) for run in runs]


def _apart(runs: Sequence[MeasuredRun]) -> float:
    """Largest ratio of two runs' results."""
    metrics = {
        metric for run in runs for metric in run.measured if not metric.startswith("p9") and "_ttft_" not in metric
    }
    values = [[run.measured[metric] for run in runs if metric in run.measured] for metric in metrics]
    return max((max(own) / min(own) for own in values), default=1.0)
