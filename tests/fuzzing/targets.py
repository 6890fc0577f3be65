"""Every reader of the project as a target: seeds, and a call that may refuse a file but never break on it."""

import io
import json
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fuzzing import seeds

from dashboards.recorded_errors import read_errors
from forerun.errors import ForerunError
from hwprofiles import ProfileError, load_chip, load_link
from hwprofiles.correction import feature_names, load_corrections
from hwprofiles.schema import CORRECTIONS
from simulator.cli import main
from simulator.llm import architecture_summary, load_architecture
from simulator.running.scenario import load_scenario
from simulator.serve.observed import observe_files
from simulator.speculation import read_acceptance
from simulator.speculation.engine_logs import fit_acceptance
from simulator.studies.study_file import load_study
from traces import TraceError
from traces.benchmark_results import read_runs
from traces.kernels import read_kernels
from traces.llama_cpp import read_llama_cpp
from traces.requests import iter_requests, read_requests
from traces.steps import read_steps
from validation import tables as tables  # lets read_runs and read_kernels read them

REFUSALS = (ForerunError, ProfileError, TraceError)
LONGEST_MESSAGE = 2000
LONGEST_CALL_S = 20


@dataclass(frozen=True)
class Target:
    """A reader: what it is given and how it is called."""

    name: str
    suffix: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]


def _requests(path: Path) -> None:
    table = read_requests(path)
    assert table.input_tokens.min() >= 1
    assert table.output_tokens.min() >= 1
    if table.arrival_s is not None:
        assert np.isfinite(table.arrival_s).all()
        assert (np.diff(table.arrival_s) >= 0).all()
        assert table.arrival_s[0] == 0


def _requests_named(path: Path) -> None:
    """A format that a user names is read or refused whatever the file holds."""
    for format in ("plain", "mooncake", "agentic", "vllm-bench", "aiperf", "bailian", "servegen", "sharegpt"):
        with suppress(TraceError):
            assert len(read_requests(path, format, on_error="skip")) >= 1


def _requests_streamed(path: Path) -> None:
    """Streamed and whole readings hold the same requests, in order throughout."""
    last, rows = -np.inf, 0
    for table in iter_requests(path, on_error="skip", chunk_rows=2):
        rows += len(table)
        if table.arrival_s is not None:
            assert table.arrival_s[0] >= last
            last = table.arrival_s[-1]
    assert rows == len(read_requests(path, on_error="skip"))


def _kernels(path: Path) -> None:
    table = read_kernels(path)
    assert np.isfinite(table.measured_s).all()
    assert (table.measured_s > 0).all()


def _benchmark_results(path: Path) -> None:
    for run in read_runs(path):
        assert all(np.isfinite(value) and value > 0 for value in run.measured.values())


def _corrections(path: Path) -> None:
    """What is read corrects a prediction without surprise."""
    for (_, family, _), correction in load_corrections(path).items():
        assert np.isfinite(correction.hinges(np.ones((len(feature_names(family)), 3)))).all()


def _acceptance(path: Path) -> None:
    log = read_acceptance(path)
    assert 1 <= log.acceptance_length < np.inf
    json.dumps(fit_acceptance([path]), allow_nan=False)


def _model(path: Path) -> None:
    summary = architecture_summary(load_architecture(path))
    json.dumps(summary, allow_nan=False)
    assert summary["parameters_total"] >= summary["parameters_active"] > 0


def _command(*words: str) -> Callable[[Path], None]:
    """The command in this process: 0, 1 or 2, and one line on stderr when it refuses."""

    def call(path: Path) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(path) if word == "FILE" else word for word in words])
        assert code in (0, 1, 2), code
        if code == 2:
            lines = err.getvalue().splitlines()
            assert len(lines) == 1, lines[:5]
            assert len(lines[0]) < LONGEST_MESSAGE, lines[0][:200]

    return call


def _targets() -> Iterator[Target]:
    def texts(*inputs: str) -> tuple[bytes, ...]:
        return tuple(text.encode() for text in inputs)

    tables = tuple(text for text in seeds.REQUESTS if text[0] not in "[{0")
    request_seeds = (*texts(*seeds.REQUESTS), seeds.packed(seeds.REQUESTS[0]), seeds.parquet_of(tables[0]))
    kernel_seeds = texts(*seeds.KERNELS)
    yield Target("requests", "", request_seeds, _requests)
    yield Target("requests-named", "", request_seeds, _requests_named)
    yield Target("requests-streamed", "", request_seeds, _requests_streamed)
    yield Target("kernels", ".csv", kernel_seeds, _kernels)
    yield Target("kernels-gzip", ".csv.gz", tuple(map(seeds.packed, seeds.KERNELS[:2])), _kernels)
    yield Target("kernels-parquet", ".parquet", tuple(map(seeds.parquet_of, seeds.KERNELS[:12])), _kernels)
    yield Target("steps-csv", ".csv", texts(seeds.STEPS[0]), read_steps)
    yield Target("steps-json", ".json", texts(seeds.STEPS[1]), read_steps)
    yield Target("steps-parquet", ".parquet", (seeds.parquet_of(seeds.STEPS[0]),), read_steps)
    yield Target("benchmark_results-csv", ".csv", texts(*seeds.BENCHMARK_RESULTS[:4]), _benchmark_results)
    yield Target("benchmark_results-json", ".json", texts(*seeds.BENCHMARK_RESULTS[4:]), _benchmark_results)
    yield Target("benchmark_results-jsonl", ".jsonl", texts(*seeds.BENCHMARK_RESULTS[4:]), _benchmark_results)
    yield Target("corrections", CORRECTIONS, (seeds.corrections(),), _corrections)
    yield Target("errors-on-record", ".json", texts(seeds.ERRORS), read_errors)
    yield Target("metrics", ".txt", texts(seeds.METRICS), lambda path: observe_files([path], 60.0))
    yield Target(
        "metrics-json", ".json", texts(json.dumps(seeds.RANGE_QUERY)), lambda path: observe_files([path], None)
    )
    yield Target("llama-cpp", ".log", texts(*seeds.LLAMA_CPP), read_llama_cpp)
    yield Target("engine-log", ".log", texts(*seeds.LOGS), _acceptance)
    yield Target("scenario", ".yaml", texts(seeds.SCENARIO, seeds.PLAIN_SCENARIO), load_scenario)
    yield Target("study", ".yaml", texts(seeds.STUDY, seeds.SCENARIO), load_study)
    yield Target("model-json", ".json", texts(*seeds.HF_CONFIGS), _model)
    yield Target("model-yaml", ".yaml", texts(*seeds.files("simulator", "llm", "catalogue")[::4]), _model)
    yield Target("chip", ".yaml", texts(*seeds.files("hwprofiles", "chips")[::3]), load_chip)
    yield Target("link", ".yaml", texts(*seeds.files("hwprofiles", "links")[::3]), load_link)
    small = texts(seeds.PLAIN_SCENARIO)
    yield Target("command-run", ".yaml", texts(seeds.SCENARIO) + small, _command("run", "FILE", "--json", "-"))
    yield Target(
        "command-chips-check",
        ".yaml",
        texts(*seeds.files("hwprofiles", "chips")[:2]),
        _command("chips", "check", "FILE"),
    )
    yield Target("command-models-check", ".json", texts(*seeds.HF_CONFIGS), _command("models", "check", "FILE"))
    yield Target(
        "command-replay-kernels", ".csv", kernel_seeds[:4], _command("replay", "kernels", "FILE", "--chip", "h100-sxm")
    )
    yield Target("command-workloads", "", request_seeds, _command("workloads", "check", "FILE"))


TARGETS = {target.name: target for target in _targets()}


class Hang(Exception):
    """A call took longer than ``LONGEST_CALL_S``."""


@contextmanager
def _watched() -> Iterator[None]:
    """A call that hangs is stopped (where there is an alarm clock: Unix, main thread)."""

    def stop(*_: object) -> None:
        raise Hang(f"longer than {LONGEST_CALL_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_CALL_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(target: Target, data: bytes, folder: Path) -> str | None:
    """Give ``data`` to a reader; returns the refusal, or None where the file was read.

    Raises:
        Exception: anything that is not a one-line refusal by the project: a finding.
    """
    path = folder / f"fuzzed{target.suffix}"
    path.write_bytes(data)
    try:
        with _watched():
            target.read(path)
    except REFUSALS as refusal:
        message = str(refusal)
        assert message.strip(), "an empty message"
        assert len(message.splitlines()) == 1, f"more than one line: {message[:300]!r}"
        assert len(message) < LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]!r}"
        message.encode("utf-8")
        return message
    return None


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A temporary folder in memory where there is one."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class Round:
    """Damaged files through one reader: counts outcomes, prints what breaks once for each place in the code.

    Args:
        target: the reader.
        folder: for the file it is given.
        keep: folder for inputs that broke something, or None.
    """

    def __init__(self, target: Target, folder: Path, keep: Path | None) -> None:
        self.target, self.folder, self.keep = target, folder, keep
        self.outcomes: Counter[str] = Counter()
        self.places: set[str] = set()

    def add(self, data: bytes) -> None:
        """Give one input to the reader."""
        try:
            self.outcomes["read" if attempt(self.target, data, self.folder) is None else "refused"] += 1
        except Exception as error:
            self.outcomes["broke"] += 1
            place = _place_of(error)
            key = place.split(" '")[0]
            if key in self.places:
                return
            self.places.add(key)
            print(f"FINDING {self.target.name}: {place}", flush=True)
            if self.keep is not None:
                self.keep.mkdir(parents=True, exist_ok=True)
                (self.keep / f"{self.target.name}-{len(self.places)}{self.target.suffix}").write_bytes(data)


def _place_of(error: BaseException) -> str:
    """Kind of the error and the innermost line of the project that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    packages = ("traces", "simulator", "hwprofiles", "dashboards")
    own = [frame for frame in frames if any(f"/{package}/" in frame.filename for package in packages)]
    last = (own or frames)[-1]
    return f"{type(error).__name__} at {'/'.join(Path(last.filename).parts[-3:])}:{last.lineno} {str(error)[:150]!r}"
