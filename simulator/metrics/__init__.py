"""Records to numbers: vLLM-style summary, SLO goodput, intervals, bottleneck, and the files of a run."""

from simulator.metrics.document import forerun_version, json_text, jsonable, run_document, scenario_document
from simulator.metrics.replications import combine_replications
from simulator.metrics.slo import LATENCIES, PERCENTILES, Limit, slo_limits
from simulator.metrics.statistics import WeightedSample, mean_interval
from simulator.metrics.summary import request_latencies_ms, summarise
from simulator.metrics.usage import bottleneck_shares, main_bottleneck, utilisation

__all__ = [
    "LATENCIES",
    "PERCENTILES",
    "Limit",
    "WeightedSample",
    "bottleneck_shares",
    "combine_replications",
    "forerun_version",
    "json_text",
    "jsonable",
    "main_bottleneck",
    "mean_interval",
    "request_latencies_ms",
    "run_document",
    "scenario_document",
    "slo_limits",
    "summarise",
    "utilisation",
]
