"""Command lines that are parsed without typer get the arguments that typer would parse."""

import shlex

import pytest

from simulator.cli import plain
from simulator.cli.app import application
from simulator.cli.commands import MODULES, CommandGroup, CommandLine, declared_commands

PLAIN = [
    "run chat.yaml",
    "run chat.yaml --set engine.max_num_seqs=8 --set=hardware.chip=n150 --seed 3 --replications=2 --json -",
    "run --out out chat.yaml --jobs 2 --no-steps --no-interval",
    "run chat.yaml --output out",
    "report out",
    "predict --chip h100-sxm gemm m=16 n=4096 k=4096 dtype=bf16 --no-residual",
    "predict gemm --chip h100-sxm --residual",
    "measure --output a.csv --device cuda --threads 2",
    "calibrate a.csv b.csv --chip h100-sxm --output p.yaml --no-residual",
    "replay kernels a.csv --chip h100-sxm --fail-above mape=7",
    "replay requests a.json --scenario s.yaml --limit 4",
    "serve chat.yaml --speed 2.5 --port 0",
    "twin http://localhost/metrics --scenario chat.yaml --seconds 30",
    "chips list",
    "chips show h100-sxm --json out.json",
    "workloads show log.csv --on-error skip",
    "workloads fit-acceptance a.log b.log",
    "dash",
    "dash out other --expose",
    "compare chat.yaml --vary engine.max_num_seqs=1,2 --json -",
    "compare a.yaml b.yaml",
    "plan chat.yaml --rate 8 --slo p99_ttft_ms=500 --out out",
    "plan chat.yaml --max-rate",
    "tune chat.yaml --emit vllm",
    "sweep chat.yaml --vary hardware.replicas=1,2 --store s --jobs 2",
]
TYPERS = [
    "run",
    "run --help",
    "run chat.yaml other.yaml",
    "run chat.yaml --see 3",
    "run chat.yaml --seed",
    "run chat.yaml --seed -1",
    "run chat.yaml --seed 1.0",
    "run chat.yaml --seed +1",
    "run chat.yaml --seed 1 --seed 2",
    "run chat.yaml --replications 10001",
    "run chat.yaml --no-steps=1",
    "run chat.yaml --json --no-steps",
    "run chat.yaml -- --seed",
    "run --install-completion",
    "workloads show log.csv --on-error ignore",
    "serve chat.yaml --speed nan",
    "serve chat.yaml --speed 1e400",
    "predict gemm",
    "chips",
    "chips lists",
    "validate",
    "validate alspec",
]


def declared(group, calls, path=()):
    """Replace the functions of all commands by ones that record their arguments."""
    for name, member in group.members.items():
        if isinstance(member, CommandGroup):
            declared(member, calls, (*path, name))
            continue

        def record(_name=(*path, name), **values):
            calls.append((_name, values))

        record.__signature__ = plain.signature(member.function)
        record.__annotations__ = plain.get_type_hints(member.function, include_extras=True)
        group.members[name] = member._replace(function=record)
    return group


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_has_typers_arguments(line, monkeypatch):
    words, calls = shlex.split(line), []
    commands = declared(declared_commands(words[0]), calls)
    monkeypatch.setattr("simulator.cli.app.declared_commands", lambda _: commands)
    function, arguments = plain.parsed(commands, words)
    function(**arguments)
    application(words[0])(args=words, prog_name="forerun", standalone_mode=False)
    (name, by_plain), (other, by_typer) = calls
    assert name == other
    assert by_plain.keys() == by_typer.keys()
    for key, value in by_plain.items():
        if isinstance(value, CommandLine):
            assert value.written == by_typer[key].written
        else:
            assert (value or None, type(value)) == (by_typer[key] or None, type(by_typer[key])), key


@pytest.mark.parametrize("line", TYPERS)
def test_typer_parses_what_has_to_be_explained(line):
    words = shlex.split(line)
    assert words[0] in MODULES
    assert plain.parsed(declared_commands(words[0]), words) is None
