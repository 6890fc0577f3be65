"""``forerun serve``: the simulated engine behind an OpenAI endpoint."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import SetOption

HOW_TO_INSTALL = "forerun serve needs starlette, uvicorn and prometheus-client: pip install 'forerun[serve]'"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("serve", epilog="Example: forerun serve chat.yaml --port 8000 --trace-out came.jsonl")(serve)


def serve(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="Scenario file, YAML or JSON.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8000,
    speed: Annotated[float, typer.Option(min=1e-3, max=1e3, help="Simulated seconds that go by in a second.")] = 1.0,
    trace_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what comes as a request trace (.jsonl), for workload.trace."),
    ] = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of answer lengths, acceptance and failures.")] = 0,
) -> int:
    """Answer OpenAI's API with the timing of the simulated engine.

    Requests go through the engine of forerun run in wall-clock time: batching, chunked prefill, KV memory, prefix cache
    hits on the text itself, speculation, pools and failures. Answers are filler text. An answer has as many tokens as
    max_tokens allows where ignore_eos is true, else as the scenario's output_tokens say, within max_tokens.
    """
    from simulator.errors import ForerunError
    from simulator.scenario import load_scenario
    from simulator.serving.compiled import why_interpreted

    try:
        from simulator.serve.app import Server, run_server
    except ImportError as error:
        raise ForerunError(f"{HOW_TO_INSTALL} ({error})") from None

    loaded = load_scenario(scenario, tuple(set_values or ()))
    with ExitStack() as stack:
        trace = None
        if trace_out is not None:
            if trace_out.suffix != ".jsonl":
                raise ForerunError(f"{trace_out}: a name ending in .jsonl expected")
            trace = stack.enter_context(trace_out.open("w", encoding="utf-8", buffering=1))
        try:
            server = Server(loaded, seed, speed, trace)
        except ForerunError as error:
            raise ForerunError(f"{scenario}: {error}") from None
        slow = why_interpreted()
        if slow is not None:
            print(f"note: {slow}", file=sys.stderr)

        def ready(address: str) -> None:
            print(
                f"{server.model} at {address}/v1 (time runs {speed:g}-fold); Ctrl-C ends", file=sys.stderr, flush=True
            )

        run_server(server, host, port, ready)
    return 0
