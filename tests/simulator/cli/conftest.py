"""The command called in-process, and a scenario small enough to run in every test."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.cli import main

SCENARIO = """\
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload:
  arrivals: {process: poisson, request_rate: 20.0}
  input_tokens: {distribution: lognormal, mean: 200, cv: 0.5, max: 1000}
  output_tokens: 16
  num_requests: 30
slo: {p99_ttft_ms: 500}
prices: {usd_per_chip_hour: 2.5}
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The only line on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def forerun(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*argv: object) -> Outcome:
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(SCENARIO)
    return file
