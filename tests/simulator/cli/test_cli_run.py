"""``forerun run`` and ``forerun report`` from the outside: JSON, files, seeds, and what goes wrong."""

import json
import os
import signal
import subprocess
import sys

import pytest

from simulator.cli import runs


def without_clock(document):
    for name in ("cpu_s", "wall_s"):
        assert document["engine"].pop(name) >= 0.0
    return document


CONTRACT_SECTIONS = {"summary", "intervals", "basis", "bottleneck", "kv_cache", "utilisation"} | {
    *("energy_joules", "cost_usd", "engine", "scenario", "seed", "version")
}


def test_json_to_stdout_is_the_only_output(forerun, scenario_file):
    outcome = forerun("run", scenario_file, "--json", "-")
    document = outcome.document
    assert outcome.err == ""
    assert set(document) >= CONTRACT_SECTIONS
    assert document["summary"]["completed"] == 30
    assert document["summary"]["total_output_tokens"] == 480
    assert sum(document["bottleneck"].values()) == pytest.approx(1.0)
    assert 0.0 < document["utilisation"]["mbu"] < 1.0
    assert document["energy_joules"] > 0.0
    assert document["cost_usd"] == pytest.approx(2.5 * document["summary"]["duration"] / 3600)
    low, high = document["intervals"]["mean_tpot_ms"]
    assert low < document["summary"]["mean_tpot_ms"] < high
    without = forerun("run", scenario_file, "--no-interval", "--json", "-").document
    assert without["intervals"] == {}
    assert without["summary"] == document["summary"]


def test_the_scenario_in_the_json_can_be_run_again(forerun, scenario_file, tmp_path):
    first = forerun("run", scenario_file, "--set", "workload.num_requests=7", "--json", "-").document
    assert first["summary"]["completed"] == 7
    again = tmp_path / "again.json"
    again.write_text(json.dumps(first["scenario"]))
    assert without_clock(forerun("run", again, "--json", "-").document) == without_clock(first)


def test_out_writes_every_file_and_says_what_to_open(forerun, scenario_file, tmp_path):
    folder = tmp_path / "deep" / "b"
    assert f"open {folder / 'report.html'}" in forerun("run", scenario_file, "--out", folder).out
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["report.html", "requests.parquet", "steps.parquet", "summary.json", "trace.json"]
    page = tmp_path / "page.html"
    assert forerun("report", folder, "--output", page) == (0, f"{page}\n", "")
    assert "llama-3.1-8b on 1 x h100-sxm" in page.read_text()


def test_the_table_names_what_matters_beside_a_json_file(forerun, scenario_file, tmp_path):
    outcome = forerun("run", scenario_file, "--json", tmp_path / "result.json")
    for words in ("basis: ", "Successful requests", "TTFT", "E2EL", "p99", "Bottleneck", "KV use", "SLO met", "Cost"):
        assert words in outcome.out
    assert json.loads((tmp_path / "result.json").read_text())["summary"]["completed"] == 30


def test_replications_give_intervals_around_the_mean(forerun, scenario_file):
    command = ("run", scenario_file, "--replications", 4, "--seed", 5, "--json", "-")
    document = forerun(*command).document
    assert document["replications"] == 4
    assert document["interval_level"] == 0.9
    assert [run["seed"] for run in document["per_replication"]] == [5, 6, 7, 8]
    low, high = document["intervals"]["mean_ttft_ms"]
    assert low < document["summary"]["mean_ttft_ms"] < high
    chance = forerun(*command, "--no-interval").document
    assert (chance["interval_level"], chance["intervals_of"]) == (0.95, "sampling")
    assert chance["intervals"]["mean_tpot_ms"][1] < document["intervals"]["mean_tpot_ms"][1]


def test_single_token_outputs_have_no_tpot(forerun, scenario_file):
    command = ("run", scenario_file, "--set", "workload.output_tokens=1")
    summary = forerun(*command, "--json", "-").document["summary"]
    assert summary["mean_tpot_ms"] is summary["p99_itl_ms"] is None
    assert summary["mean_ttft_ms"] > 0.0
    assert forerun(*command).code == 0


def test_interrupt_keeps_the_finished_runs(forerun, scenario_file, tmp_path, monkeypatch):
    from simulator.running.run import simulate

    def third_is_interrupted(scenario, seed, *rest, **options):
        if seed == 2:
            raise KeyboardInterrupt
        return simulate(scenario, seed, *rest, **options)

    monkeypatch.setattr("simulator.running.run.simulate", third_is_interrupted)
    outcome = forerun("run", scenario_file, "--replications", 5, "--jobs", 1, "--out", tmp_path / "out")
    assert outcome.code == 130
    document = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert document["replications"] == 2
    assert "2 of 5 runs finished: interrupted" in document["notes"]


def test_replications_do_not_depend_on_the_number_of_processes(forerun, scenario_file):
    command = ("run", scenario_file, "--replications", 4, "--json", "-", "--jobs")
    one, two = (forerun(*command, jobs).document | {"engine": None} for jobs in (1, 2))
    assert one == two
    assert one["intervals"]


def test_a_reader_that_leaves_early_is_no_failed_gate(scenario_file):
    command = [sys.executable, "-c", "import sys; from simulator.cli import main; sys.exit(main())", "run"]
    process = subprocess.Popen([*command, str(scenario_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, b"")


def test_an_unwritable_output_is_detected_before_the_run(forerun, scenario_file, tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.running.run.simulate", lambda *_: pytest.fail("must not start"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    for option, path in (("--out", blocked / "below"), ("--json", blocked / "below"), ("--json", tmp_path)):
        assert str(tmp_path) in forerun("run", scenario_file, option, path).error_line


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "more memory"),
        (ValueError("a bug"), 3, "ValueError: a bug"),
        (ValueError("a bug"), 3, "a fault of Forerun"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_ends_a_run_has_an_exit_code_of_its_own(forerun, scenario_file, monkeypatch, error, code, words):
    """1 would be a verdict and 2 bad input, which a fault of Forerun is not."""

    def broken(*_, **__):
        raise error

    monkeypatch.setattr("simulator.running.run.simulate", broken)
    outcome = forerun("run", scenario_file)
    assert (outcome.code, words in outcome.err) == (code, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", ""), "--out: an empty argument follows"),
        (("--json", " "), "--json: an empty argument follows"),
        (("--out=",), "--out: no value follows the ="),
    ],
)
def test_an_empty_path_is_not_the_folder_one_stands_in(forerun, scenario_file, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert words in forerun("run", scenario_file, *arguments).error_line
    assert sorted(tmp_path.iterdir()) == before


def killed(scenario, seed):
    """What a worker does for a run: seed 1 ends its process, as a lack of memory would."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real_document_of(scenario, seed)


real_document_of = runs.run_and_document


def test_a_dead_worker_costs_its_own_run_alone(forerun, scenario_file, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run_and_document", killed)
    outcome = forerun("run", scenario_file, "--replications", 4, "--jobs", 2, "--json", tmp_path / "o.json")
    assert "a worker process died over this run" in outcome.error_line
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["replications"] == 3
    assert any("3 of 4 runs finished" in note for note in document["notes"])


@pytest.mark.parametrize("shell", ["PYTHONIOENCODING=ascii {}", "{} >&-", "{} >&- 2>&-"])
def test_any_stdout_will_do(scenario_file, tmp_path, project_root, shell):
    out = tmp_path / "o"
    command = f"{sys.executable} -m forerun run {scenario_file} --replications 2 --jobs 1 --out {out} --no-progress"
    done = subprocess.run(shell.format(command), shell=True, cwd=project_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists()


def test_a_folder_whose_name_is_no_utf_8(scenario_file, tmp_path, project_root):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    words = [sys.executable, "-m", "forerun", "run", str(scenario_file), "--no-progress", "--out", folder]
    done = subprocess.run(words, cwd=project_root, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9" in done.stdout or b"caf\xe9" in done.stdout
    assert os.path.exists(folder + b"/summary.json")
