"""llama.cpp's p-min in runs: drafts end at the first token of which the drafter is less sure."""

import numpy as np
import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator import simulate
from simulator.running.metrics import summarise
from simulator.speculation.confidence import threshold_chain
from simulator.studies.engine_flags import launch_flags

RATES = [0.8, 0.7, 0.6]


def scenario(chip="rtx-4090", threshold=0.6, model="llama-3.1-8b", method="draft-model", **changes):
    draft = {"draft": {"model": "llama-3.2-1b", "weights_dtype": "q8_0"}} if method == "draft-model" else {}
    policy = {"name": "confidence-threshold", "confidence_threshold": threshold} if threshold else "fixed"
    chain = {"method": method, "num_speculative_tokens": 3, "acceptance": {"conditional": RATES}, "policy": policy}
    return plain_scenario(
        model,
        chip,
        20,
        1500,
        2,
        weights_dtype="q4_k_m",
        engine={"framework": "llama.cpp", "max_num_seqs": 2, "max_num_batched_tokens": 512, "max_model_len": 8192},
        speculation=chain | draft,
        workload={"arrivals": {"process": "closed-loop", "max_concurrency": 1}},
    ).with_values(changes)


def test_drafts_and_what_is_kept_of_them_are_those_of_the_closed_form():
    chain = threshold_chain(RATES, 0.6)
    run = summarise(simulate(scenario(), seed=3))
    drafted = float(chain.chances @ np.arange(4))
    steps = run["spec_decode_num_drafts"] / (1.0 - chain.chances[0])
    assert run["spec_decode_draft_tokens"] / steps == pytest.approx(drafted, rel=0.06)
    assert 1.0 + run["spec_decode_accepted_tokens"] / steps == pytest.approx(chain.length, rel=0.04)
    share = run["spec_decode_accepted_tokens"] / run["spec_decode_draft_tokens"]
    assert share > np.cumprod(RATES).sum() / 3 + 0.05, "what passes is surer"


def test_a_gate_of_next_to_nothing_is_none():
    rates = threshold_chain(RATES, 1e-9)
    assert rates.chances[-1] == pytest.approx(1.0, abs=1e-6)
    assert rates.kept == pytest.approx(RATES, abs=1e-6)
    assert threshold_chain(RATES, 0.0).kept == pytest.approx(RATES)


def test_compiled_and_interpreted_runs_agree():
    short = {"workload.output_tokens": 60}
    fast, exact = (simulate(scenario(**short, **{"engine.stepping": one})) for one in ("fast", "exact-steps"))
    assert np.array_equal(fast.requests.finished_s, exact.requests.finished_s)


def test_a_gate_pays_where_rows_are_dear_and_costs_where_they_are_nearly_free():
    """Community sweeps of a 27B model: gated is faster on an M4, slower on RTX 5060 Ti."""
    gains = {}
    for chip in ("apple-m4-pro", "rtx-4090"):
        arguments = {"chip": chip, "model": "qwen3.5-27b", "method": "mtp", "workload.output_tokens": 300}
        rates = [summarise(simulate(scenario(threshold=p, **arguments)))["mean_tpot_ms"] for p in (0.0, 0.75)]
        gains[chip] = rates[0] / rates[1]
    assert gains["apple-m4-pro"] > 1.0 > gains["rtx-4090"]


@pytest.mark.parametrize("method", ["ngram", "medusa"])
def test_what_drafts_in_no_pass_has_nothing_to_look_at(method):
    with pytest.raises(ForerunError, match=f"confidence-threshold needs sequential passes .* {method} has none"):
        simulate(scenario(method=method))


def test_the_command_has_the_gate():
    assert "--spec-draft-n-max 3 --spec-draft-p-min 0.6" in launch_flags(scenario())["llama.cpp"]
