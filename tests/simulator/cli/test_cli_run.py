"""``forerun run`` and ``forerun report`` from the outside: JSON, files, seeds, and what goes wrong."""

import json
import os
import subprocess
import sys

import pytest

from simulator.cli import runs


def no_constants(word):
    raise AssertionError(f"{word} is not JSON")


def strict(text):
    return json.loads(text, parse_constant=no_constants)


def without_clock(document):
    for name in ("cpu_s", "wall_s"):
        assert document["engine"].pop(name) >= 0.0
    return document


CONTRACT_SECTIONS = {
    "summary",
    "intervals",
    "basis",
    "bottleneck",
    "kv_cache",
    "utilisation",
    "energy_joules",
    "cost_usd",
    "engine",
    "scenario",
    "seed",
    "version",
}


def test_json_to_stdout_is_the_only_output(forerun, scenario_file):
    outcome = forerun("run", scenario_file, "--json", "-")
    assert (outcome.code, outcome.err) == (0, "")
    document = strict(outcome.out)
    assert set(document) >= CONTRACT_SECTIONS
    assert document["summary"]["completed"] == 30
    assert document["summary"]["total_output_tokens"] == 480
    assert sum(document["bottleneck"].values()) == pytest.approx(1.0)
    assert 0.0 < document["utilisation"]["mbu"] < 1.0
    assert document["energy_joules"] > 0.0
    assert document["cost_usd"] == pytest.approx(2.5 * document["summary"]["duration"] / 3600)
    low, high = document["intervals"]["mean_tpot_ms"]
    assert low < document["summary"]["mean_tpot_ms"] < high
    without = strict(forerun("run", scenario_file, "--no-interval", "--json", "-").out)
    assert without["intervals"] == {}
    assert without["summary"] == document["summary"]


def test_the_scenario_in_the_json_can_be_run_again(forerun, scenario_file, tmp_path):
    first = strict(forerun("run", scenario_file, "--json", "-").out)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(first["scenario"]))
    assert without_clock(strict(forerun("run", again, "--json", "-").out)) == without_clock(first)


def test_same_seed_same_bytes_other_seed_other_numbers(forerun, scenario_file):
    documents = [
        without_clock(strict(forerun("run", scenario_file, "--seed", seed, "--json", "-").out)) for seed in (3, 3, 4)
    ]
    assert documents[0] == documents[1]
    assert documents[0]["summary"] != documents[2]["summary"]


def test_out_writes_every_file_and_the_same_tables_for_the_same_seed(forerun, scenario_file, tmp_path):
    folders = [tmp_path / "a", tmp_path / "deep" / "b"]
    for folder in folders:
        outcome = forerun("run", scenario_file, "--out", folder)
        assert outcome.code == 0
        assert f"open {folder / 'report.html'}" in outcome.out
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == ["report.html", "requests.parquet", "steps.parquet", "summary.json", "trace.json"]
    for name in ("requests.parquet", "steps.parquet", "trace.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_table_names_what_matters(forerun, scenario_file):
    outcome = forerun("run", scenario_file)
    for words in ("basis: ", "Successful requests", "TTFT", "E2EL", "p99", "Bottleneck", "KV use", "SLO met", "Cost"):
        assert words in outcome.out


def test_json_file_and_table_together(forerun, scenario_file, tmp_path):
    file = tmp_path / "result.json"
    outcome = forerun("run", scenario_file, "--json", file)
    assert "Successful requests" in outcome.out
    assert strict(file.read_text())["summary"]["completed"] == 30


def test_set_overrides_a_field(forerun, scenario_file):
    outcome = forerun("run", scenario_file, "--set", "workload.num_requests=7", "--set", "seed_is_not_a_field=1")
    assert outcome.code == 2
    assert "seed_is_not_a_field" in outcome.error_line
    outcome = forerun("run", scenario_file, "--set", "workload.num_requests=7", "--json", "-")
    assert strict(outcome.out)["summary"]["completed"] == 7


def test_replications_give_intervals_around_the_mean(forerun, scenario_file):
    document = strict(forerun("run", scenario_file, "--replications", 4, "--seed", 5, "--json", "-").out)
    assert document["replications"] == 4
    assert document["interval_level"] == 0.9
    assert [run["seed"] for run in document["per_replication"]] == [5, 6, 7, 8]
    low, high = document["intervals"]["mean_ttft_ms"]
    assert low < document["summary"]["mean_ttft_ms"] < high
    chance = strict(forerun("run", scenario_file, "--replications", 4, "--seed", 5, "--no-interval", "--json", "-").out)
    assert (chance["interval_level"], chance["intervals_of"]) == (0.95, "sampling")
    assert chance["intervals"]["mean_tpot_ms"][1] < document["intervals"]["mean_tpot_ms"][1]


def test_single_token_outputs_have_no_tpot(forerun, scenario_file):
    document = strict(forerun("run", scenario_file, "--set", "workload.output_tokens=1", "--json", "-").out)
    assert document["summary"]["mean_tpot_ms"] is None
    assert document["summary"]["p99_itl_ms"] is None
    assert document["summary"]["mean_ttft_ms"] > 0.0
    assert forerun("run", scenario_file, "--set", "workload.output_tokens=1").code == 0


def test_interrupt_before_the_first_run_ends(forerun, scenario_file, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.running.run.simulate", interrupted)
    outcome = forerun("run", scenario_file)
    assert outcome.code == 130
    assert "interrupted" in outcome.err


def test_interrupt_keeps_the_finished_runs(forerun, scenario_file, tmp_path, monkeypatch):
    from simulator.running.run import simulate

    def third_is_interrupted(scenario, seed, *rest, **options):
        if seed == 2:
            raise KeyboardInterrupt
        return simulate(scenario, seed, *rest, **options)

    monkeypatch.setattr("simulator.running.run.simulate", third_is_interrupted)
    outcome = forerun("run", scenario_file, "--replications", 5, "--jobs", 1, "--out", tmp_path / "out")
    assert outcome.code == 130
    document = strict((tmp_path / "out" / "summary.json").read_text())
    assert document["replications"] == 2
    assert "2 of 5 runs finished: interrupted" in document["notes"]


def test_replications_do_not_depend_on_the_number_of_processes(forerun, scenario_file):
    documents = []
    for jobs in (1, 2):
        document = strict(forerun("run", scenario_file, "--replications", 4, "--jobs", jobs, "--json", "-").out)
        documents.append(document | {"engine": None})
    assert documents[0] == documents[1]
    assert documents[0]["intervals"]


def test_too_little_memory_is_one_line(forerun, scenario_file, monkeypatch):
    def starve(*_arguments, **_options):
        raise MemoryError

    monkeypatch.setattr("simulator.running.run.simulate", starve)
    outcome = forerun("run", scenario_file)
    assert (outcome.code, "more memory" in outcome.error_line) == (2, True)


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
    for option in ("--out", "--json"):
        outcome = forerun("run", scenario_file, option, blocked / "below")
        assert outcome.code == 2
        assert "file" in outcome.error_line


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder_is_one_line(forerun, scenario_file, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    outcome = forerun("run", scenario_file, "--out", tmp_path / "locked")
    assert outcome.code == 2
    assert "Permission denied" in outcome.error_line


def test_a_full_disk_leaves_no_half_written_file(forerun, scenario_file, tmp_path, monkeypatch):
    def full(path, result, **_):
        path.write_text('{"traceEvents": [')
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("simulator.running.metrics.run_folder.write_timeline", full)
    outcome = forerun("run", scenario_file, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "No space left on device" in outcome.error_line
    assert not (tmp_path / "out").exists()


def test_a_fault_of_ours_is_not_dressed_up_as_bad_input(forerun, scenario_file, monkeypatch):
    def broken(*_, **__):
        raise ValueError("a bug")

    monkeypatch.setattr("simulator.running.run.simulate", broken)
    outcome = forerun("run", scenario_file)
    assert outcome.code == 3, "1 would be a verdict, 2 bad input"
    assert "ValueError: a bug" in outcome.err
    assert "a fault of Forerun" in outcome.err


def test_report_of_a_run_folder(forerun, scenario_file, tmp_path):
    forerun("run", scenario_file, "--out", tmp_path / "out")
    page = tmp_path / "page.html"
    outcome = forerun("report", tmp_path / "out", "--output", page)
    assert (outcome.code, outcome.out.strip()) == (0, str(page))
    assert "llama-3.1-8b on 1 x h100-sxm" in page.read_text()


def test_replicate_returns_the_first_result(scenario_file):
    from simulator.running.scenario import load_scenario

    first, document, ended = runs.replicate(load_scenario(scenario_file), seed=9, replications=2)
    assert first.seed == 9
    assert document["seed"] == 9
    assert ended is None


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
    outcome = forerun("run", scenario_file, *arguments)
    assert outcome.code == 2
    assert words in outcome.error_line
    assert sorted(tmp_path.iterdir()) == before


def killed(scenario, seed):
    """What a worker does for a run: seed 1 ends its process, as a lack of memory would."""
    import os
    import signal

    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real_document_of(scenario, seed)


real_document_of = runs.run_and_document


def test_a_dead_worker_costs_its_own_run_alone(forerun, scenario_file, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run_and_document", killed)
    outcome = forerun("run", scenario_file, "--replications", 4, "--jobs", 2, "--json", tmp_path / "o.json")
    assert outcome.code == 2
    assert "a worker process died over this run" in outcome.error_line
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["replications"] == 3
    assert any("3 of 4 runs finished" in note for note in document["notes"])


@pytest.mark.parametrize("shell", ["PYTHONIOENCODING=ascii {}", "{} >&-", "{} >&- 2>&-"])
def test_any_stdout_will_do(scenario_file, tmp_path, project_root, shell):
    out = tmp_path / "o"
    command = f"{sys.executable} -m simulator run {scenario_file} --replications 2 --jobs 1 --out {out} --no-progress"
    done = subprocess.run(shell.format(command), shell=True, cwd=project_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists()


def test_a_folder_whose_name_is_no_utf_8(scenario_file, tmp_path, project_root):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    words = [sys.executable, "-m", "simulator", "run", str(scenario_file), "--no-progress", "--out", folder]
    done = subprocess.run(words, cwd=project_root, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9" in done.stdout or b"caf\xe9" in done.stdout
    assert os.path.exists(folder + b"/summary.json")
