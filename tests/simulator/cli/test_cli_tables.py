"""What a table prints is what the JSON of the same run says; a bar shows only where somebody looks."""

import io
import json
import re

import pytest
from scenario_parts import burst, poisson, uniform

from forerun.tables import percent
from simulator.cli import output
from simulator.cli.output import Progress

POOLS = {
    "prompts": {"role": "prefill", "hardware": {"chip": "h100-sxm", "replicas": 2}},
    "answers": {"role": "decode", "hardware": {"tensor_parallel": 2}},
}
H100 = {"chip": "h100-sxm"}


@pytest.fixture
def both(forerun, tmp_path):
    """The table and the document of one run of a scenario."""

    def run(**sections):
        data = {"model": "llama-3.2-1b", "hardware": H100, "workload": poisson(20.0, 30, 300, 16)} | sections
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(data))
        printed = forerun("run", path)
        assert (printed.code, printed.err) == (0, "")
        return printed.out, forerun("run", path, "--json", "-").document

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
    text, document = both(faults=faults, hardware=H100 | {"replicas": 2}, workload=burst(30, 300, 900))
    assert document["restarts"] > 0
    assert row(text, "Restarts after failures").split()[0] == str(document["restarts"])
    text, document = both(engine={"num_kv_blocks": 70, "preemption": "swap"}, workload=burst(60, 150, 200))
    assert document["kv_cache"]["swapped_blocks"] > 0
    assert f"{document['kv_cache']['swapped_blocks']:,} KV blocks" in text


def test_prefix_hits_are_given_with_their_spread(both):
    sessions = {"turns": uniform(2, 5), "think_time_s": 0.1}
    workload = poisson(20.0, 30, uniform(5, 60), 8, sessions=sessions)
    text, document = both(workload=workload, hardware=H100 | {"replicas": 2})
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
    ("stream", "shown", "long_s", "appears"),
    [(Terminal, True, 0.0, True), (Terminal, True, 3600.0, False), (Terminal, False, 0.0, False),
     (io.StringIO, True, 0.0, False)],
)  # fmt: skip
def test_a_bar_appears_for_long_work_on_a_terminal_only(monkeypatch, capsys, stream, shown, long_s, appears):
    terminal = stream()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(output, "LONG_RUN_S", long_s)
    with Progress(shown, "measuring") as bar:
        for done in range(5):
            bar.update(done, 5)
    assert ("measuring" in terminal.getvalue()) == ("4/5" in terminal.getvalue()) == appears
    assert capsys.readouterr().out == ""
