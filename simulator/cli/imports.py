"""``forerun import``: a launch line or a manifest as a scenario file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from simulator.cli.output import SetOption, ShortcutOptions, chosen


def register(commands: Typer) -> None:
    """Add the command."""
    commands.command("import", epilog="Example: forerun import 'vllm serve Qwen/Qwen3-8B -tp 2' --chip h100-sxm")(
        import_launch
    )


def import_launch(
    source: Annotated[
        str,
        Argument(
            metavar="FILE|LINE",
            help="Launch command in quotes, or a file with one: a script, compose file, Kubernetes, KServe, Dynamo or "
            "llm-d manifest.",
            show_default=False,
        ),
    ],
    chip: ShortcutOptions.chip = None,
    trace: ShortcutOptions.trace = None,
    rate: ShortcutOptions.rate = None,
    router: ShortcutOptions.router = None,
    set_values: SetOption = None,
    output: Annotated[
        Path | None, Option("--output", "--out", metavar="FILE", help="Scenario file to write; default: stdout.")
    ] = None,
) -> int:
    """Write the scenario of a launch line or manifest, with a comment on each of its options."""
    from forerun.errors import ForerunError
    from simulator.launch.reading import Launch, scenario_text
    from simulator.running.metrics.files import write_text_atomically
    from simulator.running.names import check_names
    from simulator.running.scenario import folder_of, read_source, scenario_in

    settings = chosen(set_values, chip, trace, rate, router=router)
    matched: list[Launch] = []
    place, data = read_source(source, settings, matched.append)
    if not matched:
        raise ForerunError(f"{place}: is a scenario already; forerun run {place} reads it")
    scenario = scenario_in(data, folder_of(source), place, settings)
    check_names(scenario)
    fields = scenario.model_dump(mode="json", exclude_unset=True)
    text = scenario_text(matched[0], fields, "a launch line" if place == "launch line" else Path(place).name)
    if output is None:
        print(text, end="")
    else:
        write_text_atomically(output, text)
        kinds = [option.kind for option in matched[0].options]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        print(f"Wrote {output}; options: {counts or 'none'}", file=sys.stderr)
    return 0
