"""A study that is declared and made public has a command, help, options and a report, without any further line."""

import pytest
import yaml
from tiny_scenario import tiny_data

from forerun.result import StudyResult
from forerun.tables import Table
from simulator.cli import main
from simulator.running.run import simulate
from simulator.studies import public
from simulator.studies.frame import study, study_document
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
    with pytest.raises(TypeError):
        doubled(file, 3)
