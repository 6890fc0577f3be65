"""``forerun serve`` and ``forerun twin``: the simulated engine behind an OpenAI endpoint, and beside a live one."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from simulator.cli.output import (
    JsonOption,
    NoProgressOption,
    Progress,
    ScenarioArgument,
    SetOption,
    ShortcutOptions,
    chosen,
    note_slow_engine,
    show,
)

EXIT_OFF = 1


def register(commands: Typer) -> None:
    commands.command("serve", epilog="Example: forerun serve chat.yaml --port 8000 --trace-out came.jsonl")(serve)
    commands.command(
        "twin",
        epilog="Examples: forerun twin http://localhost:8000/metrics --scenario chat.yaml --seconds 300  |  "
        "forerun twin early.txt late.txt --seconds 300 --scenario chat.yaml --tolerance 10 --fail-above tpot=20",
    )(twin)


def serve(
    scenario: ScenarioArgument,
    host: Annotated[str, Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8000,
    speed: Annotated[float, Option(min=1e-3, max=1e3, help="Simulated seconds that go by in a second.")] = 1.0,
    trace_out: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write what comes as a request trace (.jsonl), for workload.trace."),
    ] = None,
    kv_events: Annotated[
        str | None,
        Option(
            metavar="ADDRESS", help="Publish vLLM's KV events over ZMQ: tcp://*:5557, a port more for each replica."
        ),
    ] = None,
    set_values: SetOption = None,
    chip: ShortcutOptions.chip = None,
    router: ShortcutOptions.router = None,
    measured: ShortcutOptions.measured = None,
    seed: Annotated[int, Option(min=0, help="Seed of answer lengths, acceptance and failures.")] = 0,
) -> int:
    """Serve OpenAI's API with the latencies of the simulated engine.

    Requests go through the engine of forerun run in wall-clock time: batching, chunked prefill, KV memory, prefix cache
    hits on the text itself, speculation, pools and failures. Answers are filler text. An answer has as many tokens as
    max_tokens allows where ignore_eos is true, else as the scenario's output_tokens say, within max_tokens.
    """
    from forerun.errors import ForerunError, install_hint
    from simulator.running.scenario import load_scenario, place_of

    try:
        from simulator.serve.app import RequestTrace, Server, run_server
    except ImportError as error:
        needed = "forerun serve needs starlette, uvicorn and prometheus-client"
        raise ForerunError(f"{needed}; {install_hint('serve')} ({error})") from None

    loaded = load_scenario(scenario, chosen(set_values, chip, measured=measured, router=router))
    with ExitStack() as stack:
        trace = None
        if trace_out is not None:
            if trace_out.suffix != ".jsonl":
                raise ForerunError(f"{trace_out}: a name ending in .jsonl expected")
            trace_out.parent.mkdir(parents=True, exist_ok=True)
            trace = stack.enter_context(closing(RequestTrace(trace_out)))
        try:
            server = Server(loaded, seed, speed, trace, kv_events)
        except ForerunError as error:
            raise ForerunError(f"{place_of(scenario)}: {error}") from None
        note_slow_engine()

        def ready(address: str) -> None:
            print(f"{server.model} at {address}/v1 ({speed:g} x real time); Ctrl-C ends", file=sys.stderr, flush=True)

        run_server(server, host, port, ready)
    return 0


def twin(
    sources: Annotated[
        list[str],
        Argument(
            metavar="URL|FILE...",
            help="An engine's /metrics address; a scrape of it, or an earlier and a later one; a Prometheus range "
            "query's JSON; OTLP JSON spans; or a benchmark's result.",
            show_default=False,
        ),
    ],
    scenario: Annotated[str, Option(metavar="SCENARIO", help="What the engine should be and do.", show_default=False)],
    seconds: Annotated[
        float | None,
        Option(
            min=0.1,
            help="URL: time between two scrapes, default 60. Files: time that they cover, where they do not say.",
        ),
    ] = None,
    tolerance: Annotated[
        float, Option(min=0, max=100, metavar="PERCENT", help="Gap of a latency that is put down to the model.")
    ] = 0.0,
    fail_above: Annotated[
        list[str] | None,
        Option(
            "--fail-above",
            metavar="METRIC=PERCENT",
            help="Exit code 1 where a metric is further off: tpot, ttft, prefill, acceptance_length, prefix_hit_rate, "
            "host, kernels; repeatable. alarm=1: where anything is to blame.",
        ),
    ] = None,
    set_values: SetOption = None,
    chip: ShortcutOptions.chip = None,
    trace: ShortcutOptions.trace = None,
    rate: ShortcutOptions.rate = None,
    seed: Annotated[int, Option(min=0, help="First seed of the simulated runs.")] = 0,
    no_what_ifs: Annotated[bool, Option("--no-what-ifs", help="Look for no changes that would pay.")] = False,
    json_file: JsonOption = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Compare a live engine with its simulation, continuously, and name the cause of a gap.

    A canary: with --fail-above the exit code is 1 if the engine is off.
    """
    from forerun.errors import ArgumentError, ForerunError
    from simulator.running.scenario import load_scenario
    from simulator.serve.observed import observe_files, observe_url
    from simulator.serve.twin import twin as run_twin

    limits = {}
    for text in fail_above or ():
        name, _, value = text.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ArgumentError("fail_above", f"'{text}': METRIC=PERCENT expected, such as tpot=10") from None
    loaded = load_scenario(scenario, chosen(set_values, chip, trace, rate))
    if any(source.startswith(("http://", "https://")) for source in sources):
        if len(sources) != 1:
            raise ForerunError("twin: one address at a time")
        seen = observe_url(sources[0], seconds or 60.0)
    else:
        seen = observe_files([Path(source) for source in sources], seconds)
    with Progress(not no_progress, "simulating") as progress:
        result = run_twin(
            loaded,
            seen,
            seed=seed,
            tolerance=tolerance / 100.0,
            what_ifs=not no_what_ifs,
            progress=progress.update,
        )
    show(result, json_file, None)
    failed = limits.pop("alarm", None) is not None and result.culprit is not None
    for name, limit in limits.items():
        gap = result.gap(name)
        if gap > limit:
            print(f"twin: {name} is {gap:.1f} % off, above {limit:g} %", file=sys.stderr)
            failed = True
    return EXIT_OFF if failed else 0
