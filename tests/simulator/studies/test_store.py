"""The store of a sweep: each point runs once even if workers die; unusable files are named."""

import os
import resource
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
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


def test_a_point_is_claimed_by_one_and_recorded_once(tmp_path):
    custom = points(4)
    with SweepStore(tmp_path / "s", custom) as first, SweepStore(tmp_path / "s", custom) as second:
        mine, theirs = first.claim(3), second.claim(3)
        assert len(mine) == 3
        assert len(theirs) == 1
        assert not set(mine) & set(theirs)
        second.record([(mine[0], DOCUMENT, None)])
        assert first.counts()["done"] == 0, "a result of another's claim was taken"
        first.record([(key, DOCUMENT, None) for key in mine] * 2)
        assert [row.runs for row in first.rows()] == [1, 1, 1, 0]


def test_a_lease_that_ran_out_is_open_and_its_late_result_is_dropped(tmp_path):
    custom = points(1)
    with SweepStore(tmp_path / "s", custom, lease_s=-1.0) as slow, SweepStore(tmp_path / "s", custom) as quick:
        key = slow.claim(1)[0]
        assert quick.claim(1) == [key]
        slow.record([(key, {"summary": {"completed": 2}}, None)])
        quick.record([(key, DOCUMENT, None)])
        assert quick.rows()[0].document == DOCUMENT
        assert quick.rows()[0].runs == 1


def test_claims_of_a_dead_process_are_open_at_once(tmp_path, project_root):
    custom = points(2)
    with SweepStore(tmp_path / "s", custom):
        pass
    script = (
        "import os, sys; sys.path[:0] = ['.', 'tests', 'tests/simulator/studies']\n"
        "from pathlib import Path; from test_store import SweepStore, points\n"
        f"SweepStore(Path({str(tmp_path / 's')!r}), points(2)).claim(2); os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=project_root, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr
    with SweepStore(tmp_path / "s", custom) as store:
        assert store.claim(2) == []
        store.free_dead()
        assert len(store.claim(2)) == 2


def test_other_studies_in_the_store_are_left_alone(tmp_path):
    with SweepStore(tmp_path / "s", points(2, seed=1)) as store:
        store.record([(key, DOCUMENT, None) for key in store.claim(2)])
    with SweepStore(tmp_path / "s", points(3)) as store:
        assert store.counts() == {"pending": 3, "running": 0, "done": 0, "failed": 0}
        assert store.others() == 2


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


def one_line(action):
    with pytest.raises(ForerunError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_store_of_another_version_is_refused(tmp_path):
    path = tmp_path / "s"
    with SweepStore(path, points(1)):
        pass
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version = 99")
    base.close()
    line = one_line(lambda: SweepStore(path, points(1)))
    assert "store of version 99" in line
    assert str(path) in line


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, and long enough to be no empty file" * 50)
    assert "not a store" in one_line(lambda: SweepStore(text, points(1)))
    assert text.read_text().startswith("these are notes")
    foreign = tmp_path / "foreign.db"
    base = sqlite3.connect(foreign)
    base.execute("CREATE TABLE points (a)")
    base.commit()
    base.close()
    assert "not a store of Forerun" in one_line(lambda: SweepStore(foreign, points(1)))
    assert "is a folder" in one_line(lambda: SweepStore(tmp_path, points(1)))
    assert "no folder" in one_line(lambda: SweepStore(tmp_path / "gone" / "s", points(1)))


def test_a_full_disk_is_one_line_and_what_was_recorded_stays(tmp_path):
    path = tmp_path / "s"
    custom = points(4)
    with SweepStore(path, custom) as store:
        keys = store.claim(4)
        store.record([(keys[0], DOCUMENT, None)])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        try:
            line = one_line(lambda: store.record([(keys[1], {"summary": {"text": "x" * 100_000}}, None)]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "disk is full" in line
        assert str(path) in line
    with SweepStore(path, custom) as store:
        assert store.counts()["done"] == 1


def test_a_result_that_was_changed_is_run_again(tmp_path):
    custom = points(3)
    with SweepStore(tmp_path / "s", custom) as store:
        store.record([(key, DOCUMENT, None) for key in store.claim(3)])
        assert store.counts()["done"] == 3
    base = sqlite3.connect(tmp_path / "s")
    forged = '{"summary":{"completed":99},"basis":"calibrated"}'
    base.execute("UPDATE points SET document = ? WHERE key = ?", (forged, custom[1].key))
    base.execute("UPDATE points SET document = '{\"summ' WHERE key = ?", (custom[2].key,))
    base.commit()
    base.close()
    with SweepStore(tmp_path / "s", custom) as store:
        assert store.damaged == 2
        assert sorted(store.claim(3)) == sorted([custom[1].key, custom[2].key])


def test_bytes_that_are_no_text_cost_their_point_alone(tmp_path):
    """A damaged result is run again; no error quotes it."""
    custom = points(3)
    with SweepStore(tmp_path / "s", custom) as store:
        store.record([(key, DOCUMENT, None) for key in store.claim(3)])
    base = sqlite3.connect(tmp_path / "s")
    base.execute("UPDATE points SET document = CAST(x'FFFE7B22' AS TEXT) WHERE key = ?", (custom[1].key,))
    base.commit()
    base.close()
    with SweepStore(tmp_path / "s", custom) as store:
        assert store.damaged == 1
        assert store.claim(3) == [custom[1].key]


def test_work_per_point_does_not_grow_with_the_number_of_points(tmp_path):
    """Claiming and recording a point takes so many steps of SQLite's machine, however many points are done."""

    def steps_per_point(count):
        custom = [replace(made, key=f"{n:06}") for n in range(count)]
        ticks = 0

        def tick():
            nonlocal ticks
            ticks += 1
            return 0

        with SweepStore(None, custom) as store:
            store._base.set_progress_handler(tick, 10)
            while keys := store.claim(2):
                store.record([(key, DOCUMENT, None) for key in keys])
            assert store.counts()["done"] == count
        return ticks / count

    made = points(1)[0]
    assert steps_per_point(2000) < 1.5 * steps_per_point(200)
