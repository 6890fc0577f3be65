"""A file of learned corrections that is damaged is refused in one line, whatever the damage is."""

import io
import json

import numpy as np
import pytest
from fuzzing.seeds import corrections
from refused import refused

from hwprofiles import correction
from hwprofiles.correction import feature_names, load_corrections, save_corrections

PLACE = "vllm/gemm/bf16"


def arrays():
    with np.load(io.BytesIO(corrections())) as data:
        return dict(data)


def packed(**changes):
    """The file with other arrays, or with other entries of its index."""
    result, sink = arrays(), io.BytesIO()
    (entry,) = json.loads(result["index"].tobytes())
    entry |= {name: changes.pop(name) for name in list(changes) if name in entry}
    result["index"] = np.frombuffer(json.dumps([entry]).encode(), np.uint8)
    np.savez_compressed(sink, **result | changes)
    return sink.getvalue()


def refusal(tmp_path, data, message=""):
    (tmp_path / "mine.residual.npz").write_bytes(data)
    with refused("mine.residual.npz: damaged file of corrections", message):
        load_corrections(tmp_path / "mine.residual.npz")


def test_the_whole_file_is_read(tmp_path):
    (tmp_path / "mine.residual.npz").write_bytes(packed())
    ((key, result),) = load_corrections(tmp_path / "mine.residual.npz").items()
    assert "/".join(key) == PLACE
    names = len(feature_names("gemm"))
    logs = np.full((names, 3), 2.0)
    logs[0] = 0.3, 1.0, 2.3  # the last beyond the end of what was learned
    hinges = result.hinges._replace(base=0.5)
    assert hinges(logs).tolist() == pytest.approx([0.6625, 0.75, 1.2125])
    assert hinges(logs[:, :1]) == pytest.approx(hinges(logs)[:1])


def saved(array):
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        saved(np.ones(3)),
        corrections()[:-40],
        corrections()[: len(corrections()) // 2],
        corrections().replace(b"PK\x01\x02", b"PK\x01\x03"),
        bytes(255 - byte if 80 < place < 120 else byte for place, byte in enumerate(corrections())),
    ],
)
def test_bytes_that_are_no_archive(tmp_path, data):
    refusal(tmp_path, data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature": np.full((2, 3), 99)}, "hinge functions over features that are not there"),
        ({"feature": np.full((2, 3), -1)}, "hinge functions over features that are not there"),
        ({"low": np.ones((2, 2))}, "hinge functions of which parts are missing"),
        ({"ends": [1.0, 1.0, 1.0]}, "hinge functions of which parts are missing"),
        ({"gain": np.full(2, np.nan)}, "a hinge function that is no number"),
        ({"gain": np.array([0.1, -0.1])}, "a hinge function that falls"),
        ({"high": np.zeros((2, 3))}, "a hinge function that falls"),
        ({"feature": np.ones(3, np.int8)}, ""),
        ({"names": ["m", "colour"]}, "other features than those of the family"),
        ({"ranges": {"m": [1.0]}}, ""),
        ({"ranges": [1.0]}, ""),
        ({"count": 3}, "hinge functions of which parts are missing"),
        ({"start": -1}, "hinge functions of which parts are missing"),
        ({"count": 1.5}, ""),
        ({"key": ["gemm"]}, ""),
        ({"base": None}, ""),
        ({"gain": np.array([{"a": 1}], dtype=object)}, "pickle"),
    ],
)
def test_arrays_that_do_not_fit_together(tmp_path, changes, message):
    refusal(tmp_path, packed(**changes), message)


def test_an_index_of_another_kind(tmp_path):
    for index in (b"[1]", b"{}x", b"7"):
        sink = io.BytesIO()
        np.savez(sink, **arrays() | {"index": np.frombuffer(index, np.uint8)})
        refusal(tmp_path, sink.getvalue())


def test_hinge_functions_that_two_sets_share_are_stored_once(tmp_path):
    (tmp_path / "mine.residual.npz").write_bytes(corrections())
    ((key, result),) = load_corrections(tmp_path / "mine.residual.npz").items()
    other = result._replace(ranges={"m": (1.0, 2.0)})
    both = {key: result, (*key[:2], "fp8"): other}
    path = save_corrections(both, tmp_path / "both.residual.npz")
    with np.load(path) as data:
        assert len(data["gain"]) == len(result.hinges.gain)
    again = load_corrections(path)
    assert list(again) == list(both)
    for one, before in zip(again.values(), both.values(), strict=True):
        assert (one.ranges, one.intervals, one.hinges.ends, one.hinges.base) == (
            before.ranges, before.intervals, before.hinges.ends, before.hinges.base)  # fmt: skip
        assert np.array_equal(one.hinges.low, before.hinges.low)


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(correction, "MOST_BYTES", 1 << 20)
    refusal(tmp_path, packed(padding=np.zeros(1 << 18)), "unpacks to more than 1 MiB")
