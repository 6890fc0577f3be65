"""Speculative sampling is lossless: what comes out is the target's, whatever the drafter."""

import numpy as np
import pytest
from example_modules import load_example
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import chisquare

from simulator.speculation import expected_tokens

SAMPLING = load_example("lossless_sampling")
VOCABULARY = 4


def model(seed, scale=1.5):
    """A model whose next token hangs on the last one."""
    logits = np.random.default_rng(seed).normal(scale=scale, size=(VOCABULARY, VOCABULARY))
    table = [SAMPLING.token_distribution(row) for row in logits]
    return lambda context: table[context[-1]]


def constant(distribution):
    return lambda context: np.asarray(distribution)


@st.composite
def distributions(draw_value):
    weights = draw_value(st.lists(st.floats(0.0, 1.0), min_size=VOCABULARY, max_size=VOCABULARY))
    values = np.array(weights) + (sum(weights) == 0)
    return values / values.sum()


@given(distributions(), distributions())
def test_acceptance_is_one_minus_total_variation(target, draft):
    assert SAMPLING.acceptance_chance(target, draft) == pytest.approx(
        1 - SAMPLING.total_variation(target, draft), abs=1e-12
    )


@given(distributions(), distributions())
def test_accepted_and_residual_parts_add_up_to_the_target(target, draft):
    """min(p, q) + (1 - sum min(p, q)) * residual = p: the proof of losslessness, in numbers."""
    accepted = np.minimum(target, draft)
    assert_allclose(accepted + (1 - accepted.sum()) * SAMPLING.residual(target, draft), target, atol=1e-12)


def test_single_tokens_are_accepted_at_that_rate():
    target, draft, generator = model(1)((0,)), model(2)((0,)), np.random.default_rng(3)
    expected, draws = SAMPLING.acceptance_chance(target, draft), 20_000
    assert 0.2 < expected < 0.8
    hits = sum(
        SAMPLING.verify_candidates([SAMPLING.draw(draft, generator)], target, draft, generator)[1] for _ in range(draws)
    )
    assert abs(hits / draws - expected) < 3 * np.sqrt(expected * (1 - expected) / draws)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_candidates_leave_the_target_unchanged(count, replacement):
    target, draft, generator = model(5)((1,)), model(6)((1,)), np.random.default_rng(7)
    counts = np.zeros(VOCABULARY)
    for _ in range(8_000):
        candidates = SAMPLING.draw_candidates(draft, count, generator, replacement)
        counts[SAMPLING.verify_candidates(candidates, target, draft, generator, replacement)[0]] += 1
    assert chisquare(counts, target * 8_000).pvalue > 1e-4


def test_the_test_would_notice_a_lossy_verification():
    """Accepting every candidate outright gives the drafter's distribution; keeping p after a rejection biases too."""
    target, draft, generator = model(5)((1,)), model(6)((1,)), np.random.default_rng(7)
    outright, unchanged = np.zeros(VOCABULARY), np.zeros(VOCABULARY)
    for _ in range(8_000):
        token = SAMPLING.draw(draft, generator)
        outright[token] += 1
        accepted = generator.random() * draft[token] < target[token]
        unchanged[token if accepted else SAMPLING.draw(target, generator)] += 1
    assert chisquare(outright, target * 8_000).pvalue < 1e-6
    assert chisquare(unchanged, target * 8_000).pvalue < 1e-6


@pytest.mark.parametrize(
    ("widths", "replacement"), [((), False), ((1, 1, 1), False), ((2, 2), False), ((3, 2, 1), False), ((2, 2), True)]
)
def test_pairs_of_tokens_have_the_targets_joint_distribution(widths, replacement):
    """Chi-square over the first two tokens, whichever steps they came from."""
    target, drafter, generator = model(11), model(12), np.random.default_rng(13)
    counts, draws = np.zeros((VOCABULARY, VOCABULARY)), 6_000
    for _ in range(draws):
        tokens, _ = SAMPLING.generate(
            lambda context: SAMPLING.tree_step(target, drafter, context, widths, generator, replacement), (0,), 2
        )
        counts[tokens] += 1
    expected = np.array([target((0,))[first] * target((first,)) for first in range(VOCABULARY)])
    assert chisquare(counts.ravel(), expected.ravel() * draws).pvalue > 1e-4


@pytest.mark.parametrize("tokens", [1, 3, 6])
def test_a_chain_of_equal_acceptance_gives_leviathans_length(tokens):
    """The same p and q in every context: 1 - TV is alpha, and steps yield (1 - a^(g+1)) / (1 - a) tokens."""
    target, drafter = constant([0.4, 0.3, 0.2, 0.1]), constant([0.1, 0.3, 0.3, 0.3])
    alpha, generator = SAMPLING.acceptance_chance(target(()), drafter(())), np.random.default_rng(17)
    lengths = np.array([len(SAMPLING.chain_step(target, drafter, (), tokens, generator)) for _ in range(6_000)])
    error = lengths.std() / np.sqrt(len(lengths))
    assert abs(lengths.mean() - expected_tokens(alpha, tokens)) < 3 * error


def test_more_candidates_are_accepted_more_often():
    target, draft, generator = model(21)((2,)), model(22)((2,)), np.random.default_rng(23)
    rates = []
    for count in (1, 2, 3):
        hits = sum(
            SAMPLING.verify_candidates(SAMPLING.draw_candidates(draft, count, generator), target, draft, generator)[1]
            for _ in range(4_000)
        )
        rates.append(hits / 4_000)
    assert rates[0] < rates[1] < rates[2]


def test_candidates_without_replacement_are_distinct():
    generator = np.random.default_rng(29)
    assert sorted(SAMPLING.draw_candidates(np.array([0.5, 0.5, 0.0, 0.0]), 4, generator)) == [0, 1]
    assert len(SAMPLING.draw_candidates(np.array([0.5, 0.5, 0.0, 0.0]), 4, generator, replacement=True)) == 4


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.lists(st.integers(1, 3), max_size=3))
def test_greedy_speculation_writes_what_greedy_decoding_writes(target_seed, draft_seed, widths):
    logits = np.random.default_rng(target_seed).normal(size=(VOCABULARY, VOCABULARY))

    def target(context):
        return SAMPLING.token_distribution(logits[context[-1]], temperature=0.0)

    drafter, generator = model(draft_seed), np.random.default_rng(41)
    tokens, steps = SAMPLING.generate(
        lambda context: SAMPLING.tree_step(target, drafter, context, widths, generator), (0,), 10
    )
    plain = [0]
    for _ in range(10):
        plain.append(int(np.argmax(logits[plain[-1]])))
    assert list(tokens) == plain[1:]
    assert 10 / (len(widths) + 1) <= steps <= 10


def test_a_perfect_drafter_is_never_rejected_and_earns_the_bonus_token():
    target, generator = model(43), np.random.default_rng(47)
    for _ in range(200):
        assert len(SAMPLING.chain_step(target, target, (0,), 4, generator)) == 5


def test_temperature():
    logits = np.array([1.0, 3.0, 3.0, 0.0])
    assert_allclose(SAMPLING.token_distribution(logits, 0.0), [0, 1, 0, 0])
    assert_allclose(SAMPLING.token_distribution(logits, 1e-3), [0, 0.5, 0.5, 0], atol=1e-12)
