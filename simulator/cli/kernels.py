"""``forerun predict``: one kernel on one chip."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.output import JsonOption, emit


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("predict", epilog="Example: forerun predict --chip h100-sxm gemm m=16 n=4096 k=4096 dtype=bf16")(
        predict
    )


def predict(
    op: Annotated[
        str,
        typer.Argument(help="gemm, attention_prefill, attention_decode, moe or a collective.", show_default=False),
    ],
    chip: Annotated[str, typer.Option(help="Catalogue name or profile file.", show_default=False)],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="The kernel's shape and dtype.", show_default=False),
    ] = None,
    library: Annotated[str, typer.Option(help="Kernel library: generic, vllm, sglang, trtllm ...")] = "generic",
    json_file: JsonOption = None,
) -> int:
    """Predict the time of one kernel: seconds, what bounds it, FLOPs, bytes, and what the number rests on."""
    from hwprofiles import predict as predict_kernel
    from simulator.cli.tables import kernel_tables

    shape = key_values(op, values or [])
    document = predict_kernel(chip, op, shape, library)
    seconds = document["seconds"]
    for rate, work in (("flops_per_s", "flops"), ("bytes_per_s", "bytes")):
        document[rate] = document[work] / seconds if seconds else None
    document["shape"] = shape
    emit(document, json_file, kernel_tables(document))
    return 0


def key_values(op: str, texts: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping.

    Raises:
        ForerunError: a text without ``=``, or a key given twice.
    """
    from simulator.errors import ForerunError

    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise ForerunError(f"{op}: '{text}' is not KEY=VALUE, e.g. m=16")
        if key in found:
            raise ForerunError(f"{op}: {key} is given twice")
        found[key] = value
    return found
