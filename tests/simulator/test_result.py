"""What a result hands out: documents, tables, frames, figures; and the one base of all errors."""

import sys

import pyarrow.parquet as pq
import pytest
from refused import refused
from results import checked_result
from tiny_scenario import tiny_data

import simulator
from forerun.tables import Cell, Table, faint, pairs
from hwprofiles import ProfileError, load_chip
from simulator import ForerunError, simulate
from simulator.running.scenario import scenario_from
from traces import TraceError, read_requests


def test_every_package_raises_the_same_base():
    assert issubclass(ProfileError, ForerunError)
    assert issubclass(TraceError, ForerunError)
    with pytest.raises(ForerunError, match="no chip 'h10-sxm'"):
        load_chip("h10-sxm")
    with pytest.raises(ForerunError, match="azure-conv-2023"):
        read_requests("azure-conv-202")


ODD = Table(
    "Odd <b>",
    ("", "a|b", "*n*"),
    [["[red]x\ny", Cell("1.5", aside="1..2", tone="good", value=1.5), 2], ["<i>", None, 1234567.0], ["z", "w", 3]],
    shown=2,
)


def test_a_table_is_rendered_without_its_words_becoming_markup():
    page = ODD.html()
    assert "&lt;i&gt;" in page
    assert '<td class="good">1.5 <span class="aside">1..2</span></td>' in page
    assert "<details><summary>1 more</summary>" in page
    lines = ODD.markdown().splitlines()
    assert len(lines) == 2 + 3
    assert all(line.count("|") - line.count("\\|") == 4 for line in lines)
    assert lines[0] == "|   | a\\|b | \\*n\\* |"
    assert lines[2].startswith("| \\[red] x y |".replace("] x", "]x"))
    assert lines[3] == "| &lt;i> | - | 1,234,567 |"


def test_a_page_shows_details_after_an_aside_alone_and_sets_many_columns_closer():
    row = (Cell("x", "1..2", detail="P=1.00"), Cell("1", detail="no"), 2, 3, 4)
    wide = Table("", ("", "a<b", "c", "d", "e"), [row]).html()
    assert '<table class="many">' in wide
    assert '<td>x <span class="aside">1..2 P=1.00</span></td><td>1</td>' in wide
    assert 'class="many"' not in Table("", ("", "a", "b", "c"), [("x", 1, 2, 3)]).html()


def test_a_table_in_a_terminal_shows_its_words_as_they_are(capsys):
    from rich.console import Console

    Console(width=100).print(ODD.rich())
    out = capsys.readouterr().out
    assert "[red]x" in out
    assert "1.5 1..2" in out
    assert "and 1 more" in out
    assert "z" not in out.split("Odd <b>")[1].split("and 1 more")[0].split("\n", 2)[2]


def test_words_align_left_figures_right_and_wide_tables_keep_their_last_column():
    names = ("run", *(f"mean of something measured {index}" for index in range(6)), "worst")
    table = Table("", names, [("one", *range(6), "a word"), ("two", *range(6), "-")])
    assert [table.words(index) for index in (0, 1, 7)] == [True, False, True]
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(table.rich(console.width))
    last = captured.get().rstrip().splitlines()[-1]
    assert "a word" in captured.get()
    assert all(len(line) <= 100 for line in captured.get().splitlines())
    assert last.split() == ["two", *map(str, range(6)), "-"]


def test_values_of_a_table_reach_a_data_frame():
    frame = ODD.to_arrow()
    assert frame.column_names == ["name", "a|b", "*n*"]
    assert frame["*n*"].to_pylist() == [2.0, 1234567.0, 3.0]
    assert faint(["a", 2])[1].value == 2
    assert not pairs("", [("label", 1)]).headed


@pytest.fixture(scope="module")
def result():
    return simulate(scenario_from(tiny_data(), "tiny"))


def test_a_run_result_is_one_of_its_seed(result, tmp_path):
    checked_result(result, tmp_path / "run", "requests.parquet", "report.html")
    assert simulate(scenario_from(tiny_data(), "tiny"), seed=7) != result
    assert result != result.document
    assert "llama" in repr(result)


def test_a_run_result_hands_out_all_it_has(result, tmp_path):
    assert result.summary["completed"] == len(result.requests)
    assert "mean_ttft_ms" in repr(result.summary)
    assert result.to_arrow().num_rows == len(result.requests)
    assert result.to_arrow("steps").num_rows == len(result.steps)
    assert result.table().title == "Serving"
    assert result.table("latency").rows[0][0] == "TTFT"
    assert "latency" in result.figures
    for part in ("table", "figure"):
        with refused(f"no {part} 'latenc'; did you mean 'latency'"):
            getattr(result, part)("latenc")
    assert result.save(tmp_path / "run") == tmp_path / "run"
    assert pq.read_table(tmp_path / "run" / "requests.parquet").equals(result.to_arrow())


def test_without_pandas_the_way_out_is_reported(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ForerunError, match=r"pandas is not installed.*to_arrow"):
        result.to_pandas()


def test_forerun_is_a_name_over_the_face():
    import forerun

    assert forerun.simulate is simulator.simulate
    assert "simulate" in dir(forerun)
    with pytest.raises(AttributeError):
        _ = forerun.nothing
