"""``forerun selfcheck``: a real engine on this machine, predicted from this machine's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option, Typer

from simulator.cli.output import JsonOption, Progress, checked_outputs, emit

LABELS = {
    "mean_tpot_ms": ("TPOT", " (ms)"),
    "mean_ttft_ms": ("TTFT", " (ms)"),
    "output_throughput": ("throughput", " (tok/s)"),
    "spec_decode_acceptance_length": ("acceptance length", ""),
}
METHODS = {"none": "no speculation", "draft-model": "draft model"}


def register(commands: Typer) -> None:
    """Add the command."""
    commands.command("selfcheck", epilog="Example: forerun selfcheck --out out/selfcheck --fail-above tpot=10")(
        selfcheck
    )


def selfcheck(
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "--output",
            metavar="DIR",
            help="Write the page and the JSON, keep the trace, the profile and the scenarios.",
        ),
    ] = None,
    threads: Annotated[
        int,
        Option(min=1, help="CPU threads; one is timed in processor seconds, which other work bends less."),
    ] = 1,
    dtype: Annotated[str | None, Option(help="bf16 or fp32; default: the faster one here.")] = None,
    fail_above: Annotated[
        list[str] | None,
        Option(metavar="FIGURE=PERCENT", help="Exit 1 above this error: tpot, ttft, throughput, acceptance."),
    ] = None,
    tiny: Annotated[
        bool,
        Option("--tiny", hidden=True, help="Seconds only: tries the machinery; its errors mean nothing."),
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed of weights, requests and sampling.")] = 0,
    json_file: JsonOption = None,
) -> int:
    """Measure this machine, predict a small real engine on it, run it and compare (1 to 2 minutes).

    Needs torch (the extra named measure) and one CPU core; no GPU.
    """
    from forerun.errors import ArgumentError
    from simulator.replay.measure.machine import load_torch, usable_cores
    from simulator.replay.measure.shapes import check_options

    load_torch()
    limits = _limits(fail_above or [])
    check_options("--dtype", [dtype or "bf16"], ("bf16", "fp32"))
    if threads > usable_cores():
        raise ArgumentError("threads", f"{threads} is more than the {usable_cores()} cores here")
    from simulator.running.metrics.files import scratch_folder
    from validation.selfcheck.check import Selfcheck
    from validation.selfcheck.sizes import FULL, TINY

    with checked_outputs(out, json_file), scratch_folder() as scratch:
        folder = out or scratch
        with Progress(json_file != "-", "measuring and running") as bar:

            def tell(done: int, total: int, doing: str) -> None:
                bar.label = doing
                bar.update(done, total)

            check = Selfcheck(TINY if tiny else FULL, folder, threads, seed, dtype, tell)
            document = check.run() | {"folder": None if out is None else str(out)}
        if out is not None:
            from validation.checks import write_check

            write_check(out, "selfcheck.json", document, page_of(document))
        emit(document, json_file, _tables(document))
    return 1 if _broken(document, limits) else 0


def page_of(document: dict[str, Any]) -> str:
    """The page of a check as text."""
    from validation.checks import check_html

    says = "This machine's own engine beside its prediction"
    return check_html("Selfcheck", says, _conclusion(document), _tables(document))


def _limits(texts: list[str]) -> dict[str, float]:
    """``--fail-above`` as figure -> percent."""
    from forerun.errors import ForerunError
    from simulator.replay.measure.shapes import check_options

    limits = {}
    for text in texts:
        name, _, value = text.partition("=")
        check_options("--fail-above", [name], tuple(FIGURES))
        try:
            limits[FIGURES[name]] = float(value)
        except ValueError:
            raise ForerunError(f"--fail-above {text}: write FIGURE=PERCENT, for example tpot=10") from None
    return limits


FIGURES = {
    "tpot": "mean_tpot_ms",
    "ttft": "mean_ttft_ms",
    "throughput": "output_throughput",
    "acceptance": "spec_decode_acceptance_length",
}


def _broken(document: dict[str, Any], limits: dict[str, float]) -> bool:
    return any(
        abs(figure["error_percent"]) > limits.get(name, float("inf"))
        for one in document["comparisons"]
        for name, figure in one["figures"].items()
    )


def _conclusion(document: dict[str, Any]) -> str:
    """Distance of the predictions from measurement, in one sentence."""
    parts = []
    for one in document["comparisons"]:
        errors = [f"{LABELS[name][0]} {figure['error_percent']:+.1f} %" for name, figure in one["figures"].items()]
        parts.append(f"{METHODS[one['speculation']]}: {', '.join(errors)}")
    drift = document["machine"]["drift_percent"]
    return f"Predicted over measured, {'; '.join(parts)}. Meanwhile the machine itself drifted by {drift:.0f} %."


def _tables(document: dict[str, Any]) -> list[Any]:
    """Predicted beside measured, and below it how far the machine itself can be trusted."""
    from forerun.tables import Table, pairs

    tables, standard_errors = [], None
    for one in document["comparisons"]:
        lines = []
        for name, figure in one["figures"].items():
            values = (f"{figure['predicted']:,.2f}", f"{figure['measured']:,.2f}", f"{figure['error_percent']:+.1f} %")
            lines.append(["".join(LABELS[name]), *values])
            standard_errors = figure.get("difference_in_standard_errors", standard_errors)
        title = f"Predicted and real, {METHODS[one['speculation']]}"
        tables.append(Table(title, ("", "predicted", "real", "error"), lines))
    machine, steps, fitted = document["machine"], document["batches"], document["calibration"]
    what = "processor time" if machine["clock"] == "cpu" else "wall time"
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    rows = [
        ("machine", f"{machine['device']}, {machine['dtype']}, {threads}, {what}"),
        ("its own drift", f"{machine['drift_percent']:.0f} % between repeats of one and the same step"),
        ("wall over clock", f"{machine['wall_over_clock']:.2f} (1: no other work took the core)"),
        ("same batches", f"{steps['equal']} of {steps['steps']} steps without speculation are as simulated"),
        ("host", f"{document['host']['step_s'] * 1e3:.2f} ms per step, measured in other runs"),
        (
            "kernels",
            f"fitted on {fitted['rows']} shapes; errors on the engine's own, which no fit saw: {_unseen(fitted)}",
        ),
    ]
    if standard_errors is not None:
        rows.append(
            ("acceptance", f"{standard_errors:.1f} standard errors between that of other runs and that counted")
        )
    if document["folder"] is not None:
        rows.append(("written", document["folder"]))
    return [*tables, pairs("What that rests on", rows)]


def _unseen(fitted: dict[str, Any]) -> str:
    return ", ".join(f"{one['family'].replace('_', ' ')} {one['held_out_mape']:.0f} %" for one in fitted["families"])
