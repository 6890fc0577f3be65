"""NVIDIA's served TTFT and TPOT of AIConfigurator's validation (``silicon_sample.csv``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traces.servings.cells import Cells, latencies_ms
from traces.servings.run import MeasuredRun

SIGNATURE = frozenset({"silicon_ttft_ms", "silicon_tpot_ms", "backend", "system", "isl", "osl", "batch_size"})
SPREAD = 0.1
"""Share by which output lengths are taken to spread around their nominal value: equal ones would keep all requests of
a closed loop in step for ever, which no server shows. How the lengths were drawn is not stated."""
EMPTY_SLOTS = {"trtllm": 1}
"""Requests that wait although the engine was set up for as many sequences as the client sends. In the TensorRT-LLM
rows mean TTFT exceeds a prefill by latency / concurrency at every TP and length: by Little's law one request waits."""
_KEYS = {"mean_ttft_ms": "silicon_ttft_ms", "mean_tpot_ms": "silicon_tpot_ms"}


def silicon_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the table: closed loops of ``batch_size`` requests of fixed lengths.

    The engine is set up for ``batch_size`` sequences. The output throughput is not in the table; it
    follows from the two means (see ``closed_loop_throughput``).

    Raises:
        TraceError: a cell that is no number.
    """
    for cells in rows:
        measured = latencies_ms(cells, _KEYS)
        concurrency, output = cells.count("batch_size"), cells.count("osl")
        if len(measured) == 2 and concurrency and output and output > 1:
            measured["output_throughput"] = closed_loop_throughput(
                concurrency, output, measured["mean_ttft_ms"], measured["mean_tpot_ms"]
            )
        empty = EMPTY_SLOTS.get(cells.text("backend") or "", 0)
        yield MeasuredRun(
            name=cells.text("id") or "",
            place=cells.place,
            model=cells.text("model_path"),
            chip=cells.text("system"),
            framework=cells.text("backend"),
            framework_version=cells.text("backend_version"),
            tensor_parallel=cells.count("tp_size"),
            pipeline_parallel=cells.several("pp_size"),
            expert_parallel=cells.several("moe_ep_size"),
            data_parallel_attention=cells.several("attention_dp_size"),
            weights_dtype=cells.text("precision") or cells.text("gemm_quant_mode"),
            process="closed-loop",
            max_concurrency=concurrency,
            input_tokens=cells.count("isl"),
            output_tokens=None if output is None else _spread(output),
            max_num_seqs=None if concurrency is None else max(1, concurrency - empty),
            prefix_caching=False,
            measured=measured,
            derived=("output_throughput",) if "output_throughput" in measured else (),
            unusable="disaggregated prefill and decode" if cells.text("mode") == "disagg" else None,
        )


def _spread(tokens: int) -> tuple[int, int]:
    return (max(1, round(tokens * (1 - SPREAD))), max(1, round(tokens * (1 + SPREAD))))


def closed_loop_throughput(concurrency: int, output_tokens: float, ttft_ms: float, tpot_ms: float) -> float:
    """Output tokens per second of a closed loop that is never short of requests.

    Little's law: ``concurrency / (ttft + (output_tokens - 1) tpot)`` requests per second.

    Args:
        concurrency: requests outstanding.
        output_tokens: of each request.
        ttft_ms: mean time to first token.
        tpot_ms: mean time per output token after the first.
    """
    return concurrency * output_tokens * 1e3 / (ttft_ms + (output_tokens - 1) * tpot_ms)
