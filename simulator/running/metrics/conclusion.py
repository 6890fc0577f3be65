"""A run's conclusion in a sentence: whether it keeps up, what limits it, and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from forerun.arrays import BoolArray, FloatArray
from forerun.document import Json
from forerun.tables import ABSENT, number
from simulator.running.metrics.usage import main_bottleneck
from simulator.running.records import ModelError
from simulator.serving import RequestRecords
from simulator.serving.engine_config import has_several_api_servers
from simulator.timing.kernels import NEGLIGIBLE
from simulator.workload.generate import conversation
from simulator.workload.workload_config import ARRIVING, WorkloadConfig, rate_unit

LEAST_GROWTH, GROWTH_SHARE, CHANCE = 5.0, 0.05, 3.0
"""Growth between quarters from which open work counts as growing without end. From the second to the fourth quarter of
a run: requests, share of the arrivals in that time, and standard deviations of the number of running requests."""
API_SERVER_BUSY = 0.9
"""Share of a run from which the API server counts as what limits it. A smaller one does if the engine is less busy."""
API_SERVER_SHOWN = 0.5
"""Share of a run from which the API server's work is shown, and may be what limits it."""
EVIDENCE_WORDS = {
    "calibrated": "kernel times measured on this chip",
    "datasheet": "the chip's datasheet alone: no kernel of it was measured",
    "extrapolated": "shapes or costs outside what was measured",
}


def main_evidence(evidence: Mapping[str, float]) -> str:
    """Evidence level behind most of the device time."""
    return max(evidence, key=evidence.__getitem__)


def evidence_words(evidence: Mapping[str, float], words: Mapping[str, str] = EVIDENCE_WORDS) -> str:
    """Text on the evidence of a prediction, with the share of the time that was not measured.

    >>> evidence_words({"calibrated": 0.94, "extrapolated": 0.06, "datasheet": 0.0})
    'kernel times measured on this chip, but for 6 % of the time'
    """
    main = main_evidence(evidence)
    less = 1.0 - evidence[main]
    shown = main == "calibrated" and less > NEGLIGIBLE
    return f"{words[main]}, but for {100 * less:.0f} % of the time" if shown else words[main]


class Load(TypedDict):
    """Rates of the scenario and of a run's arrivals; True if the engine keeps up with them."""

    request_rate: float | None
    arrival_rate: float | None
    keeps_up: bool | None
    api_server_busy: float | None
    """Share of the run that the busiest API server worked."""


def load_section(requests: RequestRecords, workload: WorkloadConfig, api_server_busy: float | None = None) -> Load:
    """Rates of the scenario and of this run's arrivals, and whether the engine keeps up with them.

    "Keeps up" is None in closed loops and bursts, and if a quarter of the arrivals takes less time than the first
    requests' latency, or all arrivals less than the first conversations. Arrival times of conversations are not
    recorded: they follow from the rate.
    """
    process, first, last = workload.arrivals, float(np.min(requests.arrival_s)), float(np.max(requests.arrival_s))
    unknown = Load(request_rate=None, arrival_rate=None, keeps_up=None, api_server_busy=api_server_busy)
    rate = None if process is None or process.profile is not None else process.request_rate
    turns, rising_s = conversation(workload)
    arrived = (len(requests) - 1) / (last - first) if last > first and workload.open_loop else None
    if workload.sessions is not None and rate is not None:
        last = first + len(requests) / turns / rate
    elif arrived is None:
        return unknown
    if process is not None and process.stages is not None:  # a load test changes its rate
        return Load({**unknown, "arrival_rate": arrived})
    done = bool(np.any(requests.finished_s > requests.arrival_s))
    least = max(LEAST_GROWTH, GROWTH_SHARE * len(requests) / turns / 2)
    growth, settled = _open_growth(requests, first, last, rising_s)
    if growth >= least and done and last - first < np.nanmin(requests.finished_s - requests.scheduled_s):
        return unknown  # requests that all arrive while one is served are a burst and no load
    keeps_up = False if growth >= least else True if settled or not done else None
    return Load(request_rate=rate, arrival_rate=arrived, keeps_up=keeps_up, api_server_busy=api_server_busy)


def _open_growth(requests: RequestRecords, first_s: float, last_s: float, rising_s: float) -> tuple[float, bool]:
    """Growth of the mean number of requests in the system from the second to the fourth quarter of the arrivals. The
    second value is True if requests of the first quarter took less time than that quarter, and conversations less than
    the run. Waiting requests all count. Running requests vary by chance like a Poisson number, with the tokens
    requested in a quarter, and rise until the first have ended: only growth beyond that counts. A waiting turn holds
    back the turns after it, so each conversation has at most one open request.
    """
    served = ~requests.failed
    begun_s, ended_s = (
        np.nan_to_num(times[served], nan=np.inf) for times in (requests.scheduled_s, requests.finished_s)
    )
    arrival_s, quarter_s = requests.arrival_s[served], (last_s - first_s) / 4
    if not quarter_s > 0 or not len(arrival_s):
        return float(len(arrival_s)), False

    starts_s = (first_s + quarter_s, first_s + 3.0 * quarter_s)

    def present(since_s: FloatArray, until_s: FloatArray) -> FloatArray:
        """Mean number of requests between two events, in each of the two quarters."""
        starts = np.array(starts_s)[:, None]
        ends = starts + quarter_s
        return np.asarray((np.clip(until_s, starts, ends) - np.clip(since_s, starts, ends)).sum(axis=1) / quarter_s)

    waiting, running = present(arrival_s, begun_s), present(begun_s, ended_s)
    growth = float(waiting[1] - waiting[0])
    early_s = (ended_s - arrival_s)[arrival_s <= first_s + quarter_s]
    answered = quarter_s >= float(early_s.sum()) / max(1, len(early_s))
    settled = answered and 4.0 * quarter_s >= rising_s
    if not answered or quarter_s < rising_s / 2:
        return growth, settled
    tokens = [float(requests.output_tokens[served][_within(arrival_s, start, quarter_s)].sum()) for start in starts_s]
    expected = float(running[0]) * max(1.0, tokens[1] / max(1.0, tokens[0]))
    return max(growth, growth + float(running[1]) - expected - CHANCE * sqrt(2.0 * expected)), settled


def _within(times_s: FloatArray, start_s: float, length_s: float) -> BoolArray:
    return (times_s >= start_s) & (times_s < start_s + length_s)


def steady_output_throughput(load: Load, summary: Mapping[str, Any], workload: WorkloadConfig) -> float | None:
    """Output tokens per second while requests arrive, for costs: the throughput without the end of a run.

    An engine that keeps up, as far as the run shows, generates what is requested: the rate of arrivals times the mean
    answer. ``duration`` also holds the time in which the last requests finish, which makes short runs look slow and
    dear. Where the engine does not keep up, and in closed loops and bursts, it is the throughput over ``duration``.
    """
    rate, turns = load["request_rate"] or load["arrival_rate"], conversation(workload)[0]
    if load["keeps_up"] is False or rate is None:
        return summary["output_throughput"]  # type: ignore[no-any-return]
    return float(rate * turns * summary["total_output_tokens"] / (summary["completed"] + summary["failed"]))


CAUSE_WORDS = {
    "decode": "decode steps take {} of their predicted time",
    "prompts": "prompt steps take {}",
    "host_ms": "the host takes {} a step more than usual",
    "api_server_ms": "the API server takes {} more than usual",
}
"""Statements about a measured deployment, by cause of ``metrics.posterior``."""
NO_INTERVAL = (
    "the engine's parameters are assumed: its figures have no interval and its limits no probability; name the engine "
    "that runs, or give one measured run of it (--measured)"
)
LEAST_SHOWN = 0.01
"""Least change of a factor, or milliseconds, that a note names."""
KIND_WORDS = {"tpot": "TPOT", "ttft": "TTFT", "e2el": "E2E latency", "throughput": "throughput"}


def measuring_notes(worth: Json | None, error: ModelError | None, shifts: Mapping[str, float]) -> list[str]:
    """Notes on what measured runs say, or on the measurement that would help."""
    notes = []
    if error is not None and not error["stated"]:
        notes.append(NO_INTERVAL)
    if error is not None and "learnt" in error:
        causes = []
        for name, words in CAUSE_WORDS.items():
            cause, ms = error["learnt"][name], name.endswith("_ms")
            values = (cause["value"], cause["low"], cause["high"])
            if abs(values[0] - (0.0 if ms else 1.0)) >= LEAST_SHOWN:
                value, low, high = (f"{one:.2f}" for one in values)
                causes.append(words.format(f"{value}{' ms' if ms else 'x'} ({low}..{high})"))
        left = [f"{KIND_WORDS[kind]} {factor:.2f}x" for kind, factor in shifts.items() if kind != "throughput"]
        rest = [f"beyond that {', '.join(left)} of what was predicted"] if left else []
        notes.append(f"{error['served']}: {'; '.join([*causes, *rest])}. In parentheses: nine in ten")
    if worth is not None:
        kind = next(kind for kind in KIND_WORDS if kind in worth["metric"])
        before, after = worth["width"], worth["width_after"]
        notes.append(
            f"one measured run of this load would narrow {KIND_WORDS[kind]} from {before:.2g}x to {after:.2g}x (ends "
            f"of nine in ten): --emit vllm-bench prints its command, --measured takes its result"
        )
    return notes


def api_server_remedy(engine: Json) -> str:
    """Remedy for an API server at its limit, from the ``engine`` section of a scenario."""
    if not has_several_api_servers(engine["framework"], engine["entry_point"]):
        return "more replicas"
    return f"engine.api_server_count: {engine['api_server_count'] + 1} or more replicas"


def run_conclusion(document: Mapping[str, Any]) -> str:
    """The conclusion of a run's document."""
    load, summary = document["load"], document["summary"]
    rates = (summary["request_throughput"], load["arrival_rate"], load["request_rate"] or load["arrival_rate"])
    served, arrived, arriving = (number(rate, 3) for rate in rates)
    runs = document["replications"]
    draw = "this draw" if runs == 1 else f"the mean of {runs} draws"
    drawn = "" if load["arrival_rate"] is None or arrived == arriving else f" ({arrived} in {draw} of arrivals)"
    what = ARRIVING[rate_unit(document["scenario"]["workload"])]
    if not summary["completed"]:
        text = "No request finished"
    elif load["keeps_up"] is None and (load["request_rate"] is None or what != "requests"):
        text = f"Serves {served} requests/s"
    elif load["keeps_up"] is None:
        text = f"Serves {served} of {arriving} requests/s{drawn}, in too short a run to tell whether it keeps up"
    elif load["keeps_up"]:
        turns = "" if what == "requests" else f" ({served} requests/s)"
        text = f"Keeps up with {arriving} {what}/s{turns or drawn}"
    else:
        of_turns = "" if what == "requests" else f" requests/s, the turns of {arriving} {what}/s"
        text = f"Cannot keep up: serves {served}{of_turns or f' of {arriving} requests/s{drawn}'}"
    if summary["failed"]:
        text += f"; {summary['failed']:,} of {summary['failed'] + summary['completed']:,} requests fail"
    bound, busy = main_bottleneck(document["bottleneck"]), load["api_server_busy"] or 0.0
    waits = (
        not load["keeps_up"]
        and busy >= API_SERVER_SHOWN
        and busy + (document["bottleneck"] or {}).get("idle", 0.0) > 1.0
    )
    if busy >= API_SERVER_BUSY or waits:  # busier than the engine
        text += f"; limited by the API server, busy {busy:.0%}: {api_server_remedy(document['scenario']['engine'])}"
    elif bound not in (None, "idle"):
        text += f"; limited by {bound}"
    if document["slo"] is not None:
        text += f"; {slo_words(document['slo'])}"
    return f"{text}. {_latency_words(document)}Rests on {evidence_words(document['evidence'])}."


def _latency_words(document: Mapping[str, Any]) -> str:
    """Mean TPOT with its intervals in words, or mean TTFT of answers of one token."""
    key = "mean_ttft_ms" if document["summary"]["mean_tpot_ms"] is None else "mean_tpot_ms"
    likely, ends = document["likely"].get(key), document["intervals"].get(key)
    if likely is None or ends is None:
        return ""
    words = " to ".join(number(end, 3) for end in likely), " to ".join(number(end, 3) for end in ends)
    value = number(document["summary"][key], 3)
    return f"{KIND_WORDS[key[5:9]]} {value} ms (likely {words[0]}; nine in ten {words[1]}). "


def slo_words(slo: Mapping[str, Any]) -> str:
    """Verdict on an SLO: the probability of meeting it, or what is predicted where the model's error is unknown."""
    if any(row["met"] is False and row["value"] <= row["limit"] for row in slo["limits"].values()):
        return "SLO missed: too many requests are refused"
    if slo["probability"] is None:
        return f"SLO {'met' if slo['met'] else 'missed'} as predicted, the model's error not counted"
    return f"SLO met with {chance_words(slo['probability'])} probability"


def chance_words(probability: float | None) -> str:
    """A probability in words, limited by the number of draws behind it."""
    if probability is None:
        return ABSENT
    if probability > 0.99:
        return "over 99 %"
    return "under 1 %" if probability < 0.01 else f"{100 * probability:.0f} %"
