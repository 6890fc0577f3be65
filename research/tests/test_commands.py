"""The studies as commands, as names of ``forerun``, and what they import of it."""

import ast
import json
import shlex
from pathlib import Path

import pytest
from doc_blocks import blocks, run_block
from scenario_parts import burst, drafts
from scenario_search.search import of_drafter, scenario_of
from study_commands import end_of, refusal_of, same_at_every_width
from tiny_scenario import tiny_data

import forerun as fr
from simulator.cli import main

RESEARCH = Path(__file__).resolve().parents[1]
STUDIES = ("draft-pool", "race", "rollouts")
POOL = "draft-pool tune.json --set speculation.draft="
REFUSED = {
    "race tune.json --controller goodputt": "--controller: no controller 'goodputt'; did you mean 'goodput'",
    "race tune.json --controller nowhere:thing --patterns 1 --requests 8 --jobs 1": "--controller: nowhere:thing",
    "race chat.json": "needs a drafter",
    "race tune.json --patterns 0": "--patterns",
    "race tune.json --replay closest.csv --patterns 3": "--patterns: has no effect with --replay",
    "race tune.json --replay closest.csv --requests 20": "--requests: has no effect",
    "race tune.json --replay closest.csv --seed 1": "--seed: has no effect",
    "race tune.json --replay closest.csv --jobs 1": "--jobs: has no effect",
    f"{POOL}{{}}": "speculation.draft.chip: a pool of drafters needs",
    "draft-pool tune.json --verifiers 0": "--verifiers: 0: must be whole numbers from 1",
    "rollouts chat.json --train-s -1": "--train-s",
    "rolouts chat.json": "No such command 'rolouts'",
}
SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"chip": "h100-sxm"},
    "workload": burst(16, 300, 40),
    "speculation": drafts("draft-model", 2, draft={"model": "llama-3.2-1b", "chip": "h100-sxm", "link": "pcie5-x16"}),
}
SMALL = {
    "draft-pool": "--batch 2 --context 64 --verifiers 1,2 --no-progress",
    "race": "--patterns 1 --requests 8 --jobs 1 --no-progress",
    "rollouts": "--group 1 --no-progress",
}


def test_the_distribution_adds_commands_names_and_figures(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in STUDIES)
    assert {"race", "draft_pool", "rollouts", "RaceResult", "DraftPoolResult", "RolloutsResult"} <= set(dir(fr))
    assert callable(fr.plot.regret)
    assert callable(fr.plot.in_progress)
    assert callable(fr.plot.gain)
    with pytest.raises(AttributeError, match="has no attribute 'regrets'"):
        fr.plot.regrets  # noqa: B018


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_bad_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.json").write_text(json.dumps(tiny_data()))
    (tmp_path / "tune.json").write_text(json.dumps(tiny_data() | {"speculation": drafts("eagle3", 2, 0.6)}))
    (tmp_path / "closest.csv").write_text("")
    assert message in refusal_of(shlex.split(words), capsys)


@pytest.mark.parametrize(
    "command",
    [
        "draft-pool s.json --verifiers 1,2,4",
        "rollouts t.json --group 4",
        "race t.json --patterns 1 --requests 8 --jobs 1",
    ],
)
def test_every_command_prints_the_same_figures_at_every_width(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCENARIO))
    own = SCENARIO["speculation"] | {"draft": {"model": "llama-3.2-1b"}}
    (tmp_path / "t.json").write_text(json.dumps(SCENARIO | {"speculation": own}))
    same_at_every_width(command, monkeypatch, capsys)


@pytest.mark.parametrize("command", STUDIES)
def test_studies_of_random_scenarios_end_with_a_result_or_one_line(command, tmp_path, capsys):
    codes = set()
    for seed in range(16):
        data = scenario_of(seed) if command == "rollouts" else of_drafter(scenario_of(seed), seed)
        if command == "rollouts" and seed % 2:
            lengths = {"arrivals": {"process": "burst"}, "input_tokens": 64, "output_tokens": 16, "num_requests": 4}
            data = {name: part for name, part in data.items() if name != "faults"} | {"workload": lengths}
        if command == "draft-pool" and seed % 2:  # on chips of its own, with what else was drawn
            draft = {"model": "llama-3.2-1b", "chip": "h100-sxm"}
            chain = {"method": "draft-model", "num_speculative_tokens": 2, "acceptance": {"alpha": 0.7}}
            data |= {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "speculation": chain | {"draft": draft}}
        codes.add(end_of(command, data, SMALL[command], tmp_path, capsys))
    assert {0, 2} <= codes, "all alike find nothing"


@pytest.mark.parametrize("page", sorted(RESEARCH.glob("docs/*.md")), ids=lambda page: page.stem)
def test_blocks_of_the_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(page):
        run_block(block, names, capsys)


def test_only_public_names_of_forerun_are_imported():
    faces = {"forerun", "forerun.parts", "forerun.studies", "forerun.testing"}
    for path in sorted(RESEARCH.glob("forerun_research/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path.name
        for node in ast.walk(tree):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            inside = ("forerun", "simulator", "hwprofiles", "traces", "dashboards", "validation")
            for module in modules:
                assert module in faces or module.split(".")[0] not in inside, f"{path.name}: {module}"
