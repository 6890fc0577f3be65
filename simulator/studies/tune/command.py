"""``forerun tune``, ``fr.tune`` and ``fr.tune_machine``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from forerun.errors import ArgumentError, ForerunError
from simulator.studies.frame import Jobs, Option, ProgressCall, study

if TYPE_CHECKING:
    from simulator.studies.study_file import Source, StudyFile
    from simulator.studies.tune.document import TuneResult
    from simulator.studies.tune.machine import MachineResult
    from simulator.studies.tune.routes import RouterResult

LOCAL_ENGINE = "llama.cpp"
EMITTED = (
    "Whose flags to print: vllm, sglang or llama.cpp; default: the scenario's. vllm-schedule: by batch and context. "
    "With one K for every batch: trtllm, dynamo, llm-d, keda, hpa, guidellm, aiperf, vllm-bench."
)
Axis = Sequence[int | str] | None
Batches = Annotated[
    Axis,
    Option("Batch sizes: 1,8,64 or doubling 1..256; default: doubling to max_num_seqs.", "B1,B2,...", text=list[str]),
]
Contexts = Annotated[
    Axis, Option("Context lengths in tokens; default: 512,2048,8192,32768.", "C1,C2,...", text=list[str])
]
Tokens = Annotated[
    Axis, Option("Draft tokens to try; default: 1..8 as far as acceptance is known.", "K1,K2,...", text=list[str])
]
NO_DRAFTER = "speculation: there is no drafter to tune; give a method and its acceptance, for example "


@study(
    "tune",
    help="Find the best number of draft tokens, or tree, per batch size and context; or the best routing rule.",
    source="Scenario file with a speculation section, YAML or JSON; with --router, one of a fleet.",
    progress="tuning",
    files="tune.json, scenario.yaml",
    examples="Examples: forerun tune chat.yaml --emit vllm  |  "
    "forerun tune chat.yaml --batch 1..256 --context 1024,8192 --tokens 1,3,5 --out out/tune  |  "
    "forerun tune laptop.yaml --from-log server.log --measured 43  |  "
    "forerun tune fleet.yaml --router --metric p90_ttft_ms --out out/router",
)
def tune(
    scenario: "Source",
    *,
    batch: Batches = None,
    context: Contexts = None,
    tokens: Tokens = None,
    emit: Annotated[str | None, Option(EMITTED, "ENGINE")] = None,
    measured: Annotated[
        Sequence[str],
        Option(
            "Benchmark result of this deployment; llama.cpp: decode rate measured on this machine, 43 without "
            "drafting, 3:71 with 3 draft tokens; repeatable.",
            "RESULT",
            text=list[str],
        ),
    ] = (),
    worth: Annotated[
        bool,
        Option("Add what a better drafter is worth by load, and the acceptance length that pays in every cell."),
    ] = False,
    seed: Annotated[int, Option("First seed of the runs of --router; else recorded in the result.", min=0)] = 0,
    progress: ProgressCall | None = None,
) -> "TuneResult":
    """Find the best number of draft tokens (or best tree) per batch and context, with intervals; no run is made.

    Args:
        scenario: scenario with a ``speculation`` section, or its file.
        batch, context: integers, or texts such as ``1..256`` (doubling); default: doubling to ``max_num_seqs``, and 512
            to 32,768 tokens in factors of 4.
        tokens: numbers of draft tokens to try; default: 1 to 8, as far as acceptance is known.
        emit: engine whose flags to write, ``vllm`` or ``sglang``; default: the scenario's engine, if it has such a
            drafter. Or the name of an artefact of ``forerun tune --emit``, which is added as ``document["artefact"]``.
        measured: benchmark results of the deployment, as in the scenario's ``measured``, which they replace.
        worth: whether to add the value of a better drafter as ``document["worth"]``.
        seed: recorded in the result, which does not depend on it.
        progress: called with (choices priced, choices in all).

    Raises:
        ForerunError: no drafter, a scenario that cannot be built, or an engine without such a drafter.
    """
    from simulator.studies.study_file import study_of, yaml_text
    from simulator.studies.tune import document as documents
    from simulator.studies.tune.tuning import find_drafts

    base = study_of(scenario)
    if measured:
        base = replace(base, scenario=base.scenario.with_values({"measured": list(measured)}))
    if base.vary or base.variants:
        raise ForerunError(f"{base.place}: vary, variants: tune takes one scenario; compare takes several")
    axes = _axes(batch, context, tokens)
    flags_of = None if emit in documents.ARTEFACTS_OF_TUNE else emit
    engine = documents.engine_of(flags_of, base.scenario)
    tuning = find_drafts(base.scenario, axes["batch"], axes["context"], axes["tokens"], progress)
    data = documents.tune_document(tuning, engine, seed, strict=flags_of is not None)
    if worth:
        data = documents.with_worth(tuning, data)
    if emit is not None and flags_of is None:
        data = replace(data, artefact=documents.tuned_artefact(emit, base.scenario, data))
    return documents.TuneResult(data, files={"scenario.yaml": yaml_text(data.scenario)})


def _local(options: Mapping[str, Any], base: "StudyFile") -> bool:
    """True if a tuning concerns a single machine that runs llama.cpp or MLX.

    Raises:
        ArgumentError: rates of llama.cpp are combined with another engine's flags.
    """
    from simulator.timing.framework import LOCAL_FRAMEWORKS

    if "router" in options:
        return False
    engine, framework = options.get("emit"), base.scenario.engine.framework
    local = engine == LOCAL_ENGINE or (engine is None and framework in LOCAL_FRAMEWORKS)
    rates = [text for text in options.get("measured", ()) if re.fullmatch(r"[\d.:]+", text)]
    given = next((name for name in ("logs", "p_min") if name in options), "measured" if rates else None)
    if given is not None and not local:
        where = f"--emit {engine}" if engine else f"engine.framework: {framework}"
        words = f"is of llama.cpp, not of {where}; add --set engine.framework=llama.cpp or --emit llama.cpp"
        raise ArgumentError("from_log" if given == "logs" else given, words)
    return local


@study(
    "tune",
    source="Scenario file with a speculation section, YAML or JSON.",
    chosen=_local,
    switch="emit",
    words="on one machine: nothing is random",
)
def tune_machine(
    scenario: "Source",
    logs: Annotated[
        Sequence[Path | str],
        Option(
            "llama.cpp: server log, /metrics, llama-bench or llama-batched-bench output of this machine; repeatable.",
            "FILE",
            flag="--from-log",
            text=list[Path],
        ),
    ] = (),
    *,
    measured: Annotated[
        Sequence[str],
        Option(
            "llama.cpp: decode rate measured on this machine.",
            "TOK_S",
            text=list[str],
        ),
    ] = (),
    tokens: Tokens = None,
    p_min: Annotated[
        Sequence[float] | str | None,
        Option("llama.cpp: confidence thresholds to try; default: 0,0.6,0.75.", "P1,P2,...", text=str),
    ] = None,
    batch: Batches = None,
    context: Contexts = None,
) -> "MachineResult":
    """Find the best draft on one machine from rates measured there; no run is made.

    Args:
        scenario: scenario with model, chip, engine and a ``speculation`` section, or its file.
        logs: files of llama.cpp: server logs, ``/metrics``, llama-bench or llama-batched-bench.
        measured: decode rates: ``43`` tokens per second without drafting, ``3:71`` with 3 draft tokens.
        tokens: numbers of draft tokens to try; default 1 to 8.
        p_min: confidence thresholds to try, llama.cpp's ``--draft-p-min``; default 0, 0.6 and 0.75.
        batch: number of streams; default 1.
        context: tokens in the cache of each stream; default: context of the mean request.

    Raises:
        ForerunError: no drafter, no readable rate, or a scenario that cannot be built.
    """
    from simulator.studies.study_file import load_study_and_logs, study_of
    from simulator.studies.tune.machine import tuned_machine

    loaded = load_study_and_logs(scenario, logs) if isinstance(scenario, str | Path) else scenario
    base = study_of(loaded).scenario
    if base.speculation is None or base.speculation.method == "none":
        raise ForerunError(f"{NO_DRAFTER}{{method: mtp, num_speculative_tokens: 2, acceptance: {{alpha: 0.8}}}}")
    return tuned_machine(base, logs, measured, p_min, **_axes(batch, context, tokens))


@study(
    "tune",
    source="Scenario file of a fleet, YAML or JSON.",
    progress="tuning",
    switch="router",
    switch_help="Find the routing rule that serves this workload best: filters, scorers, weights and thresholds.",
    chosen=lambda options, _: "router" in options,
    words="with --router",
)
def tune_router(
    scenario: "Source",
    *,
    metric: Annotated[
        str | None,
        Option(
            "With --router: metric to judge by; default: mean_e2el_ms, or output_throughput offline.",
            "KEY",
            resolved=True,
        ),
    ] = None,
    rules: Annotated[int, Option("With --router: rules of the first round.", min=2, max=1000)] = 12,
    replications: Annotated[
        int, Option("With --router: pairs of runs that the gain is measured on.", min=2, max=10_000)
    ] = 5,
    emit: Annotated[str | None, Option(EMITTED, "ENGINE")] = None,
    seed: Annotated[int, Option("First seed of the runs.", min=0)] = 0,
    jobs: Jobs = None,
    progress: ProgressCall | None = None,
) -> "RouterResult":
    """Find the routing rule that serves a workload best, and its gain over the scenario's own rule.

    Args:
        scenario: scenario with several replicas, or its file; its own rule is the baseline.
        metric: metric that decides; default: output throughput for closed loops and bursts, else mean end-to-end
            latency.
        rules: rules of the first round; the best of them are varied further.
        replications: pairs of runs with seeds ``seed``, ``seed + 1``, ... for the gain. The search uses others.
        emit: ``endpoint-picker`` or another artefact of the best rule, which is added as ``document["artefact"]``.
        seed: the first seed.
        jobs: processes; default: one per core.
        progress: called with (runs done, runs in sight).

    Raises:
        ForerunError: a single replica, or a scenario that cannot run.
    """
    from simulator.studies.study_file import study_of
    from simulator.studies.tune.routes import best_rule

    base = study_of(scenario)
    if base.vary or base.variants:
        raise ForerunError(f"{base.place}: vary, variants: tune takes one scenario; compare takes several")
    seeds = range(seed, seed + replications)
    return best_rule(base.scenario, metric or base.metric, rules, seeds, emit, jobs, progress)


def _axes(batch: Axis, context: Axis, tokens: Axis) -> dict[str, tuple[int, ...] | None]:
    from simulator.studies.study_file import axis_values

    texts = {"batch": batch, "context": context, "tokens": tokens}
    return {axis: axis_values(values, axis) if values else None for axis, values in texts.items()}
