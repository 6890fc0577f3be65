"""``forerun calibrate``: a chip's kernel parameters from measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import JsonOption, Progress, checked_outputs, emit
from simulator.cli.replays import DeviceOption, FilesArgument, FormatOption


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "calibrate",
        epilog="Example: forerun calibrate measured.csv --chip rtx-4090 --output my-4090.yaml",
    )(calibrate)


def calibrate(
    files: FilesArgument,
    chip: Annotated[str, typer.Option(help="Catalogue name or profile file: the chip's limits.", show_default=False)],
    output: Annotated[Path, typer.Option(metavar="PROFILE.yaml", help="The profile to write.", show_default=False)],
    library: Annotated[str, typer.Option(help="Name the fit is stored under.")] = "generic",
    format: FormatOption = "auto",
    split: Annotated[
        str, typer.Option(metavar="train=SHARE,seed=N", help="Shapes the fit may see; errors are of the others.")
    ] = "train=0.7,seed=1",
    device: DeviceOption = None,
    residual: Annotated[bool, typer.Option(help="Also learn the correction on top of the physics.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    json_file: JsonOption = None,
) -> int:
    """Fit kernel efficiencies to measured kernels and write a profile that --chip and hardware.chip accept."""
    from hwprofiles import load_chip
    from simulator.cli.replay_tables import calibration_tables
    from simulator.replay import parse_split
    from simulator.replay.calibrate import calibrate as fit_chip
    from simulator.replay.calibrate import calibration_document, write_profile
    from traces.kernels import concatenate, read_kernels

    with checked_outputs(None, json_file), Progress(json_file != "-", "fitting") as bar:
        limits = load_chip(chip)
        table = concatenate([read_kernels(file, format, device=device) for file in files])
        found = fit_chip(table, limits, library, parse_split(split), residual, seed, progress=bar.update)
        written = write_profile(found, output)
    document = calibration_document(found) | {"files": [str(path) for path in written]}
    emit(document, json_file, calibration_tables(document))
    return 0
