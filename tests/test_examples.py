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


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("capacity_plan_azure.py", ("--requests", 150, "--growth", 2), "is the cheapest layout that holds p99 TTFT"),
        ("agents_mooncake.py", ("--requests", 40), "On this traffic the prefix cache"),
        ("equal_cost_chips.py", ("--requests", 60, "--usd-per-hour", 2.7), "For $2.70 an hour"),
        ("eagle3_on_or_off.py", ("--requests", 60), "EAGLE-3 pays"),
        ("mtp_deepseek_v3.py", ("--requests", 1), "Best MTP depth of DeepSeek-V3"),
        ("reasoning_outputs.py", ("--requests", 8, "--longest", 9000), "serves"),
        ("laptop_inference.py", ("--requests", 1), "On an M3 Max these write faster"),
    ],
)
def test_studies(script, arguments, words, project_root):
    assert words in output_of(script, *arguments, root=project_root).splitlines()[-1]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_scenarios(name):
    result = simulate(load_scenario(EXAMPLES / name, ["workload.num_requests=40"]))
    assert len(result.requests) == 40
    assert not result.requests.failed.any()
