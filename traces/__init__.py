"""What was measured: canonical tables for request traces, readers for other formats, and small samples.

>>> from traces import read_requests
>>> len(read_requests("azure-conv-2023"))
1000
"""

from traces.catalogue import Sample, sample, sample_names, sample_path
from traces.errors import TraceError
from traces.requests import (
    FORMATS,
    ArrivalStatistics,
    LengthFit,
    Options,
    PrefixHashes,
    PrefixStatistics,
    RequestStatistics,
    RequestTable,
    TokenStatistics,
    WorkloadFit,
    describe_pool,
    describe_requests,
    detect_format,
    fit_lengths,
    infinite_cache_hits,
    iter_requests,
    lru_token_hit,
    read_requests,
    write_requests,
)

__all__ = [
    "FORMATS",
    "ArrivalStatistics",
    "LengthFit",
    "Options",
    "PrefixHashes",
    "PrefixStatistics",
    "RequestStatistics",
    "RequestTable",
    "Sample",
    "TokenStatistics",
    "TraceError",
    "WorkloadFit",
    "describe_pool",
    "describe_requests",
    "detect_format",
    "fit_lengths",
    "infinite_cache_hits",
    "iter_requests",
    "lru_token_hit",
    "read_requests",
    "sample",
    "sample_names",
    "sample_path",
    "write_requests",
]
