"""BurstGPT traces, read by column name because version 3 inserts two columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.requests.layout import Bound, Layout, Options, columns
from traces.requests.rows import RawChunk
from traces.requests.values import parse_counts


def _drop(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, NDArray[np.bool_]]:
    """Rows of other models, and failed requests: those that the server answered with 0 tokens."""
    reasons: dict[str, NDArray[np.bool_]] = {}
    if options.model is not None:
        models = chunk.columns.get("Model")
        if models is None:
            raise TraceError(f"{chunk.place.format(chunk.lines[0])}: model={options.model!r} needs a column Model")
        reasons["other model"] = np.array([model != options.model for model in models], dtype=np.bool_)
    values = bound.values(chunk, "output_tokens")
    if options.drop_failures and values is not None:
        parsed = parse_counts(values, minimum=0)
        failed = parsed.values == 0
        failed[[problem.row for problem in parsed.problems]] = False
        reasons["failed request (0 response tokens)"] = failed
    return reasons


BURSTGPT = Layout(
    "burstgpt",
    "BurstGPT versions 1 to 3 (Timestamp in s, Request tokens, Response tokens, perhaps Session ID, Elapsed time)",
    {
        "arrival_s": columns("Timestamp:s"),
        "input_tokens": columns("Request tokens"),
        "output_tokens": columns("Response tokens"),
        "session_id": columns("Session ID"),
        "measured_e2e_s": columns("Elapsed time:s"),
    },
    signature=("Timestamp", "Request tokens", "Response tokens", "Model"),
    options=frozenset({"drop_failures", "model"}),
    drop=_drop,
)
