"""What readers of request and kernel traces refuse: one line with file, place and what is expected there."""

import sqlite3

import pytest
from test_readers import SESSION, pool

from tests.traces.written_file import written
from traces import TraceError
from traces.kernels import read_kernels
from traces.requests import read_requests


def refused(call):
    with pytest.raises(TraceError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def session(*requests, **fields):
    return SESSION | {"requests": list(requests)} | fields


@pytest.mark.parametrize(
    ("format", "value", "message"),
    [
        ("agentic", [1, 2], "a session object with a list 'requests' expected"),
        ("agentic", session(3), "request 1: 3: a JSON object expected"),
        ("agentic", session({"type": "subagent", "t": 1.0}), "request 1: a subagent needs 't' and a list 'requests'"),
        ("agentic", session({"type": "subagent", "requests": []}), "1: a subagent needs 't' and a list 'requests'"),
        ("sharegpt", {"a": 1}, "a JSON list of conversations expected"),
        ("sharegpt", [{"conversations": [3]}], "conversation 1: 3: a message object expected"),
        ("sharegpt", [{"conversations": [{"from": "human"}]}], "conversation 1: a message has neither text nor tokens"),
    ],
)
def test_sessions_and_conversations(tmp_path, format, value, message):
    assert message in refused(lambda: read_requests(written(tmp_path, value), format))


def test_block_ids_of_any_size_keep_what_is_shared(tmp_path):
    """Ids are hashes: however far they lie from each other, equal ones are one block and different ones are two."""
    far = 2**60
    requests = [
        {"t": 0.0, "in": 128, "out": 1, "hash_ids": [5, far]},
        {"t": 1.0, "in": 192, "out": 1, "hash_ids": [5, far, far + 1]},
    ]
    table = read_requests(written(tmp_path, session(*requests, block_size=64)), "agentic")
    first, second = (table.prefix_hashes.of(request).tolist() for request in (0, 1))
    assert second[:2] == first
    assert len({*first, *second}) == 3


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("sharegpt", {"turns": "some"}, "turns: 'some': 'first' or 'all' expected"),
        ("sharegpt", {"characters_per_token": 0.0}, "characters_per_token: 0.0: a finite number > 0 expected"),
        ("plain", {"time_unit": "fortnight"}, "time_unit: 'fortnight': one of"),
        ("agentic", {"session_interval_s": -1.0}, "session_interval_s: -1.0: a finite number >= 0 expected"),
        ("agentic", {"seed": 3}, "format 'agentic' takes no option 'seed'"),
    ],
)
def test_options_out_of_range(tmp_path, format, options, message):
    path = written(tmp_path, session({"t": 0.0, "in": 8, "out": 1, "hash_ids": []}))
    assert message in refused(lambda: read_requests(path, format, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1, "duration_s": 10.0}, "seed: -1: a whole number >= 0 expected"),
        ({"seed": 1, "duration_s": float("inf")}, "duration_s: inf: a finite number > 0 expected"),
    ],
)
def test_draws_from_a_pool_out_of_range(tmp_path, options, message):
    assert message in refused(lambda: read_requests(pool(tmp_path), **options))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("600,2.0,1.4,Gamma,0.5,1", "0,2.0,1.4,Gamma,0.5,1"), ":2: rising times and a rate from 0 to 1e6"),
        (("0,1e9,1.4,Gamma,0.5,1",), ":1: rising times and a rate from 0 to 1e6"),
        (("0,-1,1.4,Gamma,0.5,1",), ":1: rising times and a rate from 0 to 1e6"),
        (("0,2.0,1.4,Gamma,1e9,1",), ":1: shape 1000000000.0: 0.001 to 1e6 expected for Gamma"),
    ],
)
def test_client_pools_with_impossible_rates(tmp_path, rows, message):
    folder = pool(tmp_path)
    (folder / "chunk-1-trace.csv").write_text("\n".join(rows) + "\n")
    assert f"chunk-1-trace.csv{message}" in refused(lambda: read_requests(folder, seed=1, duration_s=100.0))


def test_client_pools_with_impossible_lengths(tmp_path):
    folder = pool(tmp_path)
    lengths = next(path for path in sorted(folder.rglob("*.json")))
    lengths.write_text("[1, 2]")
    assert "an object of windows, keyed by their start in seconds" in refused(
        lambda: read_requests(folder, seed=1, duration_s=24000.0)
    )


def export(tmp_path, *statements):
    path = tmp_path / "export.sqlite"
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    return path


KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({})"
STRINGS = "CREATE TABLE StringIds (id INTEGER, value TEXT)"


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ((STRINGS,), "no GPU kernels in this export"),
        ((STRINGS, KERNELS.format("start INTEGER, shortName INTEGER")), "lacks start, end or name (has shortName"),
        ((STRINGS, KERNELS.format("start INTEGER, end INTEGER, shortName INTEGER")), "no rows"),
    ],
)  # fmt: skip
def test_exports_of_nsys_without_kernels(tmp_path, statements, message):
    assert message in refused(lambda: read_kernels(export(tmp_path, *statements)))
