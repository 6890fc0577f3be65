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

from simulator.cli.app import COMMANDS, MODULES, application

MOST_MODULES = 145
"""Of Forerun itself in a plain run; how many a library has is its own affair and changes with its releases."""
OWN = ("forerun", "hwprofiles", "simulator", "traces")
LIBRARIES = {"annotated_types", "numpy", "pydantic", "pydantic_core", "pygments", "rich"} | {
    *("annotated_doc", "click", "shellingham", "typer", "typing_extensions", "typing_inspection", "yaml")
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
    """The modules that a plain run has imported: name -> made by hand, without a spec."""
    scenario = tmp_path_factory.mktemp("plain") / "plain.json"
    scenario.write_text(json.dumps(tiny_data()))
    code = (
        "import json, sys; from simulator.cli import main; code = main(['run', sys.argv[1]]); "
        "print(json.dumps({name: getattr(one, '__spec__', None) is None for name, one in sys.modules.items()}), "
        "file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, scenario], capture_output=True, text=True, check=True)
    return json.loads(done.stderr)


def test_a_plain_run_imports_what_it_needs(modules):
    assert "simulator.running.run" in modules
    assert not {name for name in modules if name.startswith(NOT_FOR_A_PLAIN_RUN)}
    own = [name for name in modules if name.partition(".")[0] in OWN]
    assert len(own) <= MOST_MODULES


def test_a_run_replaces_no_module_of_a_library(modules):
    made = {name for name, by_hand in modules.items() if by_hand and not name.startswith(("typing.", *INSTALLER))}
    assert made == set()


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
    roots = (
        {name.partition(".")[0] for name in modules if not name.startswith("made:")}
        - set(sys.stdlib_module_names)
        - set(OWN)
    )
    assert {name for name in roots if not name.startswith(INSTALLER)} <= LIBRARIES


@pytest.mark.parametrize("words", [["run", "plain.json"], ["chips", "list"], ["--help"], ["run", "-h"]])
def test_a_command_keeps_nothing_in_a_folder_that_others_may_share(tmp_path, words):
    """Another user who may write to such a folder would choose what the next command prints, or runs."""
    (tmp_path / "plain.json").write_text(json.dumps(tiny_data()))
    shared = tmp_path / "shared"
    shared.mkdir()
    places = dict.fromkeys(("FORERUN_CACHE", "HOME", "LOCALAPPDATA", "XDG_CACHE_HOME"), str(shared))
    start = [sys.executable, "-c", "import sys; from simulator.cli import main; sys.exit(main(sys.argv[1:]))", *words]
    subprocess.run(start, capture_output=True, check=True, cwd=tmp_path, env=os.environ | places)
    assert list(shared.rglob("*")) == []


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
