"""One measured serving run: its known configuration and its measured metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields

from forerun.arrays import IntArray
from traces.errors import TraceError
from traces.fields import Cells

STATISTICS = ("mean", "median", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
THROUGHPUTS = ("request_throughput", "output_throughput", "total_token_throughput")
"""Requests, output tokens, and input and output tokens per second of the whole deployment."""
POWER = "avg_power_w"
"""Mean power of all chips of a run, in watts."""
METRICS = (*(f"{s}_{name}_ms" for name in LATENCIES for s in STATISTICS), *THROUGHPUTS, POWER)
"""Names of the metrics of a run, as in vLLM's serving benchmark, and its power; latencies in milliseconds."""


def latencies_ms(cells: Cells, keys: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """Latency metrics in a row, as metric name -> value; ``keys`` maps each metric to its column."""
    values = {metric: cells.positive(key) for metric, key in keys.items()}
    return {metric: value * scale for metric, value in values.items() if value is not None}


PROCESSES = ("closed-loop", "poisson", "gamma", "constant", "burst", "trace")

TokenCounts = int | tuple[int, int]
"""Tokens of every request, or the smallest and largest of a uniform draw, both included."""


@dataclass(frozen=True, slots=True)
class PromptPool:
    """Prompts that a client sends repeatedly, in round-robin order; prompt ``i`` belongs to group ``i % groups``."""

    prompts: int
    groups: int
    """Number of system prompts, with which the prompts of a group start."""
    shared_tokens: int
    """Length of a system prompt."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A row of a table of measured serving runs; values that the source does not state are None.

    Names (``model``, ``chip``, ``framework``, dtypes) are spelled as in the source; limits of the engine are in tokens.
    """

    name: str
    place: str
    _: KW_ONLY
    model: str | None = None
    tokenizer: str | None = None
    """Second name of the model, for servers that call it otherwise."""
    parameters: float | None = None
    """Weights of the model, by which a name that no catalogue has can be checked."""
    chip: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    data_parallel_attention: int | None = None
    """Replicas of attention in an expert-parallel deployment."""
    replicas: int | None = None
    """Independent engines behind one address."""
    weights_dtype: str | None = None
    kv_cache_dtype: str | None = None
    process: str | None = None
    """Arrival process, one of ``PROCESSES``."""
    request_rate: float | None = None
    burstiness: float | None = None
    """Shape of gamma inter-arrival times."""
    max_concurrency: int | None = None
    stages: tuple[tuple[float, float], ...] = ()
    """(requests per second, seconds) of consecutive load stages."""
    input_tokens: TokenCounts | None = None
    output_tokens: TokenCounts | None = None
    num_requests: int | None = None
    lengths: tuple[IntArray, IntArray] | None = None
    """Tokens of every prompt and answer, in the order sent, if the client's random lengths are known."""
    pool: PromptPool | None = None
    """Prompts that repeat; None = all prompts differ."""
    trace: str | None = None
    """File with the requests themselves, in ``trace_format``."""
    trace_format: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    speculation: str | None = None
    """Method; ``none`` = the server did not draft, None = not stated."""
    num_speculative_tokens: int | None = None
    acceptance_length: float | None = None
    """Tokens per verify step, bonus token included."""
    acceptance_per_position: tuple[float, ...] = ()
    """Share of drafts with that position accepted, per position."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Further scenario values by dotted path."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Metric (``METRICS``) -> value; latencies in milliseconds, throughputs per second, power in watts."""
    derived: tuple[str, ...] = ()
    """Metrics that the source does not state, derived from its other metrics by Little's law."""
    steady: bool = False
    """True if all figures cover only the time at full concurrency."""
    unusable: str | None = None
    """Why the run cannot be compared; None = it can."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for metric, value in self.measured.items():
            if metric not in METRICS:
                raise TraceError(
                    f"{self.place}: '{metric}' is no metric of a serving run (one of {', '.join(METRICS)})"
                )
            if not 0 < value < float("inf"):
                raise TraceError(f"{self.place}: {metric}: {value!r} is no positive number")
        if self.process is not None and self.process not in PROCESSES:
            raise TraceError(f"{self.place}: process: '{self.process}' is not one of {', '.join(PROCESSES)}")

    @property
    def configuration(self) -> tuple[object, ...]:
        """Key of the throughput-latency curve that the run belongs to: all settings except load and size."""
        return (self.model, self.chip, self.framework, self.tensor_parallel, self.pipeline_parallel,
                self.expert_parallel, self.weights_dtype, self.input_tokens, self.output_tokens, self.trace,
                self.speculation, self.num_speculative_tokens)  # fmt: skip


_ACCESS: dict[object, Callable[[Cells, str], object]] = {
    "str | None": Cells.text,
    "int | None": Cells.count,
    "float | None": Cells.positive,
    "bool | None": Cells.flag,
    "TokenCounts | None": Cells.rounded,
}
ACCESS = {one.name: _ACCESS[one.type] for one in fields(MeasuredRun) if one.type in _ACCESS}
"""Fields of a run that hold one value, with the accessor for their type."""


def facts_of(cells: Cells, columns: Mapping[str, str | Sequence[str]]) -> dict[str, object]:
    """Fields of a run that a row states; if a field has several columns, the first with a value counts.

    >>> facts_of(Cells({"tp": "2"}, "runs.csv:2"), {"tensor_parallel": ["size", "tp"], "model": "model"})
    {'tensor_parallel': 2, 'model': None}
    """
    facts: dict[str, object] = {}
    for name, column in columns.items():
        values = (ACCESS[name](cells, one) for one in ([column] if isinstance(column, str) else column))
        facts[name] = next((value for value in values if value is not None), None)
    return facts


def closed_loop_throughput(concurrency: int, output_tokens: float, ttft_ms: float, tpot_ms: float) -> float:
    """Output tokens per second of a closed loop that always has ``concurrency`` requests outstanding.

    Little's law: ``concurrency / (ttft + (output_tokens - 1) tpot)`` requests per second, of mean times.
    """
    return concurrency * output_tokens * 1e3 / (ttft_ms + (output_tokens - 1) * tpot_ms)
