"""Result of a replay or a calibration: a ``Result`` whose tables, summary and rows derive from its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.result import Result, Summary
from simulator.replay.replay_tables import ERRORS, replay_heading


class Replay(Result):
    """Predictions against measurements. A subclass defines ``document`` and ``tables()``."""

    kind = "replay"
    report = "dashboards.replay_report"

    @property
    def title(self) -> str:
        """Title that names the replayed measurements."""
        return replay_heading(self.document)[0]

    @property
    def facts(self) -> str:
        """Number of replayed measurements, and evidence basis of the predictions."""
        return replay_heading(self.document)[1]

    @property
    def summary(self) -> Summary:
        """Overall errors, in percent, and the number of rows behind them."""
        overall = self.document["overall"]
        return Summary({"rows": overall["n"], **{key: overall[key] for key in (*ERRORS, "coverage90")}})

    def records(self) -> list[dict[str, Any]]:
        """A row per group with its errors in percent."""
        return [dict(group) for group in self.document["groups"]]

    @property
    def remarks(self) -> Sequence[str]:
        return ()
