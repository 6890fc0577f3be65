"""The store of a sweep: each point runs once even if workers die; unusable files are named."""

import os
import resource
import sqlite3
import subprocess
import sys

import pytest
from refused import refused
from tiny_scenario import tiny_data

from simulator.running.scenario import scenario_from
from simulator.studies.sweep.points import make_point, point_key
from simulator.studies.sweep.store import SweepStore


def points(count, seed=0):
    scenario = scenario_from(tiny_data(), "tiny")
    rows = []
    for n in range(count):
        changed = scenario.with_values({"engine.max_num_seqs": n + 1})
        rows.append(make_point(f"p{n}", {"engine.max_num_seqs": n + 1}, changed, seed, 1))
    return rows


DOCUMENT = {"summary": {"completed": 1}, "basis": "calibrated"}


def finish(store, count):
    for key in store.claim(count):
        store.record(key, {"document": DOCUMENT})


@pytest.fixture
def other_process(tmp_path, project_root):
    """Starts a process that claims points of the store, and keeps them until its input ends."""
    script = (
        "import sys; sys.path[:0] = ['.', 'tests', 'tests/simulator/studies']\n"
        "from pathlib import Path; from test_store import SweepStore, points\n"
        "store = SweepStore(Path(sys.argv[1]), points(4)); print(len(store.claim(3)), flush=True); input()\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "s")]
    with subprocess.Popen(words, cwd=project_root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "3\n"
        yield process
        process.kill()


def test_a_point_is_claimed_by_one_process_until_that_dies(tmp_path, other_process):
    with SweepStore(tmp_path / "s", points(4)) as store:
        assert len(store.claim(3)) == 1
        other_process.kill()
        other_process.wait()
        assert len(store.claim(4)) == 3


def test_a_result_of_another_process_is_taken(tmp_path):
    custom = points(4)
    with SweepStore(tmp_path / "s", custom) as first, SweepStore(tmp_path / "s", custom) as second:
        finish(first, 3)
        assert second.claim(4) == [custom[3].key]
        assert second.unfinished == 1
        assert [second.runs[point.key] for point in custom] == [1, 1, 1, 0]


def test_a_failed_point_that_is_retried_is_claimed_once(tmp_path):
    custom = points(2)
    with SweepStore(tmp_path / "s", custom) as store:
        for key in store.claim(2):
            store.record(key, {"error": "no"})
    with SweepStore(tmp_path / "s", custom) as store:
        store.retry_failed()
        assert len(store.claim(9)) == 2
        assert store.claim(9) == []


def test_other_studies_in_the_store_are_left_alone(tmp_path):
    with SweepStore(tmp_path / "s", points(2, seed=1)) as store:
        finish(store, 2)
    with SweepStore(tmp_path / "s", points(3)) as store:
        assert (store.unfinished, store.others) == (3, 2)


def test_the_key_depends_on_all_that_the_result_depends_on(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("10 20 30")
    data = tiny_data(output_tokens={"distribution": "empirical", "file": str(lengths)})
    scenario = scenario_from(data, "s")
    keys = {point_key(scenario, 0, 1), point_key(scenario, 1, 1), point_key(scenario, 0, 2)}
    keys.add(point_key(scenario.with_values({"engine.max_num_seqs": 17}), 0, 1))
    assert len(keys) == 4
    moved = tmp_path / "other-folder.txt"
    moved.write_text("10 20 30")
    same = scenario.with_values({"workload.output_tokens.file": str(moved)})
    assert point_key(same, 0, 1) in keys
    lengths.write_text("10 20 31")
    os.utime(lengths, ns=(1, 1))
    assert point_key(scenario, 0, 1) not in keys


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"forerun sweep store 99\n", "is a store of version 99"),
        (b"these are notes", "not a store of Forerun"),
        (None, "is a database, as stores of Forerun 0.2 were"),
    ],
)
def test_other_files_are_refused_and_kept(tmp_path, content, message):
    path = tmp_path / "s"
    if content is None:
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE points (a)")
        base.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with refused(message, str(path)):
        SweepStore(path, points(1))
    assert path.read_bytes() == before


def test_places_that_hold_no_file_are_refused(tmp_path):
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "gone" / "s", "no folder")):
        with refused(words):
            SweepStore(path, points(1))


def test_a_full_disk_is_one_line_and_what_was_recorded_stays(tmp_path):
    path = tmp_path / "s"
    custom = points(4)
    with SweepStore(path, custom) as store:
        finish(store, 1)
        (key,) = store.claim(1)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
        try:
            with refused("disk is full", str(path)):
                store.record(key, {"document": {"text": "x" * 100_000}})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with SweepStore(path, custom) as store:
        assert (store.unfinished, store.damaged) == (3, 0)
        finish(store, 3)
    with SweepStore(path, custom) as store:
        assert (store.unfinished, store.damaged) == (0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"completed":1', b'"completed":99'),
        lambda line: line[: len(line) // 2],
        lambda line: line.replace(b"summary", b'\xff\xfe{"'),
    ],
)
def test_a_result_that_was_changed_is_run_again(tmp_path, damage):
    custom, path = points(3), tmp_path / "s"
    with SweepStore(path, custom) as store:
        finish(store, 3)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(damage(line) if line.startswith(custom[1].key.encode()) else line for line in lines))
    with SweepStore(path, custom) as store:
        assert store.damaged == 1
        assert store.claim(3) == [custom[1].key]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    custom, path = points(1), tmp_path / "s"
    with SweepStore(path, custom) as store:
        finish(store, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with SweepStore(path, custom) as store:
        with path.open("ab") as file:
            file.write(whole[-20:])
        store.refresh()
        assert (store.unfinished, store.damaged) == (0, 0)
