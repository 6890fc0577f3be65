"""``forerun measure``: time real kernels on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.output import JsonOption, Progress, checked_outputs, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simulator.measure import Measurement

EXIT_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "measure",
        epilog="Example: forerun measure --quick --output mine.csv --profile this-machine.yaml",
    )(measure)


def measure(
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Kernel trace to write: .csv or .parquet.", show_default=False)
    ],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller shapes: about a minute.")] = False,
    families: Annotated[
        str, typer.Option(metavar="NAME,...", help="What to time.")
    ] = "gemm,attention_prefill,attention_decode,attention_verify,norm,memcpy",
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="bf16, fp16, fp32; default: bf16,fp32, on CUDA bf16.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Also measure this CPU's limits and write them as a chip for --chip."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; default: all cores. Leave some free on a busy machine.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the operands and of the order.")] = 0,
    json_file: JsonOption = None,
) -> int:
    """Time real kernels with torch (extra forerun[measure]) into a trace for replay kernels and calibrate."""
    from simulator.errors import ForerunError
    from simulator.measure import kernel_shapes, measurement_document, profile_text
    from simulator.measure import measure as time_kernels
    from simulator.measure.machine import check_device, load_torch
    from simulator.metrics.files import writable_file, write_atomically, write_text_atomically

    if output.suffix not in (".csv", ".parquet"):
        raise ForerunError(f"{output}: a kernel trace is a .csv or .parquet file")
    if profile is not None and (profile.suffix not in (".yaml", ".yml") or device != "cpu"):
        raise ForerunError(
            f"--profile {profile}: a .yaml file, and for --device cpu only (forerun chips list has GPUs)"
        )
    check_device(load_torch(), device)
    formats = (dtype or ("bf16" if device == "cuda" else "bf16,fp32")).split(",")
    shapes = kernel_shapes(device, quick, families.split(","), formats, seed)
    with checked_outputs(None, json_file), writable_file(output), writable_file(profile or output):
        with Progress(json_file != "-", "measuring") as bar:
            found = time_kernels(shapes, device, quick, seed, profile is not None, threads, progress=bar.update)
        written = []
        if found.rows:
            write_atomically(output, lambda staged: _write(found, staged, output.suffix == ".parquet"))
            written.append(str(output))
        if profile is not None and found.limits is not None:
            write_text_atomically(profile, profile_text(found.limits, found.provenance["method"]))
            written.append(str(profile))
        document = measurement_document(found) | {"files": written}
        emit(document, json_file, _table(document))
    return 0 if found.complete else EXIT_INTERRUPTED


def _write(found: Measurement, path: Path, parquet: bool) -> None:
    from traces.kernels import write_kernels

    write_kernels(found.table(), path, parquet)


def _table(document: dict[str, Any]) -> RenderableType:
    """What is printed: kernels timed per family, the files, and what the machine was seen to reach."""
    from simulator.cli.tables import duration, pairs_table

    about = document["provenance"]
    rows = [(family, f"{count:,} kernels") for family, count in document["families"].items()]
    rows += [(reason, f"{count:,} left out") for reason, count in document["skipped"].items()]
    limits = document["limits"]
    if limits is not None:
        rows += [(f"{name} peak", f"{flops / 1e9:,.0f} GFLOP/s") for name, flops in limits["flops_per_s"].items()]
        rows.append(("memory bandwidth", f"{limits['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s"))
        rows.append(("cache bandwidth", f"{limits['cache_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s"))
        rows.append(("smallest torch call", duration(limits["launch_s"])))
    rows += [("written", name) for name in document["files"]]
    return pairs_table(f"{about['device_name']}, torch {about['torch']}, threads: {about['threads']}", rows)
