"""Lengths from a file, and workloads that no clock could hold."""

import pytest

from forerun.errors import ForerunError
from simulator.running.scenario import load_scenario
from simulator.workload import generate_requests
from simulator.workload.generate import read_lengths
from simulator.workload.workload_config import ArrivalsConfig, WorkloadConfig


def workload(**changes):
    fields = {
        "arrivals": {"process": "poisson", "request_rate": 8.0},
        "input_tokens": 10,
        "output_tokens": 5,
        "num_requests": 200,
    }
    return WorkloadConfig.model_validate(fields | changes)


def test_an_empirical_file_beside_the_scenario_is_drawn_from(tmp_path):
    (tmp_path / "lengths.txt").write_text("10, 20\n30\n")
    scenario = tmp_path / "chat.yaml"
    scenario.write_text(
        "model: llama-3.1-8b\nhardware: {chip: h100-sxm}\nworkload: {arrivals: {process: burst}, num_requests: 200, "
        "input_tokens: {distribution: empirical, file: lengths.txt}, output_tokens: 1}\n"
    )
    stream = generate_requests(load_scenario(scenario).workload, seed=0)
    assert set(stream.input_tokens.tolist()) == {10, 20, 30}


@pytest.mark.parametrize(("text", "expected"), [("10\n0\n", ":2: '0'"), ("10 x", ":1: 'x'"), (" \n", "no token count")])
def test_a_file_of_lengths_is_refused_with_the_line(tmp_path, text, expected):
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(ForerunError, match=expected):
        read_lengths(str(file))


def test_a_missing_file_of_lengths_is_named(tmp_path):
    with pytest.raises(ForerunError, match=r"nothing\.txt: cannot be read"):
        read_lengths(str(tmp_path / "nothing.txt"))


def test_arrivals_beyond_the_clocks_precision_are_refused():
    with pytest.raises(ForerunError, match="the last request would arrive after"):
        generate_requests(workload(arrivals={"process": "poisson", "request_rate": 1e-300}), seed=0)


def test_the_longest_spread_of_lengths_still_draws_counts():
    lengths = generate_requests(workload(input_tokens={"distribution": "lognormal", "mean": 50, "cv": 1000}), 0)
    assert lengths.input_tokens.min() >= 1


def test_a_cut_that_moves_the_mean_is_noted():
    cut, whole = (
        generate_requests(
            workload(
                num_requests=20_000, input_tokens={"distribution": "lognormal", "mean": 512, "cv": cv, "max": 600}
            ),
            0,
        )
        for cv in (8.0, 0.1)
    )
    assert cut.notes == ("workload.input_tokens: the cut at max 600 leaves a mean of 170 of 512 tokens",)
    assert cut.input_tokens.mean() == pytest.approx(170, rel=0.02)
    assert whole.notes == ()


def test_a_trace_is_read_again_when_it_changes(tmp_path):
    trace, text = tmp_path / "log.csv", "arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,5\n"
    requested, fewer = (
        WorkloadConfig.model_validate({"trace": str(trace), **few}) for few in ({}, {"num_requests": 1})
    )
    for more, prompts in (("", [10, 20]), ("2,30,5\n", [10, 20, 30])):
        trace.write_text(text + more)
        assert [generate_requests(requested, seed).input_tokens.tolist() for seed in (0, 1)] == [prompts] * 2
        assert generate_requests(fewer, 0).input_tokens.tolist() == [10]


@pytest.mark.parametrize(
    ("fields", "process"),
    [
        ({"request_rate": 2.0}, "poisson"),
        ({"request_rate": 2.0, "burstiness": 0.5}, "gamma"),
        ({"max_concurrency": 4}, "closed-loop"),
        ({"process": "constant", "request_rate": 2.0}, "constant"),
    ],
)
def test_fields_imply_the_arrival_process(fields, process):
    arrivals = ArrivalsConfig(**fields)
    assert arrivals.process == process
    assert arrivals.model_dump(exclude_none=True, exclude_defaults=True) == fields | {"process": process}
    assert "required" not in ArrivalsConfig.model_json_schema()
