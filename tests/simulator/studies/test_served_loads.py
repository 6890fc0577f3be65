"""Conclusions stay within what can be served, and an SLO leads them."""

import re

import pytest
from refused import refused
from scenario_parts import closed_loop, drafts, lognormal, on_h100, poisson, uniform

from simulator.studies.compare.command import compare
from simulator.studies.steady_state.estimate import max_request_rate
from simulator.studies.tune.command import tune

FEW = {"replications": 2, "sensitivity": False, "interval": False, "jobs": 1}


@pytest.mark.parametrize("rate", [4.0, 20.0])
def test_compare_and_tune_name_no_load_that_cannot_be_served(rate):
    four = {"chip": "h100-sxm", "tensor_parallel": 4}
    speculation = drafts("eagle3", 3, acceptance={"conditional": [0.75, 0.7, 0.65]})
    workload = poisson(rate, 120, 1000, uniform(150, 250))
    loaded = on_h100(workload, model="llama-3.3-70b", hardware=four, speculation=speculation)
    compared = compare(loaded, vary={"speculation.method": ["none", "eagle3"]}, **FEW)
    tuned = tune(loaded, batch=[1, 16, 64, 256], context=[1024], tokens=[3])
    most = max(map(max_request_rate, (loaded, loaded.with_values({"speculation": None}))))
    for crossing in (compared.document["crossover"] or {}).get("all", []):
        assert crossing["value"] <= most
    for text in (compared.conclusion, tuned.conclusion):
        named = [float(number) for number in re.findall(r"([\d.]+) req/s", text)]
        assert all(number <= 1.01 * most or number == rate for number in named), text
        assert (f"{rate:g} req/s cannot be served" in text) == (rate > most), text


def test_a_crossover_that_can_be_served_stays():
    """Two chips against one: slower at no load. Prompts alone: a drafter that costs more than it gives."""
    speculation = drafts("draft-model", 6, 0.6, draft={"model": "llama-3.2-1b"})
    workload = poisson(4.0, 200, 300, uniform(100, 300))
    small = on_h100(workload, engine={"max_num_seqs": 64}, speculation=speculation)
    compared = compare(small, vary={"speculation.method": ["none", "draft-model"]}, **FEW)
    served = compared.document["served_load"]
    for crossing in (compared.document["crossover"] or {"all": []})["all"]:
        assert crossing["value"] <= max(served["method=none"], served["method=draft-model"])


def test_a_crossover_along_a_field_that_one_variant_lacks_is_its_break_even():
    n150 = {"hardware": {"chip": "n150-v0.55", "tensor_parallel": 8}, "engine": {"framework": "vllm"}}
    plain = on_h100(closed_loop(1, 1, 65536, 16), weights_dtype="bfp8", kv_cache_dtype="bfp8", **n150)
    groups = {"hardware.tensor_parallel": 4, "hardware.speculative_parallel": 2}
    variants = {"plain": plain, "groups": plain.with_values(groups | {"attention_speculation": {"hit_rate": 0.75}})}
    along = "attention_speculation.hit_rate=0..1"
    at = compare(variants, metric="mean_tpot_ms", crossover=along, **FEW).document["crossover"]
    assert (at["variant"], at["better"]) == ("groups", "above")
    assert 0.1 < at["value"] < 0.7
    with refused("no variant has the section attention_speculation"):
        compare({"plain": plain, "other": plain}, crossover=along, **FEW)


RAG = poisson(3.0, 150, lognormal(6000, 0.6, 16000), 200)


def test_goodput_leads_where_an_slo_is_missed():
    fast = on_h100(RAG, slo={"p99_ttft_ms": 700, "p99_tpot_ms": 60})
    slow = fast.with_values({"engine.max_num_batched_tokens": 512})
    compared = compare({"fast": fast, "slow": slow}, crossover="none", **FEW)
    assert compared.document["metric"] == "request_goodput"
    assert "in goodput" in compared.conclusion
    assert re.search(r"slow misses .*p99 T[TP]\w+ [\d,.]+ ms \(limit", compared.conclusion)
    chosen = compare({"fast": fast, "slow": slow}, crossover="none", metric="mean_e2el_ms", **FEW)
    assert chosen.document["metric"] == "mean_e2el_ms"


def test_latency_decides_where_goodput_is_the_same():
    plain = on_h100(RAG, slo={"p99_ttft_ms": 60_000, "p99_tpot_ms": 6_000})
    compared = compare(plain, vary={"hardware.tensor_parallel": [1, 2]}, crossover="none", **FEW)
    assert compared.document["metric"] == "mean_e2el_ms"
    assert compared.conclusion.startswith("tensor_parallel=")
    assert "Within the SLO" not in compared.conclusion
    assert "misses" not in compared.conclusion


def test_values_of_a_requested_crossover_are_a_table_and_those_of_the_automatic_one_a_detail():
    plain = on_h100(poisson(4.0, 60, 300, 50))
    tables = {}
    for crossover in ("workload.arrivals.request_rate=2,4", "auto"):
        compared = compare(plain, vary={"hardware.tensor_parallel": [1, 2]}, crossover=crossover, **FEW)
        tables[crossover] = next(table for table in compared.tables() if table.name == "load curves")
    requested, automatic = tables.values()
    assert [str(row[0]) for row in requested.rows] == ["2 req/s", "4 req/s"]
    assert not requested.details
    assert len(automatic.details) == len(automatic.rows)


def test_a_grid_of_loads_is_compared_within_each_load():
    plain = on_h100(poisson(2.0, 60, 1000, 100))
    loads = {"workload.arrivals.request_rate": [2.0, 10.0], "engine.max_num_seqs": [4, 64]}
    compared = compare(plain, vary=loads, crossover="none", **FEW)
    bases = [variant["baseline"] for variant in compared.document["variants"]]
    few = ["request_rate=2 max_num_seqs=4"] * 2 + ["request_rate=10 max_num_seqs=4"] * 2
    assert bases == few
    table = compared.tables()[0]
    assert table.title == "Speedup over the first variant at the same load (above 1 is better)"
    assert list(table.columns[1:]) == [f"request_rate={rate} max_num_seqs=64" for rate in (2, 10)]
    means = [variant["summary"]["mean_e2el_ms"] for variant in compared.document["variants"]]
    busy = compared.document["variants"][3]["speedup"]["mean_e2el_ms"]["ratio"]
    assert busy == pytest.approx(means[2] / means[3], rel=0.1)
    assert busy > 1.2 > 1.01 * means[0] / means[3], "slower than the first of all, which has less load"
    assert re.match(
        "Mean .* over the first variant at the same load, .*request_rate=10 max_num_seqs=64 ", compared.conclusion
    )
    assert len({v["baseline"] for v in compare(plain, vary={"workload.arrivals.request_rate": [2.0, 10.0]},
                                               crossover="none", **FEW).document["variants"]}) == 1  # fmt: skip
