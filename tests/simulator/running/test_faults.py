"""What goes wrong around a run: a full disk, a locked folder, signals, missing extras, a clock that jumps.

Whatever happens, outputs are whole or as they were before, and the command says what was wrong in one line.
"""

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_scenario import tiny_data

from simulator.cli import main

ROOT = Path(__file__).resolve().parents[3]
HANGS_S = 600
"""Seconds after which a process is taken to hang; nothing is judged by the clock before."""
KERNELS = "op,m,n,k,dtype,measured_s\n" + "".join(
    f"gemm,{m},{n},4096,bf16,{2 * m * n * 4096 / 4e14 + n * 4096 * 2 / 2e12 + 4e-6}\n"
    for m in (1, 16, 64, 256, 1024, 4096)
    for n in (1024, 2048, 4096, 8192, 14336)
)

COMMANDS = {
    "run": "run SCENARIO --out OUT --no-progress",
    "run-json": "run SCENARIO --json OUT/run.json --no-progress",
    "compare": "compare SCENARIO --vary engine.max_num_seqs=4,8 --no-sensitivity --replications 2 --jobs 1 "
    "--json OUT/c.json",
    "plan": "plan SCENARIO --rate 5 --vary hardware.tensor_parallel=1 --max-replicas 1 --no-headroom --finalists 1 "
    "--requests 40 --replications 2 --jobs 1 --json OUT/p.json",
    "sweep": "sweep SCENARIO --vary engine.max_num_seqs=4,8 --jobs 1 --store OUT/store.sqlite",
    "replay": "replay kernels KERNELS --chip h100-sxm --out OUT",
    "calibrate": "calibrate KERNELS --chip h100-sxm --output OUT/profile.yaml",
    "report": "report RUN --output OUT/page.html",
    "validate": "validate speculation --group GROUP --json OUT/v.json",
}


@pytest.fixture(scope="module")
def place():
    """A folder that every user may enter, with all that the commands need."""
    folder = Path(tempfile.mkdtemp(prefix="forerun-faults-"))
    folder.chmod(0o755)
    data = tiny_data() | {"slo": {"p99_ttft_ms": 1e6}, "prices": {"usd_per_chip_hour": 2.5}}
    (folder / "scenario.json").write_text(json.dumps(data))
    (folder / "kernels.csv").write_text(KERNELS)
    assert main(["run", str(folder / "scenario.json"), "--out", str(folder / "run")]) == 0
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def out(place):
    """A folder for outputs with an old file in it."""
    folder = Path(tempfile.mkdtemp(dir=place))
    folder.chmod(0o755)
    (folder / "old.txt").write_text("old")
    return folder


def words(name, place, out):
    from validation.speculation import load_published

    names = {"SCENARIO": place / "scenario.json", "KERNELS": place / "kernels.csv", "RUN": place / "run"}
    names |= {"GROUP": sorted({row.group for row in load_published()})[0]}
    return [str(names.get(word, word.replace("OUT", str(out)))) for word in COMMANDS[name].split()]


@contextmanager
def full_disk(largest_bytes):
    """No file of this process may grow beyond ``largest_bytes``: to a program, that is a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def as_anybody():
    """The rights of a user that owns nothing, where this process is root's."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def left(folder):
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_leaves_nothing_half_written(name, place, out, forerun):
    argv = words(name, place, out)
    assert forerun(*argv).code == 0
    whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert len(whole) > 1, "the command writes something"
    with full_disk(300):
        outcome = forerun(*(word.replace("store.sqlite", "second.sqlite") for word in argv))
    assert any(reason in outcome.error_line for reason in ("File too large", "disk is full", "No space")), outcome
    now = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "second" not in path.name}
    assert now == whole


@pytest.mark.parametrize("name", COMMANDS)
def test_a_locked_folder_is_one_line(name, place, out, forerun):
    argv = words(name, place, out)
    assert forerun(*argv).code == 0
    locked = place / f"locked-{name}"
    locked.mkdir(mode=0o555)
    with as_anybody():
        line = forerun(*(word.replace(str(out), str(locked)) for word in argv)).error_line
    assert any(reason in line for reason in ("Permission denied", "unable to open", "readonly", "cannot be")), line
    assert left(locked) == []


def started(code, *argv, **options):
    """The command in a process of its own, with ``code`` run before it."""
    script = f"import sys\n{code}\nfrom simulator.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, argv)], cwd=ROOT, stderr=subprocess.PIPE, text=True, **options
    )


def test_interrupted_the_command_ends_with_one_line(place, out):
    """Ctrl-C in the middle of a simulation, at the first progress that it tells: at no moment of a clock.

    Python heeds it as on a terminal: a shell starts what runs in the background with Ctrl-C ignored.
    """
    (out / "long.json").write_text(json.dumps(tiny_data(num_requests=20_000)))
    interrupt = "import os, signal\nfrom simulator.cli.output import Progress\n"
    interrupt += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    interrupt += "Progress.update = lambda _, done, total: done < total and os.kill(os.getpid(), signal.SIGINT)"
    process = started(interrupt, "run", out / "long.json", "--out", out / "run", stdout=subprocess.PIPE)
    _, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, err) == (130, "forerun: interrupted\n")
    assert not (out / "run").exists()


def test_a_clock_that_runs_backwards_changes_nothing(place, out, monkeypatch, forerun):
    def figures(*argv):
        document = forerun(*argv, "--json", "-").document
        document.pop("engine", None)
        return document

    run = ("run", place / "scenario.json")
    sweep = ("sweep", place / "scenario.json", "--vary", "engine.max_num_seqs=4,8", "--jobs", "1", "--store")
    good = figures(*run), figures(*sweep, out / "good.sqlite")["points"]
    now = [2e9]

    def backwards():
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    assert figures(*run) == good[0]
    points = figures(*sweep, out / "backwards.sqlite")["points"]
    for name in ("set", "status", "summary"):
        assert [point[name] for point in points] == [point[name] for point in good[1]]


@pytest.mark.parametrize(
    ("absent", "argv", "extra"),
    [
        ("dash", "dash --port 0", "dashboard"),
        ("dash_mantine_components", "dash --port 0", "dashboard"),
        ("torch", "measure --quick --output k.csv", "measure"),
        ("distributed", "sweep SCENARIO --vary weights_dtype=fp8 --cluster local", "cluster"),
        ("aiconfigurator_core", "replay kernels silicon:h100_sxm --chip h100-sxm", "silicon"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(absent, argv, extra, place, tmp_path, monkeypatch, forerun):
    result = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, package=None: None if name == absent else result(name, package)
    )
    line = forerun(*argv.replace("SCENARIO", str(place / "scenario.json")).split()).error_line
    assert line.endswith(f"pip install 'forerun[{extra}]'")
    assert left(tmp_path) == []
