"""Results of ``vllm bench serve`` saved with per-request details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.requests.files import load_document
from traces.requests.layout import Bound, Layout, Options, columns
from traces.requests.rows import RawChunk
from traces.requests.values import Values


def _drop(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, NDArray[np.bool_]]:
    """Failed requests: those for which the client recorded an error."""
    errors = chunk.columns.get("errors")
    if errors is None or not options.drop_failures:
        return {}
    return {"failed request": np.array([bool(error) for error in errors], dtype=np.bool_)}


VLLM_BENCH = Layout(
    "vllm-bench",
    "vllm bench serve result JSON saved with --save-detailed (input_lens, output_lens, start_times, ttfts, itls)",
    {
        "arrival_s": columns("start_times:s"),
        "input_tokens": columns("input_lens"),
        "output_tokens": columns("output_lens"),
        "measured_ttft_s": columns("ttfts:s"),
        "measured_e2e_s": columns("e2e_s:s"),
    },
    signature=("input_lens", "output_lens"),
    required=("input_tokens", "output_tokens"),
    options=frozenset({"drop_failures"}),
    drop=_drop,
)

_ARRAYS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")


def vllm_bench_chunks(path: Path) -> Iterator[RawChunk]:
    """The per-request arrays of one result file; end-to-end latency is TTFT plus the sum of the inter-token gaps.

    Raises:
        TraceError: no JSON object, saved without details, arrays of different lengths.
    """
    result = load_document(path)
    if not isinstance(result, dict):
        raise TraceError(f"{path}: one JSON object expected, as vllm bench serve --save-result writes it")
    if "input_lens" not in result or "output_lens" not in result:
        raise TraceError(
            f"{path}: holds only totals (no input_lens, output_lens); save the benchmark again with --save-detailed"
        )
    arrays: dict[str, Values] = {}
    count = len(result["input_lens"]) if isinstance(result["input_lens"], list) else 0
    for name in _ARRAYS:
        values = result.get(name)
        if values is None and name not in ("input_lens", "output_lens"):
            continue
        if not isinstance(values, list) or len(values) != count:
            raise TraceError(f"{path}: {name}: a list of {count} values expected, one for each of input_lens")
        arrays[name] = values
    if "ttfts" in arrays and "itls" in arrays:
        arrays["e2e_s"] = [_total(*pair) for pair in zip(arrays["ttfts"], arrays.pop("itls"), strict=True)]
    arrays.pop("itls", None)
    yield RawChunk(arrays, count, range(count), place=f"{path}: request {{}} (from 0)")


def _total(ttft: Any, gaps: Any) -> Any:
    """End-to-end latency in seconds, or a text that the row check will refuse."""
    try:
        return float(ttft) + float(sum(gaps))
    except (TypeError, ValueError, OverflowError):
        return None if ttft is None or gaps is None else "ttfts and itls that are no numbers"
