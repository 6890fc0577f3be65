"""The reference engine does what it claims: exact caching, lossless speculation, vLLM's batches."""

import numpy as np
import pytest
from scipy.stats import chisquare

torch = pytest.importorskip("torch")

from hwprofiles.catalogue import load_chip
from simulator.replay.calibrate import calibrate
from simulator.replay.split import Split
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from validation.selfcheck.calibration import counted_acceptance, expected_acceptance, host_costs
from validation.selfcheck.engine import EngineStep, ReferenceEngine
from validation.selfcheck.kernels import LIBRARY, KernelSamples
from validation.selfcheck.model import KernelCall, Observer, PackedBatch, ReferenceModel, Segment
from validation.selfcheck.predict import write_trace
from validation.selfcheck.sampling import sample_tokens, verify
from validation.selfcheck.scheduler import ReferenceScheduler, Request
from validation.selfcheck.sizes import FULL, TINY, CheckLoad

torch.set_num_threads(1)
SIZE = TINY.target
K = 3


def tick():
    """A clock that no machine can bend: every look at it is one second later."""
    tick.now = getattr(tick, "now", 0.0) + 1.0
    return tick.now


def model(size=SIZE, slots=4, longest=80):
    return ReferenceModel(size, 0, slots, longest)


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, SIZE.vocabulary, count).tolist()


def requests(lengths, seed=0):
    return [Request(i, tokens(prompt, seed + i), answer) for i, (prompt, answer) in enumerate(lengths)]


def engine(max_num_seqs=3, budget=16, drafting=False, seed=0, observer=None, drafter=None):
    draft = (drafter or model(SIZE.first(TINY.draft_layers))) if drafting else None
    return ReferenceEngine(model(), max_num_seqs, budget, tick, tick, draft, K if drafting else 0, seed, observer)


def whole(probabilities_of, ids):
    with torch.inference_mode():
        return probabilities_of.probabilities(PackedBatch(ids, (), (Segment(0, 0, len(ids)),), range(len(ids))))


def test_decoding_with_the_cache_gives_the_probabilities_of_one_full_pass():
    ids = tokens(40)
    one = model()
    expected = whole(one, ids)
    parts = []
    with torch.inference_mode():
        parts.append(one.probabilities(PackedBatch(ids[:9], (), (Segment(1, 0, 9),), range(9))))
        parts.append(one.probabilities(PackedBatch(ids[9:30], (), (Segment(1, 9, 21),), range(21))))
        for place in range(30, 34):
            parts.append(one.probabilities(PackedBatch(ids[place : place + 1], (Segment(1, place, 1),), (), [0])))
        parts.append(one.probabilities(PackedBatch(ids[34:38], (Segment(1, 34, 4),), (), range(4))))
        mixed = PackedBatch([ids[38], ids[39], *ids[:5]], (Segment(1, 38, 2),), (Segment(2, 0, 5),), [0, 1])
        parts.append(one.probabilities(mixed))
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-6)


def test_a_later_token_changes_nothing_before_it():
    ids = tokens(12)
    first, second = whole(model(), ids), whole(model(), [*ids[:-1], (ids[-1] + 1) % SIZE.vocabulary])
    torch.testing.assert_close(first[:-1], second[:-1])
    assert not torch.allclose(first[-1], second[-1])


def test_the_first_layers_of_a_model_are_those_of_its_draft():
    target, draft = model(), model(SIZE.first(1))
    assert torch.equal(target.layers[0][0], draft.layers[0][0])
    assert torch.equal(target.lm_head, draft.lm_head)
    overlap = torch.minimum(whole(target, tokens(30)), whole(draft, tokens(30))).sum(-1).mean()
    assert 0.5 < float(overlap) < 0.97


def test_speculative_sampling_is_distributed_as_the_target():
    generator = torch.Generator().manual_seed(1)
    rows, vocabulary = 40_000, 6
    target = torch.tensor([[0.35, 0.25, 0.2, 0.1, 0.07, 0.03], [0.05, 0.1, 0.15, 0.3, 0.2, 0.2]])
    draft = torch.tensor([[0.1, 0.3, 0.2, 0.3, 0.05, 0.05]])
    q = draft.expand(rows, 1, vocabulary)
    drafted = sample_tokens(draft.expand(rows, vocabulary), generator)[:, None]
    outcome = verify(target.expand(rows, 2, vocabulary), q, drafted, generator)
    first = torch.where(outcome.accepted > 0, drafted[:, 0], outcome.token)
    counts = torch.bincount(first, minlength=vocabulary).numpy()
    assert chisquare(counts, rows * target[0].double().numpy() / float(target[0].double().sum())).pvalue > 1e-3
    bonus = torch.bincount(outcome.token[outcome.accepted > 0], minlength=vocabulary).numpy()
    assert chisquare(bonus, bonus.sum() * target[1].double().numpy() / float(target[1].double().sum())).pvalue > 1e-3
    overlap = float(torch.minimum(target[0], draft[0]).sum())
    assert float((outcome.accepted > 0).double().mean()) == pytest.approx(overlap, abs=4 * 0.5 / rows**0.5)
    assert float(outcome.survival.mean()) == pytest.approx(overlap, rel=1e-5)


def test_tokens_of_the_engine_with_speculation_are_the_targets_own():
    """Second answer tokens, pooled over equal prompts: drawn from the target's mixture over first tokens."""
    prompt, many = tokens(5), 800
    one = model()
    start = whole(one, prompt)[-1].double()
    expected = torch.zeros(SIZE.vocabulary, dtype=torch.double)
    for token in range(SIZE.vocabulary):
        expected += start[token] * whole(one, [*prompt, token])[-1].double()
    drafting = engine(4, 64, drafting=True, seed=3)
    result = drafting.run([Request(i, list(prompt), 2) for i in range(many)], 4).requests
    counts = np.bincount([request.tokens[-1] for request in result], minlength=SIZE.vocabulary)
    large = expected.numpy() * many > 6
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected.numpy()[large], expected.numpy()[~large].sum())
    assert chisquare(observed, wanted / wanted.sum() * many).pvalue > 1e-3


def test_a_drafter_that_is_the_target_is_always_believed():
    """It sees the context without its first token, so agreement is near, not perfect; with no context it is perfect."""
    one = engine(2, 64, drafting=True, drafter=model())
    run = one.run(requests([(40, 30)] * 4), 2)
    assert counted_acceptance([run]).length > 0.9 * (K + 1)


def test_expected_acceptance_is_what_counting_finds():
    run = engine(3, 64, drafting=True, seed=2).run(requests([(12, 40)] * 12), 3)
    counted, expected = counted_acceptance([run]), expected_acceptance([run])
    error = np.hypot(counted.standard_error, expected.standard_error)
    assert expected.standard_error < counted.standard_error
    assert abs(counted.length - expected.length) < 4 * error
    assert list(expected.per_position) == sorted(expected.per_position, reverse=True)


@pytest.mark.parametrize("drafting", [False, True])
def test_every_request_gets_its_tokens_and_every_slot_comes_back(drafting):
    lengths = [(7, 1), (20, 9), (3, 14), (33, 2), (16, 16), (1, 5)]
    one = engine(2, 11, drafting)
    run = one.run(requests(lengths), 4)
    assert [len(r.tokens) for r in run.requests] == [prompt + answer for prompt, answer in lengths]
    assert sum(step.output_tokens for step in run.steps) == sum(answer for _, answer in lengths)
    assert sum(step.prefill_tokens for step in run.steps) == sum(prompt for prompt, _ in lengths)
    for request in run.requests:
        assert request.arrival_s < request.first_token_s <= request.finished_s


@pytest.mark.parametrize("budget", [5, 16, 64])
@pytest.mark.parametrize("concurrency", [1, 3, 6])
def test_batches_are_the_simulators_step_by_step(tmp_path, budget, concurrency):
    generator = np.random.default_rng(budget + concurrency)
    lengths = [(int(generator.integers(1, 40)), int(generator.integers(2, 20))) for _ in range(12)]
    seats = 4
    run = engine(seats, budget).run(requests(lengths), concurrency)
    trace = write_trace(lengths, tmp_path / "requests.csv")
    scenario = scenario_from(
        {
            "model": SIZE.described(),
            "hardware": {"chip": "cpu"},
            "engine": {
                "framework": "reference",
                "stepping": "exact-steps",
                "max_num_seqs": seats,
                "max_num_batched_tokens": budget,
                "enable_prefix_caching": False,
            },
            "workload": {
                "trace": str(trace),
                "arrivals": {"process": "closed-loop", "max_concurrency": concurrency},
            },
        },
        "test",
    )
    steps = simulate(scenario).steps
    names = ("prefill_seqs", "prefill_tokens", "decode_seqs", "decode_kv_tokens", "output_tokens")
    simulated = list(zip(*(getattr(steps, name).tolist() for name in names), strict=True))
    assert [tuple(getattr(step, name) for name in names) for step in run.steps] == simulated


def test_running_requests_come_before_waiting_ones_within_the_budget():
    scheduler = ReferenceScheduler(3, 10, 1)
    first, second, third = requests([(4, 3), (9, 3), (5, 3)])
    scheduler.waiting.extend([first, second, third])
    plan = scheduler.plan()
    assert [(r.index, n) for r, n in plan.chunks] == [(0, 4), (1, 6)]
    first.computed, second.computed = 4, 6
    plan = scheduler.plan()
    assert [r.index for r in plan.decodes] == [0]
    assert [(r.index, n) for r, n in plan.chunks] == [(1, 3), (2, 5)]


def test_observed_kernels_are_those_of_a_step():
    observer = Observer(tick)
    run = engine(2, 64, observer=observer).run(requests([(9, 3), (9, 3)]), 2)
    ops = [call.op for call in observer.calls]
    assert ops.count("gemm") == 4 * SIZE.layers + 1
    assert ops.count("attention_decode") == SIZE.layers
    assert ops.count("elementwise") == 4 * SIZE.layers + 3
    assert [step.kernels_s for step in run.steps] == [sum(call.seconds for call in calls) for calls in run.calls]


def test_prompt_chunks_of_several_lengths_are_noted_by_their_mean():
    one = model()
    one.observer = Observer(tick)
    with torch.inference_mode():
        one.probabilities(PackedBatch(tokens(14), (), (Segment(0, 0, 4), Segment(1, 6, 10)), [3, 13]))
    (sizes, *_) = [call.sizes for call in one.observer.calls if call.op == "attention_prefill"]
    assert (sizes["batch"], sizes["q_len"], sizes["kv_tokens"]) == (2, 7, 20)


def test_passes_have_the_range_of_those_that_ran_not_of_their_means():
    samples = KernelSamples()
    for scale in range(1, 9):
        moved = [1000 * scale, *[4000 * scale] * 6, 9000 * scale]
        samples.add([KernelCall("elementwise", {"bytes_moved": size}, 1e-9 * size) for size in moved], 1)
    table = samples.table("fp32", "test")
    calibration = calibrate(table, load_chip("cpu"), LIBRARY, Split(train=1.0), residual=False, judge=False).chip
    means, seen = (
        one.kernels[LIBRARY]["elementwise"]["any"].fit.ranges for one in (calibration, samples.with_passes(calibration))
    )
    assert means["bytes_moved"] == (4250, 34000)
    assert seen["bytes_moved"] == (1000, 72000)


def test_the_host_is_what_kernels_leave_over():
    def steps(count, start, slope):
        return [EngineStep(1.0 + start + slope * n, 1.0, 0, 0, n, 0, n, 1.0) for n in range(1, count)]

    host = host_costs(steps(6, 2e-3, 1e-4), steps(6, 5e-3, 1e-4))
    assert host.step_s == pytest.approx(2e-3)
    assert host.sequence_s == pytest.approx(1e-4)
    assert host.draft_step_s == pytest.approx(3e-3)


def test_no_nearby_model_has_a_shape_of_the_target():
    def shapes(size):
        heads = (size.heads + 2 * size.kv_heads) * size.head_dim
        width = size.heads * size.head_dim
        products = [(heads, size.hidden), (size.hidden, width), (2 * size.intermediate, size.hidden),
                    (size.hidden, size.intermediate), (size.vocabulary, size.hidden)]  # fmt: skip
        return {*products, ("heads", size.heads, size.kv_heads)}

    for sizes in (FULL, TINY):
        for nearby in sizes.nearby:
            assert not shapes(nearby) & shapes(sizes.target)


def test_the_longest_request_of_a_load():
    assert CheckLoad(1, 1, (2, 5), (3, 7), 8).longest == 12
