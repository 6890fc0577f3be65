"""Policies choose as their sources document, step by step, and errors of custom ones name what they break."""

from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from forerun.errors import ForerunError
from simulator.serving import engine
from simulator.serving.drafting import policy_factory
from simulator.serving.engine import Goodput, MovingAverage, MovingAverageSlot
from simulator.speculation import Batch, PolicyConfig, check_policy, expected_tokens
from simulator.speculation.policies import batch_table


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
        ([[1, 2]], "each row is"),
        ([[1, 2, 3, 4]], "each row is"),
        ([[0, 2, 3]], "no range of batch sizes"),
        ([[1, 0, 3]], "no range of batch sizes"),
        ([[1, 4, 3], [5, 4, 2]], "no range of batch sizes"),
        ([[1, 4, -1]], "0 tokens or more"),
        ([[2, 4, 1]], "the first range must start at 1"),
        ([[1, 4, 1], [4, 5, 0]], "ranges overlap at batch 4"),
        ([[3, 9, 1], [1, 5, 2]], "ranges overlap at batch 3"),
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


@pytest.mark.parametrize(
    "config",
    [
        {"name": "disable-above-batch", "batch": 10**9},
        {"name": "batch-table", "table": [[1, 10**9, 3], [10**12, 10**12, 1]]},
    ],
)
def test_no_table_is_as_long_as_a_batch_that_a_scenario_names(config):
    """A batch of 1,000,000,000 took 8 GB."""
    policy = policy_factory(PolicyConfig.model_validate(config), 3, linear_step)()
    assert policy.choose(Batch(10**9, 0)) == 3
    assert policy.choose(Batch(10**12, 0)) < 3
    assert len(policy.tokens) <= 2


def test_plain_names_take_their_documented_defaults():
    assert [chosen({"name": "disable-above-batch"}, seqs) for seqs in (1, 32, 33, 500)] == [3, 3, 0, 0]
    assert [chosen({"name": "disable-above-batch", "batch": 4}, seqs) for seqs in (4, 5)] == [3, 0]
    assert [chosen({"name": "batch-table"}, seqs) for seqs in (64, 65, 128, 129, 9999)] == [3, 1, 1, 0, 0]
    assert [chosen({"name": "ema"}, seqs) for seqs in (1, 7, 8, 31, 32, 64)] == [3, 3, 3, 3, 1, 0]
    assert policy_factory(PolicyConfig(name="fixed"), 3, linear_step) is None


def test_vllms_name_of_the_table_is_accepted():
    table = [[1, 4, 2], [5, 9, 0]]
    theirs = PolicyConfig.model_validate({"name": "batch-table", "num_speculative_tokens_per_batch_size": table})
    assert theirs == PolicyConfig.model_validate({"name": "batch-table", "table": table})
    assert [list(row) for row in theirs.table] == table


@pytest.mark.parametrize("name", ["disable-above-batch", "batch-table", "goodput", "ema"])
def test_shipped_policies_keep_the_rules(name):
    factory = policy_factory(PolicyConfig(name=name), 5, linear_step)
    check_policy(factory, 5, 200)
    assert factory().by_batch_alone == (name in ("disable-above-batch", "batch-table"))


def test_own_policies_without_a_part_are_reported():
    with pytest.raises(ForerunError, match="object lacks something"):
        check_policy(object, 5)


def seconds(seqs, tokens, context):
    return 1e-2 + 1e-4 * seqs * (tokens + 1) + 5e-4 * tokens + 1e-8 * seqs * context


def ema(most=7, **fields):
    return policy_factory(PolicyConfig(name="ema", **fields), most, seconds, engine=engine)()


def slots_of(policy):
    return dict(zip(policy.sizes, policy.slots, strict=True))


class TestSglang:
    """``DEFAULT_ADAPTIVE_CONFIG`` of SGLang: candidates by batch, weight 0.2, a decision in 5 steps after 10."""

    def test_defaults(self):
        slots = slots_of(ema())
        assert {size: slot.candidates for size, slot in slots.items()} == {
            1: (1, 3, 5, 7),
            8: (0, 1, 3),
            32: (0, 1),
            64: (0,),
        }
        assert {(s.alpha, s.update_interval, s.warmup, s.up) for s in slots.values()} == {(0.2, 5, 10, 0.0)}
        assert {size: slot.down for size, slot in slots.items()} == {1: -0.25, 8: 0.0, 32: 0.0, 64: 0.0}

    def test_batches_find_their_slot(self):
        policy = ema()
        result = {seqs: policy.choose(Batch(seqs, 0)) for seqs in (1, 7, 8, 31, 32, 63, 64, 1000)}
        # Where the full proposal of 7 is no candidate, a slot begins in the middle of its candidates.
        assert result == {1: 7, 7: 7, 8: 1, 31: 1, 32: 1, 63: 1, 64: 0, 1000: 0}

    def test_small_batches_use_the_smallest_slot(self):
        policy = ema(candidates={4: [1, 2], 9: [0]})
        assert [policy.choose(Batch(seqs, 0)) for seqs in (1, 4, 8, 9)] == [2, 2, 2, 0]

    def test_given_values_replace_the_documented_ones(self):
        given_values = {"ema_alpha": 0.5, "update_interval": 2, "warmup_batches": 0, "up_hysteresis": 0.3}
        (slot,) = ema(down_hysteresis=0.1, candidates=[3, 1, 3, 9], **given_values).slots
        assert (slot.candidates, slot.alpha, slot.update_interval, slot.warmup) == ((1, 3), 0.5, 2, 0)
        assert (slot.up, slot.down) == (0.3, 0.1)

    def test_candidates_beyond_the_proposal_are_left_out_and_one_must_stay(self):
        assert slots_of(ema(most=3))[1].candidates == (1, 3)
        with pytest.raises(ForerunError, match=r"none of \[5, 7\] for batches from 1 is at most the 4 draft tokens"):
            ema(most=4, candidates=[5, 7])

    @pytest.mark.parametrize("seqs", [1, 3])
    def test_the_average_is_of_the_accepted_tokens_per_sequence(self, seqs):
        slot = MovingAverageSlot((1, 3), 3, alpha=0.25, update_interval=100, warmup=0, up=0.0, down=0.0)
        assert slot.average == 2.0, "a start one below the present K"
        policy = MovingAverage({1: slot})
        policy.observe(3, [3, 1, 2] if seqs > 1 else [2])
        assert slot.average == pytest.approx(2.0)
        policy.observe(3, [0] * seqs)
        assert slot.average == pytest.approx(1.5)
        policy.observe(3, [3] * seqs)
        assert slot.average == pytest.approx(1.5 + 0.25 * 1.5)

    @pytest.mark.parametrize(
        ("present", "average", "up", "down", "then"),
        [
            (3, 2.5, 0.0, 0.0, 3),  # not above the rise of 3
            (3, 2.51, 0.0, 0.0, 5),
            (3, 2.51, 0.1, 0.0, 3),
            (3, 2.61, 0.1, 0.0, 5),
            (3, 4.51, 0.0, 0.0, 7),  # past 5 in one decision
            (5, 99.0, 0.0, 0.0, 7),  # and never past the last
            (5, 2.5, 0.0, 0.0, 3),  # at the floor of 3: enough
            (5, 2.51, 0.0, 0.0, 5),
            (5, 2.5, 0.0, -0.25, 5),
            (5, 2.25, 0.0, -0.25, 3),
            (5, 0.5, 0.0, 0.0, 1),
            (1, -5.0, 0.0, 0.0, 1),  # no candidate below
        ],
    )
    def test_thresholds(self, present, average, up, down, then):
        slot = MovingAverageSlot((1, 3, 5, 7), present, alpha=1.0, update_interval=1, warmup=0, up=up, down=down)
        slot.observe(average)
        assert slot.present == then

    def test_none_is_enough_where_half_a_token_is_accepted(self):
        for accepted, then in ((0.49, 0), (0.5, 0), (0.51, 3)):
            slot = MovingAverageSlot((0, 1, 3), 1, alpha=1.0, update_interval=1, warmup=0, up=0.0, down=0.0)
            slot.observe(accepted)
            assert slot.present == then

    def test_a_resting_slot_learns_nothing_and_tries_the_next_candidate(self):
        slot = MovingAverageSlot((0, 2, 4), 0, alpha=0.5, update_interval=3, warmup=1, up=0.0, down=0.0)
        assert slot.average == -1.0
        for _ in range(3):
            slot.observe(0.0)
            assert (slot.present, slot.average) == (0, -1.0)
        slot.observe(0.0)
        assert (slot.present, slot.average) == (2, 1.0), "an average below zero starts anew at K - 1"
        only = MovingAverageSlot((0,), 0, alpha=0.5, update_interval=1, warmup=0, up=0.0, down=0.0)
        only.observe(0.0)
        assert only.present == 0

    @given(st.integers(1, 7), st.integers(0, 9))
    def test_decisions_come_at_their_interval_after_the_warm_up(self, interval, warmup):
        slot = MovingAverageSlot((1, 9), 1, alpha=1.0, update_interval=interval, warmup=warmup, up=0.0, down=0.0)
        for step in range(1, warmup + interval):
            slot.observe(9.0)
            assert slot.present == 1, step
        slot.observe(9.0)
        assert slot.present == 9

    def test_what_was_verified_teaches_the_slot_of_its_batch(self):
        slots = {
            1: MovingAverageSlot((1, 3), 3, 0.5, 1, 0, 0.0, 0.0),
            3: MovingAverageSlot((1, 3), 3, 0.5, 1, 0, 0.0, 0.0),
        }
        policy = MovingAverage(slots)
        policy.observe(3, [])
        policy.observe(3, [0, 0, 0])
        assert (slots[1].average, slots[3].average) == (2.0, 1.0)
        policy.observe(3, [0, 0])
        assert slots[1].average == 1.0


class TestGoodput:
    """SmartSpec: the K with the most expected tokens per second."""

    @settings(max_examples=60)
    @given(st.integers(1, 300), st.integers(1, 8), st.floats(0.0, 1.0), st.integers(0, 5000))
    def test_the_best_k_at_the_prior(self, seqs, most, prior, context):
        """Mean contexts are priced in the middle of cells of 256 tokens."""
        requested = []

        def spied(*step):
            requested.append(step)
            return seconds(*step)

        policy = Goodput(most, spied, prior=prior, hysteresis=0.0)
        chosen = policy.choose(Batch(seqs, seqs * context))
        middle = context // 256 * 256 + 128
        assert requested == [(seqs, k, middle) for k in range(most + 1)]
        rates = [expected_tokens(prior, k) / seconds(seqs, k, middle) for k in range(most + 1)]
        assert rates[chosen] == pytest.approx(max(rates), rel=1e-12)

    def test_hysteresis_keeps_the_present_k(self):
        """3 tokens are 10 % better than 2 here: not enough where 12 % are requested."""
        times = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}
        for hysteresis, then in ((0.0, 3), (0.3, 3), (0.34, 2)):
            policy = Goodput(3, lambda seqs, k, context: times[k], prior=1.0, hysteresis=hysteresis)
            policy.present = 2
            assert policy.choose(Batch(1, 0)) == then, "4 tokens against 3: a third more"

    def test_decisions_come_at_their_interval_and_never_for_nobody(self):
        policy = Goodput(3, lambda seqs, k, context: 1.0 + k, prior=0.0, hysteresis=0.0, interval=3)
        assert [policy.choose(Batch(1, 0)) for _ in range(3)] == [3, 3, 0]
        idle = Goodput(3, lambda seqs, k, context: 1.0 + k, prior=0.0, hysteresis=0.0)
        assert idle.choose(Batch(0, 0)) == 3

    @pytest.mark.parametrize("window", [5, 100, 400])
    def test_counts_age_to_the_prior(self, window):
        """After n steps without drafts what was seen weighs exp(-n / window); the prior weighs a tenth of a window."""
        policy = Goodput(4, seconds, prior=0.5, window=window)
        weight = max(1.0, window / 10)
        policy.observe(4, [4, 2, 0])
        # Accepted: 4 + 2 + 0. Tried: those, and the first rejected of the second and of the third.
        assert policy.acceptance() == pytest.approx((0.5 * weight + 6) / (weight + 8))
        for _ in range(10):
            policy.observe(0, [0, 0])
        kept = exp(-10 / window)
        assert policy.acceptance() == pytest.approx((0.5 * weight + 6 * kept) / (weight + 8 * kept))

    def test_documented_defaults(self):
        policy = policy_factory(PolicyConfig(name="goodput"), 5, seconds, engine=engine)()
        assert (policy.prior, policy.kept, policy.hysteresis, policy.interval) == (0.7, exp(-0.01), 0.02, 1)
        given = PolicyConfig(name="goodput", prior=0.0, window=7, hysteresis=0.0, interval=2)
        requested = policy_factory(given, 5, seconds, engine=engine)()
        assert (requested.prior, requested.kept, requested.hysteresis, requested.interval) == (0.0, exp(-1 / 7), 0.0, 2)


@pytest.mark.parametrize("name", ["goodput", "ema", "p-min", "entropy", "forerun"])
def test_compiled_policies_choose_as_the_interpreted_ones(name):
    """On a history of random batches and acceptance, some of it without drafts."""
    draws = np.random.default_rng(5)
    seconds_of = lambda seqs, tokens, context, prompt=0: seconds(seqs, tokens, context) + 1e-5 * prompt * (1 + tokens)  # noqa: E731
    switch = lambda seqs, skipped: 1e-3 + 1e-6 * skipped  # noqa: E731
    given = PolicyConfig(name=name)
    compiled, source = (policy_factory(given, 5, seconds_of, switch, module)() for module in (None, engine))
    chosen = []
    for step in range(600):
        seqs, prompt = int(draws.integers(1, 40)), int(draws.integers(0, 3000)) * int(draws.integers(0, 2))
        batch = Batch(seqs, seqs * int(draws.integers(1, 4000)), prompt, int(draws.integers(0, 2)))
        chosen.append(compiled.choose(batch))
        assert chosen[-1] == source.choose(batch)
        accepted = draws.integers(0, 1 + chosen[-1] * (step // 100 % 2), seqs).tolist()
        compiled.observe(chosen[-1], accepted)
        source.observe(chosen[-1], accepted)
    assert len(set(chosen)) > 1


class Own:
    """A policy of one formula of (step, batch)."""

    def __init__(self, formula, by_batch_alone=False):
        self.formula, self.by_batch_alone, self.step, self.seen = formula, by_batch_alone, 0, []

    def choose(self, batch):
        self.step += 1
        self.batches = [*getattr(self, "batches", ()), batch]
        return self.formula(self, batch)

    def observe(self, drafted, accepted):
        self.seen.append((drafted, list(accepted)))


class TestCheckPolicy:
    @pytest.mark.parametrize(
        ("formula", "single", "words"),
        [
            (lambda own, batch: -1, False, "chose -1 draft tokens"),
            (lambda own, batch: 4, False, "chose 4 draft tokens, not a whole number from 0 to 3"),
            (lambda own, batch: 2.0, False, "chose 2.0 draft tokens"),
            (lambda own, batch: True, False, "chose True draft tokens"),
            (lambda own, batch: own.step % 3, True, "says by_batch_alone"),
            (lambda own, batch: batch.context_tokens // batch.seqs // 50 % 3, True, "says by_batch_alone"),
        ],
    )
    def test_what_is_detected(self, formula, single, words):
        with pytest.raises(ForerunError, match=r"^Own: ") as caught:
            check_policy(lambda: Own(formula, single), 3)
        assert words in str(caught.value)

    def test_two_that_differ_are_detected(self):
        made = []

        def make():
            made.append(Own(lambda custom, batch: made.index(custom) if custom.step > 150 else 0))
            return made[-1]

        with pytest.raises(ForerunError, match="chose 0 and then 1 draft tokens after the same history"):
            check_policy(make, 3)

    @pytest.mark.parametrize("most", [0, 1, 7])
    @pytest.mark.parametrize("max_seqs", [1, 64])
    def test_the_history_is_one_that_an_engine_could_give(self, most, max_seqs):
        """Batches from one to the most, contexts that grow, and never more accepted than drafted; every value seen."""
        made = []

        def make():
            made.append(Own(lambda custom, batch: (batch.seqs + batch.context_tokens) % (most + 1)))
            return made[-1]

        check_policy(make, most, max_seqs)
        one, other = made
        assert one.seen == other.seen
        assert one.batches == other.batches
        sizes = {batch.seqs for batch in one.batches}
        assert min(sizes) == 1
        assert max(sizes) == max_seqs
        contexts = [batch.context_tokens / batch.seqs for batch in one.batches]
        assert contexts == sorted(set(contexts))
        for batch, (drafted, accepted) in zip(one.batches, one.seen, strict=True):
            assert len(accepted) == batch.seqs
            assert all(0 <= tokens <= drafted for tokens in accepted)
        if max_seqs == 64:
            assert {tokens for _, accepted in one.seen for tokens in accepted} == set(range(most + 1))
