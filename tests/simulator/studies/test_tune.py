"""Tuning: invariants that tie the map and its grid to closed forms, to runs, to vLLM's table and to intervals."""

import json
import shlex
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scenario_parts import burst, drafts, on_h100

import simulator
from forerun.errors import ForerunError
from forerun.tables import number
from simulator.running.run import simulate
from simulator.speculation import Batch
from simulator.speculation.policies import batch_table as lookup
from simulator.studies.study_file import axis_values
from simulator.studies.tune.choices import draft_choices
from simulator.studies.tune.document import tune_document, tuned_batches
from simulator.studies.tune.grid import busy_rate, crossover, speculation_grid
from simulator.studies.tune.tuning import fewest_nearly_best, find_drafts, stretches

BATCHES, CONTEXTS = (1, 8, 64, 256), (512, 8192)


def scenario(model="llama-3.1-8b", prompt=512, **speculation):
    return on_h100(burst(1, prompt, 256), model=model, speculation=drafts("eagle3", 3) | speculation)


@pytest.fixture(scope="module")
def tuned():
    return find_drafts(scenario(), BATCHES, CONTEXTS, (1, 3, 6))


def slow_steps():
    """70B on four A100, whose steps are long beside what vLLM's schedule by batch costs."""
    chips = {"chip": "a100-sxm-80gb", "tensor_parallel": 4}
    return scenario(model="llama-3.3-70b").with_values({"hardware": chips})


@pytest.fixture(scope="module")
def scheduled():
    return find_drafts(slow_steps(), BATCHES, CONTEXTS, (1, 3, 6))


def test_the_map_agrees_with_the_grid_of_one_axis(tuned):
    grid = speculation_grid(scenario(), (1, 3, 6), BATCHES, CONTEXTS, 8, 512, 256)
    columns = range(len(BATCHES)), range(len(CONTEXTS))
    at_mean = [cell.best_speedup for cell in tuned.mean]
    np.testing.assert_allclose(at_mean, grid.by_batch[fewest_nearly_best(grid.by_batch), columns[0]], rtol=1e-9)
    by_context = [cell.best_speedup for cell in tuned.cells if cell.at_batch == 8]
    best = grid.by_context[fewest_nearly_best(grid.by_context), columns[1]]
    np.testing.assert_allclose(by_context, best, rtol=1e-9)
    assert (best >= 0.99 * grid.by_context.max(axis=0)).all()


def test_intervals_hold_the_speedup_and_stay_below_the_acceptance_length(tuned):
    for cell in (*tuned.cells, *tuned.mean):
        assert cell.best_low < cell.best_speedup < cell.best_high
        assert cell.best_speedup < 1.0 + cell.best.survival.sum()
        assert (cell.choice is None) == (cell.best_speedup <= 1.0)
        assert cell.speedup >= 1.0


def test_at_the_break_even_acceptance_nothing_is_gained_or_lost(tuned):
    evens = tune_document(tuned, "vllm")["break_even"]
    for even in evens:
        drafted = even["num_speculative_tokens"]
        beyond = even["acceptance_length"] is None or even["acceptance_length"] > drafted + 1
        assert (even["alpha"] is None) == beyond
        chosen = scenario(num_speculative_tokens=drafted, acceptance={"alpha": 1.0 if beyond else even["alpha"]})
        again = find_drafts(chosen, (even["batch"],), (512,), (drafted,))
        speedup = again.mean[0].best_speedup
        assert speedup < 1.0 if beyond else speedup == pytest.approx(1.0, abs=1e-6)
    # With drafters' host time on vLLM a batch of 256 loses even where every draft token is accepted; others need not.
    assert [even["alpha"] is None for even in evens] == [False, False, False, True]


def test_nothing_accepted_never_pays():
    result = find_drafts(scenario(acceptance={"alpha": 0.0}), (1, 64), (512,), (1, 3))
    document = tune_document(result, "vllm")
    assert [row["num_speculative_tokens"] for row in document["table"]] == [0, 0]
    assert [row["speedup"] for row in document["table"]] == [1.0, 1.0]
    assert document["emit"] == ""
    assert document["crossover"]["pays"] == "never"
    assert document["crossover"]["request_rate"] is None
    assert "pays at no batch" in document["conclusion"]
    nothing = grid(scenario(acceptance={"alpha": 0.0}))
    assert (nothing.by_batch < 1).all()
    assert (nothing.crossover_batch, nothing.best) == ((0.0,) * 3, (0,) * 4)


def test_batches_beyond_the_blocks_of_the_scenario_are_priced():
    """A drafter in one pass computes masked positions of every sequence, however few blocks there are."""
    few = scenario(method="parallel-draft").with_values(
        {"engine.num_kv_blocks": 64, "engine.max_num_batched_tokens": 512}
    )
    assert len(tune_document(find_drafts(few, (1, 1024), (512,), (2,)), "vllm")["table"]) == 2


def test_less_acceptance_moves_the_crossover_down():
    low, high = (
        tune_document(
            find_drafts(scenario(acceptance={"alpha": alpha}, prompt=128), (1, 16, 64, 128, 256), (512,), (2,)), "vllm"
        )["crossover"]
        for alpha in (0.4, 0.6)
    )
    assert low["pays"] == "below"
    assert low["batch"] < (high["batch"] or np.inf)
    assert low["request_rate"] < (high["request_rate"] or np.inf)
    assert (low["low"]["request_rate"] or 0.0) <= low["request_rate"]


def test_flags_that_switch_off_at_another_batch_than_the_crossover_say_why(scheduled):
    """Flags follow stretches of batches, the crossover lies between two that were tried."""
    document = tune_document(scheduled, "vllm")
    off = next(row["batch"][0] for row in document["at_mean_context"] if not row["num_speculative_tokens"])
    at = document["crossover"]["batch"]
    assert off != round(at) + 1
    (note,) = [note for note in document["notes"] if "the flags draft nothing" in note]
    assert f"from batch {off} on" in note
    assert f"up to {at:.0f} is interpolated" in note


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_number_of_drafts_is_printed_where_a_schedule_costs_more_than_it_gains(tuned, engine):
    document = tune_document(tuned, engine)
    launched = [cell["with_flags"] for cell in document["at_mean_context"]]
    assert [one["num_speculative_tokens"] for one in launched] == [3] * len(BATCHES)
    assert "per_batch_size" not in document["emit"]
    for one, cell in zip(launched, tuned.mean, strict=True):
        (alone,) = find_drafts(scenario(), (cell.at_batch,), (512,), (3,)).mean
        assert one["speedup"] == pytest.approx(alone.best_speedup, rel=0.02)
    assert f"The flags draft K=3 at every batch: {launched[0]['speedup']:.2f}x at batch 1" in document["conclusion"]
    assert any("no schedule by batch" in note for note in document["notes"]) == (engine == "vllm")


def test_vllm_takes_the_table_and_drafts_what_the_map_says(scheduled):
    tuned, document = scheduled, tune_document(scheduled, "vllm")
    flag, text = shlex.split(document["emit"])
    config = json.loads(text)
    assert flag == "--speculative-config"
    assert config == document["speculative_config"]
    assert set(config) <= {"method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"}
    assert config["method"] == "eagle3"
    table = config["num_speculative_tokens_per_batch_size"]
    assert table[0][0] == 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(table))
    policy = lookup(table, config["num_speculative_tokens"])
    for cell in tuned.mean:
        drafted = 0 if cell.choice is None else cell.choice.tokens
        assert {policy.choose(Batch(seqs, 0)) for seqs in cell.batch} == {drafted}
    costly = [cell["with_flags"]["speedup"] for cell in document["at_mean_context"]]
    assert all(one < cell.speedup for one, cell in zip(costly, tuned.mean, strict=True))
    run = {"policy": {"name": "batch-table", "num_speculative_tokens_per_batch_size": table}}
    assert scenario(num_speculative_tokens=config["num_speculative_tokens"], **run).speculation is not None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({}, "--speculative-algorithm EAGLE3"),
        ({"method": "ngram"}, "--speculative-algorithm NGRAM --speculative-num-draft-tokens"),
        (
            {"num_speculative_tokens": None, "tree": {"depth": 4, "top_k": 4, "nodes": 16}},
            "--speculative-num-steps 4 --speculative-eagle-topk 4 --speculative-num-draft-tokens",
        ),
    ],
)
def test_sglang_flags(block, words):
    result = find_drafts(scenario(**block), (1, 4), (512,))
    assert words in tune_document(result, "sglang")["emit"]


def test_flags_for_another_engine_than_the_scenarios_say_whose_they_are():
    result = find_drafts(scenario().with_values({"engine.framework": "trtllm"}), (1,), (512,), (3,))
    assert "the flags are vLLM's: --emit trtllm writes TensorRT-LLM's file" in tune_document(result, "vllm")["notes"]


def test_a_tree_is_refused_by_name_for_vllm():
    tree = {"num_speculative_tokens": None, "tree": {"depth": 3, "top_k": 2, "nodes": 8}}
    result = find_drafts(scenario(**tree), (1,), (512,))
    with pytest.raises(ForerunError, match="vLLM has no eagle3 tree"):
        tune_document(result, "vllm")
    relaxed = tune_document(result, "vllm", strict=False)
    assert relaxed["emit"] is None
    assert relaxed["table"][0]["num_speculative_tokens"] in (4, 8)


def test_shorter_chains_are_cut_from_the_measured_one():
    arguments = {"acceptance": {"acceptance_length": 2.9, "decay": 0.9}, "num_speculative_tokens": 4}
    choices = {choice.tokens: 1.0 + choice.survival.sum() for choice in draft_choices(scenario(**arguments))}
    assert choices[4] == pytest.approx(2.9)
    lengths = [choices[k] for k in sorted(choices)]
    assert np.all(np.diff(lengths) > 0)
    assert np.all(np.diff(np.diff(lengths)) < 0), "each further position adds less"


def test_unknown_positions_are_not_drafted():
    measured = {"acceptance": {"per_position": [0.7, 0.5, 0.3]}}
    assert [choice.tokens for choice in draft_choices(scenario(**measured))] == [1, 2, 3]
    with pytest.raises(ForerunError, match="known for 3 draft tokens"):
        draft_choices(scenario(**measured), (5,))


def test_acceptance_that_decays_with_context_drafts_less_there():
    decaying = {"acceptance": {"alpha": 0.8, "context_decay": 0.8, "context_from": 512}}
    near, far = find_drafts(scenario(**decaying), (1,), (512, 32_768)).cells
    plain = find_drafts(scenario(acceptance={"alpha": 0.8}), (1,), (512, 32_768)).cells
    assert near.best_speedup == pytest.approx(plain[0].best_speedup)
    assert far.best_speedup < plain[1].best_speedup
    assert far.best.tokens < near.best.tokens


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12, unique=True).map(sorted))
def test_stretches_leave_no_gap_and_hold_their_value(values):
    result = stretches(values)
    assert (result[0][0], result[-1][1]) == (values[0], values[-1])
    assert all(low <= value <= high for value, (low, high) in zip(values, result, strict=True))
    assert all(before[1] + 1 == after[0] for before, after in pairwise(result))


def test_axes_as_text():
    assert axis_values(["1,8", "64"], "batch") == (1, 8, 64)
    assert axis_values(["1..48"], "batch") == (1, 2, 4, 8, 16, 32, 48)
    for bad in ("", "0", "-3", "x", "8..2", "1.5", "99999999"):
        with pytest.raises(ForerunError, match="batch"):
            axis_values([bad], "batch")


def test_equal_neighbours_are_one_range(tuned):
    table = tuned_batches(tuned.mean)
    assert all(before[2] != after[2] for before, after in pairwise(table))
    assert table[-1][1] == BATCHES[-1]


def test_a_wide_range_of_batches_is_reported(tmp_path):
    result = simulator.tune(slow_steps(), batch=[1, 32, 256], context=[512], tokens=[1, 6])
    (note,) = (note for note in result.document["notes"] if "wide ranges of batches" in note)
    assert "6 to 90 at 32" in note
    close = simulator.tune(slow_steps(), batch=["1..256"], context=[512], tokens=[1, 6])
    assert not any("wide ranges of batches" in note for note in close.document["notes"])


def grid(chosen, ks=(1, 3, 6)):
    return speculation_grid(chosen, ks, (1, 8, 64, 512), CONTEXTS, 8, 512, 256)


def test_speedup_is_below_the_acceptance_length_and_acceptance_is_the_closed_form():
    result = grid(scenario())
    expected = [(1 - 0.7 ** (k + 1)) / (1 - 0.7) for k in (1, 3, 6)]
    np.testing.assert_allclose(result.acceptance_length, expected, rtol=1e-12)
    assert (result.by_batch < result.acceptance_length[:, None]).all()
    assert (result.by_context < result.acceptance_length[:, None]).all()
    assert result.by_batch.shape == (3, 4)
    assert result.by_context.shape == (3, 2)


def test_grid_agrees_with_a_simulated_batch():
    """64 equal requests at once, long outputs: decoding dominates, and the batch stays full until near the end."""
    run = scenario().with_values({"workload": burst(64, 16, 1000)})
    drafted, plain = (
        simulate(run.with_values({"speculation.method": method})).summary["mean_tpot_ms"]
        for method in ("eagle3", "none")
    )
    result = speculation_grid(run, (3,), (64,), (516,), 64, 16, 1000)
    assert plain / drafted == pytest.approx(result.by_batch[0, 0], rel=0.04)


def test_crossover_is_where_the_line_passes_one():
    batches = np.array([1, 4, 16, 64])
    assert crossover(batches, np.array([1.5, 1.25, 0.75, 0.5])) == pytest.approx(8.0)
    assert crossover(batches, np.array([1.5, 1.4, 1.3, 1.0])) is None
    assert crossover(batches, np.array([0.9, 0.8, 0.7, 0.6])) == 0.0


def test_busy_rate_without_prompts_is_the_batch_over_its_time():
    assert busy_rate(32, 0.01, 0.0, 100) == pytest.approx(32 / (100 * 0.01))
    assert busy_rate(1e9, 0.01, 0.02, 100) == pytest.approx(1 / 0.02, rel=1e-6)


def test_grid_needs_a_chain():
    with refused("speculation.tree"):
        grid(scenario(num_speculative_tokens=None, tree="eagle-25"))
    with refused("speculation: the scenario has none"):
        grid(scenario(method="none"))


@pytest.mark.parametrize("batches", [(32,), (1, 8), (1, 8, 32, 64, 128, 256)])
def test_the_load_up_to_which_drafting_pays_is_that_of_the_flags_whatever_batches_are_judged(batches):
    """Flags that draft one K at every batch do so beyond the batches judged; the best K of each batch goes further."""
    known = tune_document(find_drafts(scenario(), (64,), (1024,), (3,)), "vllm")
    document = tune_document(find_drafts(scenario(), batches, (1024,), (3,)), "vllm")
    assert document["crossover"] == known["crossover"]
    assert document["crossover"]["pays"] == "below"
    rate = document["crossover"]["request_rate"]
    assert f"this pays below {number(rate, 3)} req/s per replica" in document["conclusion"]
    assert "at every load" not in document["conclusion"]
