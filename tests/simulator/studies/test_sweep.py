"""Sweeps: complete, the same however they are run, and nothing lost or run twice when something dies."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml
from refused import refused
from tiny_scenario import tiny_data

from simulator.studies import Study
from simulator.studies.sweep import execute
from simulator.studies.sweep.points import run_point

PATH = "engine.max_num_seqs"


def documents(result):
    return [(point.name, point.status, point.document, point.error) for point in result.points]


@pytest.fixture
def study(tiny):
    return Study(tiny, {PATH: [1, 2, 4, 8], "workload.arrivals.request_rate": [5.0, 50.0, 500.0]})


def test_every_combination_once_and_as_simulated_alone(study, tiny):
    from simulator.running.metrics import run_document
    from simulator.running.run import simulate

    result = study.run(jobs=2)
    assert [point.status for point in result.points] == ["done"] * 12
    assert [point.runs for point in result.points] == [1] * 12
    for point in result.points[::5]:
        single = run_document(simulate(tiny.with_values(point.set), 0))
        assert point.summary == single["summary"]


def test_results_do_not_depend_on_the_number_of_processes(study):
    assert documents(study.run(jobs=1)) == documents(study.run(jobs=3))


def test_loads_alone_are_named_from_the_least_value_to_the_largest_whatever_their_order(tiny):
    result = Study(tiny, {"workload.arrivals.request_rate": [50.0, 1.0, 20.0]}).run(jobs=1)
    values = {point.name: point.value(result.data.metric) for point in result.data.done}
    least, largest = min(values, key=values.get), max(values, key=values.get)
    words = result.conclusion
    assert words.index(f" at {least}") < words.index(f" at {largest}")
    assert "the most served is" in words


def test_a_grid_of_loads_names_the_best_at_each_with_the_slo_and_the_cost(tiny):
    data = {"slo": {"p99_ttft_ms": 1e6}, "prices": {"usd_per_chip_hour": 2.0}}
    vary = {"workload.arrivals.request_rate": [5.0, 50.0], PATH: [1, 8]}
    result = Study(tiny.with_values(data), vary).run(jobs=1)
    table = result.tables()[0]
    assert table.title == "Points by load, best first"
    assert [row[0] for row in table.rows] == ["5", "5", "50", "50"]
    assert result.conclusion.startswith("Best mean end-to-end latency at each load: request_rate=5 ")
    assert "; request_rate=50 max_num_seqs=8 with " in result.conclusion
    brief = table.brief().columns
    assert {"good requests", "cost per output token ($/Mtok)"} <= set(brief)
    assert "mean TPOT (ms)" in set(table.columns) - set(brief)
    plain = Study(tiny, {PATH: [1, 8]}).run(jobs=1).tables()[0]
    assert not {"good requests", "cost per output token ($/Mtok)"} & set(plain.columns)


def test_columns_of_fields_with_the_same_last_word_have_the_whole_path(tiny):
    pools = {"a": {"role": "prefill"}, "b": {"role": "decode"}}
    vary = {f"pools.{name}.hardware.replicas": [1, 2] for name in pools}
    table = (
        Study(tiny.with_values({"pools": pools, "kv_transfer": {"link": "infiniband-ndr"}}), vary)
        .run(jobs=1)
        .tables()[0]
    )
    assert table.columns[:2] == ["pools.a.hardware.replicas", "pools.b.hardware.replicas"]


def test_replications_give_intervals(tiny):
    result = Study(tiny, {PATH: [4]}, seed=5, replications=3).run(jobs=1)
    document = result.document
    assert document["points"][0]["intervals"]["mean_e2el_ms"][0] < document["points"][0]["summary"]["mean_e2el_ms"]
    assert document["seed"] == 5
    assert {"store", "points", "scenario", "seed", "version", "basis"} <= set(document)
    json.dumps(document, allow_nan=False)


def test_a_second_run_runs_nothing(study, tmp_path):
    seen = []
    first = study.run(tmp_path / "s", jobs=2)
    again = study.run(tmp_path / "s", jobs=2, progress=lambda done, total: seen.append(done))
    assert seen == []
    assert documents(again) == documents(first)
    assert [point.runs for point in again.points] == [1] * 12


def test_a_failing_point_is_recorded_and_the_rest_goes_on(tiny, tmp_path):
    study = Study(tiny, {"hardware.tensor_parallel": [1, 3], PATH: [2, 4]})
    result = study.run(tmp_path / "s", jobs=1)
    assert [point.status for point in result.points] == ["done", "done", "failed", "failed"]
    assert "heads of llama-3.2-1b do not divide by 3" in result.points[2].error
    again = study.run(tmp_path / "s", jobs=1, retry_failed=True)
    assert [point.runs for point in again.points] == [1, 1, 2, 2]


def test_a_combination_that_is_no_scenario_is_a_failed_point(tiny):
    arrivals = "workload.arrivals.process"
    vary = {arrivals: ["poisson", "gamma"], "workload.arrivals.burstiness": [None, 0.5]}
    result = Study(tiny, vary).run(jobs=1)
    assert [point.status for point in result.points] == ["done", "failed", "failed", "done"]
    assert "has no use for burstiness" in result.points[1].error
    assert "needs burstiness" in result.points[2].error


@pytest.mark.parametrize(
    ("vary", "words"),
    [({PATH: [0, 4]}, "max_num_seqs=0 fits in no combination"), ({PATH: []}, "empty"), ({PATH: 5}, "(got 5)")],
)
def test_bad_studies_are_refused_before_anything_runs(tiny, vary, words):
    with refused(words):
        Study(tiny, vary)


def test_a_killed_worker_process_loses_nothing(study, tmp_path, monkeypatch):
    pools, killed = [], []
    monkeypatch.setattr(
        "forerun.workers._process_pool", lambda count: pools.append(ProcessPoolExecutor(count)) or pools[-1]
    )

    def kill(done, total):
        if done >= 3 and not killed:
            killed.extend(pools[0]._processes)
            os.kill(killed[0], signal.SIGKILL)

    result = study.run(tmp_path / "s", jobs=2, progress=kill)
    assert killed
    assert [point.runs for point in result.points] == [1] * 12
    monkeypatch.undo()
    assert documents(result) == documents(study.run(jobs=2))


def run_unless_doomed(task):
    return os._exit(1) if task["seed"] == 4 else run_point(task)


def test_a_point_that_kills_its_worker_fails_alone(tiny, monkeypatch):
    monkeypatch.setattr(execute, "run_point", run_unless_doomed)
    study = Study(tiny, {PATH: list(range(1, 13))})
    study.points = tuple(replace(point, seed=n) for n, point in enumerate(study.points))
    result = study.run(jobs=2)
    assert [point.status for point in result.points] == ["failed" if n == 4 else "done" for n in range(12)]
    assert "a worker process died over this run, twice" in result.points[4].error


@pytest.fixture
def command(tmp_path, project_root):
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(yaml.safe_dump(tiny_data()))
    seqs = ",".join(map(str, range(1, 9)))

    def start(store, *more):
        words = [sys.executable, "-m", "forerun", "sweep", scenario, "--store", store, "--jobs", 2, "--no-progress"]
        words += ["--vary", f"{PATH}={seqs}", "--vary", "workload.arrivals.request_rate=5.0,10.0,20.0,40.0,80.0", *more]
        return subprocess.Popen(list(map(str, words)), cwd=project_root, stdout=subprocess.DEVNULL)

    return start


def results(path):
    """How often each point of a store was recorded."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return Counter(line.split(" ")[0] for line in lines[1:] if line.endswith("}"))


def test_killed_at_any_moment_it_goes_on_where_it_stopped(command, tmp_path):
    store = tmp_path / "killed"
    moments = sorted(random.Random(3).sample(range(1, 36), 3))
    for moment in moments:
        process = command(store)
        while len(results(store)) < moment and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
    last = command(store, "--json", tmp_path / "killed.json")
    assert last.wait() == 0
    whole = command(tmp_path / "whole", "--json", tmp_path / "whole.json")
    assert whole.wait() == 0
    assert [*results(store).values()] == [1] * 40
    killed, uninterrupted = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("killed", "whole"))
    assert killed["points"] == uninterrupted["points"]


def test_two_processes_on_one_store_share_the_work(command, tmp_path):
    store = tmp_path / "shared"
    both = [command(store, "--json", tmp_path / f"{n}.json") for n in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [*results(store).values()] == [1] * 40
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2))
    assert first["points"] == second["points"]


@contextmanager
def dask_cluster(folder, root, workers=2):
    """A scheduler and workers as processes of their own on this machine."""
    file = folder / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    quiet = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-nanny"]
    started = [subprocess.Popen([*scheduler, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"], **quiet)]
    try:
        started += [
            subprocess.Popen([*worker, "--nthreads", "1", "--no-dashboard", "--name", f"w{n}"], **quiet)
            for n in range(workers)
        ]
        while not (file.exists() and file.read_text().endswith("}")):
            assert started[0].poll() is None
            time.sleep(0.02)
        yield json.loads(file.read_text())["address"], started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_dask_gives_the_same_and_a_killed_worker_loses_nothing(tiny, tmp_path, project_root):
    pytest.importorskip("distributed")
    study = Study(tiny, {PATH: list(range(1, 13)), "workload.arrivals.request_rate": [5.0, 50.0]})
    with dask_cluster(tmp_path, project_root) as (address, workers):
        killed = []

        def kill(done, total):
            if done >= 5 and not killed:
                killed.append(workers[0])
                workers[0].kill()

        result = study.run(tmp_path / "s", cluster=address, progress=kill)
    assert killed
    assert [point.runs for point in result.points] == [1] * 24
    assert documents(result) == documents(study.run(jobs=2))


def test_an_address_where_nothing_answers_is_one_line_and_leaves_no_store(study, monkeypatch, tmp_path):
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.studies.sweep.execute.CONNECT_S", 0.3)
    for address, words in (("tcp://127.0.0.1:9", "no Dask scheduler answers"), ("nonsense", "tcp://HOST:8786")):
        with refused(words):
            study.run(tmp_path / "kept", cluster=address)
    assert not list(tmp_path.glob("kept*"))


def test_a_worker_of_another_version_is_refused(study, monkeypatch):
    monkeypatch.setattr("simulator.studies.sweep.points.build_mark", lambda: "9.9.9+other")
    task = study.points[0].task()
    monkeypatch.undo()
    assert "build" in run_point(task)
