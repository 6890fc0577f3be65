"""``forerun workloads fit-acceptance`` and ``curves``: acceptance of draft tokens, from engine logs or published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Typer

from forerun.document import Json
from simulator.cli.output import JsonOption, emit

Logs = Annotated[
    list[Path],
    Argument(
        metavar="FILE...",
        help="Log of vLLM, SGLang, llama-server or TensorRT-LLM, Prometheus counters, benchmark JSON; several: one for "
        "each number of draft tokens.",
        show_default=False,
    ),
]


def register(workloads: Typer) -> None:
    """Add the commands to the group ``workloads``."""
    fit_example = "Example: forerun workloads fit-acceptance vllm.log --json acceptance.json"
    workloads.command("fit-acceptance", epilog=fit_example)(workloads_fit_acceptance)
    workloads.command("curves", epilog="Example: forerun workloads curves --json -")(workloads_curves)


def workloads_fit_acceptance(files: Logs, json_file: JsonOption = None) -> int:
    """Fit acceptance of draft tokens from an engine's own report: level, decay, and the block for a scenario."""
    from simulator.speculation.engine_logs import fit_acceptance

    document = fit_acceptance(files)
    emit(document, json_file, fit_tables(document))
    return 0


def workloads_curves(json_file: JsonOption = None) -> int:
    """List the published acceptance curves that a scenario can name."""
    from forerun.tables import ABSENT, Table, percent
    from simulator.speculation import curve_names, load_curve

    curves = [curve_row(load_curve(name)) for name in curve_names()]
    lines = [
        [
            row["name"],
            row["task"],
            ABSENT if row["temperature"] is None else f"{row['temperature']:g}",
            str(row["positions"] or "any"),
            percent(row["level"]),
            f"{row['decay']:.3f}",
        ]
        for row in curves
    ]
    columns = ("name", "task", "temperature", "K up to", "level", "decay")
    emit(curves, json_file, Table("Acceptance curves", columns, lines))
    return 0


def curve_row(curve: Any) -> Json:
    """One curve of the catalogue as plain data."""
    from simulator.speculation.curves import UNLIMITED

    fit = curve.fit
    fields = ("name", "method", "target", "drafter", "task", "temperature", "source", "note")
    return {field: getattr(curve, field) for field in fields} | {
        "positions": None if curve.positions == UNLIMITED else curve.positions,
        "level": fit.model.level,
        "decay": fit.model.decay,
    }


def fit_tables(document: Json) -> list[Any]:
    """Measured acceptance, its fit, and the blocks to paste."""
    from rich.text import Text

    from forerun.tables import Table, number, pairs, percent

    parts: list[Any] = []
    for log in document["logs"]:
        rows = [
            ("Format", f"{log['format']}, {log['records']:,} records"),
            ("Draft tokens per step", number(log["num_speculative_tokens"])),
            ("Drafts", number(_whole(log["num_drafts"]))),
            ("Acceptance length", f"{log['acceptance_length']:.3f} (bonus token included)"),
        ]
        parts += [Text(log["source"], style="bold"), pairs("", rows)]
        if log["per_position"] is not None:
            conditional = log["conditional"] + [None] * len(log["per_position"])
            shares = [
                [str(position), percent(share), percent(rate)]
                for position, (share, rate) in enumerate(zip(log["per_position"], conditional, strict=False), start=1)
            ]
            parts.append(Table("By position", ("position", "share of drafts", "given the one before"), shares))
    fit = document["fit"]
    if fit is not None:
        parts.append(pairs("Fit: level x decay per doubling of the position", _fit_rows(fit)))
    for key, label in (("acceptance", "As measured"), ("acceptance_by_decay", "For any number of draft tokens")):
        if document[key] is not None:
            parts.append(Text(f"{label}:\n  acceptance: {_flow(document[key])}"))
    if document["predicted_lengths"] is not None:
        lengths = "  ".join(
            f"{row['num_speculative_tokens']}: {row['acceptance_length']:.2f}"
            + (f" ({row['low']:.2f} to {row['high']:.2f})" if "low" in row else "")
            for row in document["predicted_lengths"]
        )
        parts.append(Text(f"Acceptance length by number of draft tokens:\n  {lengths}"))
        observed = max(fit["at"])
        parts.append(Text(f"Beyond {observed} draft tokens nothing was observed: there the fitted decay is a guess."))
    else:
        parts.append(Text("One number shows no decay with depth: give rates per position, or runs with other depths."))
    return parts


def _fit_rows(fit: Json) -> list[tuple[str, str]]:
    def with_error(value: float | None, error: float | None) -> str:
        shown = "-" if value is None else f"{value:.4f}"
        return shown if error is None else f"{shown} +- {error:.4f}"

    rows = [
        ("Level", with_error(fit["level"], fit["level_error"])),
        ("Decay", with_error(fit["decay"], fit["decay_error"])),
        ("Error of the acceptance length", f"{fit['length_error_percent']:.2f} %"),
    ]
    if fit["rate_error"] is not None:
        rows.append(("Largest error of a rate", f"{100 * fit['rate_error']:.1f} points"))
    if fit["deviance"] is not None and fit["degrees"]:
        rows.append(("Deviance", f"{fit['deviance']:.1f} at {fit['degrees']} degrees of freedom"))
    return rows


def _flow(block: Json) -> str:
    import yaml

    return str(yaml.safe_dump(block, default_flow_style=True, sort_keys=False, width=10_000)).strip()


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
