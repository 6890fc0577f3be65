"""``--emit`` and ``--thresholds``: what plan and tune print for others to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.output import Progress, refuse_unused, set_options, show

if TYPE_CHECKING:
    from simulator.running.scenario import Scenario
    from simulator.studies.study_file import StudyFile

EXIT_NOTHING_HOLDS = 1
PLAN_REPLICATIONS = 5
ARTEFACTS_OF_TUNE = ("vllm-schedule", "trtllm", "dynamo", "llm-d", "keda", "hpa", "guidellm", "aiperf", "vllm-bench")
"""What ``tune --emit`` writes beside the flags by batch of an engine."""
EmitOption = Annotated[
    str | None,
    typer.Option(
        "--emit",
        metavar="NAME",
        help="Print the winner as vllm, sglang, trtllm, dynamo, llm-d, keda or hpa, or as the benchmark command that "
        "would confirm it: guidellm, aiperf, vllm-bench.",
    ),
]


UNUSED_BY_THRESHOLDS = (
    "rate", "max_rate", "trace", "columns", "growth", "slo", "vary", "requests", "finalists", "max_replicas", "spare",
    "no_headroom", "power_budget", "carbon", "no_interval", "confidence",
)  # fmt: skip
"""Parameters of ``forerun plan`` that have no effect with ``--thresholds``."""


def plan_thresholds(
    context: typer.Context,
    study: StudyFile,
    target: list[str] | None,
    seed: int,
    replications: int,
    jobs: int | None,
    json_file: str | None,
    emit_name: str | None,
    out: Path | None,
) -> int:
    """``forerun plan --thresholds``: one run of each threshold and fixed number of replicas, or ``--replications``."""
    from simulator.studies.plan.thresholds import thresholds

    refuse_unused(context, "with --thresholds", *UNUSED_BY_THRESHOLDS)
    shown = "no_progress" not in set_options(context)
    values = [positive(word, "target") for text in target or () for word in text.split(",")]
    runs = replications if "replications" in set_options(context) else 1
    with Progress(shown, "planning") as progress:
        result = thresholds(
            study, targets=values or None, seed=seed, replications=runs, jobs=jobs, progress=progress.update
        )
    return show_plan(result, emit_name, json_file, out)


def show_plan(result: Any, emit_name: str | None, json_file: str | None, out: Path | None) -> int:
    """Print a plan, and its winner as ``--emit`` asks; the document holds that text as ``artefact``.

    Returns:
        The exit code: 1 where no deployment meets the SLO.
    """
    if emit_name is not None and result.best is not None:
        result.document["artefact"] = artefact_of(emit_name, result.scenario)
    show(result, json_file, out, result.document.get("artefact"))
    return EXIT_NOTHING_HOLDS if result.best is None else 0


def positive(word: str, option: str) -> float:
    """Parse a positive number in a command-line list.

    Raises:
        ArgumentError: something else.
    """
    from forerun.errors import ArgumentError

    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise ArgumentError(option, f"'{word}' is no positive number")
    return value


def checked_artefact(name: str | None) -> None:
    """Check the name of an artefact before a long computation starts.

    Raises:
        ArgumentError: the name is unknown; the message lists the known ones.
    """
    from forerun.errors import ArgumentError, did_you_mean
    from simulator.studies.artefacts import ARTEFACTS

    if name is not None and name not in ARTEFACTS:
        known = ", ".join(ARTEFACTS)
        raise ArgumentError("emit", f"{name}: no such artefact{did_you_mean(name, ARTEFACTS)} ({known})")


def artefact_of(name: str, scenario: Scenario) -> str:
    """Text that ``--emit`` prints."""
    from simulator.studies.artefacts import artefact

    return artefact(name, scenario)


def tuned_artefact(name: str, scenario: Scenario, document: Mapping[str, Any]) -> str:
    """An artefact with the results of a tuning: all of them by batch and context, or the middle one of the batches at
    which drafting pays."""
    from simulator.studies.artefacts import artefact, vllm_schedule

    if name == "vllm-schedule":
        return vllm_schedule(scenario, document["table"])
    paying = [cell["num_speculative_tokens"] for cell in document["at_mean_context"] if cell["num_speculative_tokens"]]
    if not paying:
        return artefact(name, scenario.with_values({"speculation": None}))
    return artefact(name, scenario.with_values({"speculation.num_speculative_tokens": paying[len(paying) // 2]}))
