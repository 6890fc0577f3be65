"""Every option of every command beside every mode of it: it has an effect, or it is refused.

An option that asks for less (``--no-progress``, ``--no-steps``) or bounds what may be used (``--jobs``) is kept to
where there is nothing to leave out, so it is never refused.
"""

import json

import pytest
import typer.main
from scenario_parts import drafts
from tiny_scenario import tiny_data

from simulator.cli import main
from simulator.cli.app import application

SCALER = {"rule": "hpa", "metric": "outstanding", "target": 4, "max_replicas": 2, "start_up_s": 1.0}
SPECULATION = drafts("mtp", 2)
ALWAYS = {"scenario", "scenarios", "set_values", "json_file", "out", "no_progress", "no_steps", "no_interval",
          "no_sensitivity", "no_headroom", "no_what_ifs"}  # fmt: skip

MODES = {
    "plan --thresholds": {
        "rate": "5", "max_rate": None, "trace": "azure-conv-2023", "columns": "input=a", "growth": "2",
        "slo": "p99_ttft_ms=1", "vary": "hardware.tensor_parallel=1,2", "requests": "50", "finalists": "2",
        "max_replicas": "3", "spare": "1", "no_headroom": None, "power_budget_w": "1e4", "carbon": "300",
        "no_interval": None, "confidence": "0.8",
    },
    "plan": {"targets": "3", "columns": "input=a", "power_budget_w": "1e4"},
    "plan --max-rate": {
        "targets": "3", "columns": "input=a", "rate": "5", "growth": "2", "finalists": "2", "max_replicas": "3",
    },
    "plan --vary hardware.replicas=1,2": {
        "targets": "3", "columns": "input=a", "power_budget_w": "1e4", "max_replicas": "3",
    },
    "tune": {"logs": "a.log", "measured": "43", "p_min": "0.5"},
    "tune --emit llama.cpp --measured 43": {"seed": "1"},
    "sweep --vary engine.max_num_seqs=1,2 --cluster tcp://127.0.0.1:1": {"samples": "3", "jobs": "1"},
    "sweep --vary engine.max_num_seqs=1,2": {"samples": "3"},
    "compare OTHER": {"vary": "engine.max_num_seqs=1,2"},
    "dash": {"expose": None},
    "measure --device cuda --output a.csv": {"threads": "1", "profile": "a.yaml"},
    "validate": {"margin": "2", "quick": None, "fresh": None, "jobs": "1"},
    "validate BEFORE kernels": {"margin": "2", "quick": None, "fresh": None, "jobs": "1", "check": "errors.json"},
    "workloads show azure-conv-2023 --format azure-llm": {"columns": "input=ContextTokens"},
    "workloads fit azure-conv-2023 --format azure-llm": {"columns": "input=ContextTokens"},
}  # fmt: skip
"""Command lines, with the options that have no effect in them and a value for each."""
CASES = [(mode, option, value) for mode, unused in MODES.items() for option, value in unused.items()]


def commands():
    """Commands by their words, with their parameters by name."""
    params = {}

    def walk(command, words):
        params[" ".join(words)] = {param.name: param for param in command.params}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, [*words, name])

    walk(typer.main.get_command(application()), [])
    return params


COMMANDS = commands()


def command_of(mode):
    words = mode.split()
    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tiny_data() | {"autoscaler": SCALER, "slo": {"p99_ttft_ms": 500}}
    for name in ("tiny.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(data))
    (tmp_path / "spec.json").write_text(json.dumps(tiny_data() | {"speculation": SPECULATION}))
    (tmp_path / "result.json").write_text("{}")


@pytest.mark.parametrize(("mode", "option", "value"), CASES, ids=[f"{mode} + {option}" for mode, option, _ in CASES])
def test_an_option_without_effect_is_refused(mode, option, value, files, capsys):
    command, flag = command_of(mode), COMMANDS[command_of(mode)][option].opts[0]
    given = [flag] if value is None else [flag, value]
    words = mode.split()
    if "BEFORE" in words:
        words[words.index("BEFORE") : words.index("BEFORE") + 1] = given
    else:
        words += ["spec.json"] if command == "tune" or "--scenario" in words else []
        words += ["tiny.json"] if command in ("plan", "sweep", "compare") else []
        words = ["other.json" if word == "OTHER" else word for word in words] + given
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
    assert any(word in error for word in (flag, flag.strip("-"), option)), error


def test_modes_name_options_that_there_are():
    for mode, unused in MODES.items():
        assert unused.keys() <= COMMANDS[command_of(mode)].keys(), mode
        allowed = unused.keys() & ALWAYS
        assert mode == "plan --thresholds" or not allowed, mode
