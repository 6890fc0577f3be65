"""What drafters compute, counted token by token, and that one step costs the same however it is requested."""

from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from drafter_prices import caught_up
from drafter_prices import costs as costs_of
from drafter_prices import seconds as seconds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_drafters import METHODS, made
from timing_steps import arrays, decode, deployment

from hwprofiles import load_link
from simulator.timing import (
    Costs,
    DraftStep,
    HeadsDrafter,
    HostOverhead,
    ParallelDrafter,
    RemoteDrafter,
    SequentialDrafter,
    StepTimer,
    StepWork,
    causal_pairs,
    keys_read,
)

OVERHEAD = HostOverhead(step_s=1e-3, pass_s=1e-4)


@dataclass
class Recorder:
    """Stands in for a ``StepTimer``: records what it prices, a second each."""

    windows: tuple = (None,)
    max_tokens: int = 10**6
    calls: list = field(default_factory=list)
    drafts: str = "batched"

    @property
    def deployment(self):
        return SimpleNamespace(framework=SimpleNamespace(drafts=self.drafts))

    def seconds(self, work, logit_rows=None):
        self.calls.append((work, logit_rows))
        return 1.0

    def costs(self, work, logit_rows=None):
        self.calls.append((work, logit_rows))
        result = Costs.zeros(len(work.decode_seqs))
        result.compute_s += 1.0
        return result


def mixed(prompt, cached, decodes, context, query_len, windows=(None,), sampled=1):
    """A prompt chunk behind ``cached`` tokens beside decoding sequences of one context."""
    return StepWork(
        1,
        prompt,
        tuple(causal_pairs(prompt, cached, w) for w in windows),
        tuple(keys_read(cached + prompt, prompt, w) for w in windows),
        sampled,
        tuple(sampled * keys_read(cached + prompt + 1, 1, w) for w in windows),
        decodes,
        query_len,
        tuple(decodes * keys_read(context, query_len, w) for w in windows),
    )


@given(st.integers(1, 50), st.integers(0, 90), st.integers(0, 9), st.integers(60, 90), st.integers(1, 9))
def test_masked_positions_stand_behind_every_sequence(prompt, cached, decodes, context, count):
    """K - 1 masked tokens follow the last real one of each sequence and see everything before them."""
    step = Recorder()
    drafter = ParallelDrafter(step, count, 0.0, 0.0)
    seconds_of(drafter, mixed(prompt, cached, decodes, context, count + 1))
    ((work, rows),) = step.calls
    masked = count - 1
    assert work.prefill_tokens == prompt + masked
    assert work.prefill_pairs == (causal_pairs(prompt + masked, cached, None),)
    assert work.prefill_kv_tokens == (cached + prompt + masked,)
    assert (work.query_len,) == drafter.pass_tokens
    assert work.decode_kv_tokens == (decodes * (context + masked),)
    assert rows == (decodes + 1) * count
    assert work.query_len == count + 1 + masked


@given(st.integers(0, 8), st.integers(1, 6), st.integers(1, 20), st.integers(100, 200), st.booleans())
def test_a_chain_reads_what_it_drafted(decodes, depth, prompt, context, windowed):
    """Every further pass reads, for each sequence, its context and the tokens drafted so far.

    ElementwiseKernels of equal width are priced by their middle one: a sum over them is right to half a token per pass.
    """
    windows = (None, 64) if windowed else (None,)
    step = Recorder(windows)
    drafter = SequentialDrafter(step, depth, (1,) * (depth - 1), 0.0, 0.0)
    work = mixed(prompt, 0, decodes, context, depth + 1, windows)
    seconds = seconds_of(drafter, work)
    assert seconds == depth == len(drafter.pass_tokens)
    assert step.calls[0] == (work, decodes + 1)
    exact = sum(decodes * context + prompt + 1 + (decodes + 1) * grown for grown in accumulate([1] * (depth - 1)))
    result = sum((depth - 1) * requested.decode_kv_tokens[0] for requested, _ in step.calls[1:])
    assert 0 <= exact - result <= (depth - 1) * (decodes + 1) / 2
    for requested, rows in step.calls[1:]:
        assert (requested.prefill_seqs, requested.prefill_tokens, requested.sampled_prefills) == (0, 0, 0)
        assert (requested.decode_seqs, requested.query_len, rows) == (decodes + 1, 1, decodes + 1)
        assert requested.decode_kv_tokens[1:] == tuple(
            decodes * keys_read(context, depth + 1, 64) + keys_read(prompt + 1, 1, 64) for _ in windows[1:]
        )


def test_each_layer_of_a_tree_computes_its_nodes_once():
    step = Recorder()
    widths = (4, 2, 4, 1)
    drafter = SequentialDrafter(step, 5, widths, 0.0, 0.0)
    assert seconds_of(drafter, decode(3, 100, 20)) == 1 + len(widths)
    forwards = {arguments.query_len: arguments.decode_kv_tokens[0] // 3 - 100 for arguments, _ in step.calls[1:]}
    # A first pass cannot hold the rejected nodes: 6 of 20 tokens per sequence stay, 14 keys less.
    assert (step.calls[0][0].query_len, step.calls[0][0].decode_kv_tokens) == (6, (3 * (100 - 14),))
    # Nodes before and in a layer: 4, 6, 10, 11; the two layers of four stand 4 and 10 deep, 7 in the middle.
    assert forwards == {4: 7 - 14, 2: 6 - 14, 1: 11 - 14}
    assert [rows for _, rows in step.calls] == [3, 12, 6, 3]


def test_drafted_per_sequence_each_has_the_later_passes_to_itself():
    """The first pass serves all; each of the others is run once for each of three sequences, over its own context."""
    step = Recorder(drafts="per-sequence")
    drafter = SequentialDrafter(step, 3, (1, 1), 0.0, 0.0)
    assert seconds_of(drafter, decode(3, 100, 4)) == 1 + 3 * 2
    (first, first_rows), (later, rows) = step.calls
    assert (first.decode_seqs, first_rows) == (3, 3)
    assert (later.decode_seqs, later.query_len, rows, later.decode_kv_tokens) == (1, 1, 1, (101,))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("ngram", "suffix")])
@pytest.mark.parametrize("decodes", [0, 1, 5])
def test_overheads_are_paid_once_a_step_and_once_a_pass(name, decodes):
    """Where nothing is drafted nothing is paid; alone and among many steps the same."""
    count = 4
    arguments = {"num_speculative_tokens": count} if "tree" not in METHODS[name] else {}
    free = made(name, **arguments)
    paying = replace(free, overhead=OVERHEAD)
    free = replace(free, overhead=HostOverhead())
    windows = free.windows
    empty = (0,) * len(windows)
    work = StepWork(0, 0, empty, empty, 0, empty, decodes, 5, tuple(decodes * keys_read(400, 5, w) for w in windows))
    chunk = StepWork(1, 50, *((tuple(g(w) for w in windows)) for g in (_pairs, _keys)), 0, empty, 0, 5, empty)
    forwards = 1 if isinstance(free, HeadsDrafter | ParallelDrafter) else len(free.pass_tokens)
    due = OVERHEAD.step_s + forwards * OVERHEAD.pass_s if decodes else 0.0
    assert seconds_of(paying, work) - seconds_of(free, work) == pytest.approx(due, abs=1e-12)
    assert costs_of(paying, arrays(work)).host_s - costs_of(free, arrays(work)).host_s == pytest.approx(due, abs=1e-12)
    assert seconds_of(paying, chunk) == seconds_of(free, chunk)
    assert (costs_of(paying, arrays(chunk)).host_s == costs_of(free, arrays(chunk)).host_s).all()


def _pairs(window):
    return causal_pairs(50, 0, window)


def _keys(window):
    return keys_read(50, 50, window)


class TestHeads:
    TARGET = deployment("llama-3.2-1b")

    @pytest.mark.parametrize(("heads", "blocks"), [(1, 1), (4, 1), (3, 2), (2, 0)])
    def test_work_by_hand(self, heads, blocks):
        """Each head multiplies ``blocks`` square matrices and the vocabulary: 2 FLOP per weight and sequence."""
        drafter = HeadsDrafter(self.TARGET, heads, 8, residual_blocks=blocks)
        weights = heads * (blocks * 2048 * 2048 + 2048 * 128_256)
        assert drafter.weight_bytes == 2 * weights
        assert drafter.kv_bytes_per_token == 0
        for seqs in (1, 3, 8):
            cost = costs_of(drafter, arrays(decode(seqs, 100, heads + 1)))
            assert cost.flops == pytest.approx(2 * weights * seqs)
            assert cost.bytes > 2 * weights
            assert seconds_of(drafter, decode(seqs, 100, heads + 1)) == pytest.approx(
                (cost.device_s + cost.host_s).item()
            )

    def test_silu_and_sampling_are_passes_over_their_rows(self):
        """Beside the products: three passes per block over hidden states, three over fp32 logits; a launch of each."""
        one, two = (HeadsDrafter(self.TARGET, 1, 8, residual_blocks=n).table.costs(np.arange(9)) for n in (0, 1))
        kernels = self.TARGET.kernels
        square = kernels.gemm(np.array([4]), 2048, 2048, "bf16")
        assert two.bytes[4] - one.bytes[4] - square.bytes == pytest.approx(4 * 3 * 2048 * 2.0)
        assert one.latency_s[0] == 0
        head = kernels.gemm(np.array([4]), 128_256, 2048, "bf16").bytes
        assert one.bytes[4] - head == pytest.approx(4 * 3 * 128_256 * 4.0)

    def test_logits_are_gathered_from_all_chips(self):
        target = deployment("llama-3.1-70b", tensor_parallel=4)
        drafter = HeadsDrafter(target, 3, 8)
        message = np.array([5 * 128_256 * 2.0])
        gather = target.kernels.collective("all_gather", message, 4, target.link)
        cost = costs_of(drafter, arrays(decode(5, 100, 4)))
        assert cost.interconnect_s == pytest.approx(3 * gather.seconds.item())
        assert costs_of(drafter, arrays(decode(0, 0, 4))).interconnect_s == 0
        assert drafter.weight_bytes == 3 * 2 * (8192 * 8192 + 8192 * 128_256 / 4)


class TestReadingTheTargetsCache:
    """Self-speculation: ``depth`` passes over one token each, nothing to catch up on."""

    def test_a_pass_per_token_and_nothing_else(self):
        step = StepTimer(deployment("llama-3.2-1b"), 512)
        drafter = SequentialDrafter(step, 3, (1, 1), 0.0, 0.0, OVERHEAD, reads_target_cache=True)
        assert drafter.pass_tokens == (1, 1, 1)
        work = decode(4, 300, 4)
        middle = decode(4, 301, 1)
        due = 3 * (step.seconds(middle, 4) + 1e-4) + 1e-3
        assert seconds_of(drafter, work) == pytest.approx(due)
        cost = costs_of(drafter, arrays(work))
        assert (cost.device_s + cost.host_s).item() == pytest.approx(due, rel=0.01)
        assert cost.host_s.item() == pytest.approx(1e-3 + 3e-4)

    @pytest.mark.parametrize("depth", [1, 2, 3, 4, 7])
    def test_the_pass_that_is_priced_is_the_middle_one(self, depth):
        """Pass i reads i - 1 tokens more: (depth - 1) / 2 on average, rounded down, alone and among many."""
        step = Recorder()
        drafter = SequentialDrafter(step, depth, (1,) * (depth - 1), 0.0, 0.0, reads_target_cache=True)
        work = decode(4, 300, depth + 1)
        assert seconds_of(drafter, work) == depth
        assert costs_of(drafter, arrays(work)).compute_s.tolist() == [depth]
        for requested, rows in step.calls:
            assert np.ravel(requested.decode_kv_tokens[0]).tolist() == [4 * (300 + (depth - 1) // 2)]
            assert np.ravel([requested.decode_seqs, rows]).tolist() == [4, 4]
            assert np.ravel(requested.query_len).tolist() == [1]

    def test_prompts_of_which_nothing_is_sampled_cost_it_nothing(self):
        step = StepTimer(deployment("llama-3.2-1b"), 512)
        drafter = SequentialDrafter(step, 3, (1, 1), 0.0, 0.0, OVERHEAD, reads_target_cache=True)
        chunk = mixed(50, 0, 0, 100, 4, sampled=0)
        assert seconds_of(drafter, chunk) == 0.0
        assert not costs_of(drafter, arrays(chunk)).device_s.any()
        assert not costs_of(drafter, arrays(chunk)).host_s.any()
        resting = drafter.with_tokens(0)
        assert seconds_of(resting, decode(4, 300, 4)) == 0.0
        assert not costs_of(resting, arrays(decode(4, 300, 4))).host_s.any()
        one = np.ones(1, dtype=np.int64)
        assert not caught_up(drafter, DraftStep(one, one, one, one, (one,), (one,))).device_s.any()


class TestCatchingUp:
    """Tokens skipped during a rest are prefilled, no more and no less."""

    STEP = StepTimer(deployment("llama-3.2-1b"), 256)

    def draft(self, *tokens):
        """Skipped tokens of single sequences behind a context of 1,000."""
        skipped = np.array(tokens, dtype=np.int64)
        pairs = np.array([causal_pairs(n, 1000, None) for n in tokens], dtype=np.int64)
        keys = np.where(skipped > 0, 1000 + skipped, 0)
        one = np.ones(len(tokens), dtype=np.int64)
        return DraftStep(one, one, np.minimum(skipped, 1), skipped, (pairs,), (keys,))

    def test_it_costs_their_prefill(self):
        drafter = SequentialDrafter(self.STEP, 2, (1,), 0.0, 0.0)
        n = 200
        due = self.STEP.costs(arrays(mixed(n, 1000, 0, 0, 1, sampled=0)), np.zeros(1, dtype=np.int64))
        for name in Costs.__slots__:
            assert_allclose(getattr(caught_up(drafter, self.draft(n)), name), getattr(due, name))
        for name in Costs.__slots__:
            assert getattr(caught_up(drafter, self.draft(0)), name) == 0.0
        parallel = ParallelDrafter(self.STEP, 2, 0.0, 0.0)
        assert caught_up(parallel, self.draft(n)).device_s == pytest.approx(due.device_s)

    def test_more_than_a_step_holds_goes_in_full_passes(self):
        """256, 512 and 600 tokens by passes of 256: the work of the linear layers is that of the tokens."""
        drafter = SequentialDrafter(self.STEP, 2, (1,), 0.0, 0.0)
        flops = caught_up(drafter, self.draft(256, 512, 600)).flops
        attention = self.STEP.deployment.architecture.layer_groups[0].layer.attention
        pairs = np.array([causal_pairs(n, 1000, None) for n in (256, 512, 600)])
        per_pair = 16 * 4 * attention.num_heads * attention.head_dim
        linear = flops - per_pair * pairs
        assert_allclose(linear, linear[0] / 256 * np.array([256, 512, 600]), rtol=1e-9)
        latency = caught_up(drafter, self.draft(255, 256, 257, 512, 513, 768)).latency_s
        forwards = (latency - latency[0]) / (latency[2] - latency[0])
        assert_allclose(forwards, [0, 0, 1, 1, 2, 2], atol=1e-9)

    def test_hidden_states_are_fused_on_the_way(self):
        """An EAGLE-3 head projects three hidden states of every skipped token to one: 2 x 3h x h FLOP each."""
        drafter = made("eagle3")
        plain = replace(drafter, fusion=None)
        for n in (1, 77):
            gap = caught_up(drafter, self.draft(n)).flops - caught_up(plain, self.draft(n)).flops
            assert gap == pytest.approx(2 * n * 3 * 4096 * 4096)

    @settings(max_examples=30)
    @given(st.lists(st.integers(0, 700), min_size=1, max_size=6))
    def test_many_steps_are_their_steps(self, tokens):
        drafter = SequentialDrafter(self.STEP, 2, (1,), 0.0, 0.0)
        together = caught_up(drafter, self.draft(*tokens)).device_s
        assert_allclose(together, [caught_up(drafter, self.draft(n)).device_s.item() for n in tokens])


def test_work_on_other_chips_is_not_the_targets():
    """Seconds of a remote drafter are its own and two messages'; its FLOPs and bytes are not counted here."""
    link = load_link("infiniband-ndr")
    inner = SequentialDrafter(StepTimer(deployment("llama-3.2-1b"), 512), 3, (1, 1), 0.0, 0.0)
    disaggregated = RemoteDrafter(inner, link, state_bytes=100.0)
    work = arrays(mixed(50, 0, 4, 300, 4))
    mine, away = costs_of(inner, work), costs_of(disaggregated, work)
    there = link.latency_s + (50 + 16) * (4 + 100.0) / link.bandwidth_bytes_per_s
    back = link.latency_s + 5 * 3 * 4 / link.bandwidth_bytes_per_s
    assert (away.device_s - mine.device_s).item() == pytest.approx(there + back)
    assert away.interconnect_s.item() == pytest.approx(there + back)
    assert (away.flops.item(), away.bytes.item()) == (0.0, 0.0)
    assert [disaggregated.with_tokens(count).proposed for count in (3, 2, 0)] == [3, 2, 0]


def test_a_shared_table_is_spread_over_chips_to_the_last_bit():
    """One chip's share of a drafter's own LM head, times the chips, is the head: vocabularies rarely divide."""
    from simulator.timing import layer_weight_bytes

    whole = deployment("llama-3.1-70b")
    odd = replace(whole, architecture=replace(whole.architecture, vocab_size=128_257, hidden_size=8191))
    for chips in (2, 4, 8):
        part = replace(odd, tensor_parallel=chips)
        head = layer_weight_bytes(part, own_lm_head=True) - layer_weight_bytes(part, own_lm_head=False)
        assert chips * head == 2 * 128_257 * 8191
