"""Errors on record: what has grown, what has gone, what is kept from earlier runs, and what was fitted on what."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.recorded_errors import ErrorRow, read_errors
from forerun.errors import ForerunError
from hwprofiles import library
from simulator.replay.split import training_rows
from validation import shipped
from validation.facts import NOTHING, facts, fitted_words
from validation.inputs import Cache, digest_of, modules_below
from validation.record import errors_document, grown_errors, merged
from validation.shipped import SPLIT, parts, sample_errors, shipped_errors

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
    result = merged([ROW, measured, served], [replace(measured, name="new")])
    assert [(row.section, row.name) for row in result] == [
        ("kernels", "gemm"),
        ("kernels", "new"),
        ("requests", "measured"),
    ]


def test_a_table_served_anew_leaves_the_others():
    one, other = (replace(ROW, section="requests", ships=False, name=f"serving/{name}.csv") for name in ("a", "b"))
    again = replace(one, name="a.csv", mape=1.0)
    assert merged([one, other], [again]) == [again, other], "tables in one order, whichever was served last"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"errors": [{"section": 1}]}', '{"errors": 3}', "\x00"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "errors.json"
    path.write_text(text)
    with pytest.raises(ForerunError, match=r"errors\.json"):
        read_errors(path)


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def fitted_sample():
    return sample_errors()


def test_fitted_kernels_beat_limits_alone(fitted_sample):
    single, *fitted = fitted_sample
    assert sum(row.mape * row.n for row in fitted) / sum(row.n for row in fitted) < single.mape
    assert sum(row.n for row in fitted) == single.n


def test_the_fit_of_the_sample_sees_no_row_that_is_scored(monkeypatch):
    """``calibrate`` fits every row of a family that has few; on record are shapes that it has not seen."""
    seen = []

    def watched(table, chip, *arguments, **options):
        seen.append(table)
        raise ForerunError("seen")

    monkeypatch.setattr(shipped, "calibrate", watched)
    with pytest.raises(ForerunError, match="seen"):
        sample_errors()
    assert training_rows(seen[0], SPLIT).all()


def recorded(path, sections=("attention",)):
    path.write_text(json.dumps(errors_document(shipped_errors(sections).rows, "1")))
    return path


def test_check_command(tmp_path, forerun, no_cache):
    record = recorded(tmp_path / "errors.json")
    check = ("validate", "--check", record, "--margin")
    assert forerun(*check, 0.01).code == 0
    document = json.loads(record.read_text())
    document["errors"][0]["mape"] -= 1.5
    record.write_text(json.dumps(document))
    outcome = forerun(*check, 1)
    assert (outcome.code, "exceeds" in outcome.err) == (1, True)
    assert forerun(*check, 2).code == 0


def test_what_did_not_change_is_not_computed_again(tmp_path, forerun, no_cache, monkeypatch):
    check = ("validate", "--check", recorded(tmp_path / "errors.json"), "--jobs", 1)
    assert forerun(*check).code == 0
    monkeypatch.setattr(shipped, "attention_errors", lambda: pytest.fail("computed again"))
    assert forerun(*check).code == 0
    with pytest.raises(pytest.fail.Exception):
        forerun(*check, "--fresh")


def test_a_damaged_cache_is_none(no_cache):
    cache = Cache(no_cache, "1")
    cache.put("part", [ROW])
    assert cache.get("part") == [ROW]
    assert Cache(no_cache, "2").get("part") is None
    for file in no_cache.iterdir():
        file.write_text('{"part": "part", "digest": "1", "rows": [{"section": 3}]}')
    assert cache.get("part") is None


def test_a_renamed_or_linked_cache_entry_is_not_read(no_cache):
    cache = Cache(no_cache, "1")
    cache.put("part", [ROW])
    (entry,) = no_cache.iterdir()
    entry.rename(cache._file("other"))
    assert cache.get("other") is None
    cache.put("part", [ROW])
    entry.rename(no_cache.parent / "moved")
    entry.symlink_to(no_cache.parent / "moved")
    assert cache.get("part") is None


def test_a_cache_folder_that_others_may_enter_is_not_used(no_cache, monkeypatch):
    cache = Cache(no_cache, "1")
    cache.put("part", [ROW])
    no_cache.chmod(0o755)
    assert cache.get("part") is None
    cache.put("other", [ROW])
    assert len(list(no_cache.iterdir())) == 1
    no_cache.chmod(0o700)
    assert cache.get("part") == [ROW]
    monkeypatch.setattr("validation.inputs.os.getuid", lambda: -1)
    assert cache.get("part") is None


def test_the_digest_follows_imports_faces_and_data(tmp_path):
    """A module that is imported, also lazily or through a stub, and data beside one count; what is not, does not."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def digest():
        digest_of.cache_clear()
        return digest_of("own.start", tmp_path)

    write("own/__init__.py", "")
    write("own/start.py", "def f():\n    from face import thing\n")
    write("face/__init__.py", "")
    write("face/__init__.pyi", "from deep.below import thing as thing\n")
    write("deep/__init__.py", "")
    write("deep/below.py", "thing = 1\n")
    write("deep/table.yaml", "a: 1\n")
    write("separate/__init__.py", "x = 1\n")
    digest_of.cache_clear()
    assert Path(library.__file__) in modules_below("validation.shipped"), "what the record is kept by"
    first = digest()
    for name, text in (("deep/below.py", "thing = 2\n"), ("deep/table.yaml", "a: 2\n")):
        write(name, text)
        assert digest() != first
        first = digest()
    write("separate/__init__.py", "x = 2\n")
    assert digest() == first
    digest_of.cache_clear()


def test_quick_says_what_it_left_out(tmp_path, forerun, no_cache, monkeypatch):
    monkeypatch.setattr(shipped, "load_published", lambda: ())
    row = replace(ROW, name="kernels-cpu, gemm bf16")
    document = errors_document([row, *shipped_errors(["attention"]).rows, replace(ROW, ships=False)], "1")
    record = tmp_path / "errors.json"
    record.write_text(json.dumps(document))
    outcome = forerun("validate", "--check", record, "--quick", "--jobs", 1)
    assert outcome.code == 0
    for words in (
        "2 of 2 errors on record hold",
        "Left out by --quick: 1 rows of kernels-cpu",
        "Not checked: 1 rows on measured tables that do not ship",
    ):
        assert words in outcome.out


def test_every_slow_part_is_a_fit_or_grows_trees():
    slow = {part.name for part in parts() if part.slow}
    assert slow >= {"kernels-cpu", "eagle3_t1"}
    assert not slow & {"vllm20780", "specforge", "published maxima"}


def test_every_row_on_record_belongs_to_a_part(project_root):
    """So that --quick leaves out the rows of the parts that it names, and no other."""
    known = parts()
    for row in read_errors(project_root / "docs" / "validation" / "errors.json"):
        if row.ships and row.section != "attention":
            assert sum(row.of_part(part.section, part.name) for part in known) == 1, row.name


def test_no_table_that_a_constant_names_is_called_unfitted(project_root):
    """Whatever a constant's YAML file names as fitted on is named beside the errors on its table."""
    tables = {}
    for row in read_errors(project_root / "docs" / "validation" / "errors.json"):
        tables.setdefault(row.name.split("/")[-1].split(".")[0], []).append(row.fitted)
    named = {fact.table for fact in facts()}
    assert len(named) >= 10
    for table in named & set(tables):
        for words in (*tables[table], fitted_words(table, ())):
            assert words != NOTHING, table
            assert not words.startswith("nothing"), table
            assert all(fact.constant in words for fact in facts() if fact.table == table), table


def test_constants_carried_from_another_table_are_named():
    words = fitted_words("vllm16937", ["draft_overheads.yaml: vllm-2025.eagle", "frameworks.yaml: transformers"])
    assert words == "nothing of this table; draft_overheads.yaml: vllm-2025.eagle of vllm20780"
    assert fitted_words("nowhere", ["frameworks.yaml: transformers"]) == NOTHING
