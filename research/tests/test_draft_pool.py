"""Drafters that several verifiers share: today's remote drafter as a limit, queues by hand, nothing lost or made."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from refused import refused
from results import checked_result
from scenario_parts import burst, drafts, on_h100

from forerun.parts import build_replica, decode_step
from forerun_research.commands import draft_pool
from forerun_research.draft_pool import (
    PoolGain,
    PoolPrices,
    PoolShape,
    break_even,
    pool_gains,
    pool_prices,
    run_pool,
)

CONTEXT = 1024


def scenario(**speculation):
    draft = {"model": "llama-3.2-1b", "chip": "n150", "link": "pcie4-x16"}
    return on_h100(burst(1, 8, 8), speculation=drafts("draft-model", 4, draft=draft) | speculation)


def made(batch=4, verify_s=10.0, plain_s=8.0, draft=3.0, prefill_s=50.0, there_s=0.5, back_s=0.25, ahead=0.5):
    return PoolPrices(batch, verify_s, plain_s, lambda seqs: draft + 0.1 * seqs, prefill_s, there_s, back_s, 2.0, ahead)


@pytest.mark.parametrize("batch", [1, 8])
def test_one_drafter_to_each_verifier_is_today_s_remote_drafter(batch):
    prices = pool_prices(scenario(), batch, CONTEXT)
    timer = build_replica(scenario()).main.timer
    today = timer.seconds(decode_step(timer.windows, batch, 5, CONTEXT))
    result = run_pool(prices, PoolShape(3, 3), steps=50)
    assert_allclose(result.step_s, today, rtol=1e-9)
    assert_allclose(result.tokens_per_s, 3 * batch * (1 + 0.7 + 0.49 + 0.343 + 0.2401) / today, rtol=1e-9)
    assert result.together == 1.0
    without_link = prices._replace(there_s=0.0, back_s=0.0)
    disaggregated = run_pool(without_link, PoolShape(1), steps=50).step_s
    assert_allclose(disaggregated, today - prices.there_s - prices.back_s, rtol=1e-9)
    assert prices.plain_s < prices.verify_s < today


def test_a_drafter_of_too_many_is_what_they_wait_for():
    """By hand: a pass over 4 sequences takes 3.4 s, one over three verifiers' 12 takes 4.2 s."""
    single = run_pool(made(), PoolShape(1))
    assert single.step_s == pytest.approx(10 + 0.5 + 3.4 + 0.25)
    assert single.use == pytest.approx(3.4 / single.step_s, rel=0.02)
    many = run_pool(made(), PoolShape(8))
    assert many.step_s == pytest.approx(8 * 3.4, rel=1e-3)
    assert many.use == pytest.approx(1.0, abs=0.01)
    together = run_pool(made(), PoolShape(8, max_batch=8))
    assert together.step_s < 0.7 * many.step_s
    assert together.together > 1.5


def test_drafting_ahead_hides_the_drafter_where_all_goes_as_guessed_and_costs_where_nothing_does():
    """Drafts of 3.4 s fit beside 10 s of verification; rolling all of them back takes as long as not going ahead."""
    assert run_pool(made(ahead=1.0), PoolShape(1, ahead=True)).step_s == pytest.approx(10 + 0.5 + 0.25)
    waits = run_pool(made(), PoolShape(1)).step_s
    assert run_pool(made(ahead=0.0), PoolShape(1, ahead=True)).step_s == pytest.approx(waits)
    some = run_pool(made(ahead=0.7), PoolShape(1, ahead=True)).step_s
    assert 10.75 < some < waits
    crowd = [run_pool(made(ahead=0.0), PoolShape(6, ahead=ahead)) for ahead in (True, False)]
    assert crowd[0].step_s > crowd[1].step_s, "work for nothing takes the drafter from others"
    assert crowd[0].dropped > 0


def test_the_loss_of_a_drafter_is_survived():
    before, after = (run_pool(made(), PoolShape(4, 2, 2, lost_s=lost), steps=60) for lost in (None, 300.0))
    assert before.plain_steps == before.lost == 0
    assert after.plain_steps >= 2 * 50 / 8 - 1, "verifiers of the lost one go on while their contexts are read"
    assert after.step_s > before.step_s
    none = run_pool(made(), PoolShape(2, 1, lost_s=300.0), steps=60)
    assert none.ends[0][-1] - none.ends[0][-2] == pytest.approx(8.0), "without a drafter, plain steps for good"


@pytest.mark.parametrize("seed", range(300))
def test_random_pools_keep_every_job_and_every_token(seed):
    random = np.random.default_rng(seed)
    prices = made(
        batch=int(random.integers(1, 9)),
        verify_s=float(random.uniform(1, 20)),
        draft=float(random.uniform(0.1, 20)),
        there_s=float(random.choice([0.0, 0.3])),
        back_s=float(random.choice([0.0, 0.2])),
        prefill_s=float(random.uniform(1, 60)),
        ahead=float(random.uniform(0, 1)),
    )
    lost_s = float(random.uniform(1, 200)) if random.random() < 0.5 else None
    shape = PoolShape(*map(int, random.integers(1, 6, 3)), ahead=bool(random.integers(2)), lost_s=lost_s)
    run = run_pool(prices, shape, steps=20, seed=seed)
    assert run.submitted == run.done + run.dropped + run.lost + run.waiting
    assert 0 <= run.waiting <= 3 * shape.verifiers
    assert all(len(ends) > 20 for ends in run.ends)
    for ends in run.ends:
        shortest = min(prices.plain_s, prices.verify_s)  # without its drafter a verifier waits for no message
        assert (np.diff(ends) >= shortest - 1e-9).all()
    assert 0.0 <= run.use <= 1.0 + 1e-9
    assert run.together <= shape.max_batch
    most = 3.0 * prices.batch * shape.verifiers / run.step_s
    assert run.tokens_per_s <= 1.5 * most
    if lost_s is None:
        assert run.lost == run.plain_steps == 0
        assert run.done + run.waiting + run.dropped >= sum(len(ends) for ends in run.ends)
    assert run_pool(prices, shape, steps=20, seed=seed) == run


def test_break_even_lies_between_the_points_around_it():
    gains = [PoolGain(n, gain, 1.0, 1.0) for n, gain in ((1, 1.4), (4, 1.2), (16, 0.8))]
    assert break_even(gains) == pytest.approx(8.0)
    assert break_even(gains, 1.5) is None
    assert break_even(gains[:2]) == np.inf
    result = pool_gains(made(batch=1, plain_s=10.0), (1, 2, 4, 8, 16))
    assert 4 < break_even(result) < 16


def test_the_study_says_what_its_pools_did(tmp_path):
    result = draft_pool(scenario(), batch=4, context_tokens=CONTEXT, verifiers=(4, 1))
    document = result.document
    rows = document["ways"]["after"]["gains"]
    assert [row["verifiers_per_drafter"] for row in rows] == [1, 4]
    again = pool_gains(pool_prices(scenario(), 4, CONTEXT), (1, 4), document["max_batch"])
    assert [row["gain"] for row in rows] == [one.gain for one in again]
    assert all(row["low"] < row["gain"] < row["high"] for row in result.records())
    assert document["ways"]["after"]["break_even"]["value"] == break_even(again)
    assert document["target_chips_gain"] > 1.0
    checked_result(result, tmp_path, "draft-pool.json", "report.html", "study.yaml")
    assert result.conclusion in (tmp_path / "report.md").read_text()
    assert len(result.figure().data) == 4, "a line and a band for each way"


def test_the_loss_of_one_drafter_costs_what_is_stated():
    scenario_of_gpus = scenario(draft={"model": "llama-3.2-1b", "chip": "h100-sxm"})
    loss = draft_pool(scenario_of_gpus, batch=4, context_tokens=CONTEXT, verifiers=(1,)).document["loss"]
    assert loss["verifiers"] == loss["drafters"] == 2
    assert loss["gain_with_loss"] < loss["gain"]
    assert loss["plain_steps"] > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draft_pool(scenario(), batch=0), "batch: must be a whole number from 1"),
        (lambda: draft_pool(scenario(), context_tokens=0), "context_tokens: must be a whole number from 1"),
        (lambda: draft_pool(scenario(), verifiers=(0, 1)), "verifiers: at least one"),
        (lambda: pool_prices(scenario(draft={"model": "llama-3.2-1b"}), 1, CONTEXT), "speculation.draft.chip: a pool"),
        (
            lambda: pool_prices(scenario(draft={"model": "llama-3.2-1b", "chip": "n150", "overlap": 0.5}), 1, CONTEXT),
            "speculation.draft.overlap",
        ),
        (lambda: pool_prices(scenario(), 100_000, CONTEXT), "batch: 100000 sequences"),
        (lambda: PoolShape(1, 0), "drafters: at least one"),
    ],
)
def test_what_a_pool_cannot_be_made_of(call, message):
    with refused(message):
        call()
