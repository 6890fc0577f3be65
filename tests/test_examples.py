"""The examples run as they stand, at reduced size, and say what they claim."""

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.run import simulate
from simulator.scenario import load_scenario

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def output_of(script, *arguments, root):
    command = [sys.executable, str(root / "examples" / script), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout


def test_speculation_crossover(project_root):
    text = output_of("speculation_crossover.py", "--requests", 2, root=project_root)
    assert "The draft model pays below about" in text


def test_lossless_sampling(project_root):
    assert output_of("lossless_sampling.py", root=project_root)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_scenarios(name):
    result = simulate(load_scenario(EXAMPLES / name, ["workload.num_requests=40"]))
    assert len(result.requests) == 40
    assert not result.requests.failed.any()
