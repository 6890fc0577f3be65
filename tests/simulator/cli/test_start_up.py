"""What a command imports: its own module and what its work needs, so that a short run is mostly the run."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from tiny_scenario import tiny_data
from typer.testing import CliRunner

from simulator.cli import kept_help
from simulator.cli.app import application
from simulator.cli.commands import COMMANDS, MODULES

MOST_MODULES = 142
"""Of Forerun itself in a plain run; how many a library has is its own affair and changes with its releases."""
OWN = ("forerun", "hwprofiles", "simulator", "traces")
LIBRARIES = {"annotated_types", "numpy", "pydantic", "pydantic_core", "pygments", "rich"} | {
    *("typing_extensions", "typing_inspection", "yaml")
}
INSTALLER = (
    "_distutils_hack",
    "_virtualenv",
    "__editable__",
    "_cython",
    "cython_runtime",
    "_sysconfigdata",
    "__main__",
)
"""What a virtual environment, an editable install and compiled modules bring."""
NOT_FOR_A_PLAIN_RUN = (
    "scipy",
    "pyarrow",
    "plotly",
    "multiprocessing",
    "concurrent.futures",
    "dashboards",
    "traces.requests.read",
    "simulator.studies",
    "simulator.replay",
    "simulator.llm.gguf_file",
    "simulator.speculation.engine_logs",
    "simulator.speculation.attention_level.overlap",
    "simulator.cli.studies",
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Names of the modules that a plain run has imported."""
    scenario = tmp_path_factory.mktemp("plain") / "plain.json"
    scenario.write_text(json.dumps(tiny_data()))
    code = (
        "import sys; from simulator.cli import main; code = main(['run', sys.argv[1]]); "
        "print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, scenario], capture_output=True, text=True, check=True)
    return done.stderr.split()


def test_a_plain_run_imports_what_it_needs(modules):
    assert "simulator.running.run" in modules
    assert not {name for name in modules if name.startswith(NOT_FOR_A_PLAIN_RUN)}
    own = [name for name in modules if name.partition(".")[0] in OWN]
    assert len(own) <= MOST_MODULES


def test_a_run_whose_json_goes_to_stdout_lays_out_no_tables(tmp_path):
    scenario = tmp_path / "plain.json"
    scenario.write_text(json.dumps(tiny_data()))
    code = (
        "import sys; from simulator.cli import main; code = main(['run', sys.argv[1], '--json', '-']); "
        "print('rich' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, scenario], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["summary"]["completed"]
    assert done.stderr.split()[-1] == "False"


def test_a_plain_run_imports_few_libraries(modules):
    roots = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - set(OWN)
    assert {name for name in roots if not name.startswith(INSTALLER)} <= LIBRARIES


PRINT_HELP = (
    "import sys; from simulator.cli import main; code = main(sys.argv[1:]); "
    "print('typer' in sys.modules, file=sys.stderr); sys.exit(code)"
)


@pytest.fixture
def printed_help(tmp_path):
    """What a command line prints, and whether it imported typer for that."""

    def run(*words, **environment):
        settings = {**os.environ, "FORERUN_CACHE": str(tmp_path), "COLUMNS": "80", **environment}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_HELP, *words], capture_output=True, text=True, check=True, env=settings
        )
        return done.stdout, done.stderr.split()[-1] == "True"

    return run


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "-h"], ["chips", "list", "--help"]])
def test_help_is_laid_out_once(printed_help, words):
    text, laid_out = printed_help(*words)
    assert laid_out
    assert "Example: forerun" in text
    assert printed_help(*words) == (text, False)


def test_help_is_laid_out_again_for_another_width_or_colours(printed_help):
    text, _ = printed_help("run", "--help")
    for setting in ({"COLUMNS": "100"}, {"FORCE_COLOR": "1"}):
        other, laid_out = printed_help("run", "--help", **setting)
        assert laid_out
        assert other != text


def test_damaged_help_is_laid_out_again(printed_help, tmp_path):
    expected, _ = printed_help("run", "--help")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b"SCENARIO", b"SCENERY_"))
    assert printed_help("run", "--help") == (expected, True)


def test_help_is_not_kept_where_the_cache_is_off(printed_help, tmp_path):
    texts = [printed_help("run", "--help", FORERUN_CACHE="off") for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[1][1]
    assert list(tmp_path.iterdir()) == []


def test_help_follows_the_code_and_the_libraries(monkeypatch, tmp_path):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    printed = []

    def show():
        return kept_help.help_text(["run", "--help"], lambda words: printed.append(words))

    show()
    show()
    assert len(printed) == 1
    monkeypatch.setattr(kept_help, "_installed", lambda: ["typer-99.dist-info"])
    show()
    assert len(printed) == 2
    monkeypatch.setattr(kept_help, "_code", lambda: [("runs.py", 1, 1)])
    show()
    assert len(printed) == 3


@pytest.mark.parametrize("command", MODULES)
def test_a_module_registers_the_commands_by_which_it_is_detected(command):
    single = typer.main.get_command(application(command))
    assert set(single.commands) == {name for name in MODULES if MODULES[name] == MODULES[command]}


def test_the_help_lists_every_command_in_its_panel():
    text = CliRunner().invoke(application(), ["--help"], env={"COLUMNS": "120"}).output
    marks = [mark for panel, names in COMMANDS.items() for mark in (f"─ {panel} ─", *(f"│ {name} " for name in names))]
    assert [mark for mark in marks if mark not in text] == []
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("command", MODULES)
def test_the_help_of_a_command_shows_no_types(command):
    text = CliRunner().invoke(application(command), [command, "--help"], env={"COLUMNS": "160"}).output
    assert "--help" in text
    assert not re.findall(r"<\w+(?: range)?>|x[<>]=?", text)
