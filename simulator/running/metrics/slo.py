"""Service-level objectives: which limits a scenario sets, which aggregates hold them, which requests are good."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.errors import ForerunError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Latencies of vLLM's serving benchmark: time to first token, time per output token, inter-token, end to end."""

PERCENTILES = (50, 90, 95, 99)
"""Percentiles that every summary reports."""

_KEY = re.compile(rf"(mean|median|std|p\d+(?:\.\d+)?)_({'|'.join(LATENCIES)})_ms")


class Limit(NamedTuple):
    """An upper limit on one aggregate of one latency, e.g. ``p99_ttft_ms`` <= 500."""

    key: str
    statistic: str
    latency: str
    limit_ms: float


def slo_limits(slo: Any) -> tuple[Limit, ...]:
    """The limits of a scenario's ``slo`` section (a mapping, a pydantic model or None), in the order written.

    Raises:
        ForerunError: for a key that is not ``<mean|median|std|pNN>_<ttft|tpot|itl|e2el>_ms``.
    """
    return tuple(_limit(key, float(value)) for key, value in section_values(slo).items())


def section_values(section: Any) -> dict[str, Any]:
    """The fields of a scenario section that are set; empty where the section is absent."""
    if section is None:
        return {}
    values = dict(section) if isinstance(section, Mapping) else section.model_dump(by_alias=True)
    return {str(key): value for key, value in values.items() if value is not None}


def _limit(key: str, limit_ms: float) -> Limit:
    match = _KEY.fullmatch(key)
    if match is None:
        raise ForerunError(
            f"slo.{key}: not a latency limit; write for example p99_ttft_ms, mean_tpot_ms or p95_e2el_ms"
        )
    return Limit(key, match[1], match[2], limit_ms)


def good_requests(
    limits: tuple[Limit, ...], latencies_ms: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.bool_] | None:
    """Which completed requests are within every limit that applies to a single request; None without such limits.

    A request is good when its own TTFT, TPOT and end-to-end latency are within the limits set on any aggregate of
    that latency (the strictest counts). A request without a TPOT (one output token) cannot break a TPOT limit, as
    in vLLM's ``--goodput``. Limits on the inter-token latency have no per-request value and are left out.

    Args:
        limits: from :func:`slo_limits`.
        latencies_ms: per completed request, milliseconds, NaN where a request has none.
    """
    applied = [limit for limit in limits if limit.latency in latencies_ms and limit.statistic != "std"]
    if not applied:
        return None
    within = [~(latencies_ms[limit.latency] > limit.limit_ms) for limit in applied]
    return np.asarray(np.logical_and.reduce(within), dtype=np.bool_)
