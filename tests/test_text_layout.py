"""Tables at every width of a terminal: what is printed can be read back."""

import json
from importlib.resources import files

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scenario_parts import burst, drafts
from study_commands import WIDTHS, printed, same_at_every_width

from forerun.tables import Cell, Table, cell_text, duration
from forerun.text_layout import lines_of, pieces
from simulator.cli import main
from simulator.studies.compare.document import ratio_cell
from simulator.studies.paired import Ratio

WORD = st.text("abcdefgh-./%", min_size=1, max_size=20)
FIGURE = st.from_regex(r"-?[0-9]{1,3}(,[0-9]{3})?(\.[0-9]{1,3})?( (ms|GB|req/s|%))?", fullmatch=True)
TEXT = st.lists(WORD | FIGURE, min_size=1, max_size=6).map(" ".join)
CELL = st.one_of(TEXT, st.floats(-1e7, 1e7), st.none(), st.builds(Cell, TEXT, TEXT))


@st.composite
def made_tables(draw):
    columns = draw(st.lists(TEXT | st.just(""), min_size=2, max_size=9))
    rows = draw(st.lists(st.tuples(TEXT, *[CELL] * (len(columns) - 1)), min_size=1, max_size=8))
    return Table(draw(WORD), columns, rows)


NINE_COLUMNS = ["", "a", "a", "", "a", "a", "", "aa aaaaa 00.0 ms 0,000.0 req/s", ""]


@given(made_tables(), st.sampled_from(WIDTHS))
@example(Table("a", NINE_COLUMNS, [["a"] * 8 + [Cell("-000.000", "d..aaaaaaaaaaaaaaaaa")]] * 2), 60)
@example(Table("a", NINE_COLUMNS, [["a"] * 8 + ["/".join(["abcd"] * 8)]] * 2), 60)
def test_no_piece_of_a_cell_is_cut(table, width):
    text = printed(table, width)
    assert all(len(line) <= width for line in text.splitlines())
    texts = [*table.columns, *(cell_text(cell) for row in table.rows for cell in row)]
    assert all(piece in text for cell in texts for piece in pieces(cell))


@given(TEXT, st.integers(24, 80))
def test_lines_hold_the_text_in_order(text, width):
    lines = lines_of(text, width)
    assert " ".join(lines) == " ".join(text.split())
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("191.3 s 139.4 s..285.8 s", ["191.3 s", "139.4 s..285.8 s"]),
        ("68.7 req/s +86%", ["68.7 req/s", "+86%"]),
        ("2 of 3 replicas", ["2", "of", "3", "replicas"]),
        ("", []),
    ],
)
def test_a_figure_stays_with_its_unit(text, parts):
    assert pieces(text) == parts


SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"chip": "h100-sxm"},
    "workload": burst(16, 300, 40),
    "speculation": drafts("draft-model", 2, draft={"model": "llama-3.2-1b", "chip": "h100-sxm", "link": "pcie5-x16"}),
}
COMMANDS = (
    "run s.json",
    "run s.json --full",
    "run s.json --set attention_speculation=null --replications 2 --no-interval",
    "compare s.json --vary speculation.num_speculative_tokens=1,2,3 --jobs 1",
    "compare s.json --vary speculation.num_speculative_tokens=1,2,3 --jobs 1 --full",
    "tune t.json --batch 1,8,64 --context 512,4096",
    "plan t.json --rate 5 --slo p99_ttft_ms=500 --slo p99_tpot_ms=30 --jobs 1 --vary hardware.tensor_parallel=1,2",
    "sweep t.json --vary engine.max_num_seqs=2,8 --jobs 1",
    "predict --chip h100-sxm gemm m=512 n=4096 k=4096 dtype=bf16",
    "chips show h100-sxm",
    "chips list",
    "models show deepseek-v3",
    "workloads show t.csv",
    "workloads curves",
    "workloads list",
    "models list",
    "models check m.yaml",
    "plan t.json --max-rate --requests 20 --slo p99_ttft_ms=500 --jobs 1 --vary hardware.tensor_parallel=1,2",
    "replay kernels k.csv --chip k.machine.yaml",
    "replay steps out/steps.parquet --scenario t.json",
    "replay requests runs.csv --scenario t.json",
    "calibrate k.csv --chip k.machine.yaml --output own.yaml",
    "validate speculation",
    "twin runs.json --scenario t.json",
)
RUNS = """model,chip,framework,max_concurrency,input_tokens,output_tokens,num_requests,mean_ttft_ms,mean_tpot_ms
llama-3.1-8b,h100-sxm,vllm,1,256,24,4,40,9
llama-3.1-8b,h100-sxm,vllm,4,256,24,16,40,9
"""
SERVED = {"duration": 60.0, "completed": 30, "total_input_tokens": 9000, "total_output_tokens": 1200,
          "request_throughput": 0.5, "mean_ttft_ms": 30.0, "mean_tpot_ms": 8.0, "max_concurrency": 4}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_the_same_figures_at_every_width(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCENARIO))
    own = SCENARIO["speculation"] | {"draft": {"model": "llama-3.2-1b"}}
    (tmp_path / "t.json").write_text(json.dumps(SCENARIO | {"speculation": own}))
    (tmp_path / "t.csv").write_text(
        "timestamp,input_tokens,output_tokens\n" + "".join(f"{i},400,30\n" for i in range(50))
    )
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "runs.json").write_text(json.dumps(SERVED))
    for name in ("csv", "machine.yaml"):
        (tmp_path / f"k.{name}").write_bytes((files("traces") / "samples" / f"kernels-cpu.{name}").read_bytes())
    (tmp_path / "m.yaml").write_bytes((files("simulator") / "llm" / "catalogue" / "llama-3.2-1b.yaml").read_bytes())
    if "steps.parquet" in command:
        assert main(["run", "t.json", "--out", "out"]) == 0
    same_at_every_width(command, monkeypatch, capsys)


def test_full_view_has_everything_and_the_short_one_says_what_it_leaves_out(tmp_path, capsys):
    (tmp_path / "s.json").write_text(json.dumps(SCENARIO))

    def views(*words):
        for more in ((), ("--full",)):
            assert main([words[0], str(tmp_path / "s.json"), *words[1:], *more]) == 0
            yield capsys.readouterr().out

    for words, left_out in (
        (("run",), (" std",)),
        (
            ("compare", "--vary", "speculation.num_speculative_tokens=1,2", "--jobs", "1"),
            ("request throughput", "p99 TTFT (ms)", "ends of assumed parameters"),
        ),
    ):
        short, full = views(*words)
        shown, _, named = short.partition("--full also shows: ")
        assert named
        assert "--full" not in full
        for part in left_out:
            assert part not in shown
            assert part in full


@pytest.mark.parametrize(
    ("ratio", "brief", "full"),
    [
        ((1.5, 1.4, 1.6, 1.0), "1.500 1.400..1.600", "1.500 1.400..1.600 P=1.00"),
        ((1.1, 0.9, 1.3, 0.8), "1.100 0.900..1.300 P=0.80", "1.100 0.900..1.300 P=0.80"),
        ((0.938, 0.9, 1.3, 0.8), "0.938 0.900..1.300 undecided", "0.938 0.900..1.300 undecided"),
        ((1.018, 0.9, 1.04, 0.25), "1.018 0.900..1.040 undecided", "1.018 0.900..1.040 undecided"),
        ((9.0, 1.392, 5416.856, 1.0), "9.000 1.392..>100", "9.000 1.392..>100 (1.392..5416.856) P=1.00"),
        ((1.0, 0.9999, 1.0001, 0.6), "1.000", "1.000 1.000..1.000 P=0.60"),
        ((1.2, None, None, None), "1.200", "1.200"),
    ],
)
def test_a_speedup_says_nothing_twice(ratio, brief, full):
    cell = ratio_cell(Ratio(*ratio))
    assert cell_text(cell) == full
    assert cell_text(Table("", ("", ""), [("", cell)]).brief().rows[0][1]) == brief


@pytest.mark.parametrize(
    ("seconds", "words"), [(86380.0, "23.99 h"), (270.6, "270.6 s"), (5e-5, "50 us"), (1234.0, "1,234 s")]
)
def test_durations_are_in_the_unit_that_reads_best(seconds, words):
    assert duration(seconds) == words
