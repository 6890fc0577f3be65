"""What a table prints is what the JSON of the same run says; a bar shows only where somebody looks."""

import io
import json
import re

import pytest

from forerun.tables import percent
from simulator.cli import output
from simulator.cli.output import Progress

POOLS = {
    "prompts": {"role": "prefill", "hardware": {"chip": "h100-sxm", "replicas": 2}},
    "answers": {"role": "decode", "hardware": {"tensor_parallel": 2}},
}


@pytest.fixture
def both(forerun, tmp_path):
    """The table and the document of one run of a scenario."""

    def run(**sections):
        data = {
            "model": "llama-3.2-1b",
            "hardware": {"chip": "h100-sxm"},
            "workload": {"arrivals": {"process": "poisson", "request_rate": 20.0}, "input_tokens": 300,
                         "output_tokens": 16, "num_requests": 30},
            **sections,
        }  # fmt: skip
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(data))
        printed = forerun("run", path)
        assert (printed.code, printed.err) == (0, "")
        return printed.out, json.loads(forerun("run", path, "--json", "-").out)

    return run


def row(text, label):
    """Cells of the line that starts with ``label``."""
    line = next(line for line in text.splitlines() if label in line)
    return " ".join(re.split(r"[^\w%.,()/+-]+", line.split(label)[1])).strip()


def test_pools_are_lines_of_their_own(both):
    text, document = both(pools=POOLS)
    assert [pool["name"] for pool in document["pools"]] == list(POOLS)
    for pool in document["pools"]:
        line = next(line for line in text.splitlines() if re.match(rf"\W*{pool['name']}\W+{pool['role']}\b", line))
        assert re.findall(r"\d+", line)[:2] == [str(pool["replicas"]), str(pool["chips"])]
        assert percent(pool["utilisation"]["mfu"]) in line
    moved = document["kv_transfer"]
    assert moved["transfers"] == 30
    assert f"30 prompts, {moved['tokens']:,} tokens" in text


def test_failures_and_swapped_blocks_are_reported(both):
    faults = {"events": [{"replica": 0, "at_s": 0.5, "down_s": 0.3}]}
    burst = {"arrivals": {"process": "burst"}, "input_tokens": 300, "output_tokens": 900, "num_requests": 30}
    text, document = both(faults=faults, hardware={"chip": "h100-sxm", "replicas": 2}, workload=burst)
    assert document["restarts"] > 0
    assert row(text, "Restarts after failures").split()[0] == str(document["restarts"])
    burst = {"arrivals": {"process": "burst"}, "input_tokens": 150, "output_tokens": 200, "num_requests": 60}
    text, document = both(engine={"num_kv_blocks": 70, "preemption": "swap"}, workload=burst)
    assert document["kv_cache"]["swapped_blocks"] > 0
    assert f"{document['kv_cache']['swapped_blocks']:,} KV blocks" in text


def test_prefix_hits_are_given_with_their_spread(both):
    workload = {
        "arrivals": {"process": "poisson", "request_rate": 20.0}, "input_tokens": {"distribution": "uniform", "min": 5,
        "max": 60}, "output_tokens": 8, "num_requests": 30,
        "sessions": {"turns": {"distribution": "uniform", "min": 2, "max": 5}, "think_time_s": 0.1},
    }  # fmt: skip
    text, document = both(workload=workload, hardware={"chip": "h100-sxm", "replicas": 2})
    rates = [replica["prefix_hit_rate"] for replica in document["replicas"]]
    whole = document["kv_cache"]["prefix_hit_rate"]
    assert min(rates) <= whole <= max(rates)
    assert 0 < whole < 1
    message = row(text, "Prefix cache hits")
    assert message.startswith(f"{percent(whole)} of prompt tokens")
    assert f"{percent(min(rates))} to {percent(max(rates))} by replica" in message


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("shown", "long_s", "appears"), [(True, 0.0, True), (True, 3600.0, False), (False, 0.0, False)]
)
def test_a_bar_appears_for_long_work_on_a_terminal_only(monkeypatch, capsys, shown, long_s, appears):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(output, "LONG_RUN_S", long_s)
    with Progress(shown, "measuring") as bar:
        for done in range(5):
            bar.update(done, 5)
    assert ("measuring" in terminal.getvalue()) == appears
    assert ("4/5" in terminal.getvalue()) == appears
    assert capsys.readouterr().out == ""


def test_a_file_never_gets_a_bar(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    monkeypatch.setattr(output, "LONG_RUN_S", 0.0)
    with Progress(True, "measuring") as bar:
        bar.update(1, 2)
    assert file.getvalue() == ""
