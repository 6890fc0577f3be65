"""Scores by line and half: what is on either side, what is refused, what a table of runs needs."""

import pytest

from forerun.errors import ForerunError
from traces.benchmark_results import read_runs
from validation.__main__ import main
from validation.halves import held_out
from validation.served import scores
from validation.served.scores import PUBLISHED, ScoredRow, scored_figures, scores_table
from validation.speculation import compare_published, load_published

TABLE = "row_id,model,gpu,framework,framework_version,tp,input_len,output_len,max_concurrency,num_requests,mean_tpot_ms"
ROW = "meta-llama/Llama-3.1-8B,H100-SXM-80GB,vllm,0.15.1,1,256,32,4,8,8.0"


def test_published_ratios_are_scored_by_half(monkeypatch):
    monkeypatch.setattr(scores, "compare_published", lambda: compare_published(load_published()[::40]))
    figures = scored_figures(None, [], 20, 1)
    ratios = [one for one in figures if one.kind == "speed-up"]
    assert {one.line for one in figures} == {PUBLISHED}
    assert {one.kind for one in figures} == {"speed-up", "acceptance"}
    assert [one.held for one in ratios] == [held_out(one.row) for one in ratios]
    table = scores_table(figures).rows
    assert sum(row[2] + row[4] for row in table) == len(figures)


def test_an_error_is_relative_to_the_measurement():
    figures = [
        ScoredRow("a", "tpot", str(row), False, predicted, 10.0) for row, predicted in enumerate((11.0, 8.0, 10.0))
    ]
    (row,) = scores_table(figures).rows
    assert row == ["a", "tpot", 3, "10.0 / 10.0 %", 0, "", "+0.0 %"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sgl-cookbook.csv").write_text(TABLE + "\n" + "\n".join(f"s{i},{ROW}" for i in range(2)) + "\n")
    return tmp_path


def test_runs_of_a_table_are_simulated_and_written(folder, capsys):
    assert [run.name for run in read_runs(str(folder / "sgl-cookbook.csv"))] == ["sgl-cookbook 0", "sgl-cookbook 1"]
    arguments = ["scores", "--data", str(folder), "--line", "older cookbook", "--jobs", "1", "--out", str(folder)]
    assert main(arguments) == 0
    assert "older cookbook" in capsys.readouterr().out
    lines = (folder / "scores.csv").read_text().splitlines()
    assert lines[0] == "line,kind,row,held,predicted,measured,error"
    assert len(lines) == 3


@pytest.mark.parametrize(("line", "words"), [("KubeKon", "no such line; did you mean"), ("KubeCon", "no file")])
def test_a_line_without_data_is_refused(folder, line, words):
    with pytest.raises(ForerunError, match=words):
        scored_figures(folder, [line], 20, 1)
