"""Engine logs -> level, decay, goodness of fit, and the acceptance block for a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.errors import ForerunError
from simulator.speculation.engine_logs import AcceptanceLog, lengths_by_tokens, read_acceptance
from simulator.speculation.level_decay import AcceptanceFit, conditional_rates, fit_lengths, fit_survival

Document = dict[str, Any]

PREDICTED = 8
"""Draft tokens up to which acceptance lengths are predicted."""


def fit_acceptance(files: Sequence[str | Path]) -> Document:
    """Everything ``forerun workloads fit-acceptance`` says, as plain data.

    One file is fitted by its rates per position where it has them, else by its acceptance length alone, which shows a
    level and no decay. Several files, one for each number of draft tokens, are fitted together by acceptance length.

    Returns:
        ``logs``: what each file says; ``fit``: level, decay and goodness; ``acceptance``: the measured block for a
        scenario of the same number of draft tokens; ``acceptance_by_decay``: the block for any number;
        ``predicted_lengths``: acceptance length for K = 1, 2, ... What the files do not show is None.

    Raises:
        ForerunError: a file that cannot be read, or that does not say enough.
    """
    if not files:
        raise ForerunError("give the file of an engine: a log, its Prometheus counters or its benchmark JSON")
    logs = [read_acceptance(file) for file in files]
    fit = _fit(logs)
    identified = fit is not None and fit.decay_identified
    return {
        "logs": [_log(log) for log in logs],
        "fit": None if fit is None else _goodness(fit),
        "acceptance": _measured_block(logs[0]) if len(logs) == 1 else None,
        "acceptance_by_decay": {"alpha": round(fit.model.level, 4), "decay": round(fit.model.decay, 4)}
        if fit is not None and identified
        else None,
        "predicted_lengths": [
            {"num_speculative_tokens": k, "acceptance_length": fit.model.acceptance_length(k)}
            for k in range(1, PREDICTED + 1)
        ]
        if fit is not None and identified
        else None,
    }


def _fit(logs: Sequence[AcceptanceLog]) -> AcceptanceFit | None:
    if len(logs) > 1:
        return fit_lengths(lengths_by_tokens(logs))
    log = logs[0]
    if log.per_position is not None:
        return fit_survival(log.per_position, log.num_drafts)
    if log.num_speculative_tokens is not None:
        return fit_lengths({log.num_speculative_tokens: log.acceptance_length})
    return None


def _log(log: AcceptanceLog) -> Document:
    document: Document = asdict(log)
    if log.per_position is not None:
        document["per_position"] = list(log.per_position)
        document["conditional"] = conditional_rates(log.per_position)
    else:
        document["conditional"] = None
    return document


def _goodness(fit: AcceptanceFit) -> Document:
    return {
        "level": fit.model.level,
        "decay": fit.model.decay if fit.decay_identified else None,
        "level_error": fit.level_error,
        "decay_error": fit.decay_error,
        "quantity": fit.quantity,
        "at": list(fit.at),
        "observed": list(fit.observed),
        "predicted": list(fit.predicted),
        "length_error_percent": 100.0 * fit.length_error,
        "rate_error": fit.rate_error,
        "deviance": fit.deviance,
        "degrees": fit.degrees,
    }


def _measured_block(log: AcceptanceLog) -> Document:
    if log.per_position is not None:
        return {"per_position": [round(rate, 4) for rate in log.per_position]}
    return {"acceptance_length": round(log.acceptance_length, 4)}
