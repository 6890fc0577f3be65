"""Results kept between commands: equal to those made anew, whatever happens to the folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forerun import disk_cache
from forerun.disk_cache import MOST_ENTRIES, VARIABLE, kept
from hwprofiles import catalogue, load_chip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def calls(file, value="made"):
    """What ``kept`` returns for a file, and how often it was made."""
    made = []
    return kept("name", [file], lambda: made.append(1) or [value]), len(made)


def test_a_result_is_made_once_until_a_file_changes(folder, tmp_path):
    file = tmp_path / "input"
    file.write_text("one")
    assert [calls(file), calls(file)] == [(["made"], 1), (["made"], 0)]
    file.write_text("two")
    assert calls(file, "again") == (["again"], 1)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"x" + b[41:]])
def test_a_damaged_entry_is_made_again(folder, tmp_path, damage):
    calls(tmp_path / __file__)
    (entry,) = folder.glob("*.pickle")
    entry.write_bytes(damage(entry.read_bytes()))
    assert calls(tmp_path / __file__) == (["made"], 1)
    assert calls(tmp_path / __file__) == (["made"], 0)


@pytest.mark.parametrize("value", ["off", ""])
def test_off_keeps_nothing(folder, monkeypatch, tmp_path, value):
    monkeypatch.setenv(VARIABLE, value)
    assert [calls(Path(__file__))[1] for _ in range(2)] == [1, 1]
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_to_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert calls(Path(__file__)) == (["made"], 1)


@pytest.mark.skipif(os.name == "nt", reason="files have no owner that Python can read")
def test_an_entry_of_another_user_is_not_read(folder, monkeypatch):
    calls(Path(__file__))
    monkeypatch.setattr(disk_cache.os, "getuid", lambda: -1)
    assert calls(Path(__file__)) == (["made"], 1)


def test_the_oldest_entries_leave(folder):
    for number in range(MOST_ENTRIES + 3):
        kept(str(number), [], lambda: None)
    assert len(list(folder.iterdir())) == MOST_ENTRIES


def test_a_chip_from_the_folder_is_the_chip_of_the_catalogue(folder):
    """In processes that write at once, too."""
    code = "from hwprofiles import load_chip; print(load_chip('gb200').model_dump_json())"
    start = {"stdout": subprocess.PIPE, "text": True}
    printed = {one.communicate()[0] for one in [subprocess.Popen([sys.executable, "-c", code], **start) for _ in "abc"]}
    again = subprocess.run([sys.executable, "-c", code], check=True, **start).stdout
    assert printed == {again} == {load_chip("gb200").model_dump_json() + "\n"}
    assert list(folder.glob("*.pickle"))
    assert not list(folder.glob("*.[0-9]*"))


def test_an_extended_chip_depends_on_the_chip_that_it_extends():
    extending = [n for n in catalogue.chip_names() if len(catalogue._files("chips", n)) > 2]
    assert extending
    for name in extending:
        assert any(file.stem != name for file in catalogue._files("chips", name)), name
