"""Request traces: the canonical table, readers for the formats people have, statistics and fits."""

from traces.requests.detect import FORMATS
from traces.requests.fit import LengthFit, WorkloadFit, fit_lengths
from traces.requests.layout import Options
from traces.requests.prefix import PrefixStatistics
from traces.requests.read import iter_requests, read_requests
from traces.requests.statistics import ArrivalStatistics, RequestStatistics, TokenStatistics, describe_requests
from traces.requests.table import PrefixHashes, RequestTable
from traces.requests.write import write_requests

__all__ = [
    "FORMATS",
    "ArrivalStatistics",
    "LengthFit",
    "Options",
    "PrefixHashes",
    "PrefixStatistics",
    "RequestStatistics",
    "RequestTable",
    "TokenStatistics",
    "WorkloadFit",
    "describe_requests",
    "fit_lengths",
    "iter_requests",
    "read_requests",
    "write_requests",
]
