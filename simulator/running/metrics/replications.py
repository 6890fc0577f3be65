"""Several runs of one scenario with different seeds: means, and intervals of chance and of the model's error."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log
from typing import Any

from forerun.document import Json
from hwprofiles import weakest
from simulator.running.metrics.conclusion import run_conclusion
from simulator.running.metrics.statistics import Z90, mean_interval
from simulator.running.metrics.summary import most_refused
from simulator.running.metrics.uncertainty import interval_section, slo_probability
from simulator.running.records import ModelError

LEVEL = 0.95
"""Coverage of a summary's intervals if they contain sampling error only."""
SAMPLING = "sampling"
SAME = ("scenario", "seed", "version")
"""Parts of a document taken from the first run."""


def combine_replications(documents: Sequence[Json], level: float = LEVEL) -> Json:
    """One document from several runs of the same scenario.

    Every number is the mean over the runs, except the counters of ``engine``, which are totals. A value that no run
    measured stays None. ``intervals`` holds the 90 % interval of the mean where the first run knows its model's error,
    else a two-sided Student-t interval of chance alone for every number that at least two runs measured.
    ``per_replication`` keeps the seed and summary of each.

    Raises:
        ValueError: without documents.
    """
    if not documents:
        raise ValueError("no runs to combine")
    if len(documents) == 1:
        return documents[0]
    first = documents[0]
    summaries = [document["summary"] for document in documents]
    combined = {key: first[key] if key in SAME else _mean([document[key] for document in documents]) for key in first}
    combined |= {
        **_interval_section(summaries, first, level),
        "basis": weakest(document["basis"] for document in documents),
        "slo": _combine_slo(documents, first.get("model_error")),
        "engine": {key: sum(document["engine"][key] for document in documents) for key in first["engine"]},
        "replications": len(documents),
        "notes": list(dict.fromkeys(note for document in documents for note in document["notes"])),
        "per_replication": [{"seed": document["seed"], "summary": document["summary"]} for document in documents],
    }
    combined["load"]["keeps_up"] = _keeps_up(documents)
    return combined | {"conclusion": run_conclusion(combined)}


def _keeps_up(documents: Sequence[Json]) -> bool | None:
    """True if most of the runs do; None if all requests arrive at once."""
    known = [document["load"]["keeps_up"] for document in documents if document["load"]["keeps_up"] is not None]
    return sum(known) * 2 > len(known) if known else None


def _mean(values: Sequence[Any]) -> Any:
    """Mean of numbers, element by element in mappings and equally long lists; None if no value is known.

    Whole means of whole numbers stay whole; anything that is not a number is taken from the first run.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, dict):
        return {key: _mean([value.get(key) for value in known]) for key in first}
    if isinstance(first, list):
        if len({len(value) for value in known}) > 1:
            return None
        return [_mean(column) for column in zip(*known, strict=True)]
    if isinstance(first, bool | str):
        return first
    if min(known) == max(known):
        return first
    mean = fsum(known) / len(known)
    return int(mean) if all(isinstance(value, int) for value in known) and mean == int(mean) else mean


def _interval_section(summaries: Sequence[Json], first: Json, level: float) -> Json:
    """``intervals`` of the means and the errors that they contain; with the model error if the first run has it."""
    measured = {}
    for key in summaries[0]:
        known = [summary[key] for summary in summaries if isinstance(summary.get(key), int | float)]
        if len(known) >= 2:
            measured[key] = known
    error = first.get("model_error")
    if error is None or not error["stated"]:
        chance = {key: list(mean_interval(known, level)) for key, known in measured.items()}
        return {
            "intervals": chance,
            "likely": {},
            "interval_level": level,
            "intervals_of": SAMPLING,
            "model_error": error,
        }
    sampling = {}
    for key, known in measured.items():
        if min(known) > 0:
            low, high = mean_interval([log(value) for value in known], error["level"])
            sampling[key] = (high - low) / 2 / Z90
    means = {key: _mean([summary[key] for summary in summaries]) for key in summaries[0]}
    return interval_section(means, error, sampling)


def _combine_slo(documents: Sequence[Json], error: ModelError | None) -> Json | None:
    """Limits judged on the means; ``met_in`` counts the runs that met each limit, and all limits."""
    reports = [document["slo"] for document in documents if document["slo"] is not None]
    if not reports:
        return None
    combined: Json = _mean(reports)
    refused, requests = (sum(one["summary"][key] for one in documents) for key in ("failed", "completed"))
    share = refused / (refused + requests)
    for key, row in combined["limits"].items():
        held = row["value"] is not None and row["value"] <= row["limit"]
        row["met"] = None if row["value"] is None else held and share <= most_refused(key.partition("_")[0])
        row["met_in"] = sum(report["limits"][key]["met"] is True for report in reports)
    combined["met"] = all(row["met"] is True for row in combined["limits"].values())
    combined["met_in"] = sum(report["met"] is True for report in reports)
    combined["probability"] = slo_probability(combined, error, *(document["evidence"] for document in documents))
    return combined
