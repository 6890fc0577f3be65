"""``forerun predict``, ``measure`` and ``calibrate``: single kernels predicted, timed, and fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option, Typer

from simulator.cli.output import JsonOption, Progress, ResidualOption, checked_outputs, emit, printed, refuse_unused
from simulator.cli.replays import DeviceOption, FilesArgument, FormatOption

if TYPE_CHECKING:
    from forerun.tables import Table
    from simulator.replay.measure import Measurement


def register(commands: Typer) -> None:
    examples: dict[Callable[..., int], str] = {
        predict: "--chip h100-sxm gemm m=16 n=4096 k=4096 dtype=bf16",
        measure: "--quick --output mine.csv --profile this-machine.yaml",
        calibrate: "measured.csv --chip rtx-4090 --output my-4090.yaml",
    }
    for command, example in examples.items():
        commands.command(epilog=f"Example: forerun {command.__name__} {example}")(command)


def predict(
    op: Annotated[
        str, Argument(help="gemm, attention_prefill, attention_decode, moe or a collective.", show_default=False)
    ],
    chip: Annotated[str, Option(help="Catalogue name or profile file.", show_default=False)],
    values: Annotated[
        list[str] | None,
        Argument(metavar="KEY=VALUE...", help="The kernel's shape and dtype.", show_default=False),
    ] = None,
    library: Annotated[str, Option(help="Kernel library: generic, vllm, sglang, trtllm ...")] = "generic",
    residual: ResidualOption = None,
    json_file: JsonOption = None,
) -> int:
    """Predict the time of one kernel, what limits it, and how sure the number is."""
    from hwprofiles.library import CORRECTED
    from simulator.timing.prediction import predict as predicted

    result = predicted(chip, op, key_values(op, values or []), library, CORRECTED if residual is None else residual)
    emit(result.document, json_file, printed(result.title, result.facts, result.tables()))
    return 0


def key_values(op: str, texts: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping."""
    from forerun.errors import ForerunError

    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise ForerunError(f"{op}: '{text}' is not KEY=VALUE, e.g. m=16")
        if key in pairs:
            raise ForerunError(f"{op}: {key} is given twice")
        pairs[key] = value
    return pairs


EXIT_INTERRUPTED = 130


def measure(
    line: Context,
    output: Annotated[
        Path,
        Option(
            "--output", "--out", metavar="FILE", help="Kernel trace to write: .csv or .parquet.", show_default=False
        ),
    ],
    device: Annotated[str, Option(help="cpu, cuda, rocm or mps (Metal).")] = "cpu",
    quick: Annotated[bool, Option("--quick", help="Fewer and smaller shapes: about a minute.")] = False,
    families: Annotated[
        str, Option(metavar="NAME,...", help="What to time.")
    ] = "gemm,attention_prefill,attention_decode,attention_verify,norm,memcpy",
    dtype: Annotated[
        str | None, Option(metavar="NAME,...", help="bf16, fp16, fp32; default: bf16,fp32, on GPUs bf16.")
    ] = None,
    profile: Annotated[
        Path | None,
        Option(metavar="FILE.yaml", help="Also measure this CPU's limits and write them as a chip for --chip."),
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads; default: all cores. Leave some free on a busy machine.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the operands and of the order.")] = 0,
    json_file: JsonOption = None,
) -> int:
    """Time real kernels with torch (extra: measure) and write a trace for replay kernels and calibrate."""
    from forerun.errors import ForerunError
    from simulator.replay.measure import kernel_shapes, machine_profile, measurement_document
    from simulator.replay.measure import measure as time_kernels
    from simulator.replay.measure.machine import check_device, load_torch
    from simulator.running.metrics.files import writable_file, write_atomically, write_text_atomically

    if output.suffix not in (".csv", ".parquet"):
        raise ForerunError(f"{output}: a kernel trace is a .csv or .parquet file")
    if profile is not None and (profile.suffix not in (".yaml", ".yml") or device != "cpu"):
        raise ForerunError(f"--profile {profile}: needs a .yaml file and --device cpu (for GPUs: forerun chips list)")
    if device != "cpu":
        refuse_unused(line, f"with --device {device}", "threads")
    check_device(load_torch(), device)
    formats = (dtype or ("bf16,fp32" if device == "cpu" else "bf16")).split(",")
    shapes = kernel_shapes(device, quick, families.split(","), formats, seed)
    with checked_outputs(None, json_file), writable_file(output), writable_file(profile or output):
        with Progress(json_file != "-", "measuring") as bar:
            measurement = time_kernels(shapes, device, quick, seed, profile is not None, threads, progress=bar.update)
        written = []
        if measurement.rows:
            write_atomically(output, lambda staged: _write(measurement, staged, output.suffix == ".parquet"))
            written.append(str(output))
        if profile is not None and measurement.limits is not None:
            write_text_atomically(profile, machine_profile(measurement.limits, measurement.provenance["method"]))
            written.append(str(profile))
        document = measurement_document(measurement) | {"files": written}
        emit(document, json_file, _table(document))
    return 0 if measurement.complete else EXIT_INTERRUPTED


def _write(measurement: Measurement, path: Path, parquet: bool) -> None:
    from traces.kernels import write_kernels

    write_kernels(measurement.table(), path, parquet)


def _table(document: dict[str, Any]) -> Table:
    """Printed table: kernels timed per family, the files, and the measured limits of the machine."""
    from forerun.tables import duration, pairs

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
    return pairs(f"{about['device_name']}, torch {about['torch']}, threads: {about['threads']}", rows)


def calibrate(
    files: FilesArgument,
    chip: Annotated[str, Option(help="Catalogue name or profile file: the chip's limits.", show_default=False)],
    output: Annotated[
        Path,
        Option("--output", "--out", metavar="PROFILE.yaml", help="The profile to write.", show_default=False),
    ],
    library: Annotated[str, Option(help="Name the fit is stored under.")] = "generic",
    format: FormatOption = "auto",
    split: Annotated[
        str, Option(metavar="train=SHARE,seed=N", help="Shapes the fit may see; errors are of the others.")
    ] = "train=0.7,seed=1",
    device: DeviceOption = None,
    residual: Annotated[bool, Option(help="Also learn the correction on top of the physics.")] = True,
    seed: Annotated[int, Option(min=0, help="Seed of every random choice.")] = 0,
    json_file: JsonOption = None,
) -> int:
    """Fit a chip profile to measured kernels; --chip and hardware.chip accept the result."""
    from hwprofiles import load_chip
    from simulator.replay import parse_split
    from simulator.replay.calibrate import calibrate as fit_chip
    from simulator.replay.calibrate import write_profile
    from traces.kernels import concatenate, read_kernels

    with checked_outputs(None, json_file), Progress(json_file != "-", "fitting") as bar:
        limits = load_chip(chip)
        table = concatenate([read_kernels(file, format, device=device) for file in files])
        fitted = fit_chip(table, limits, library, parse_split(split), residual, seed, progress=bar.update)
        written = write_profile(fitted, output)
    document = fitted.document | {"files": [str(path) for path in written]}
    facts = f"written: {', '.join(document['files'])}"
    emit(document, json_file, printed(fitted.title, facts, fitted.tables(), notes=fitted.remarks))
    return 0
