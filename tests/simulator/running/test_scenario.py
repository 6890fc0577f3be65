"""Scenario files: what is accepted, and the one line that says what is wrong."""

import json
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel
from refused import refused

from forerun.errors import ForerunError, plain_number
from hwprofiles import load_chip
from simulator.running.metrics import scenario_document
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, load_scenario, parse_yaml, scenario_schema

GOOD = """
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload:
  arrivals: {process: poisson, request_rate: 8.0}
  input_tokens: {distribution: lognormal, mean: 512, cv: 0.8, max: 4096}
  output_tokens: 256
  num_requests: 10
slo: {p99_ttft_ms: 500}
"""
REFUSALS = parse_yaml(Path(__file__).with_name("refusals.yaml").read_text("utf-8"), "refusals.yaml")


@pytest.fixture
def scenario_file(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(GOOD)
    return path


def test_defaults_are_those_of_the_contract(scenario_file):
    engine = load_scenario(scenario_file).engine
    assert (engine.framework, engine.scheduler) == ("vllm", "vllm-v1")
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (1024, 8192)
    assert (engine.block_size, engine.gpu_memory_utilization, engine.num_kv_blocks) == (16, 0.9, None)


def test_yaml_json_and_python_describe_the_same(scenario_file, tmp_path):
    from_yaml = load_scenario(scenario_file)
    as_json = tmp_path / "chat.json"
    as_json.write_text(json.dumps(from_yaml.model_dump(exclude_unset=True)))
    assert load_scenario(as_json) == from_yaml == Scenario.model_validate(parse_yaml(GOOD, "here"))


def test_overrides_reach_any_depth(scenario_file):
    changed = load_scenario(scenario_file, ["engine.max_num_seqs=4", "workload.arrivals.request_rate=1e2"])
    assert changed.engine.max_num_seqs == 4
    assert changed.workload.arrivals.request_rate == 100.0
    again = changed.with_values({"engine.max_num_seqs": 8})
    assert (again.engine.max_num_seqs, again.workload) == (8, changed.workload)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row["says"][:60])
def test_one_line_names_the_field_and_the_way_out(row):
    """Of a single field, of sections that contradict each other, and of what does not fit the chip."""
    with refused(row["says"]):
        simulate(Scenario.model_validate(parse_yaml(GOOD, "good")).with_values(row["set"]))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.block_size", "--set engine.block_size: write PATH=VALUE"),
        ("..=3", "--set ..=3: write PATH=VALUE"),
        ("hardware..chip=x", "--set hardware..chip=x: write PATH=VALUE"),
        ("model=[", "--set model:1:"),
        ("engine.kv_stores.0.bytes=1", "engine.kv_stores.0.bytes: 0 is no index of the list (valid: none"),
        ("hardware.chip.name=x", "chip is a single value, it has no field 'name'"),
        ("workload.trace=x.csv", "--set workload='{trace: x.csv}' replaces the whole section"),
    ],
)
def test_a_wrong_override_is_refused_by_its_option(scenario_file, override, expected):
    with refused(expected):
        load_scenario(scenario_file, [override])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("chat.yaml", "", "a scenario is a mapping"),
        ("chat.yaml", "- 1", "a scenario is a mapping"),
        ("chat.yaml", "model: [", "chat.yaml:1:"),
        ("chat.yaml", 'model: a\nname: "b\nc: d\n', "chat.yaml:2: a quote opens here and is not closed"),
        ("chat.yaml", "model: a\nmodel: b", "chat.yaml:2: 'model' is given twice"),
        ("chat.yaml", "model: !!python/object/apply:os.system [ls]", "chat.yaml:1:"),
        ("chat.yaml", "model: a", "missing"),
        ("chat.yaml", "[1, 2]: 3", "chat.yaml:1: a key must be a word"),
        ("chat.yaml", "model: a\n---\nmodel: b", "chat.yaml:2: expected a single document in the stream but found"),
        ("chat.yaml", "[" * 5000, "nested too deeply"),
        ("chat.yaml", "\xff\xfe\x00\x01", "cannot be read as text"),
        ("none.yaml", GOOD, "no such scenario file"),
        ("chat.yml", GOOD, "chat.yaml'?"),
        ("", GOOD, "is a folder"),
    ],
)
def test_broken_files_are_refused_with_the_line(tmp_path, name, text, expected):
    (tmp_path / "chat.yaml").write_text(text, "latin-1")
    with refused(expected):
        load_scenario(tmp_path / name)


def test_paths_are_relative_to_the_scenario(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n")
    path = tmp_path / "chat.yaml"
    path.write_text("model: llama-3.1-8b\nhardware: {chip: h100-sxm}\nworkload: {trace: mine.csv}\n")
    monkeypatch.chdir("/")
    assert load_scenario(path).workload.trace == str(tmp_path / "mine.csv")


def test_schema_is_json_and_names_the_sections():
    schema = json.loads(scenario_schema())
    assert {"model", "hardware", "engine", "workload", "speculation", "slo", "prices"} <= set(schema["properties"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0100", 100), ("010", 10), ("1:30", "1:30"), ("0o17", 15), ("0x1F", 31), ("1e3", 1000.0), (".5", 0.5)),
        *(("yes", "yes"), ("True", True), ("~", None), ("", None), ("2024-09-01", "2024-09-01"), ("1_000", "1_000")),
        *(("-.inf", float("-inf")), ("+12", 12), ("1.5e-3", 0.0015), ("0b1", "0b1"), (".", "."), ("1.", 1.0)),
    ],
)
def test_plain_values_mean_what_yaml_1_2_says(text, value):
    result = parse_yaml(f"key: {text}", "here")["key"]
    assert result == value
    assert type(result) is type(value)


def test_fields_of_several_values_can_be_read_back():
    """A list in a file is a list, also where the model keeps a tuple."""
    sizes = {"engine": {"cuda_graph_sizes": [1, 2, 8]}}
    result = Scenario.model_validate(parse_yaml(GOOD, "here") | sizes)
    assert result.engine.cuda_graph_sizes == (1, 2, 8)
    assert Scenario.model_validate(scenario_document(result)) == result


def test_no_field_takes_tuples_only():
    """What a run writes into its document is lists; every field must take them back."""
    seen, waiting = set(), [Scenario]
    while waiting:
        section = waiting.pop()
        for name, field in section.model_fields.items():
            for part in (field.annotation, *get_args(field.annotation)):
                if get_origin(part) is tuple:
                    assert any(getattr(mark, "strict", None) is False for mark in field.metadata), f"{section} {name}"
                for each in (part, *get_args(part)):
                    if isinstance(each, type) and issubclass(each, BaseModel) and each not in seen:
                        seen.add(each)
                        waiting.append(each)
    assert len(seen) > 8


def test_a_file_without_end_is_not_read_for_ever():
    if not Path("/dev/zero").exists():
        pytest.skip("no /dev/zero on this system")
    for load in (load_scenario, load_chip):
        with pytest.raises(ForerunError, match="/dev/zero: larger than 4 MiB"):
            load(Path("/dev/zero"))


KINDS = {
    "swap_space_bytes": {"B": 1, "kB": 1e3, "MB": 1e6, "gb": 1e9, "GB": 1e9, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    "p99_ttft_ms": {"s": 1e3, "ms": 1, "us": 1e-3, "min": 6e4, "h": 3.6e6},
    "think_time_s": {"s": 1, "ms": 1e-3, "us": 1e-6, "min": 60, "h": 3600},
    "bandwidth_gb_s": {"GB/s": 1, "TB/s": 1e3, "MB/s": 1e-3, "GiB/s": 2**30 / 1e9, "Gbit/s": 0.125},
    "power_limit_w": {"W": 1, "kW": 1e3},
    "request_rate": {"/s": 1, "rps": 1, "req/s": 1, " per second": 1, "/min": 1 / 60, "k/h": 1 / 3.6, "k": 1e3},
    "gpu_memory_utilization": {"%": 0.01, "percent": 0.01},
    "prices.usd_per_chip_hour": {" cents": 0.01, "$": 1, " USD": 1},
    "max_num_batched_tokens": {" tokens": 1},
    "num_requests": {"k": 1e3, "m": 1e6},
}
SEVERAL_READINGS = ("g", "Gb", "Gbps", "x", "/x")


@pytest.mark.parametrize("name", KINDS)
def test_a_hinted_number_equals_the_quantity_or_is_not_given(name):
    """Units of another kind of field, and those of several readings, give no number."""
    for unit in sorted({*SEVERAL_READINGS, *(unit for units in KINDS.values() for unit in units)}):
        hint, factor = plain_number(f"2.5{unit}", name), KINDS[name].get(unit)
        assert (float(hint) if hint else None) == (factor and pytest.approx(2.5 * factor)), unit
    assert plain_number("8Ki", name) in ("", "8192")
