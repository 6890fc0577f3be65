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
    from simulator.cli.kernel_query import kernel_document, read_shape
    from simulator.cli.tables import kernel_tables

    document = kernel_document(chip, library, op, read_shape(op, values or []))
    emit(document, json_file, kernel_tables(document))
    return 0
