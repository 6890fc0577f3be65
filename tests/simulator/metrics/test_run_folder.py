"""A run folder is of one run: written in one transaction, read only where everything in it belongs together."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.cli import main
from simulator.running.metrics import files
from simulator.running.metrics.files import (
    StagedFiles,
    locked_folder,
    scratch_folder,
    writable_folder,
)
from simulator.running.metrics.run_folder import load_run

ROOT = Path(__file__).resolve().parents[3]
TABLES = ("requests.parquet", "steps.parquet", "trace.json")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "tiny.json"
    path.write_text(json.dumps(tiny_data(num_requests=5)))
    return path


@pytest.fixture(scope="module")
def two_runs(scenario, tmp_path_factory):
    """Folders of runs that differ in their seed alone."""
    place = tmp_path_factory.mktemp("runs")
    for seed in ("0", "1"):
        assert main(["run", str(scenario), "--seed", seed, "--out", str(place / seed), "--no-progress"]) == 0
    return place / "0", place / "1"


@pytest.fixture
def copied(two_runs, tmp_path):
    """A copy of the first of two runs."""
    return shutil.copytree(two_runs[0], tmp_path / "run")


def test_every_file_names_the_run(two_runs):
    folder, other = two_runs
    run = load_run(folder).document["run"]
    assert run != load_run(other).document["run"]
    for name in TABLES[:2]:
        assert pq.read_schema(folder / name).metadata[b"forerun.run"].decode() == run
    assert json.loads((folder / "trace.json").read_text())["otherData"]["run"] == run
    assert run in (folder / "report.html").read_text()


def test_the_same_run_has_the_same_name(scenario, two_runs, tmp_path):
    assert main(["run", str(scenario), "--seed", "0", "--out", str(tmp_path / "again")]) == 0
    for name in TABLES:
        assert (tmp_path / "again" / name).read_bytes() == (two_runs[0] / name).read_bytes()
    assert load_run(tmp_path / "again").document["run"] == load_run(two_runs[0]).document["run"]


@pytest.mark.parametrize("name", [*TABLES, "summary.json"])
def test_files_of_two_runs_are_refused(two_runs, copied, forerun, name):
    shutil.copy(two_runs[1] / name, copied / name)
    line = forerun("report", copied).error_line
    assert "summary.json" in line
    assert "run the scenario again" in line


@pytest.mark.parametrize("moves", range(6))
def test_ended_between_any_two_moves_the_folder_is_one_run_or_refused(copied, scenario, monkeypatch, moves):
    """What a kill leaves: the moves made so far."""
    folder, made = copied, []
    replace = os.replace

    class KilledError(BaseException):
        pass

    def one_of(source, target):
        if Path(target).parent == folder:
            if len(made) == moves:
                raise KilledError
            made.append(target)
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", one_of)
    try:
        main(["run", str(scenario), "--seed", "1", "--out", str(folder)])
    except KilledError:
        assert moves < 5
    monkeypatch.undo()
    if moves == 0:
        assert load_run(folder).document["seed"] == 0
    elif moves >= 5:
        assert load_run(folder).document["seed"] == 1
    else:
        with pytest.raises(ForerunError, match="not of the run"):
            load_run(folder)
    assert not list(folder.glob(".forerun*"))


def changes(document):
    """Every key taken out and every value replaced, to a depth of two."""
    for key, value in document.items():
        if key in ("run", "files"):
            continue
        yield {k: v for k, v in document.items() if k != key}
        for wrong in (None, "words", [1], {"a": 1}, -1, 1e300):
            if wrong != value:
                yield document | {key: wrong}
        if isinstance(value, dict):
            for inner in value:
                for wrong in (None, "words", [1], {"a": 1}):
                    if wrong != value[inner]:
                        yield document | {key: value | {inner: wrong}}


def test_a_changed_summary_is_one_line(copied, forerun):
    summary = copied / "summary.json"
    document = json.loads(summary.read_text())
    document["engine"] = {key: value for key, value in document["engine"].items() if key not in ("cpu_s", "wall_s")}
    tried = list(changes(document))
    assert len(tried) > 300
    for number, changed in enumerate(tried):
        summary.write_text(json.dumps(changed))
        with pytest.raises(ForerunError) as refused:
            load_run(copied)
        assert str(refused.value).startswith(f"{summary}: ")
        if number % 50 == 0:
            assert forerun("report", copied).error_line == f"forerun: {refused.value}"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "[" * 100_000, '{"summary": {}}', '{"files": 3}', "\udcff"]
)
def test_what_is_no_summary_is_one_line(copied, forerun, text):
    (copied / "summary.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert forerun("report", copied).error_line.startswith(f"forerun: {copied / 'summary.json'}: ")


def started(code, *argv):
    """The command in a process of its own, with ``code`` run before it."""
    script = f"import sys\n{code}\nfrom simulator.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, argv)], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


WAITS = """
import simulator.running.metrics.run_folder as run_folder
def write(path, *_, **__):
    path.write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
run_folder.write_timeline = write
"""


def test_while_one_process_writes_another_is_refused(scenario, tmp_path, forerun):
    out = tmp_path / "run"
    first = started(WAITS, "run", scenario, "--out", out)
    assert first.stdout.readline() == "writing\n"
    assert "another forerun is writing into it" in forerun("run", scenario, "--out", out).error_line
    first.communicate("\n", timeout=600)
    assert first.returncode == 0
    assert load_run(out).document["seed"] == 0
    assert forerun("run", scenario, "--out", out).code == 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_ended_by_the_system_nothing_half_written_stays(scenario, copied, sent, code):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    process = started(WAITS, "run", scenario, "--seed", "1", "--out", copied)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(sent)
    assert (process.communicate(timeout=600)[1], process.returncode) == ("", code)
    left = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    assert left == before
    assert main(["run", str(scenario), "--seed", "1", "--out", str(copied)]) == 0
    assert load_run(copied).document["seed"] == 1
    assert not list(copied.glob(".forerun*"))


STAGES = """
from pathlib import Path
from simulator.running.metrics.files import StagedFiles
with StagedFiles(Path(sys.argv[1])) as staged:
    staged.add_text("b", "whole")
    print("staged", flush=True)
    sys.stdin.readline()
sys.exit()
"""


@pytest.fixture
def staging(tmp_path, monkeypatch):
    """Another process that has staged a file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with started(STAGES, tmp_path) as process:
        assert process.stdout.readline() == "staged\n"
        yield process
        process.kill()


def write_beside(folder):
    """Stage, prove and scratch in a folder from a container, where the numbers of other processes are unknown."""

    def unknown(*_):
        raise ProcessLookupError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", unknown)
        with StagedFiles(folder) as staged, writable_folder(folder), scratch_folder():
            staged.add_text("a", "")


def test_what_a_process_of_another_container_has_staged_is_not_removed(tmp_path, staging):
    write_beside(tmp_path)
    assert staging.communicate("\n", timeout=600) == ("", "")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "", "b": "whole"}


def test_what_a_killed_process_left_is_removed(tmp_path, staging):
    """By the next one that writes in that folder, or that needs a scratch folder there."""
    staging.send_signal(signal.SIGKILL)
    staging.wait()
    assert list(tmp_path.iterdir())
    write_beside(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_without_locks_nothing_of_another_process_is_removed(tmp_path, staging, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    write_beside(tmp_path)
    staging.communicate("\n", timeout=600)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_one_process_may_lock_twice(tmp_path):
    with writable_folder(tmp_path), locked_folder(tmp_path), locked_folder(tmp_path):
        pass
    with locked_folder(tmp_path):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_device_is_one_line_with_its_name(forerun):
    line = forerun("chips show h100-sxm --json /dev/full").error_line
    assert line == "forerun: /dev/full: No space left on device"
