"""ARCHITECTURE and CONTRIBUTING describe the repository as it is."""

import re
from pathlib import Path

from simulator.studies.frame import StudyCommand
from simulator.studies.plan import command as plan_command
from simulator.studies.tune import command as tune_command

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_profiles_and_traces_import_the_shared_modules_alone():
    imported = re.compile(
        r"^(?:from|import) (forerun|simulator|hwprofiles|traces|dashboards|validation)\b", re.MULTILINE
    )
    for package in ("hwprofiles", "traces"):
        text = "\n".join(path.read_text("utf-8") for path in (ROOT / package).rglob("*.py"))
        assert set(imported.findall(text)) - {package} == {"forerun"}
    assert "import `forerun`'s shared modules" in ARCHITECTURE


def test_studies_have_the_functions_that_are_named():
    for module, names in (
        (plan_command, "`plan`, `thresholds`"),
        (tune_command, "`tune`, `tune_machine`, `tune_router`"),
    ):
        declared = [
            name for name, one in vars(module).items() if isinstance(getattr(one, "declared", None), StudyCommand)
        ]
        assert [f"`{name}`" for name in declared] == names.split(", ")
        assert f"({names})" in ARCHITECTURE


def test_what_the_gate_runs_is_listed():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    steps = [line for line in lines if line.startswith(("make ", ".venv/bin/"))]
    named = [re.search(r"make \w+|tests/\S+\.py|forerun validate|why_interpreted", step)[0] for step in steps]
    listed = CONTRIBUTING.partition("## Habits")[0].replace("the engine is compiled", "why_interpreted")
    assert [step for step in named if step not in listed] == []
