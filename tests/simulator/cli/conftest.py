"""A scenario small enough to run in every test."""

from pathlib import Path

import pytest

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


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(SCENARIO)
    return file
