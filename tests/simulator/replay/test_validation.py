"""Errors on record: what has grown, what has gone, and pages that are whole."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwprofiles import KernelLibrary, load_chip
from hwprofiles.dtypes import format_of
from simulator.cli import main
from simulator.errors import ForerunError
from simulator.replay.fit_problem import core_rows, family_rows
from simulator.replay.light_speed import impossible_rows
from simulator.replay.predict import predict_table
from simulator.replay.split import training_rows
from simulator.replay.validation import (
    ErrorRow,
    attention_errors,
    errors_document,
    grown_errors,
    measured_kernel_errors,
    measured_request_errors,
    merged,
    read_errors,
    shipped_kernel_errors,
    trust_page,
)
from simulator.replay.validation.kernels import SPLIT
from simulator.replay.validation.page import scored_shapes
from traces.kernels import concatenate, read_kernels

ROW = ErrorRow("kernels", "gemm", "seconds", 10, 5.0, 4.0, 1.0, "calibrated", "nothing", True)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 50))
def test_only_growth_beyond_the_margin_fails(old, new, margin):
    lines = grown_errors([replace(ROW, mape=new)], [replace(ROW, mape=old)], margin)
    assert bool(lines) == (new > old + margin)


def test_what_is_gone_or_shrunk_fails_and_what_is_new_does_not():
    other = replace(ROW, name="moe")
    assert "no longer compared" in grown_errors([other], [ROW], 1.0)[0]
    assert "10 on record" in grown_errors([replace(ROW, n=9)], [ROW], 1.0)[0]
    assert grown_errors([ROW, other], [ROW], 0.0) == []


def test_a_part_computed_anew_replaces_its_own_rows_alone():
    measured = replace(ROW, ships=False, name="measured")
    served = replace(measured, section="requests")
    found = merged([ROW, measured, served], [replace(measured, name="new")])
    assert [(row.section, row.name) for row in found] == [
        ("kernels", "gemm"),
        ("kernels", "new"),
        ("requests", "measured"),
    ]


def test_record_survives_its_file(tmp_path):
    path = tmp_path / "errors.json"
    path.write_text(json.dumps(errors_document([ROW], "1")))
    assert read_errors(path) == [ROW]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"errors": [{"section": 1}]}', '{"errors": 3}', "\x00"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "errors.json"
    path.write_text(text)
    with pytest.raises(ForerunError, match=r"errors\.json"):
        read_errors(path)


def test_fitted_kernels_beat_limits_alone():
    alone, *fitted = shipped_kernel_errors()
    assert sum(row.mape * row.n for row in fitted) / sum(row.n for row in fitted) < alone.mape
    assert sum(row.n for row in fitted) == alone.n
    assert [scored_shapes(row.fitted) for row in (alone, fitted[0])] == ["nothing fitted", "left out"]


def test_page_shows_every_row():
    rows = [ROW, *attention_errors()]
    page = trust_page(rows, "1.2.3")
    assert "1.2.3" in page
    assert all(f"| {row.name} |" in page for row in rows)
    assert "| gemm | seconds | 10 | 5.0 % | 4.0 % | +1.0 % |" in page


def test_page_says_of_every_kernel_row_whether_the_fit_saw_it():
    """A profile that names the split left the scored shapes out; one that does not may have seen them."""
    split = f"train={SPLIT.train:g},seed={SPLIT.seed}"
    assert scored_shapes("nothing") == "nothing fitted"
    assert scored_shapes(f"tables; errors of shapes held out ({split})") == "left out"
    assert scored_shapes("tables; errors of shapes held out (train=0.5,seed=3)") == "may be in the fit"
    assert scored_shapes("tables; in-sample error 6 %") == "may be in the fit"
    page = trust_page([ROW, replace(ROW, name="moe", fitted="all of it")], "1")
    assert "| basis | scored shapes | fitted |" in page
    assert "| calibrated | nothing fitted | nothing |" in page
    assert "| calibrated | may be in the fit | all of it |" in page


def test_profiles_that_name_the_split_obeyed_it(shared_data):
    """The A100's fits have as many rows as the split leaves them, of the tables that they are scored on."""
    folder = shared_data / "kernels" / "aiconfigurator"
    tables = {}
    for path in sorted(folder.rglob("*.parquet")):
        if "a100" in str(path):
            table = read_kernels(path)
            for library in set(table.word("library").names):
                tables.setdefault(library, []).append(table.where(table.word("library").equals(library)))
    chip, compared = load_chip("a100-sxm-80gb"), 0
    for library, parts in tables.items():
        table = concatenate(parts)
        for (family, dtype), index in family_rows(table).items():
            sets = chip.kernels.get(library, {}).get(family, {})
            fitted = sets.get(dtype, sets.get(format_of(dtype)))
            if fitted is None or scored_shapes(fitted.source.reference) != "left out":
                continue
            rows = table.where(index)
            out, _ = impossible_rows(rows, predict_table(rows, KernelLibrary(chip, library)), chip)
            rows = rows.where(~out)
            seen = rows.where(training_rows(rows, SPLIT))
            left = int(core_rows(family, seen).sum())
            assert fitted.source.rows <= left, (library, family, dtype)
            compared += fitted.source.rows == left
    assert compared >= 12, "rows that beat the datasheet are left out of a fit, in one set of TensorRT-LLM's"


def test_check_command(tmp_path, capsys):
    record = tmp_path / "errors.json"
    assert main(["validate", "alspec", "--out", str(tmp_path)]) == 0
    assert main(["validate", "--check", str(record), "--margin", "0.01"]) == 0
    document = json.loads(record.read_text())
    document["errors"][0]["mape"] -= 1.5
    record.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["validate", "--check", str(record), "--margin", "1"]) == 1
    assert "exceeds" in capsys.readouterr().err
    assert main(["validate", "--check", str(record), "--margin", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--check", "nowhere.json"], "nowhere.json: no such file"),
        (["kernels", "--data", "nowhere"], "nowhere: no such folder"),
        (["requests", "--data", "."], "no measured serving run"),
    ],
)
def test_bad_input_is_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_measured_tables_are_recognised(shared_data):
    rows, left = measured_kernel_errors(shared_data / "kernels" / "blis")
    assert any(row.name.startswith("gemm fp8") and "h100-sxm" in row.name for row in rows)
    tables = [path for path in (shared_data / "kernels" / "blis").rglob("*") if path.suffix in (".csv", ".parquet")]
    assert left["files that are no kernel trace"] < len(tables)
    served, _ = measured_request_errors(shared_data / "serving" / "blis", limit=1)
    assert served
    assert all(row.n <= 1 for row in served)
