"""Study files, --vary options and designs: what they mean, and what is refused."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scenario_parts import drafts
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.studies.compare.comparison import variants_from_files, variants_of
from simulator.studies.study_file import (
    Range,
    at,
    design_points,
    load_study,
    parse_vary,
    settings_name,
    study_text,
    unique_points,
)


@pytest.fixture
def scenario_path(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_data()))
    return path


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("a.b=1,2.5,null,true,fp8", "a.b", (1, 2.5, None, True, "fp8")),
        ("c={x: [1, 2]},{x: [3]}", "c", ({"x": [1, 2]}, {"x": [3]})),
        ("d=1e3,2e3", "d", (1000.0, 2000.0)),
        ("a=1..64", "a", Range(1, 64)),
        ("a=0.5..8:log", "a", Range(0.5, 8, log=True)),
        ("a=-2..-1", "a", Range(-2, -1)),
        ("model=../x/config.json,b", "model", ("../x/config.json", "b")),
    ],
)
def test_values_are_yaml_and_ranges(text, path, values):
    assert parse_vary([text]) == {path: values}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "write PATH=V1,V2"),
        ("a=", "write PATH=V1,V2"),
        (".a=1", "write PATH=V1,V2"),
        ("a=1,1", "given twice"),
        ("a=[1", "--vary a=[1"),
        ("a=5..1", "must lie below"),
        ("a=0..1:log", "above 0"),
        ("a=1..2:lin", "LOW..HIGH:log"),
    ],
)
def test_bad_vary_is_one_line(text, words):
    with refused(words):
        parse_vary([text])


def test_a_plain_scenario_is_a_study(scenario_path):
    study = load_study(scenario_path, ["engine.max_num_seqs=8"], ["hardware.replicas=1,2"])
    assert study.scenario.engine.max_num_seqs == 8
    assert [variant.scenario.hardware.replicas for variant in variants_of(study)] == [1, 2]


def test_study_file_with_scenario_beside_it(tmp_path, scenario_path):
    path = tmp_path / "study.yaml"
    path.write_text("scenario: tiny.yaml\nvariants:\n- {name: small, set: {engine.max_num_seqs: 4}}\n- {name: big}\n")
    variants = variants_of(load_study(path))
    assert [(v.name, v.scenario.engine.max_num_seqs) for v in variants] == [("small", 4), ("big", 16)]


def test_one_variant_is_compared_with_the_scenario_itself(scenario_path):
    variants = variants_from_files([scenario_path], vary=["engine.max_num_seqs=4"])
    assert [v.scenario.engine.max_num_seqs for v in variants] == [16, 4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scenario: gone.yaml\nvary: {a: [1]}\n", "no such scenario file"),
        ("scenario: tiny.yaml\nvarry: {}\n", "varry: unknown field; did you mean 'vary'?"),
        ("scenario: tiny.yaml\nvary: {engine.max_num_seqs: 4}\n", "give a list of values"),
        ("scenario: tiny.yaml\nvary: {engine.max_num_seqs: []}\n", "empty"),
        ("scenario: tiny.yaml\nvary: {engine.max_num_seqs: {low: 4}}\n", "high: must be a number"),
        ("scenario: tiny.yaml\nvariants: [{name: a, sett: {}}]\n", "did you mean 'set'"),
        ("scenario: tiny.yaml\nvariants: [{name: a}, {name: a}]\n", "'a' is given twice"),
        ("scenario: tiny.yaml\nvariants: [{set: {engine.max_seqs: 3}}]\n", "engine.max_seqs: unknown field"),
        ("scenario: 3\n", "name a scenario file"),
        ("vary: {a: [1]}\n", "name a scenario file"),
    ],
)
def test_bad_study_files_are_one_line(tmp_path, scenario_path, text, words):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with refused(words):
        load_study(path)


def test_study_text_runs_the_same_variants(tmp_path, scenario_path):
    variants = variants_from_files(
        [scenario_path], vary=["speculation=null,{method: ngram, num_speculative_tokens: 2, acceptance: {alpha: 0.5}}"]
    )
    plain = [{"name": v.name, "scenario": v.scenario.model_dump(exclude_none=True)} for v in variants]
    path = tmp_path / "again.yaml"
    path.write_text(study_text(plain))
    again = variants_of(load_study(path))
    assert [v.name for v in again] == [v.name for v in variants]
    assert [v.scenario for v in again] == [v.scenario for v in variants]


def test_names_are_short_and_distinct():
    assert (
        settings_name({"hardware.tensor_parallel": 2, "speculation.method": "none"}) == "tensor_parallel=2 method=none"
    )
    assert settings_name({"a.mean": 1, "b.mean": 2.5}) == "a.mean=1 b.mean=2.5"


def test_a_study_file_says_what_to_judge_by(tmp_path):
    file = tmp_path / "study.yaml"
    scenario = {"scenario": tiny_data(), "vary": {"engine.max_num_seqs": [8, 16]}}
    file.write_text(yaml.safe_dump(scenario | {"metric": "mean_tpot_ms"}))
    assert load_study(file).metric == "mean_tpot_ms"
    file.write_text(yaml.safe_dump(scenario))
    assert load_study(file).metric is None
    file.write_text(yaml.safe_dump(scenario | {"metric": 3}))
    with pytest.raises(ForerunError, match="metric: name a key"):
        load_study(file)


def test_the_documented_study_file(project_root, tmp_path):
    text = (project_root / "docs" / "sweeps.md").read_text()
    block = re.search(r"```yaml title=\"study.yaml\"\n(.*?)```", text, re.DOTALL)[1]
    speculation = drafts("ngram", 3, acceptance={"per_position": [0.5, 0.3, 0.2]})
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(tiny_data() | {"speculation": speculation}))
    (tmp_path / "study.yaml").write_text(block)
    study = load_study(tmp_path / "study.yaml")
    assert study.vary["workload.arrivals.request_rate"] == Range(1.0, 50.0, log=True)
    assert [variant.name for variant in study.variants] == ["plain", "eagle"]
    assert study.variants[1].scenario.speculation.method == "eagle3"


def test_grid_is_every_combination_first_path_slowest():
    points = design_points({"a": (1, 2), "b": ("x", "y", "z")})
    assert [(p["a"], p["b"]) for p in points] == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]


def test_without_variation_a_grid_is_the_scenario_itself():
    assert design_points({}) == [{}]


@pytest.mark.parametrize("samples", [5, 16])
def test_latin_hypercube_has_one_point_in_every_slice(samples):
    points = design_points({"a": Range(0.0, 1.0), "b": Range(10.0, 1000.0, log=True)}, "latin-hypercube", samples, 3)
    from math import log

    for share in ([p["a"] for p in points], [log(p["b"] / 10.0) / log(100.0) for p in points]):
        assert sorted(int(s * samples) for s in share) == list(range(samples))


@pytest.mark.parametrize("design", ["random", "latin-hypercube"])
def test_draws_repeat_with_the_seed_alone(design):
    vary = {"a": Range(1, 1000), "b": ("x", "y")}
    assert design_points(vary, design, 20, 1) == design_points(vary, design, 20, 1)
    assert design_points(vary, design, 20, 1) != design_points(vary, design, 20, 2)


@given(st.integers(-50, 50), st.integers(1, 100), st.floats(0, 1, exclude_max=True), st.booleans())
def test_whole_ranges_stay_whole_and_inside(low, span, share, log):
    low = max(1, low) if log else low
    value = at(Range(low, low + span, log), share)
    assert isinstance(value, int)
    assert low <= value <= low + span


def test_every_whole_number_of_a_range_is_equally_likely():
    drawn = [at(Range(1, 4), (i + 0.5) / 400) for i in range(400)]
    assert [drawn.count(v) for v in (1, 2, 3, 4)] == [100, 100, 100, 100]


def test_repeated_draws_are_one_point():
    assert unique_points([{"a": 1}, {"a": 1.0}, {"a": 1}, {"a": "1"}]) == [{"a": 1}, {"a": 1.0}, {"a": "1"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"a": Range(1, 2)},), "a grid needs values"),
        (({"a": (1,)}, "grid", 3), "samples: a grid"),
        (({"a": (1,)}, "random"), "without samples"),
        (({"a": (1,)}, "random", 0), "without samples"),
        (({}, "random", 3), "nothing to draw"),
        (({"a": tuple(range(2000)), "b": tuple(range(2000))},), "4,000,000 combinations"),
        (({"a": (1,)}, "sobol"), "one of grid, random, latin-hypercube"),
    ],
)
def test_bad_designs_are_refused(arguments, words):
    with refused(words):
        design_points(*arguments)
