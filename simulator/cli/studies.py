"""``forerun compare``, ``plan``, ``tune``, ``race``, ``draft-pool`` and ``sweep``: runs that answer one question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.artefacts import (
    ARTEFACTS_OF_TUNE,
    PLAN_REPLICATIONS,
    EmitOption,
    checked_artefact,
    plan_thresholds,
    show_plan,
    tuned_artefact,
)
from simulator.cli.output import (
    STDOUT,
    JobsOption,
    JsonOption,
    MapOption,
    NoIntervalOption,
    NoProgressOption,
    Progress,
    SetOption,
    VaryOption,
    checked_outputs,
    mapping_of,
    out_to,
    refuse_unused,
    show,
)

if TYPE_CHECKING:
    from simulator.studies.study_file import StudyFile

AXIS = "1,8,64 or doubling 1..256"

ScenarioOrLogArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO", help="Scenario or study file, YAML or JSON; or a log of requests.", show_default=False
    ),
]
TraceOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Plan for this trace: its lengths and, without --rate, its own arrivals."),
]
GrowthOption = Annotated[
    float, typer.Option(metavar="G", help="Plan for G times the rate, or the trace played G times faster.")
]
SloOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A limit, over the scenario's own: p99_ttft_ms=1000; or goodput=0.95 with ttft_ms=1000 tpot_ms=60.",
    ),
]
SearchOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=V1,V2,...",
        help="Values to search of a field: hardware.chip, weights_dtype, speculation.method, hardware.replicas... "
        "Unless varied: tensor_parallel 1,2,4,8, max_num_batched_tokens 2048,8192, speculation on and off.",
    ),
]
RequestsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Requests of a run; default: the scenario's, and a minute of arrivals at least."),
]
NoHeadroomOption = Annotated[
    bool,
    typer.Option("--no-headroom", help="Skip the highest rates, and the cases of a failed replica and twice the load."),
]
PowerOption = Annotated[
    float | None,
    typer.Option(metavar="WATTS", help="With --max-rate: as many replicas per layout as this power allows."),
]
CarbonOption = Annotated[
    str | None, typer.Option(metavar="G|FILE", help="Grams of CO2 per kWh, or a CSV file of hour,g_per_kwh.")
]
ThresholdsOption = Annotated[
    bool,
    typer.Option(
        "--thresholds",
        help="Find the autoscaler threshold that meets the SLO at least cost; compare fixed fleets.",
    ),
]
FromLogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from-log",
        metavar="FILE",
        help="llama.cpp: server log, /metrics, llama-bench or llama-batched-bench output of this machine; repeatable.",
    ),
]
MeasuredOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOK_S",
        help="llama.cpp: decode rate measured on this machine, 43 without drafting, 3:71 with 3 draft tokens; "
        "repeatable.",
    ),
]
ConfidenceOption = Annotated[
    float,
    typer.Option(metavar="SHARE", help="Required share of runs, and probability with model error, that meet the SLO."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command(
        "compare",
        epilog="Examples: forerun compare chat.yaml --vary speculation.method=none,eagle3  |  "
        "forerun compare a.yaml b.yaml --out out/a-b",
    )(compare)
    app.command(
        "plan",
        epilog="Examples: forerun plan chat.yaml --rate 20 --slo p99_ttft_ms=1000 --slo p99_tpot_ms=60  |  "
        "forerun plan my-log.csv --slo p99_ttft_ms=1000 --set model=qwen3-8b --vary hardware.chip=h100-sxm,l40s  |  "
        "forerun plan chat.yaml --max-rate --slo goodput=0.95 --slo ttft_ms=1000 --slo tpot_ms=60  |  "
        "forerun plan scaled.yaml --thresholds --emit keda",
    )(plan)
    app.command(
        "tune",
        epilog="Examples: forerun tune chat.yaml --emit vllm  |  "
        "forerun tune chat.yaml --batch 1..256 --context 1024,8192 --tokens 1,3,5 --out out/tune  |  "
        "forerun tune laptop.yaml --from-log server.log --measured 43",
    )(tune)
    app.command(
        "race",
        epilog="Examples: forerun race chat.yaml  |  forerun race chat.yaml --controller goodput --controller "
        "mine:policy --patterns 100 --out out/race  |  forerun race chat.yaml --replay out/race/closest.csv",
    )(race)
    app.command(
        "draft-pool",
        epilog="Examples: forerun draft-pool examples/draft-pool.yaml  |  forerun draft-pool pool.yaml --batch 1 "
        "--verifiers 1,4,16 --set speculation.draft.chip=n150 --out out/pool",
    )(draft_pool)
    app.command(
        "sweep",
        epilog="Examples: forerun sweep chat.yaml --vary hardware.tensor_parallel=1,2,4 --vary "
        "engine.max_num_seqs=64,256 --store chat.sweep  |  forerun sweep chat.yaml --vary "
        "workload.arrivals.request_rate=1..50:log --design latin-hypercube --samples 100 --store chat.sweep",
    )(sweep)


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO...", help="A scenario or study file; or several files to compare.", show_default=False
        ),
    ],
    vary: VaryOption = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; every variant gets the same ones.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=10_000, help="Pairs of runs, with seeds SEED, SEED+1, ...")
    ] = 5,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Metric to judge by; default: the study file's, else mean_e2el_ms, or output_throughput offline.",
        ),
    ] = None,
    crossover: Annotated[
        str,
        typer.Option(
            metavar="PATH[=VALUES]",
            help="Field to find a crossover in: auto (the load), none, a field, PATH=LOW..HIGH or PATH=V1,V2",
        ),
    ] = "auto",
    no_sensitivity: Annotated[
        bool, typer.Option("--no-sensitivity", help="Do not try the assumed parameters over their ranges.")
    ] = False,
    no_interval: NoIntervalOption = False,
    out: Annotated[Path | None, out_to("compare.json, study.yaml")] = None,
    json_file: JsonOption = None,
    jobs: JobsOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Compare variants of a scenario on the same traffic, with confidence intervals."""
    from simulator.studies.compare.comparison import compare as run_comparison
    from simulator.studies.compare.comparison import variants_from_files
    from simulator.studies.study_file import load_study

    overrides, varied = tuple(set_values or ()), tuple(vary or ())
    single = len(scenarios) == 1
    source = (
        load_study(scenarios[0], overrides, varied) if single else variants_from_files(scenarios, overrides, varied)
    )
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "comparing") as progress:
            result = run_comparison(
                source,
                seed=seed,
                replications=replications,
                metric=metric,
                crossover=crossover,
                sensitivity=not no_sensitivity,
                interval=not no_interval,
                jobs=jobs,
                progress=progress.update,
            )
        show(result, json_file, out)
    return 0


def race(
    context: typer.Context,
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO", help="Scenario or study file with a drafter, YAML or JSON.", show_default=False
        ),
    ],
    controller: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A policy, or module:factory of your own; repeatable. Default: all policies."
        ),
    ] = None,
    patterns: Annotated[
        int, typer.Option(min=1, max=10_000, help="Patterns of traffic, half of them searched for.")
    ] = 24,
    requests: Annotated[int, typer.Option(min=8, max=100_000, help="Requests of a pattern.")] = 160,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the patterns.")] = 0,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run the pattern that an earlier race wrote (closest.csv).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write race.json, study.yaml, closest.csv, report.html and report.md."),
    ] = None,
    json_file: JsonOption = None,
    jobs: JobsOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Compare speculation policies on traffic that was searched for their worst case."""
    from simulator.studies.race.race import race as run_race
    from simulator.studies.study_file import load_study

    if replay is not None:
        refuse_unused(context, "with --replay, which has its own traffic", "patterns", "requests", "seed", "jobs")
    study = load_study(scenario, tuple(set_values or ()), ())
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "racing") as progress:
            result = run_race(
                study,
                controllers=tuple(controller or ()),
                patterns=patterns,
                requests=requests,
                seed=seed,
                replay=replay,
                jobs=jobs,
                progress=progress.update,
            )
        show(result, json_file, out)
    return 0


def draft_pool(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO", help="Scenario file with speculation.draft.chip, YAML or JSON.", show_default=False
        ),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Sequences of each verifier.")] = 16,
    context: Annotated[int, typer.Option(min=1, help="Tokens of context of each sequence.")] = 2048,
    verifiers: Annotated[
        str, typer.Option(metavar="N1,N2,...", help=f"Verifiers per drafter to try: {AXIS}.")
    ] = "1..64",
    max_batch: Annotated[int, typer.Option(min=1, help="Verifiers whose drafts one pass computes.")] = 8,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of how many drafts made ahead are kept.")] = 0,
    out: Annotated[Path | None, out_to("draft-pool.json, study.yaml")] = None,
    json_file: JsonOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Find how many verifiers a drafter on separate chips can serve."""
    from simulator.studies.draft_pool import draft_pool as run_pools
    from simulator.studies.study_file import load_study
    from simulator.studies.tune.tuning import axis_values

    study = load_study(scenario, tuple(set_values or ()), ())
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "drafting") as progress:
            result = run_pools(
                study,
                batch=batch,
                context_tokens=context,
                verifiers=axis_values([verifiers], "verifiers"),
                max_batch=max_batch,
                seed=seed,
                progress=progress.update,
            )
        show(result, json_file, out)
    return 0


def _study_or_log(
    file: Path, set_values: list[str] | None, vary: list[str] | None, columns: str | None
) -> tuple[StudyFile, dict[str, str] | None]:
    """The study that a scenario, study file or request log describes, and the columns that are still to be named."""
    from simulator.running.scenario import is_log
    from simulator.studies.study_file import load_study, study_of_log

    overrides, varied, named = tuple(set_values or ()), tuple(vary or ()), mapping_of(columns)
    if is_log(file):
        return study_of_log(file, overrides, varied, named), None
    return load_study(file, overrides, varied), named


def plan(
    context: typer.Context,
    scenario: ScenarioOrLogArgument,
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests per second to plan for; arrivals are sampled.")
    ] = None,
    max_rate: Annotated[
        bool, typer.Option("--max-rate", help="Find the highest rate of every layout, at the scenario's replicas.")
    ] = False,
    trace: TraceOption = None,
    columns: MapOption = None,
    growth: GrowthOption = 1.0,
    slo: SloOption = None,
    vary: SearchOption = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; every layout gets the same ones.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs of every layout that is near the limit.")
    ] = PLAN_REPLICATIONS,
    requests: RequestsOption = None,
    finalists: Annotated[int, typer.Option(min=1, help="Number of layouts to show that meet the SLO.")] = 5,
    max_replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Most replicas of a layout to try.")] = 64,
    spare: Annotated[
        int, typer.Option(min=0, max=100, help="Replicas to rent beyond those that hold the SLO; 1 is N+1.")
    ] = 0,
    no_headroom: NoHeadroomOption = False,
    power_budget: PowerOption = None,
    carbon: CarbonOption = None,
    no_interval: NoIntervalOption = False,
    confidence: ConfidenceOption = 0.9,
    thresholds: ThresholdsOption = False,
    target: Annotated[
        list[str] | None, typer.Option(metavar="T1,T2,...", help="With --thresholds: values to try; default by metric.")
    ] = None,
    emit_name: EmitOption = None,
    out: Annotated[Path | None, out_to("plan.json, study.yaml")] = None,
    json_file: JsonOption = None,
    jobs: JobsOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Find the cheapest deployment that meets an SLO at a load. Exit code 1 if none does."""
    from simulator.studies.plan.document import plan as make_plan

    study, named = _study_or_log(scenario, set_values, vary, columns)
    checked_artefact(emit_name)
    if thresholds:
        return plan_thresholds(context, study, target, seed, replications, jobs, json_file, emit_name, out)
    refuse_unused(context, "without --thresholds", "target")
    if max_rate:
        refuse_unused(context, "with --max-rate", "finalists", "max_replicas")
    if "hardware.replicas" in study.vary:
        refuse_unused(context, "where hardware.replicas is varied", "max_replicas")
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "planning") as progress:
            result = make_plan(
                study,
                rate=rate,
                max_rate=max_rate,
                trace=trace,
                columns=named,
                growth=growth,
                slo=slo,
                seed=seed,
                replications=replications,
                requests=requests,
                finalists=finalists,
                max_replicas=max_replicas,
                spare=spare,
                headroom=not no_headroom,
                interval=not no_interval,
                confidence=confidence,
                power_budget_w=power_budget,
                carbon=carbon,
                jobs=jobs,
                progress=progress.update,
            )
        return show_plan(result, emit_name, json_file, out)


def tune(
    call: typer.Context,
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO", help="Scenario file with a speculation section, YAML or JSON.", show_default=False
        ),
    ],
    batch: Annotated[
        list[str] | None,
        typer.Option(metavar="B1,B2,...", help=f"Batch sizes: {AXIS}; default: doubling to max_num_seqs."),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="C1,C2,...", help="Context lengths in tokens; default: 512,2048,8192,32768."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="K1,K2,...", help="Draft tokens to try; default: 1..8 as far as acceptance is known."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="ENGINE",
            help="Whose flags to print: vllm, sglang or llama.cpp; default: the scenario's. vllm-schedule: by batch "
            "and context. With the middle batch's K: trtllm, dynamo, llm-d, keda, hpa, guidellm, aiperf, vllm-bench.",
        ),
    ] = None,
    from_log: FromLogOption = None,
    measured: MeasuredOption = None,
    p_min: Annotated[
        str | None,
        typer.Option(metavar="P1,P2,...", help="llama.cpp: confidence thresholds to try; default: 0,0.6,0.75."),
    ] = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Recorded in the result; tune uses no random numbers.")] = 0,
    out: Annotated[Path | None, out_to("tune.json, scenario.yaml")] = None,
    json_file: JsonOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Find the best number of draft tokens, or the best tree, per batch size and context."""
    from forerun.result import StudyResult
    from simulator.studies.study_file import load_study
    from simulator.studies.tune.document import tune as run_tuning
    from simulator.studies.tune.machine import is_local, tune_machine

    study = load_study(scenario, tuple(set_values or ()))
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "tuning") as progress:
            if is_local(study, engine, from_log, measured, p_min):
                refuse_unused(call, "on one machine: nothing is random", "seed")
                result: StudyResult = tune_machine(
                    study,
                    from_log or (),
                    measured=measured or (),
                    tokens=tokens,
                    p_min=p_min,
                    batch=batch,
                    context=context,
                )
            else:
                flags = None if engine in ARTEFACTS_OF_TUNE else engine
                result = run_tuning(
                    study, batch=batch, context=context, tokens=tokens, emit=flags, seed=seed, progress=progress.update
                )
        if engine in ARTEFACTS_OF_TUNE:
            result.document["artefact"] = tuned_artefact(str(engine), study.scenario, result.document)
        show(result, json_file, out, result.document.get("artefact", result.document["emit"]))
    return 0


def sweep(
    context: typer.Context,
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="A scenario or study file, YAML or JSON.", show_default=False)
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="PATH=V1,V2,...", help="Values of a field, as YAML, or LOW..HIGH[:log]; repeatable."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where results are kept and resumed from; default: SCENARIO's name + .sweep."
        ),
    ] = None,
    set_values: SetOption = None,
    design: Annotated[
        str, typer.Option(metavar="NAME", help="grid, random or latin-hypercube; the latter two need --samples.")
    ] = "grid",
    samples: Annotated[int | None, typer.Option(metavar="N", help="Points that a random design draws.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed of every point, and of the draws.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=10_000, help="Runs of every point, with seeds SEED, SEED+1, ...")
    ] = 1,
    metric: Annotated[
        str, typer.Option(metavar="KEY", help="Metric that the best point is named by.")
    ] = "mean_e2el_ms",
    jobs: JobsOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Dask scheduler such as tcp://host:8786, or local for one started here."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run points again that failed before.")] = False,
    out: Annotated[Path | None, out_to("sweep.json, study.yaml")] = None,
    json_file: JsonOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Run every combination of values. An interrupted sweep resumes with the same command."""
    from forerun.errors import ForerunError
    from simulator.studies.study_file import checked_design, load_study
    from simulator.studies.sweep.study import sweep as run_sweep

    if cluster not in (None, "local"):
        refuse_unused(context, "with the address of a cluster, which has its own workers", "jobs")
    study = load_study(scenario, tuple(set_values or ()), tuple(vary or ()))
    kept = store if store is not None else Path(f"{scenario.stem}.sweep")
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "sweeping") as progress:
            result = run_sweep(
                study,
                store=kept,
                design=checked_design(design),
                samples=samples,
                seed=seed,
                replications=replications,
                metric=metric,
                jobs=jobs,
                cluster=cluster,
                retry_failed=retry_failed,
                progress=progress.update,
            )
        show(result, json_file, out)
    print(f"Results are kept in {kept}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if not result.document["counts"]["done"]:
        first = result.failed[0]
        raise ForerunError(f"every point failed; the first, {first.name}: {first.error}")
    return 0
