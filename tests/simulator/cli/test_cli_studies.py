"""``forerun compare``, ``sweep`` and ``tune``: the contract's JSON, reports, and one line on bad input."""

import json
import os
import shlex
import signal

import pytest
from scenario_parts import burst, drafts, h100_data, lognormal, poisson

from simulator.studies import runs

VARY = ("--vary", "engine.max_num_seqs=2,64")
QUICK = ("--replications", "2", "--jobs", "1", "--no-progress")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    from simulator.cli import main

    folder = tmp_path_factory.mktemp("compare")
    scenario = folder / "chat.yaml"
    workload = poisson(50.0, 12, 200, lognormal(20, 0.5, 60))
    scenario.write_text(json.dumps(h100_data(workload, model="llama-3.2-1b", prices={"usd_per_chip_hour": 2.0})))
    out = folder / "out"
    assert main(["compare", str(scenario), *VARY, *QUICK, "--out", str(out), "--json", str(folder / "c.json")]) == 0
    return folder, json.loads((folder / "c.json").read_text())


def test_compare_json_keeps_the_contract(compared):
    _, document = compared
    assert {"variants", "crossover", "conclusion", "scenario", "seed", "version", "basis"} <= set(document)
    assert [variant["set"] for variant in document["variants"]] == [{"engine.max_num_seqs": n} for n in (2, 64)]
    for variant in document["variants"]:
        assert {"name", "set", "summary", "speedup"} <= set(variant)
    custom = document["variants"][0]["speedup"]["mean_e2el_ms"]
    assert {end: custom[end] for end in ("ratio", "low", "high")} == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    faster = document["variants"][1]
    assert faster["speedup"]["mean_e2el_ms"]["ratio"] > 1
    assert faster["speedup"]["request_goodput"] is None
    assert faster["summary"]["mean_e2el_ms"] < document["variants"][0]["summary"]["mean_e2el_ms"]
    assert faster["speedup"]["usd_per_million_output_tokens"]["ratio"] == pytest.approx(1.0), "both keep up"
    assert "max_num_seqs=64" in document["conclusion"]


def test_compare_writes_a_report_that_runs_again(compared, forerun):
    folder, document = compared
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "report.html", "report.md", "study.yaml"]
    markdown, page = (out / "report.md").read_text(), (out / "report.html").read_text()
    for text in (markdown, page):
        assert "forerun compare study.yaml --seed 0 --replications 2" in text
        assert document["version"] in text
        assert "llama-3.2-1b" in text
    assert document["basis"] in markdown
    assert "<script src" not in page
    repeated = forerun("compare", out / "study.yaml", "--replications", 2, "--jobs", 2, "--json", "-").document
    assert repeated["conclusion"] == document["conclusion"]
    assert [v["speedup"] for v in repeated["variants"]] == [v["speedup"] for v in document["variants"]]
    assert repeated["sensitivity"] == document["sensitivity"]


def test_a_study_says_that_the_engine_is_interpreted(forerun, scenario_file, monkeypatch):
    monkeypatch.setattr("simulator.serving.compiled.why_interpreted", lambda: "several times slower")
    outcome = forerun("compare", scenario_file, "--vary", "engine.max_num_seqs=4,8", "--replications", 2)
    assert outcome.err == "note: several times slower\n"


def test_compare_prints_a_table(forerun, scenario_file):
    outcome = forerun("compare", scenario_file, *VARY, *QUICK, "--crossover", "none", "--no-sensitivity")
    assert outcome.code == 0
    assert "Speedup over max_num_seqs=2" in outcome.out
    assert "  basis: " in outcome.out


def test_compare_files(forerun, scenario_file, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(scenario_file.read_text().replace("h100-sxm", "a100-sxm-80gb"))
    command = ("compare", scenario_file, other, *QUICK, "--crossover", "none", "--no-sensitivity", "--json", "-")
    document = forerun(*command).document
    assert [variant["name"] for variant in document["variants"]] == ["chat", "other"]
    assert document["variants"][1]["speedup"]["mean_tpot_ms"]["ratio"] < 1
    assert document["variants"][1]["scenario"]["hardware"]["chip"] == "a100-sxm-80gb"


def killed(scenario, seed, *rest):
    """What a worker does for a run: seed 1 ends its process, as a lack of memory would."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real_document_of(scenario, seed, *rest)


real_document_of = runs.run_document_of


def test_a_dead_worker_costs_a_comparison_its_seed_alone(forerun, scenario_file, monkeypatch):
    monkeypatch.setattr(runs, "run_document_of", killed)
    options = ("--replications", "3", "--jobs", "2", "--no-progress", "--crossover", "none", "--no-sensitivity")
    notes = forerun("compare", scenario_file, *VARY, *options, "--no-interval", "--json", "-").document["notes"]
    assert any("seed 1 is left out of every variant" in note for note in notes)


def test_compare_finds_the_acceptance_at_which_drafting_pays(forerun, scenario_file):
    """Break-even along any number: drafting for nothing costs, drafting with full acceptance pays."""
    scenario_file.write_text(
        scenario_file.read_text().replace("output_tokens: 16", "output_tokens: 100")
        + "speculation: {method: draft-model, num_speculative_tokens: 3, draft: {model: llama-3.2-1b}, "
        "acceptance: {alpha: 0.7}}\n"
    )
    outcome = forerun(
        *("compare", scenario_file, "--vary", "speculation.method=none,draft-model", *QUICK, "--no-sensitivity"),
        *("--crossover", "speculation.acceptance.alpha=0.05,0.5,0.95", "--json", "-"),
    )
    crossover = json.loads(outcome.out)["crossover"]
    assert crossover["path"] == "speculation.acceptance.alpha"
    assert crossover["better"] == "above"
    assert 0.05 < crossover["value"] < 0.95


def test_sweep_json_keeps_the_contract(forerun, scenario_file, tmp_path):
    store, out = tmp_path / "s.sweep", tmp_path / "out"
    vary = (*VARY, "--vary", "hardware.tensor_parallel=1,3", "--store", store, "--jobs", 2)
    document = forerun("sweep", scenario_file, *vary, "--json", "-", "--out", out).document
    assert {"store", "points", "scenario", "seed", "version", "basis"} <= set(document)
    assert document["store"] == str(store)
    assert [point["status"] for point in document["points"]] == ["done", "failed", "done", "failed"]
    assert document["points"][0]["set"] == {"engine.max_num_seqs": 2, "hardware.tensor_parallel": 1}
    assert document["points"][0]["summary"]["completed"] == 30
    assert "do not divide by 3" in document["points"][1]["error"]
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.md", "study.yaml", "sweep.json"]
    assert "2 of 4 points failed" in (out / "report.md").read_text()


def test_sweep_of_nothing_but_failures_is_an_error(forerun, scenario_file, tmp_path):
    vary = ("--vary", "hardware.tensor_parallel=3,5", "--store", tmp_path / "s", "--jobs", 1)
    outcome = forerun("sweep", scenario_file, *vary)
    assert outcome.code == 2
    assert "every point failed" in outcome.err.splitlines()[-1]


FEW = ("--batch", "1,32", "--context", "512", "--tokens", "1,2", "--no-progress")


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.yaml"
    sections = {"engine": {"max_num_seqs": 64}, "speculation": drafts("eagle3", 2, 0.6)}
    path.write_text(json.dumps(h100_data(burst(1, 200, 40), model="llama-3.2-1b", **sections)))
    return path


def test_tune_json_and_report(chat, forerun, tmp_path):
    out = tmp_path / "out"
    document = forerun("tune", chat, *FEW, "--emit", "vllm", "--seed", 7, "--json", "-", "--out", out).document
    assert {"table", "emit", "conclusion", "scenario", "seed", "version", "basis"} <= set(document)
    assert document["seed"] == 7
    for row in document["table"]:
        assert {"batch", "context", "num_speculative_tokens", "speedup", "low", "high"} <= set(row)
        assert row["low"] <= row["speedup"] <= row["high"]
    assert [row["batch"] for row in document["table"]] == [[1, 5], [6, 32]]
    assert json.loads(shlex.split(document["emit"])[1])["method"] == "eagle3"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.md", "scenario.yaml", "tune.json"]
    page = (out / "report.html").read_text()
    assert "<script src" not in page
    assert document["version"] in page
    again = forerun("tune", out / "scenario.yaml", *FEW, "--emit", "vllm", "--json", "-")
    assert again.document["table"] == document["table"]
