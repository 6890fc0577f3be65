"""No file, however damaged, makes a reader do anything but read it or refuse it in one line: a short seeded round.

``FORERUN_FUZZ=20000 FORERUN_FUZZ_SEED=1`` give each reader so many other files; ``coverage_guided.py`` uses atheris.
"""

import gzip
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing.mutate import mutated
from fuzzing.targets import TARGETS, attempt, quick_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError
from simulator.running.scenario import parse_yaml
from traces import TraceError, files
from traces.kernels import read_kernels
from traces.requests import read_requests
from traces.steps import read_steps

ROUNDS = int(os.environ.get("FORERUN_FUZZ", "0"))
SEED = os.environ.get("FORERUN_FUZZ_SEED", "short")
FEWER = {
    "command-run": 6,
    "command-models-check": 15,
    "command-chips-check": 15,
    "command-workloads": 20,
    "command-replay-kernels": 20,
}


@pytest.mark.parametrize("name", TARGETS)
def test_damage_is_read_or_refused(name):
    target, rng = TARGETS[name], random.Random(f"{SEED} {name}")
    with quick_folder() as folder:
        for _ in range(ROUNDS or FEWER.get(name, 100)):
            data = mutated(rng.choice(target.seeds), rng, target.seeds)
            try:
                attempt(target, data, folder)
            except Exception as error:
                raise AssertionError(f"{name} broke on {data[:2000]!r}") from error


def test_the_seeds_of_each_reader_are_good_files():
    """Damage to what is refused anyway would show little."""
    for target in TARGETS.values():
        if not target.name.startswith("command"):
            with quick_folder() as folder:
                read = sum(attempt(target, seed, folder) is None for seed in target.seeds)
                assert read >= 0.7 * len(target.seeds), target.name


@pytest.mark.parametrize("name", [name for name in TARGETS if not name.startswith("command")])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))))
def test_noise_is_read_or_refused(name, data):
    with quick_folder() as folder:
        attempt(TARGETS[name], data, folder)


def bomb(depth=9, width=9):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, depth):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join([*lines, f"model: *a{depth - 1}", "hardware: {chip: h100-sxm}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(), "stands for more than"),
        ("a: &a [*a]", "holds itself"),
        ("a: &a {b: *a}", "holds itself"),
        ("[" * 1500, "nested too deeply"),
        ("{[a]: b}", "a key must be a word"),
    ],
)
def test_yaml_that_explodes_is_refused(text, message):
    with pytest.raises(ForerunError, match=message):
        parse_yaml(text, "file")
    with quick_folder() as folder:
        for name in ("scenario", "study", "model-yaml", "chip", "link"):
            refusal = attempt(TARGETS[name], text.encode(), folder)
            assert refusal is not None
            assert message in refusal or name == "model-yaml" or "nested" in message, (name, refusal)


def test_anchors_and_merges_are_fine():
    text = "base: &base {a: 1, b: [1, 2]}\nother: {<<: *base, a: 2}\nthird: *base"
    assert parse_yaml(text, "file")["other"] == {"a": 2, "b": [1, 2]}


def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    """A few kilobytes of gzip or Parquet that stand for more than is ever read whole."""
    monkeypatch.setattr(files, "LARGEST_DOCUMENT_BYTES", 1 << 20)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(b'{"traceEvents": [' + b"1, " * (1 << 20)))
    table = tmp_path / "kernels.csv.gz"
    table.write_bytes(gzip.compress(b"op,m,n,k,measured_s\n" + b"gemm,1,1,1,1\n" * (1 << 17)))
    for read, path in ((read_kernels, packed), (read_steps, packed), (read_kernels, table)):
        with pytest.raises(TraceError, match=r"more than 1 MiB \(unpacked\)"):
            read(path)
    monkeypatch.setattr(files, "LARGEST_TABLE_VALUES", 1000)
    wide = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"op": pa.array(["gemm"] * 501), "measured_s": pa.array([1.0] * 501)}), wide)
    for read in (read_kernels, read_steps):
        with pytest.raises(TraceError, match="501 rows of 2 columns"):
            read(wide)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("traces.files.MAX_LINE_BYTES", 1 << 16)
    path = tmp_path / "line.csv"
    path.write_bytes(b"arrival_s,input_tokens,output_tokens\n" + b"1" * (3 << 20))
    with pytest.raises(TraceError, match="a line without end"):
        read_requests(path)


@pytest.mark.parametrize("kind", ["scenario", "chip", "model-yaml"])
def test_a_file_that_is_much_too_long_is_refused_unread(kind):
    with quick_folder() as folder:
        refusal = attempt(TARGETS[kind], b"a: b\n" * (1 << 20), folder)
    assert "larger than" in refusal


def test_a_number_of_thousands_of_digits_is_refused_everywhere(tmp_path):
    digits = "1" + "0" * 5000
    result = f'{{"mean_ttft_ms": {digits}, "completed": 1}}'
    with quick_folder() as folder:
        for name in ("benchmark_results-json", "benchmark_results-jsonl", "engine-log", "model-json"):
            assert attempt(TARGETS[name], result.encode(), folder) is not None
    assert json.loads(result.replace(digits, "1"))
