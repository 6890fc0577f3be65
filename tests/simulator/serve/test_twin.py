"""A simulated engine with hidden parameters, read through its metrics alone: what is off is found, and named."""

import json
import sys

import pytest
from fuzzing import seeds
from results import checked_result
from scenario_parts import drafts
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.serve.counters import Counters
from simulator.serve.live import LiveFleet
from simulator.serve.observed import between, observe_files, samples_of
from simulator.serve.twin import HOST_FIELDS, TwinResult, twin, with_lengths
from simulator.workload import generate_requests

SPECULATION = drafts("eagle3", 3)
HOST = {f"vllm.{name}": 1.3 for name in HOST_FIELDS}
SESSIONS = {"turns": 3, "think_time_s": 0.5, "system_prompt_tokens": 256, "system_prompts": 2}


def scenario_of(**workload) -> Scenario:
    return Scenario(**(tiny_data(num_requests=500, **workload) | {"speculation": SPECULATION}))


def scraped(scenario: Scenario, seed: int, factors=None) -> str:
    """``/metrics`` after the scenario's own requests were served by an engine with these hidden factors."""
    stream = generate_requests(scenario.workload, seed)
    fleet = LiveFleet(build_run(scenario, seed, factors=factors), slots=len(stream) + 1)
    counters = Counters(fleet, "model", 4096)
    first, last, tokens = {}, {}, dict.fromkeys(range(len(stream)), 0)

    def take(result):
        for delivery in result:
            slot = delivery.slot
            if slot not in first:
                first[slot] = delivery.at_s
                counters.first(slot, delivery.at_s)
            else:
                counters.between_tokens.observe(delivery.at_s - last[slot])
            last[slot] = delivery.at_s
            tokens[slot] += delivery.tokens
            counters.answer_tokens += delivery.tokens
            if delivery.ended:
                counters.ended(slot, first[slot], delivery.at_s, tokens[slot], None, "stop")

    for request, at_s in enumerate(stream.arrival_s.tolist()):
        hashes = () if stream.prefix_hashes is None else stream.prefix_hashes.of(request).tolist()
        take(fleet.advance(at_s))
        fleet.submit(int(stream.input_tokens[request]), int(stream.output_tokens[request]), hashes, at_s)
    take(fleet.advance(stream.arrival_s[-1] + 100.0))
    lines = counters.exposition().decode().splitlines()
    return "\n".join(line for line in lines if "simulated_seconds" not in line) + "\n"


def watched(scenario: Scenario, hidden: Scenario, seed: int = 5, factors=None) -> TwinResult:
    seconds = float(generate_requests(hidden.workload, seed).arrival_s[-1])
    seen = between({}, samples_of(scraped(hidden, seed, factors), "metrics"), "metrics", seconds)
    return twin(scenario, with_lengths(seen), what_ifs=False)


def test_a_healthy_engine_raises_no_alarm(tmp_path):
    result = watched(scenario_of(), scenario_of())
    checked_result(result, tmp_path, "twin.json", "report.html", "report.md")
    (bar,) = result.figure("gaps").data
    assert len(bar.x) == sum(row["gap_percent"] is not None for row in result.document["checks"])
    assert result.document["blame"] == []
    assert result.gap("tpot") < 1.5
    labels = [str(row[0]) for row in result.tables()[0].rows]
    assert "time per output token (ms)" in labels
    assert not any("_" in label for label in labels)


def test_drafting_is_judged_by_the_time_of_a_token_not_of_a_verify_step():
    """Without drafts each step is shorter and each token takes longer."""
    custom = scenario_of()
    seconds = float(generate_requests(custom.workload, 5).arrival_s[-1])
    seen = with_lengths(between({}, samples_of(scraped(custom, 5), "metrics"), "metrics", seconds))
    assert seen.tpot.mean < 0.6 * seen.itl.mean
    off = next(row for row in twin(custom, seen).document["what_ifs"] if row["name"] == "no speculation")
    assert off["tpot"]["low"] > 20.0


def test_a_benchmark_of_a_drafting_server_is_compared_by_its_tokens(tmp_path):
    custom = scenario_of()
    summary = simulate(custom, 5).document["summary"] | {"model_id": "m", "request_rate": 8.0, "num_prompts": 500}
    file = tmp_path / "result.json"
    for absent in ((), ("mean_tpot_ms",)):
        file.write_text(json.dumps({key: value for key, value in summary.items() if key not in absent}))
        seen = observe_files([file], None)
        result = twin(custom, seen, what_ifs=False)
        checked = {check["metric"]: check for check in result.document["checks"]}
        assert seen.acceptance_length == pytest.approx(summary["spec_decode_acceptance_length"])
        assert ("tpot" in checked) == (not absent)
        assert any("several tokens" in note for note in result.document["notes"]) == bool(absent)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_host_work_that_takes_longer_is_detected(seed):
    """It hides behind the device until it is the longer of the two: times rise with a kink."""
    custom = scenario_of().with_values({"engine.cuda_graphs": False})  # launches by the host are then a part that shows
    result = watched(custom, custom, seed, factors=HOST)
    assert result.culprit == "host"
    assert result.document["fits"]["host"]["value"] == pytest.approx(1.3, rel=0.03)


def test_a_cache_that_finds_nothing_is_detected():
    custom = scenario_of(sessions=SESSIONS, arrivals={"process": "poisson", "request_rate": 8.0})
    result = watched(custom, custom.with_values({"engine.enable_prefix_caching": False}))
    assert result.culprit == "cache"
    rate = next(row for row in result.document["checks"] if row["metric"] == "request_rate")
    assert not rate["alarm"], "requests are the turns of conversations"
    assert rate["expected"] == pytest.approx(8.0 * SESSIONS["turns"])


def otlp(rows) -> dict:
    spans = []
    for at_s, prompt, output in rows:
        began = int(1e18 + at_s * 1e9)
        attributes = [
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": str(prompt)}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": str(output)}},
            {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.02}},
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.12}},
        ]
        spans.append({"startTimeUnixNano": str(began), "endTimeUnixNano": str(began), "attributes": attributes})
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def test_spans_bring_arrivals_and_lengths(tmp_path):
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(otlp([(0.0, 10, 5), (1.5, 20, 11)])))
    seen = observe_files([file], None)
    assert [(round(at_s, 6), prompt, output) for at_s, prompt, output in seen.arrivals] == [(0, 10, 5), (1.5, 20, 11)]
    assert seen.tpot.mean == pytest.approx((0.1 + 0.1) / (4 + 10))


def test_a_range_query_is_what_grew(tmp_path):
    def series(name, *values, **labels):
        return {"metric": {"__name__": name, **labels}, "values": [[60.0 * n, str(v)] for n, v in enumerate(values)]}

    result = [
        series("vllm:request_success_total", 5, 30, 65),
        series("vllm:prompt_tokens_total", 100, 400, 700),
        series("vllm:generation_tokens_total", 10, 100, 310),
        series("vllm:time_to_first_token_seconds_sum", 1.0, 2.0, 4.0),
        series("vllm:time_to_first_token_seconds_count", 10, 20, 70),
    ]
    file = tmp_path / "range.json"
    file.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    seen = with_lengths(observe_files([file], None))
    assert (seen.duration_s, seen.requests, seen.prompt_lengths) == (120.0, 60.0, ((10, 1.0),))
    assert seen.ttft.mean == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("go_threads 5\n", "no metrics of"),
        ("}{", "no Prometheus text"),
        ("llamacpp:prompt_tokens_total 5\n", "--seconds"),
    ],
)
def test_what_tells_nothing_is_refused_with_the_file(tmp_path, forerun, text, message):
    file, scenario = tmp_path / "metrics.txt", tmp_path / "own.json"
    file.write_text(text)
    scenario.write_text(json.dumps(tiny_data()))
    assert message in forerun("twin", file, "--scenario", scenario).error_line


@pytest.mark.parametrize(
    ("prefix", "values", "expected"),
    [
        (
            "sglang:",
            {"prompt_tokens_total": 500, "generation_tokens_total": 90, "num_requests_total": 10},
            (10.0, ((50, 1.0),), ((9, 1.0),)),
        ),
        (
            "dynamo_frontend_",
            {f"{side}_sequence_tokens_{part}": value for side, tokens in (("input", 700), ("output", 70))
             for part, value in (("sum", tokens), ("count", 7))},
            (7.0, ((100, 1.0),), ((10, 1.0),)),
        ),
    ],
)  # fmt: skip
def test_other_engines_names_are_known(prefix, values, expected):
    text = "".join(f"{prefix}{name} {value}\n" for name, value in values.items())
    seen = with_lengths(between({}, samples_of(text, "x"), "x", 30.0))
    assert (seen.requests, seen.prompt_lengths, seen.output_lengths) == expected


def test_a_drafter_that_fell_behind_fails_a_canary_by_its_exit_code(tmp_path, forerun):
    custom = scenario_of()
    file, scenario = tmp_path / "metrics.txt", tmp_path / "own.json"
    file.write_text(scraped(custom.with_values({"speculation.acceptance": {"alpha": 0.55}}), 5))
    scenario.write_text(custom.model_dump_json(exclude_unset=True))
    seconds = float(generate_requests(custom.workload, 5).arrival_s[-1])
    command = ("twin", file, "--scenario", scenario, "--seconds", seconds, "--no-what-ifs", "--fail-above")
    outcome = forerun(*command, "acceptance_length=5")
    assert (outcome.code, "drafter" in outcome.out) == (1, True)
    document = forerun(*command, "acceptance_length=50", "--json", "-").document
    assert document["culprit"] == "drafter"
    assert document["observed"]["acceptance_length"] == pytest.approx(1 + 0.55 + 0.55**2 + 0.55**3, rel=0.03)
    with pytest.raises(ForerunError, match="was not seen"):
        twin(custom, with_lengths(observe_files([file], seconds)), what_ifs=False).gap("prefix_hit_rate")


def test_a_missing_package_is_installed_from_the_checkout(monkeypatch):
    """No package index has Forerun: a hint that names it there leads nowhere."""
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    with pytest.raises(ForerunError, match=r"pip install 'forerun\[serve\]'"):
        samples_of("# nothing\n", "metrics.txt")


ODD = ("9" * 400, "NaN", "-5", "+Inf", "1e300", "1e-320", "0")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", sorted({line.split("{")[0] for line in seeds.METRICS.splitlines() if line[0] != "#"}))
def test_a_value_that_is_no_count_is_ignored_with_a_note_or_refused(tmp_path, name, odd):
    """In one of the lines of each metric; none may break the comparison."""
    file = tmp_path / "metrics.txt"
    lines = seeds.METRICS.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(name + "{"))
    lines[place] = f"{lines[place].rpartition(' ')[0]} {odd}"
    file.write_text("\n".join(lines) + "\n")
    try:
        seen = observe_files([file], 60.0)
        assert odd == "0" or any(note.startswith(f"{name}: ignored") for note in seen.notes)
        noted = twin(scenario_of(), seen, what_ifs=False).document["notes"]
    except ForerunError:
        return
    assert set(seen.notes) <= set(noted)


@pytest.mark.parametrize("label", ["", 'le="x"', 'le="NaN"', 'le="-1"', 'position="x"', 'position="1e99"'])
def test_a_label_that_is_no_bound_or_position_is_ignored_with_a_note(label):
    for known, metric in (
        ('le="200.0"', "request_prompt_tokens_bucket"),
        ('position="0"', "spec_decode_num_accepted_"),
    ):
        if label.partition("=")[0] not in ("", known.partition("=")[0]):
            continue
        text = seeds.METRICS.replace(known, label, 1).replace(",}", "}")
        seen = between({}, samples_of(text, "metrics"), "metrics", 60.0)
        if label:
            assert any(note.startswith(f"vllm:{metric}") for note in seen.notes)


def test_a_sample_given_twice_with_two_values_is_refused():
    text = seeds.METRICS + 'vllm:prompt_tokens_total{model_name="m"} 7.0\n'
    with pytest.raises(ForerunError, match=r"metrics: vllm:prompt_tokens_total is given twice .*keep one scrape"):
        samples_of(text, "metrics")


@pytest.mark.parametrize(
    "result", [3, [3], [{}], [{"metric": 3}], [{"values": [[0], [1]]}], [{"values": [["x", "y"]]}]]
)
def test_what_is_no_range_query_is_refused(tmp_path, result):
    file = tmp_path / "range.json"
    file.write_text(json.dumps({"status": "success", "data": {"result": result}}))
    with pytest.raises(ForerunError, match="range query"):
        observe_files([file], None)


def test_seconds_are_taken_where_a_result_does_not_state_its_duration(tmp_path):
    result = {"model_id": "qwen3-8b", "completed": 8, "total_input_tokens": 800, "total_output_tokens": 80}
    result |= {"request_rate": 2.0, "mean_ttft_ms": 50.0, "mean_tpot_ms": 9.0}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    assert observe_files([file], 60.0).duration_s == 60.0
    file.write_text(json.dumps(result | {"request_throughput": 2.0}))
    assert observe_files([file], None).duration_s == 4.0
    with pytest.raises(ForerunError, match=r"seconds.*has no effect"):
        observe_files([file], 60.0)
