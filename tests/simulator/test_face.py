"""The face: one call per question, one kind of result, and errors that name arguments."""

import json
import pickle
from importlib.resources import files
from statistics import fmean

import jsonschema
import pytest
from results import checked_result
from scenario_parts import drafts
from tiny_scenario import tiny_data

import simulator as fr
from forerun.document import json_schema, plain_json, read_document
from simulator.running.metrics import RunDocument, combine_replications

CURVE = drafts("eagle3", 3, 0.6)


@pytest.fixture(scope="module")
def scenario():
    return fr.Scenario.model_validate(tiny_data(num_requests=30))


@pytest.fixture(scope="module")
def results(scenario):
    drafting = scenario.with_values({"speculation": CURVE})
    quick = {"jobs": 1}
    plain = {"replications": 2, "crossover": "none", "sensitivity": False}
    return {
        "run": fr.simulate(drafting, intervals=True),
        "compare": fr.compare(scenario, vary={"engine.max_num_seqs": [2, 16]}, **plain, **quick),
        "plan": fr.plan(
            scenario, rate=5.0, slo={"p99_ttft_ms": 900}, vary={"hardware.tensor_parallel": [1]}, replications=1,
            requests=60, finalists=1, headroom=False, **quick,
        ),
        "tune": fr.tune(drafting, batch=[1, 16], context=[512], tokens=[1, 3]),
        "sweep": fr.sweep(drafting, {"speculation.num_speculative_tokens": [1, 2]}, **quick),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["compare", "plan", "tune", "sweep"])
def test_every_study_returns_one_kind_of_result(results, kind, tmp_path):
    result = results[kind]
    assert isinstance(result, fr.Result)
    assert result.kind == kind
    assert result.conclusion
    assert result.summary["answer"] == result.conclusion
    assert result.figure().data
    checked_result(result, tmp_path / kind, "report.html", "report.md", f"{kind}.json")


@pytest.mark.parametrize("kind", ["run", "compare", "plan", "tune", "sweep"])
def test_a_document_fits_its_schema_and_reads_back_as_the_same(results, kind):
    result = results[kind]
    document = json.loads(json.dumps(result.document, allow_nan=False))
    assert read_document(type(result.data), document) == result.data
    schema = json_schema(type(result.data))
    jsonschema.validate(document, schema)
    assert document.keys() <= schema["properties"].keys()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"seed": "three"}, schema)
    with pytest.raises(fr.ForerunError, match="seed: must be a whole number"):
        read_document(type(result.data), document | {"seed": "three"})


def test_the_document_of_several_runs_has_the_schema_of_one(scenario):
    runs = [fr.simulate(scenario.with_values({"slo.p99_ttft_ms": 900}), seed).document for seed in range(3)]
    combined = combine_replications(runs)
    jsonschema.validate(combined, json_schema(RunDocument))
    read = read_document(RunDocument, combined)
    assert read.kv_cache.peak_blocks == fmean(run["kv_cache"]["peak_blocks"] for run in runs)
    assert plain_json(read) == combined


def test_the_frames_hold_the_figures_of_the_documents(results):
    compared = results["compare"].to_arrow().to_pylist()
    row = next(r for r in compared if r["variant"] == "max_num_seqs=16" and r["metric"] == "mean_e2el_ms")
    variant = results["compare"].document["variants"][1]
    assert row["value"] == variant["summary"]["mean_e2el_ms"]
    assert row["ratio"] == variant["speedup"]["mean_e2el_ms"]["ratio"]
    swept = results["sweep"].to_arrow().to_pylist()
    assert [r["speculation.num_speculative_tokens"] for r in swept] == [1, 2]
    assert all(r["mean_e2el_ms"] > 0 for r in swept)
    assert {r["batch"] for r in results["tune"].to_arrow().to_pylist()} == {1, 16}
    assert results["plan"].best["layout"] in {r["layout"] for r in results["plan"].to_arrow().to_pylist()}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: fr.compare(s, vary={"engine.max_num_seqs": [1, 2]}, metric="speed"), "^metric: no metric 'speed'"),
        (lambda s: fr.compare({"a": s, "b": s}, vary={"seed": [1]}), "^vary: works on one scenario"),
        (lambda s: fr.plan(s, rate=-1.0), "^rate: must be a positive number"),
        (lambda s: fr.plan(s, rate=1.0, max_rate=True), "rate finds layouts for a rate, max_rate the highest rate"),
        (lambda s: fr.plan(s, rate=1.0, slo={"p99_ttft": 1.0}), "p99_ttft"),
        (lambda s: fr.sweep(s, {"engine.max_num_seqs": [1]}, samples=3), "^samples: a grid runs every combination"),
        (lambda s: fr.tune(s.with_values({"speculation": CURVE}), batch=["0"]), "^batch: 0: must be whole numbers"),
        (lambda s: fr.tune(s.with_values({"speculation": CURVE}), emit="vlm"), "^emit: vlm: no such engine"),
    ],
)
def test_errors_of_the_library_name_arguments(scenario, call, message):
    with pytest.raises(fr.ForerunError, match=message) as caught:
        call(scenario)
    assert "--" not in str(caught.value)


def test_variants_that_run_alike_cost_no_sensitivity_runs(scenario):
    """Two policies that never act here: the answer is 1 whatever is assumed, and takes no run to tell."""
    drafting = scenario.with_values({"speculation": CURVE, "engine.framework": "generic"})
    calls = []
    result = fr.compare(
        drafting,
        vary={"speculation.policy": ["fixed", "disable-above-batch"]},
        replications=2,
        crossover="none",
        jobs=1,
        progress=lambda done, requested: calls.append(requested),
    )
    assert calls[-1] == 4
    assert any("runs exactly as" in note for note in result.document["notes"])


def test_a_predicted_kernel_is_a_result_whose_document_has_its_keys(tmp_path):
    result = fr.predict("h100-sxm", "gemm", {"m": 16, "n": 4096, "k": 4096})
    checked_result(result, tmp_path, "predict.json")
    assert result["seconds"] == result.summary["seconds"] == result.document["seconds"] > 0
    assert result["flops_per_s"] == result["flops"] / result["seconds"]
    assert result != fr.predict("h100-sxm", "gemm", {"m": 32, "n": 4096, "k": 4096})
    assert result["basis"] in result.conclusion
    (row,) = result.to_arrow().to_pylist()
    assert (row["m"], row["seconds"]) == (16, result["seconds"])
    assert row["low_s"] < row["seconds"] < row["high_s"]
    with pytest.raises(fr.ForerunError, match="no figures"):
        result.figure()


def test_the_best_layout_and_variant_have_named_attributes(results):
    best = results["plan"].best
    assert best.chips == best["chips"] == results["plan"].document["best"]["chips"]
    assert best.launch_command("vllm") == best["flags"]["vllm"]
    assert best.probability is None or 0 <= best.probability <= 1
    with pytest.raises(fr.ForerunError, match="no launch command for 'other'"):
        best.launch_command("other")
    with pytest.raises(AttributeError, match="'BestLayout' object has no attribute 'chip'"):
        _ = best.chip
    assert pickle.loads(pickle.dumps(best)) == best
    compared = results["compare"]
    metric = compared.document["metric"]
    ratios = {one["name"]: one["speedup"][metric]["ratio"] for one in compared.document["variants"][1:]}
    highest = max(ratios, key=ratios.get)
    assert compared.best.name == (highest if ratios[highest] > 1 else compared.document["baseline"])


def test_replays_take_files(tmp_path):
    sample = files("traces") / "samples"
    report = fr.replay_kernels(sample / "kernels-cpu.csv", sample / "kernels-cpu.machine.yaml")
    again = fr.replay_kernels([str(sample / "kernels-cpu.csv")], str(sample / "kernels-cpu.machine.yaml"))
    assert report.document["overall"] == again.document["overall"]
    assert report.document["source"].endswith("kernels-cpu.csv")
    with pytest.raises(fr.ForerunError, match=r"nothing\.csv"):
        fr.replay_kernels(tmp_path / "nothing.csv", "h100-sxm")
