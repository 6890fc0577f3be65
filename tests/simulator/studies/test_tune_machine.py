"""Speculation on one machine: a handful of rates move its prices, and the answer says how sure it is."""

import json

import numpy as np
import pytest
import scenario_parts as parts
from scenario_parts import burst

import simulator as fr
from simulator.running.scenario import scenario_from
from simulator.speculation.confidence import threshold_chain
from simulator.studies.tune.command import tune_machine
from simulator.studies.tune.machine import fit_machine

DATA = {
    "model": "qwen2.5-7b",
    "weights_dtype": "q4_k_m",
    "hardware": {"chip": "rtx-4090"},
    "engine": {"framework": "llama.cpp", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 8192},
    "speculation": parts.drafts("draft-model", 3, 0.75, draft={"model": "qwen2.5-0.5b", "weights_dtype": "q8_0"}),
    "workload": burst(1, 100, 100),
}


def local(**hardware):
    return scenario_from(DATA | {"hardware": DATA["hardware"] | hardware}, "local")


def rows(result, **wanted):
    return [row for row in result.document["table"] if all(row[key] == value for key, value in wanted.items())]


def test_a_gate_of_nothing_is_no_gate_and_a_high_one_drafts_less():
    rates = [0.8, 0.7, 0.7]
    free = threshold_chain(rates, 0.0)
    assert free.chances.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert free.length == pytest.approx(1 + 0.8 + 0.56 + 0.392)
    strict, loose = threshold_chain(rates, 0.75), threshold_chain(rates, 0.3)
    assert loose.chances.sum() == strict.chances.sum() == pytest.approx(1.0)
    drafted = [chain.chances @ np.arange(4) for chain in (strict, loose, free)]
    assert drafted == sorted(drafted)
    accepted = [(chain.length - 1) / count for chain, count in zip((strict, loose, free), drafted, strict=True)]
    assert accepted == sorted(accepted, reverse=True)


def test_without_measurements_a_machine_is_as_priced():
    machine = fit_machine([])
    assert machine.seconds(0.01, 0.02) == 0.02


@pytest.mark.parametrize("chip", ["rtx-4090", "apple-m4", "r9700"])
def test_without_measurements_a_rate_has_the_interval_of_a_run(chip):
    result = tune_machine(local(chip=chip), tokens=[3], p_min=[0.0])
    for drafted, scenario in ((0, local(chip=chip).with_values({"speculation.method": "none"})), (3, local(chip=chip))):
        document = fr.simulate(scenario, intervals=True).document
        value, ends = document["summary"]["mean_tpot_ms"], document["intervals"]["mean_tpot_ms"]
        (row,) = rows(result, num_speculative_tokens=drafted)
        own = [row["tokens_per_s"] / row[f"tokens_per_s_{end}"] for end in ("high", "low")]
        assert own == pytest.approx([end / value for end in ends], rel=1e-9)


def test_one_rate_moves_every_step_and_narrows_the_answer():
    before, after = (tune_machine(local(), measured=rates, tokens=[2], p_min=[0.0]) for rates in ((), ["100"]))
    (plain,) = rows(after, num_speculative_tokens=0)
    assert plain["tokens_per_s"] == pytest.approx(100, rel=0.03)
    assert plain["tokens_per_s_high"] / plain["tokens_per_s_low"] < 1.25, "measured to 3 %, a step to 5 %"
    for one, other in zip(before.document["table"], after.document["table"], strict=True):
        width, narrower = (row["tokens_per_s_high"] / row["tokens_per_s_low"] for row in (one, other))
        assert narrower < width
        assert other["low"] <= other["speedup"] <= other["high"]


def test_a_rate_with_drafts_says_what_rows_cost():
    """Half the rate that was priced at 4 draft tokens: further rows are dearer here, one row is not."""
    base = tune_machine(local(), tokens=[4], p_min=[0.0])
    rate = rows(base, num_speculative_tokens=0)[0]["tokens_per_s"]
    drafted = rows(base, num_speculative_tokens=4)[0]["tokens_per_s"]
    result = tune_machine(local(), measured=[f"{rate}", f"4:{drafted / 2}"], tokens=[4], p_min=[0.0])
    assert rows(result, num_speculative_tokens=0)[0]["tokens_per_s"] == pytest.approx(rate, rel=0.05)
    assert rows(result, num_speculative_tokens=4)[0]["tokens_per_s"] == pytest.approx(drafted / 2, rel=0.1)
    assert result.document["machine"]["further_rows"]["factor"] > 1.5


def test_a_log_gives_rates_and_acceptance(tmp_path, forerun):
    log = tmp_path / "server.log"
    log.write_text(
        "prompt eval time = 100.00 ms / 50 tokens\n"
        "       eval time = 1440.00 ms / 400 tokens\n"
        "draft acceptance rate = 0.80000 ( 240 accepted / 320 generated)\n"
    )
    path = tmp_path / "local.yaml"
    path.write_text(json.dumps(DATA))
    command = ("tune", path, "--from-log", log, "--tokens", "1,2,3", "--json", "-", "--out", tmp_path / "out")
    document = forerun(*command).document
    assert document["acceptance"] == {"from": "the log", "lengths": {"2": 2.5}}
    assert document["measured"][0]["step_ms"] == pytest.approx(9.0)
    assert document["emit"].startswith("--model-draft DRAFT.gguf --spec-type draft-simple --spec-draft-n-max ")
    assert {"table", "emit", "conclusion", "scenario", "seed", "version", "basis"} <= set(document)
    assert "What drafting brings" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("positions", [True, False])
def test_a_log_supplies_the_acceptance_that_the_scenario_lacks(tmp_path, forerun, positions):
    """Rates per position where the server prints them, else the acceptance length of its requests."""
    scenario = {**DATA, "speculation": {key: one for key, one in DATA["speculation"].items() if key != "acceptance"}}
    (tmp_path / "laptop.json").write_text(json.dumps(scenario))
    rates = ", mean acceptance length = 2.64, acceptance rate per position = (0.742, 0.536, 0.361)" if positions else ""
    line = f"draft acceptance = 0.54671 (  158 accepted /   289 generated){rates}"
    log = tmp_path / "server.log"
    log.write_text(f"eval time = 4300.00 ms / 254 tokens\n{line}\n")
    command = ("tune", tmp_path / "laptop.json", "--from-log", log, "--tokens", "1,2,3", "--json", "-")
    lengths = {
        row["num_speculative_tokens"]: row["acceptance_length"]
        for row in forerun(*command).document["table"]
        if not row["p_min"]
    }
    assert lengths[3] == pytest.approx(2.64, abs=0.03)
    assert lengths[1] == pytest.approx(1.742 if positions else 1.728, abs=0.01)
    refused = forerun("tune", tmp_path / "laptop.json")
    assert refused.code == 2
    assert "needs acceptance" in refused.err


def test_slots_draft_one_after_another():
    """Four streams of llama.cpp have four times the draft passes; drafting brings less the more there are."""
    result = tune_machine(local(), tokens=[3], p_min=[0.0], batch=[1, 4])
    one, four = (row["speedup"] for row in rows(result, num_speculative_tokens=3))
    assert four < one


def test_the_face_has_it_and_a_machine_power_limit_counts():
    whole, capped = (fr.tune_machine(local(**limit), tokens=[3], p_min=[0.0]) for limit in ({}, {"power_limit_w": 250}))
    loss = [
        1 - slow["tokens_per_s"] / fast["tokens_per_s"]
        for fast, slow in zip(whole.document["table"], capped.document["table"], strict=True)
    ]
    assert 0.0 < loss[0] < loss[1]


@pytest.mark.parametrize("chip", ["apple-m4", "apple-m4-pro", "rtx-4090", "rtx-3090", "cpu-ddr5-2ch"])
def test_drafting_is_advised_only_where_its_interval_lies_above_none(chip):
    result = tune_machine(local(chip=chip))
    best = result.document["best"]
    drafts = [row for row in result.document["table"] if row["num_speculative_tokens"]]
    assert bool(result.flags) == bool(best["num_speculative_tokens"]) == any(row["low"] > 1 for row in drafts)
    if result.flags:
        assert best["low"] > 1.0
    else:
        assert "Do not draft" in result.conclusion or "does not pay" in result.conclusion
