"""``forerun chips``, ``forerun models`` and ``forerun workloads``: list catalogues, and check a user's own files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, Typer

from forerun.errors import ForerunError
from simulator.cli import acceptance
from simulator.cli.output import JsonOption, MapOption, emit, mapping_of

Name = Annotated[str, Argument(metavar="NAME_OR_FILE", help="Catalogue name or file.", show_default=False)]
OwnFile = Annotated[Path, Argument(metavar="FILE", help="Your own file.", show_default=False)]
TraceFormat = Annotated[str, Option("--format", help="Trace format; auto recognises it by content.")]
OnError = Annotated[
    Literal["stop", "skip"], Option("--on-error", help="A bad row stops the reading, or is skipped and counted.")
]


def register(commands: Typer) -> None:
    """Add the three groups of commands."""
    chips = Typer(
        name="chips", help="List, show and check chip profiles.", epilog="Example: forerun chips show h100-sxm"
    )
    chips.command("list", epilog="Example: forerun chips list --json -")(chips_list)
    chips.command("show", epilog="Example: forerun chips show h100-sxm")(chips_show)
    chips.command("check", epilog="Example: forerun chips check my-chip.yaml")(chips_check)
    models = Typer(
        name="models",
        help="List, show and check models, your own config.json included.",
        epilog="Example: forerun models show llama-3.1-8b",
    )
    models.command("list", epilog="Example: forerun models list --json -")(models_list)
    models.command("show", epilog="Example: forerun models show llama-3.1-8b")(models_show)
    models.command("check", epilog="Example: forerun models check config.json")(models_check)
    workloads = Typer(
        name="workloads",
        help="List sample traces; analyse, check and fit your own.",
        epilog="Example: forerun workloads show azure-conv-2023",
    )
    workloads.command("list", epilog="Example: forerun workloads list --json -")(workloads_list)
    workloads.command("show", epilog="Example: forerun workloads show azure-conv-2023")(workloads_show)
    workloads.command("check", epilog="Example: forerun workloads check trace.csv --format auto")(workloads_check)
    workloads.command("fit", epilog="Example: forerun workloads fit trace.csv --json workload.json")(workloads_fit)
    acceptance.register(workloads)
    for group in (chips, models, workloads):
        commands.add_typer(group)


def chips_list(json_file: JsonOption = None) -> int:
    """List all chips of the catalogue."""
    from hwprofiles import chip_names, load_chip
    from simulator.cli.catalogue_tables import chip_row, chips_table

    rows = [chip_row(load_chip(name)) for name in chip_names()]
    emit(rows, json_file, chips_table(rows))
    return 0


def chips_show(name: Name, json_file: JsonOption = None) -> int:
    """Show a chip: its limits, and the source of each group of numbers."""
    from hwprofiles import load_chip
    from simulator.cli.catalogue_tables import chip_tables

    chip = load_chip(name)
    emit(chip.model_dump(mode="json", exclude_none=True), json_file, chip_tables(chip))
    return 0


def chips_check(file: OwnFile) -> int:
    """Check your own chip profile."""
    from hwprofiles import load_chip

    chip = load_chip(_existing(file, "chip profile").absolute())
    print(f"{file}: a valid chip profile: {chip.name}, {chip.description}")
    return 0


def models_list(json_file: JsonOption = None) -> int:
    """List all models of the catalogue."""
    from simulator.cli.catalogue_tables import model_row, models_table
    from simulator.llm import architecture_names, load_architecture

    rows = [model_row(load_architecture(name)) for name in architecture_names()]
    emit(rows, json_file, models_table(rows))
    return 0


def models_show(
    name: Name,
    json_file: JsonOption = None,
    download: Annotated[bool, Option("--download", help="Fetch the config of hf:OWNER/NAME into the cache.")] = False,
) -> int:
    """Show a model: layers, parameters, KV cache per token."""
    from simulator.cli.catalogue_tables import model_tables
    from simulator.llm import architecture_summary, load_architecture
    from simulator.llm.hub import hub_folder

    if download:
        hub_folder(name, download=True)
    architecture = load_architecture(name)
    emit(architecture_summary(architecture), json_file, model_tables(architecture))
    return 0


def models_check(file: OwnFile, json_file: JsonOption = None) -> int:
    """Check your own config.json, GGUF file or model description: parameters, KV cache and state to compare."""
    from simulator.cli.catalogue_tables import model_check_tables
    from simulator.llm import architecture_summary, load_architecture

    summary = architecture_summary(load_architecture(_existing(file, "model", folders=True)))
    emit(summary, json_file, model_check_tables(str(file), summary))
    return 0


def workloads_list(json_file: JsonOption = None) -> int:
    """List the sample traces and the formats that can be read."""
    from simulator.cli.catalogue_tables import workloads_tables
    from traces import FORMATS, sample, sample_names

    fields = ("name", "title", "origin", "licence")
    samples = [{field: getattr(sample(name), field) for field in fields} for name in sample_names()]
    formats = list(FORMATS)
    emit({"samples": samples, "formats": formats}, json_file, workloads_tables(samples, formats))
    return 0


def workloads_show(
    name: Name,
    format: TraceFormat = "auto",
    columns: MapOption = None,
    on_error: OnError = "stop",
    json_file: JsonOption = None,
) -> int:
    """Show the statistics of a trace or of your own log: rates, burstiness, token counts, prefix sharing."""
    from simulator.cli.catalogue_tables import workload_tables
    from traces import describe_requests, iter_requests

    statistics = describe_requests(iter_requests(name, format, on_error=on_error, columns=mapping_of(columns)))
    emit(statistics.as_dict(), json_file, workload_tables(statistics))
    return 0


def workloads_check(
    file: OwnFile, format: TraceFormat = "auto", columns: MapOption = None, on_error: OnError = "stop"
) -> int:
    """Check that your own trace can be read, row by row."""
    from traces import describe_requests, iter_requests

    if file.exists():
        _existing(file, "trace", folders=True)
    statistics = describe_requests(iter_requests(file, format, on_error=on_error, columns=mapping_of(columns)))
    skipped = "".join(f", {count} skipped ({reason})" for reason, count in statistics.skipped.items())
    print(f"{file}: {statistics.requests:,} requests in format {statistics.format}{skipped}")
    return 0


def workloads_fit(
    name: Name,
    format: TraceFormat = "auto",
    columns: MapOption = None,
    on_error: OnError = "stop",
    json_file: JsonOption = None,
) -> int:
    """Turn a trace into the workload section of a scenario: arrival process and length distributions."""
    import yaml

    from traces import fit_lengths, read_requests

    requests = read_requests(name, format, on_error=on_error, columns=mapping_of(columns))
    section = {"workload": fit_lengths(requests).as_scenario()}
    emit(section, json_file, yaml.safe_dump(section, sort_keys=False, default_flow_style=None, width=100).rstrip())
    return 0


def _existing(file: Path, kind: str, folders: bool = False) -> Path:
    """Return ``file`` if it exists and is no scenario. A catalogue name in place of a file is thus refused."""
    from simulator.running.scenario import read_mapping

    if not file.exists():
        raise ForerunError(f"{file}: no such file")
    if file.is_dir() and not folders:
        raise ForerunError(f"{file}: is a folder, not a file")
    if file.suffix.lower() in (".yaml", ".yml", ".json"):
        fields = set()
        with suppress(ForerunError):
            fields = set(read_mapping(file))
        if {"model", "hardware"} <= fields:
            raise ForerunError(
                f"{file}: a scenario (it has model and hardware), not a {kind}; forerun run {file} reads it"
            )
    return file
