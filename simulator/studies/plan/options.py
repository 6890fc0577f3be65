"""Options of a capacity plan, for ``forerun plan``, ``fr.plan`` and the search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from simulator.studies.frame import Interval, Jobs, Option, ProgressCall

CONFIDENCE = 0.9
"""Default minimum share of runs, and probability with the model error, with which a layout meets the objective."""
COLUMNS = (
    "Which column means what: arrival=ts,input=prompt_toks,output=gen_toks (also session, ttft, e2e; a time unit may "
    "follow, ts:ms). What is not named is recognised or guessed, with a note."
)
SEARCHED = (
    "Values to search of a field: hardware.chip, weights_dtype, speculation.method, hardware.replicas... "
    "Unless varied: tensor_parallel 1,2,4,8, max_num_batched_tokens 2048,8192, speculation on and off; "
    "with pools, the replicas of each pool alone."
)
EMITTED = (
    "Print the winner as vllm, sglang, trtllm, dynamo, llm-d, keda or hpa, or as the benchmark command that would "
    "confirm it: guidellm, aiperf, vllm-bench."
)
Emit = Annotated[str | None, Option(EMITTED, "NAME", repeated=False)]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Keyword arguments of ``fr.plan`` and options of ``forerun plan``; :func:`plan` describes each."""

    rate: Annotated[float | None, Option("Requests per second to plan for; arrivals are sampled.", "R")] = None
    max_rate: Annotated[bool, Option("Find the highest rate of every layout, at the scenario's replicas.")] = False
    trace: Annotated[
        str | None,
        Option("Plan for this trace: its lengths and, without --rate, its own arrivals.", "FILE", repeated=False),
    ] = None
    columns: Annotated[
        Mapping[str, str] | None, Option(COLUMNS, "WORD=COLUMN,...", flag="--map", text=str, repeated=False)
    ] = None
    growth: Annotated[float, Option("Plan for G times the rate, or the trace played G times faster.", "G")] = 1.0
    slo: Annotated[
        Mapping[str, float] | Sequence[str] | None,
        Option(
            "A limit, over the scenario's own: p99_ttft_ms=1000; or goodput=0.95 with ttft_ms=1000 tpot_ms=60.",
            "KEY=VALUE",
            text=list[str],
            resolved=True,
        ),
    ] = None
    vary: Annotated[
        Mapping[str, Sequence[Any]] | None, Option(SEARCHED, "PATH=V1,V2,...", text=list[str], repeated=False)
    ] = None
    seed: Annotated[int, Option("First seed; every layout gets the same ones.", min=0)] = 0
    replications: Annotated[int, Option("Runs of every layout that is near the limit.", min=1, max=1000)] = 5
    requests: Annotated[
        int | None, Option("Requests of a run; default: the scenario's, and a minute of arrivals at least.", min=1)
    ] = None
    finalists: Annotated[int, Option("Number of layouts to show that meet the SLO.", min=1)] = 5
    max_replicas: Annotated[int, Option("Most replicas of a layout to try.", min=1, max=10_000)] = 64
    spare: Annotated[int, Option("Replicas to rent beyond those that hold the SLO; 1 is N+1.", min=0, max=100)] = 0
    headroom: Annotated[
        bool, Option("Skip the highest rates, and the cases of a failed replica and twice the load.")
    ] = True
    power_budget_w: Annotated[
        float | None,
        Option("With --max-rate: as many replicas per layout as this power allows.", "WATTS", flag="--power-budget"),
    ] = None
    carbon: Annotated[
        float | str | Path | None, Option("Grams of CO2 per kWh, or a CSV file of hour,g_per_kwh.", "G|FILE", text=str)
    ] = None
    interval: Interval = True
    confidence: Annotated[
        float, Option("Required share of runs, and probability with model error, that meet the SLO.", "SHARE")
    ] = CONFIDENCE
    emit: Emit = None
    jobs: Jobs = None
    progress: ProgressCall | None = None

    @property
    def mode(self) -> str:
        """Mode: ``rate`` (serve ``rate``), ``own`` (serve the scenario's arrivals) or ``max-rate`` (highest rate)."""
        return "max-rate" if self.max_rate else "own" if self.rate is None else "rate"
