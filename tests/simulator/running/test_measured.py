"""Measured runs of a deployment: medians move, intervals narrow, other deployments are left alone, lies are refused."""

import json

import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from forerun.yaml_files import packaged
from simulator import simulate
from simulator.running.metrics.conclusion import NO_INTERVAL
from simulator.running.metrics.replications import combine_replications
from simulator.studies.plan.command import plan
from simulator.timing import load_framework

LOOP = {"process": "closed-loop", "max_concurrency": 16}


def scenario(streams=16, **parts):
    loop = {"arrivals": {"process": "closed-loop", "max_concurrency": streams}}
    base = plain_scenario("llama-3.1-8b", "h100-sxm", 1000, 200, 10 * streams, **parts)
    return base.with_values({f"workload.{name}": value for name, value in loop.items()})


@pytest.fixture(scope="module")
def plain():
    return simulate(scenario(), intervals=True)


def result_file(folder, run, factor=1.2, **changes):
    """A result of ``vllm bench serve`` that took ``factor`` times as long as a simulated run."""
    summary = run.summary
    data = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 160, "request_rate": "inf",
        "max_concurrency": 16, "duration": summary["duration"] * factor, "completed": 160,
        "total_input_tokens": 160_000, "total_output_tokens": 32_000,
    }  # fmt: skip
    data |= {key: summary[key] / factor for key in ("request_throughput", "output_throughput")}
    latencies = ("ttft", "tpot", "itl", "e2el")
    data |= {f"{q}_{n}_ms": summary[f"{q}_{n}_ms"] * factor for n in latencies for q in ("mean", "median", "p99")}
    path = folder / f"result-{factor}-{len(changes)}.json"
    path.write_text(json.dumps(data | changes))
    return str(path)


def width(run, metric):
    low, high = run.document["intervals"][metric]
    return high / low


METRICS = ("mean_tpot_ms", "mean_ttft_ms", "mean_e2el_ms", "output_throughput")


def test_one_run_moves_medians_and_narrows_intervals_at_other_loads(tmp_path, plain):
    file = result_file(tmp_path, plain)
    for streams in (16, 64):
        before, after = (simulate(scenario(streams), intervals=True, measured=files) for files in ((), [file]))
        for metric in METRICS:
            moved = after.summary[metric] / before.summary[metric]
            assert 1.09 < (1 / moved if metric == "output_throughput" else moved) < 1.3, metric
            assert width(after, metric) < 0.95 * width(before, metric), metric
        learnt = after.document["model_error"]["learnt"]
        assert learnt["decode"]["low"] < learnt["decode"]["value"] < learnt["decode"]["high"]
        assert any("1 measured run of this deployment" in note for note in after.notes + tuple(after.document["notes"]))


def test_a_run_that_agrees_leaves_the_prediction_and_narrows_it(tmp_path, plain):
    after = simulate(scenario(), intervals=True, measured=[result_file(tmp_path, plain, 1.0)])
    for metric in METRICS:
        assert after.summary[metric] == pytest.approx(plain.summary[metric], rel=0.06)
        assert width(after, metric) < width(plain, metric)


def test_order_and_repetition_of_results(tmp_path, plain):
    one, other = result_file(tmp_path, plain, 1.2), result_file(tmp_path, plain, 1.25)
    runs = [simulate(scenario(32), intervals=True, measured=files) for files in ((one, other), (other, one), (one,))]
    assert runs[0].document["intervals"] == runs[1].document["intervals"]
    assert runs[0].summary["mean_tpot_ms"] == pytest.approx(runs[2].summary["mean_tpot_ms"], rel=0.05)


def test_another_deployment_keeps_the_errors_of_others_and_says_so(tmp_path, plain):
    measured = scenario().with_values({"measured": [result_file(tmp_path, plain)]})
    wide = simulate(measured.with_values({"hardware.tensor_parallel": 2}), intervals=True)
    own = simulate(scenario(hardware={"chip": "h100-sxm", "tensor_parallel": 2}), intervals=True)
    assert wide.summary["mean_tpot_ms"] == own.summary["mean_tpot_ms"]
    assert any("no measured run is of this deployment (chips of a replica 2, 1 measured)" in one for one in wide.notes)


def test_the_scenario_can_be_read_back(tmp_path, plain):
    measured = scenario().with_values({"measured": [result_file(tmp_path, plain)]})
    again = type(measured).model_validate_json(measured.model_dump_json(exclude_unset=True))
    assert again.measured == measured.measured
    assert again.measured.deployment["model"] == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("factor", "changes", "words"),
    [
        (1.0, {"output_throughput": 9000.0}, "Little's law"),
        (0.2, {}, "the limit of the chip"),
        (1.0, {"model_id": "Qwen/Qwen3-8B"}, "a run of another deployment: model qwen3-8b, llama-3.1-8b"),
    ],
)
def test_results_that_cannot_be_true_are_refused(tmp_path, plain, factor, changes, words):
    file = result_file(tmp_path, plain, factor, **changes)
    with pytest.raises(ForerunError, match=words) as caught:
        simulate(scenario(), measured=[file])
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_names_the_measurement_that_would_help(plain, tmp_path):
    worth = plain.document["next_measurement"]
    name = worth["metric"].removeprefix("mean_").removesuffix("_ms").upper()
    assert name in ("TPOT", "TTFT")
    assert worth["width"] > 1.15 * worth["width_after"] > 1.15
    assert any(f"one measured run of this load would narrow {name} from" in note for note in plain.document["notes"])
    after = simulate(scenario(), intervals=True, measured=[result_file(tmp_path, plain)])
    assert after.document["next_measurement"] is None


def assumed_engines():
    known = {name: load_framework(name) for name in packaged("simulator.timing", "frameworks.yaml")}
    return [name for name, framework in known.items() if framework.source.kind == "assumed"]


@pytest.mark.parametrize("framework", assumed_engines())
def test_an_engine_of_assumed_parameters_has_no_interval_and_no_probability_until_it_was_measured(tmp_path, framework):
    chip = "apple-m4-max" if framework == "mlx" else "h100-sxm"
    base = plain_scenario("llama-3.1-8b", chip, 256, 32, 32, engine={"framework": framework})
    base = base.with_values({"workload.arrivals": LOOP, "slo": {"mean_e2el_ms": 5e4}})
    run = simulate(base, intervals=True)
    assert (run.document["intervals"], run.document["likely"], run.document["slo"]["probability"]) == ({}, {}, None)
    assert NO_INTERVAL in run.document["notes"]
    documents = [simulate(base, seed, intervals=True).document for seed in (0, 1)]
    mean = combine_replications(documents)
    assert mean["intervals_of"] == "sampling"
    assert mean["slo"]["probability"] is None
    loaded = base.with_values({"workload.arrivals": {"process": "poisson", "request_rate": 0.2}})
    planned = plan(loaded, rate=0.1, vary={"hardware.tensor_parallel": [1]}, requests=30, replications=1, jobs=1)
    assert planned.document["best"]["probability"] is None
    assert NO_INTERVAL in planned.document["notes"]


def test_a_measured_run_of_an_assumed_engine_gives_its_figures_intervals(tmp_path):
    base = plain_scenario("llama-3.1-8b", "h100-sxm", 1000, 200, 160, engine={"framework": "generic"})
    base = base.with_values({"workload.arrivals": LOOP})
    file = result_file(tmp_path, simulate(base), backend="openai")
    run = simulate(base, intervals=True, measured=[file])
    assert run.document["intervals"]["mean_tpot_ms"]
    assert NO_INTERVAL not in run.document["notes"]


BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     256
{load}Benchmark duration (s):                  88.20
Total input tokens:                      262144
Total generated tokens:                  65536
Request throughput (req/s):              2.90
Output token throughput (tok/s):         743.04
Mean TTFT (ms):                          310.22
Mean TPOT (ms):                          20.33
==================================================
"""
"""A server 2.6 times as slow as predicted at 16 requests at once."""


def block_file(folder, load="Maximum request concurrency:             16\n", name="bench.txt"):
    path = folder / name
    path.write_text(BLOCK.format(load=load))
    return str(path)


def arriving(rate=6.0, **parts):
    base = plain_scenario("llama-3.1-8b", "h100-sxm", 1024, 256, 60, **parts)
    return base.with_values({"workload.arrivals": {"process": "poisson", "request_rate": rate}})


def test_a_plan_says_first_that_its_winner_was_not_measured_where_the_measured_layout_was_far_off(tmp_path):
    slo = {"p99_ttft_ms": 1000, "p99_tpot_ms": 20}
    base = arriving(slo=slo, measured=[block_file(tmp_path)])
    planned = plan(base, vary={"hardware.tensor_parallel": [1, 2]}, requests=60, replications=1, jobs=1)
    conclusion = planned.document["conclusion"]
    assert "TP2 was not measured and is not corrected: the measured run's TPOT is 2.6x its prediction" in conclusion
    assert planned.document["best"]["probability"] <= 0.9
    run = simulate(base.with_values({"hardware.tensor_parallel": 2}), intervals=True)
    assert run.document["slo"]["probability"] <= 0.9


def test_a_result_as_predicted_leaves_other_layouts_as_sure_as_before(tmp_path, plain):
    parts = {"slo": {"p99_tpot_ms": 40}, "hardware": {"chip": "h100-sxm", "tensor_parallel": 2}}
    measured = scenario(slo=parts["slo"]).with_values({"measured": [result_file(tmp_path, plain, 1.0)]})
    run = simulate(measured.with_values({"hardware.tensor_parallel": 2}), intervals=True)
    assert (
        run.document["slo"]["probability"] == simulate(scenario(**parts), intervals=True).document["slo"]["probability"]
    )


def test_a_result_without_a_model_is_noted_and_one_given_twice_counts_once(tmp_path):
    one, other = block_file(tmp_path), block_file(tmp_path, name="again.txt")
    runs = [simulate(scenario(), intervals=True, measured=files) for files in ((one,), (one, one), (one, other))]
    note = "bench.txt:1: states no model and no chip: taken as a run of llama-3.1-8b on 1 x h100-sxm"
    assert any(note in text for text in runs[0].notes)
    for twice in runs[1:]:
        assert "measured: 1 run repeats another and counts once" in twice.notes
        assert twice.document["intervals"] == runs[0].document["intervals"]


def test_a_block_without_a_load_has_that_of_littles_law(tmp_path):
    with_load, without = block_file(tmp_path), block_file(tmp_path, load="", name="bare.txt")
    runs = [simulate(scenario(), measured=[file]) for file in (with_load, without)]
    assert runs[1].summary["mean_tpot_ms"] == pytest.approx(runs[0].summary["mean_tpot_ms"], rel=0.02)
    assert any("states neither concurrency nor request rate: taken as 16 at once" in note for note in runs[1].notes)
    few = BLOCK.format(load="").replace(" 256\n", " 20\n").replace("262144", "20480").replace("65536", "5120")
    (tmp_path / "bare.txt").write_text(few)
    assert any("taken as all at once" in note for note in simulate(scenario(), measured=[without]).notes)
    (tmp_path / "bare.txt").write_text("\n".join(one for one in few.splitlines() if "TPOT" not in one))
    with pytest.raises(ForerunError, match="states neither concurrency nor request rate; a line such as"):
        simulate(scenario(), measured=[without])


def test_figures_of_a_corrected_run_agree_with_one_another(tmp_path):
    summary = simulate(scenario(), measured=[block_file(tmp_path)]).summary
    assert summary["output_throughput"] == pytest.approx(summary["total_output_tokens"] / summary["duration"], rel=1e-6)
    run = simulate(arriving(slo={"p99_tpot_ms": 22}, measured=[block_file(tmp_path)]), intervals=True)
    (low, high), throughput = (
        run.document["intervals"]["request_goodput"],
        run.document["intervals"]["request_throughput"],
    )
    assert run.document["slo"]["probability"] < 0.9
    assert low < 0.8 * throughput[0]
    assert high <= throughput[1] * (1 + 1e-9)
    strict = arriving(slo={"p99_tpot_ms": 12}, measured=[block_file(tmp_path)])
    assert simulate(strict).summary["request_goodput"] == 0.0


def test_goodput_is_no_surer_than_throughput():
    intervals = simulate(arriving(slo={"p99_tpot_ms": 40}), intervals=True).document["intervals"]
    assert intervals["request_goodput"][0] <= 1.001 * intervals["request_throughput"][0]
    assert intervals["request_goodput"][1] <= intervals["request_throughput"][1] * (1 + 1e-9)
