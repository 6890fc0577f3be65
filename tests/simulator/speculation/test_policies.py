"""Policies choose as their sources say, and errors of custom ones name what they break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forerun.errors import ForerunError
from simulator.speculation import Batch, PolicyConfig, check_policy, expected_tokens, policy_factory
from simulator.speculation.policies import Goodput, MovingAverageSlot, batch_table, disable_above


def linear_step(seqs, tokens, context):
    """A step that gets dearer with every verified token beyond 64 in all."""
    return 5e-3 + 1e-3 * tokens + 1e-4 * max(0, seqs * (tokens + 1) - 64)


def chosen(config, seqs, most=3):
    return policy_factory(PolicyConfig.model_validate(config), most, linear_step)().choose(Batch(seqs, 100 * seqs))


def test_vllms_own_cases_of_the_table():
    """Gaps take the K before them, and so do batches beyond the last; vLLM's tests/v1/core hold the same figures."""
    table = batch_table([[1, 16, 3], [32, 128, 2], [256, 2048, 0]], 4)
    expected = {1: 3, 16: 3, 17: 3, 31: 3, 32: 2, 128: 2, 129: 2, 255: 2, 256: 0, 2048: 0, 9999: 0}
    assert {seqs: table.choose(Batch(seqs, 0)) for seqs in expected} == expected
    assert batch_table([[1, 256, 4]], 3).choose(Batch(256, 0)) == 3
    shuffled = batch_table([[32, 128, 2], [256, 2048, 0], [1, 16, 3]], 4)
    assert shuffled == table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "at least one"),
        ([[2, 16, 3]], "must start at 1"),
        ([[1, 16, 3], [16, 20, 2]], "overlap at batch 16"),
        ([[1, 16, -1]], "0 tokens or more"),
        ([[9, 3, 1]], "no range"),
        ([[1, 16]], "each row is"),
        ([[1, 16, 1, 2048, 3]], "each row is"),
    ],
)
def test_tables_that_vllm_refuses(table, message):
    with pytest.raises(ValidationError, match=message):
        PolicyConfig.model_validate({"name": "batch-table", "table": table})


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=6))
def test_every_batch_of_a_range_gets_its_k(parts):
    table, first = [], 1
    for length, gap, tokens in parts:
        table.append([first, first + length - 1, tokens])
        first += length + gap
    looked_up = batch_table(table, 5)
    for start, end, tokens in table:
        assert {looked_up.choose(Batch(seqs, 0)) for seqs in range(start, end + 1)} == {min(tokens, 5)}


def test_plain_names_take_their_documented_defaults():
    assert [chosen({"name": "disable-above-batch"}, seqs) for seqs in (1, 32, 33, 500)] == [3, 3, 0, 0]
    assert [chosen({"name": "batch-table"}, seqs) for seqs in (64, 65, 128, 129, 9999)] == [3, 1, 1, 0, 0]
    assert [chosen({"name": "ema"}, seqs) for seqs in (1, 7, 8, 31, 32, 64)] == [3, 3, 3, 3, 1, 0]
    assert policy_factory(PolicyConfig(name="fixed"), 3, linear_step) is None
    assert disable_above(8, 5).choose(Batch(8, 0)) == 5


def test_vllms_name_of_the_table_is_accepted():
    table = [[1, 4, 2], [5, 9, 0]]
    theirs = PolicyConfig.model_validate({"name": "batch-table", "num_speculative_tokens_per_batch_size": table})
    assert theirs == PolicyConfig.model_validate({"name": "batch-table", "table": table})
    assert [list(row) for row in theirs.table] == table


@pytest.mark.parametrize("seqs", [1, 8, 20, 64, 200])
@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.7, 0.95])
def test_goodput_takes_the_best_k(seqs, acceptance):
    policy = Goodput(7, linear_step, prior=acceptance, hysteresis=0.0)
    best = max(range(8), key=lambda k: expected_tokens(acceptance, k) / linear_step(seqs, k, 0))
    assert policy.choose(Batch(seqs, 300 * seqs)) == best


def test_goodput_learns_the_acceptance_and_forgets_it():
    policy = Goodput(3, linear_step, prior=0.7, window=50)
    for _ in range(500):
        policy.observe(3, [0, 0, 1, 0])  # five tried tokens, one accepted
    assert policy.acceptance == pytest.approx(0.2, abs=0.02)
    for _ in range(500):
        policy.observe(0, [0, 0, 0, 0])
    assert policy.acceptance == pytest.approx(0.7, abs=0.01)


def slot(**fields):
    usual = {"alpha": 0.2, "update_interval": 5, "warmup": 10, "up": 0.0, "down": -0.25}
    return MovingAverageSlot((1, 3, 5, 7), **({"present": 3} | usual | fields))


def fed(of, accepted, steps):
    for _ in range(steps):
        of.observe([accepted])
    return of.present


def test_the_moving_average_rises_and_falls_as_in_sglang():
    """Average a after n steps of x from a0: x + (a0 - x) 0.8^n; decisions at steps 15, 20, 25, ..."""
    assert fed(slot(), 3, 14) == 3, "warm-up and interval"
    assert fed(slot(), 3, 15) == 5, "2.96 > 2.5"
    assert fed(slot(present=5), 5, 15) == 7
    assert fed(slot(), 2, 100) == 3, "between the floor of 1 (0.25) and the rise of 3 (2.5)"
    assert fed(slot(), 0, 15) == 1, "0.07 <= 0.5 - 0.25"
    assert fed(slot(present=7), 1, 15) == 3, "1.18: past 5 and 3's floors, 2.25 and 4.25"
    assert slot(present=4).present == 5, "not a candidate: the middle one"


def test_the_moving_average_probes_after_a_rest():
    resting = MovingAverageSlot((0, 1), 1, alpha=0.2, update_interval=5, warmup=0, up=0.0, down=0.0)
    assert fed(resting, 0, 5) == 0
    assert fed(resting, 0, 5) == 1
    assert fed(resting, 0, 5) == 0


@pytest.mark.parametrize("name", ["disable-above-batch", "batch-table", "goodput", "ema"])
def test_shipped_policies_keep_the_rules(name):
    factory = policy_factory(PolicyConfig(name=name), 5, linear_step)
    check_policy(factory, 5, 200)
    assert factory().by_batch_alone == (name in ("disable-above-batch", "batch-table"))


NUMBERS = iter(range(10**6))


def own(choose, by_batch_alone):
    return type("Own", (), {"choose": choose, "observe": lambda *_: None, "by_batch_alone": by_batch_alone})


@pytest.mark.parametrize(
    ("choose", "by_batch_alone", "message"),
    [
        (lambda self, batch: 9, True, "chose 9 draft tokens, not a whole number from 0 to 5"),
        (lambda self, batch: 2.5, True, "chose 2.5"),
        (lambda self, batch: batch.context_tokens // 50 % 3, True, "says by_batch_alone"),
        (lambda self, batch: next(NUMBERS) % 5, False, "after the same history"),
    ],
)
def test_own_policies_are_reported_what_they_break(choose, by_batch_alone, message):
    with pytest.raises(ForerunError, match=message):
        check_policy(own(choose, by_batch_alone), 5)


def test_own_policies_without_a_part_are_reported():
    with pytest.raises(ForerunError, match="object lacks something"):
        check_policy(object, 5)


def test_ema_without_a_candidate_in_reach_is_refused():
    with pytest.raises(ForerunError, match=r"candidates: none of \[3, 5\] for batches from 1 is at most the 2"):
        policy_factory(PolicyConfig(name="ema", candidates=[3, 5]), 2, linear_step)
