"""Studies of installed distributions: found by their entry points, refused in one line where they cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks, commands
from study_commands import refusal_of
from tiny_scenario import tiny_data

import forerun as fr
from simulator.cli import main
from simulator.studies import installed

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "own-study.md"
STUDY = """
from __future__ import annotations
from typing import Annotated
import forerun as fr
from forerun.studies import Jobs, Option, Source, StudyResult, Table, study, study_document, study_of

class Counted(StudyResult):
    kind = title = "counted"
    def tables(self):
        return [Table("Requests", ("", "requests"), [("completed", self.document["completed"])], name="counted")]

@study({name!r}, source="Scenario file.")
def counted(scenario: Source, *, seed: Annotated[int, Option("Seed.", min=0)] = 0, jobs: Jobs = None) -> Counted:
    '''Count requests.'''
    base = study_of(scenario).scenario
    body = {{"completed": fr.simulate(base, seed).completed, "conclusion": "counted"}}
    return Counted(study_document(body, base, seed, "datasheet"))
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes a distribution of some modules with some entry points."""
    installed.installed_names.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(distribution, modules, points):
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
            made.append(module)
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in points.items()]
        (folder / "entry_points.txt").write_text("[forerun.studies]\n" + "".join(lines))
        installed.installed_names.cache_clear()

    yield make
    installed.installed_names.cache_clear()
    for module in made:
        sys.modules.pop(module, None)


def test_the_study_of_the_how_to_is_a_command(install, tmp_path, monkeypatch, capsys):
    texts = {block.title: block.text for block in blocks(PAGE) if block.title}
    modules = {name.removesuffix(".py"): text for name, text in texts.items() if name.endswith(".py")}
    point = 'spread = "my_studies:spread"'
    assert point in texts["pyproject.toml"]
    install("my-studies", modules, {"spread": "my_studies:spread", "SpreadResult": "my_studies:SpreadResult"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.yaml").write_text(texts["chat.yaml"])
    console = next(block for block in blocks(PAGE) if block.language == "console")
    for words, _ in commands(console.text):
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert "Number of seeds." in capsys.readouterr().out
    assert {"spread.json", "report.html", "report.md", "study.yaml"} <= {
        one.name for one in Path("out/spread").iterdir()
    }
    assert "seed 2" in Path("out/spread/report.md").read_text()
    assert main(["--help"]) == 0
    assert "Show how far the p99 TTFT" in capsys.readouterr().out
    result = fr.spread("chat.yaml", seeds=2)
    assert isinstance(result, fr.SpreadResult)
    assert fr.plot.seeds(result) == result.figure("seeds")
    assert result.command == "forerun spread study.yaml --seeds 2"
    assert "--seeds" in refusal_of(["spread", "chat.yaml", "--seeds", "1"], capsys)


def test_options_are_read_from_annotations_that_are_texts(install, tmp_path, capsys):
    install("mine", {"counting": STUDY.format(name="counted")}, {"counted": "counting:counted"})
    file = tmp_path / "tiny.json"
    file.write_text(fr.Scenario(**tiny_data()).model_dump_json(exclude_unset=True))
    assert main(["counted", str(file), "--seed", "1", "--jobs", "1"]) == 0
    assert "counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("modules", "points", "message"),
    [
        (
            {"broken": "import nowhere_at_all"},
            {"mine": "broken:mine"},
            "'mine' of one cannot be imported: ModuleNotFound",
        ),
        (
            {"bare": "def mine(): pass"},
            {"mine": "bare:mine"},
            "bare:mine is no study; declare it with @forerun.studies",
        ),
        ({"taken": STUDY.format(name="plan")}, {"mine": "taken:counted"}, "'mine' of one: plan is a name of Forerun"),
        ({"taken": STUDY.format(name="mine")}, {"compare": "taken:counted"}, "compare is a name of Forerun; choose"),
    ],
)
def test_a_study_that_cannot_be_used_is_named_and_left_out(install, modules, points, message, capsys):
    install("one", modules, points)
    assert main(["--help"]) == 0
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert "compare" in printed.out
    assert main(["chips", "list"]) == 0
    assert capsys.readouterr().err == ""


def test_two_distributions_with_one_name_are_refused(install, capsys):
    install("one", {"first": STUDY.format(name="counted")}, {"counted": "first:counted"})
    install("two", {"second": STUDY.format(name="counted")}, {"counted": "second:counted"})
    with pytest.raises(fr.ForerunError, match="uninstall one of the two"):
        fr.counted  # noqa: B018
    assert main(["--help"]) == 0
    assert "uninstall one of the two" in capsys.readouterr().err


def test_a_distribution_whose_folder_is_gone_adds_nothing(install):
    install("gone", {}, {"vanished": "no_such_package.module:study"})
    assert "vanished" not in dir(fr)
    with pytest.raises(AttributeError, match="has no attribute 'run'; did you mean 'simulate'"):
        fr.run  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'vanished'"):
        fr.vanished  # noqa: B018


def test_without_the_distribution_its_commands_and_names_say_where_they_are():
    """In a process that sees no entry points."""
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **_: (); import forerun as fr\n"
        "from simulator.cli import main\n"
        "try: fr.race\nexcept AttributeError as error: print(error)\n"
        "print(main(['race', 's.json']), main(['draft-pool', 's.json']), main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "has no attribute 'race'; pip install forerun-research" in done.stdout
    assert "2 2 0" in done.stdout
    assert "race: this command needs forerun-research (pip install forerun-research" in done.stderr
    assert "draft-pool" not in done.stdout
