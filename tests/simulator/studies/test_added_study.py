"""A study that is declared and made public has a command, help, options and a report, without any further line."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import pytest
import yaml
from tiny_scenario import tiny_data

import simulator
from forerun.errors import ForerunError
from forerun.result import StudyResult
from forerun.tables import Table
from simulator.cli import main
from simulator.running.run import simulate
from simulator.studies import public
from simulator.studies.frame import Option, study, study_document
from simulator.studies.study_file import Source, study_of


class Doubled(StudyResult):
    kind = "doubled"
    title = "Median TTFT, twice"

    @property
    def conclusion(self):
        return "it doubles"

    def tables(self):
        return [Table("Doubled", ("", "ms"), [("TTFT", self.document["ttft_ms"])], name="doubled")]


@study("doubled", source="Scenario (YAML).")
def doubled(scenario: "Source") -> Doubled:
    """Twice the median TTFT."""
    body = {"ttft_ms": 2 * simulate(study_of(scenario).scenario).summary["median_ttft_ms"], "conclusion": "it doubles"}
    return Doubled(study_document(body, study_of(scenario).scenario, 0, "assumed"))


def test_a_study_needs_its_package_and_one_public_name(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(public, "doubled", doubled, raising=False)
    monkeypatch.setattr(public, "__dir__", lambda: [*public.__all__, "doubled"])
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_data()))
    assert main(["--help"]) == 0
    assert "Twice the median TTFT" in capsys.readouterr().out
    assert main(["doubled", str(file), "--out", str(tmp_path / "out")]) == 0
    assert "it doubles" in capsys.readouterr().out
    assert "Median TTFT, twice" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(
        ForerunError, match=r"fr.doubled: too many positional arguments \(by position goes 'scenario' alone\)"
    ):
        doubled(file, 3)


SEEN = []


@study("doubled", source="Scenario (YAML).")
def with_options(
    scenario: "Source",
    *,
    rate: Annotated[float, Option("A number.")] = 1.0,
    slo: Annotated[Mapping[str, float] | Sequence[str] | None, Option("Limits.", text=list[str])] = None,
    targets: Annotated[Sequence[float], Option("Repeatable numbers.", text=list[str])] = (),
    thresholds: Annotated[Sequence[float] | str | None, Option("Numbers in one text.", text=str)] = None,
    batch: Annotated[Sequence[int], Option("Whole numbers.", text=list[str])] = (),
) -> Doubled:
    """Twice the median TTFT."""
    SEEN.append((rate, slo, targets, thresholds, batch))
    return Doubled(study_document({"ttft_ms": 1.0, "conclusion": ""}, study_of(scenario).scenario, 0, "assumed"))


def test_the_command_that_repeats_a_study_has_every_number_in_full(monkeypatch, tmp_path):
    monkeypatch.setattr(public, "doubled", with_options, raising=False)
    monkeypatch.setattr(public, "__dir__", lambda: [*public.__all__, "doubled"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(tiny_data()))
    rate, limit = 41.23456789012345, 1234.5678901234567
    SEEN.clear()
    options = {"rate": rate, "slo": {"p99_ttft_ms": limit, "goodput": 0.9999999}, "targets": (0.1 + 0.2, 2e-7)}
    options |= {"thresholds": (0.0, 1 / 3), "batch": (1, 8)}
    words = shlex.split(with_options("study.yaml", **options).command)
    assert words[:3] == ["forerun", "doubled", "study.yaml"]
    assert main([*words[1:], "--no-progress"]) == 0
    texts = [f"p99_ttft_ms={limit}", "goodput=0.9999999"], [str(0.1 + 0.2), "2e-07"], f"0,{1 / 3}", ["1,8"]
    assert SEEN[1] == (rate, *texts)


def test_options_that_a_study_file_leaves_without_effect_are_refused(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"scenario": tiny_data(), "vary": {"hardware.replicas": [1]}}))
    with pytest.raises(ForerunError, match=r"max_replicas: has no effect where hardware\.replicas is varied"):
        simulator.plan(tmp_path / "study.yaml", rate=1.0, slo={"p99_ttft_ms": 1e6}, max_replicas=1)
    with pytest.raises(ForerunError, match="retry_failed: has no effect without a store"):
        simulator.sweep(tiny_data(), {"engine.max_num_seqs": [1, 2]}, retry_failed=True)
