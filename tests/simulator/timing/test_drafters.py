"""Drafters: the conformance test and what it catches, memory by hand, and where their time comes from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from drafter_prices import costs as costs_of
from drafter_prices import seconds as seconds_of
from numpy.testing import assert_allclose
from timing_steps import arrays, decode, deployment

from forerun.errors import ForerunError
from simulator.running.drafting import DraftRequest, build_drafter, lookahead_tokens
from simulator.speculation import SpeculationConfig
from simulator.speculation.proposal import proposal
from simulator.timing import (
    HostOverhead,
    ModelTimer,
    StepTimer,
    StepWork,
    check_drafter,
)
from simulator.timing.kernels import OWN_EXPERTS

METHODS = {
    "draft-model": {"num_speculative_tokens": 4, "draft": {"model": "llama-3.2-1b"}},
    "draft-model windowed": {"num_speculative_tokens": 4, "draft": {"model": "gpt-oss-20b"}},
    "draft-model tree": {"tree": "eagle-25", "draft": {"model": "llama-3.2-1b"}},
    "ngram": {"num_speculative_tokens": 5},
    "suffix": {"num_speculative_tokens": 5},
    "medusa": {"tree": "medusa-63"},
    "medusa chain": {"num_speculative_tokens": 3},
    "eagle": {"num_speculative_tokens": 1},
    "eagle tree": {"tree": "eagle-25"},
    "eagle2": {"tree": {"depth": 6, "top_k": 10, "nodes": 60}},
    "eagle3": {"num_speculative_tokens": 3},
    "eagle3 tree": {"tree": {"depth": 4, "top_k": 3, "nodes": 15}},
    "parallel-draft": {"num_speculative_tokens": 7},
    "parallel-draft sequential": {"num_speculative_tokens": 7, "draft": {"markov_rank": 256}},
    "mtp": {"num_speculative_tokens": 3},
    "mtp separate": {"num_speculative_tokens": 3, "draft": {"modules": "separate"}},
}


def request(name, target=None, max_num_seqs=64, max_tokens=2048, **changes):
    method = name.split()[0]
    fields = {"method": method, "acceptance": {"alpha": 0.7}} | METHODS.get(name, {}) | changes
    config = SpeculationConfig.model_validate(fields)
    if target is None:
        target = deployment("deepseek-v3", "h200-sxm", 8) if method == "mtp" else deployment()
    return DraftRequest(config, proposal(config), target, max_num_seqs, max_tokens)


def made(name, target=None, **changes):
    return build_drafter(request(name, target, **changes))


def hostless(name, target=None, **changes):
    """The drafter without its engine's host time: what its kernels take."""
    return replace(made(name, target, **changes), overhead=HostOverhead())


@pytest.mark.parametrize("name", METHODS)
def test_every_drafter_keeps_the_rules(name):
    requested = request(name)
    check_drafter(build_drafter(requested), requested.proposal.nodes + 1)


def test_a_head_on_the_last_stage_loads_the_embedding_that_lies_on_the_first():
    """vllm-project/vllm#50514; a model with a tied table has it on the last stage too."""
    target = deployment("deepseek-v3", "h200-sxm", 8)
    table = 129280 * 7168 * 2 / 8
    for name in ("mtp", "eagle3", "parallel-draft"):
        requested = request(name, target)
        weights = [build_drafter(replace(requested, stages=stages)).weight_bytes for stages in (1, 2)]
        assert weights[1] - weights[0] == pytest.approx(table, rel=1e-9), name
    tied = request("eagle3", deployment("llama-3.2-1b"))
    assert build_drafter(replace(tied, stages=2)).weight_bytes == build_drafter(tied).weight_bytes


@pytest.mark.parametrize("name", ["eagle3", "mtp", "medusa"])
def test_sharded_drafters_keep_the_rules(name):
    target = deployment("deepseek-v3", "h200-sxm", 8)
    requested = request(name, target)
    drafter = build_drafter(requested)
    check_drafter(drafter, requested.proposal.nodes + 1)
    assert costs_of(drafter, arrays(decode(2, 500, requested.proposal.nodes + 1))).interconnect_s > 0


def test_what_is_no_drafter_is_refused():
    with pytest.raises(ForerunError, match="lacks something"):
        check_drafter(SimpleNamespace(windows=()), 2)


class TestMemory:
    def test_eagle_on_llama_8b_by_hand(self):
        """One layer of Llama-3.1-8B (218.1 M) and an fc of 2 x 4096 x 4096; embedding and LM head are the target's."""
        attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
        layer = attention + 3 * 4096 * 14336
        assert made("eagle").weight_bytes == 2 * (layer + 2 * 4096 * 4096)
        assert made("eagle").kv_bytes_per_token == 2 * 8 * 128 * 2

    def test_eagle3_on_llama_8b_by_hand(self):
        """Queries, keys and values read embedding and hidden state; three hidden states are fused; 32,000 own logits.

        The published head (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B) has 0.85 GB in 16 bits.
        """
        attention = 2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096
        weights = attention + 3 * 4096 * 14336 + 3 * 4096 * 4096 + 32_000 * 4096
        assert made("eagle3").weight_bytes == 2 * weights
        assert made("eagle3").weight_bytes == pytest.approx(0.85e9, rel=0.01)

    def test_a_reduced_vocabulary_is_lighter_and_faster(self):
        wide = made("eagle3", draft={"draft_vocab_size": 128_256})
        narrow = made("eagle3")
        assert wide.weight_bytes - narrow.weight_bytes == 2 * 4096 * (128_256 - 32_000)
        gap = seconds_of(wide, decode(1, 500, 4)) - seconds_of(narrow, decode(1, 500, 4))
        assert gap > 0.8 * 3 * 2 * 4096 * (128_256 - 32_000) / 3.35e12

    def test_separate_mtp_modules_hold_weights_and_caches_of_their_own(self):
        shared, separate = made("mtp"), made("mtp separate")
        assert separate.weight_bytes == 3 * shared.weight_bytes
        assert separate.kv_bytes_per_token == 3 * shared.kv_bytes_per_token
        assert shared.kv_bytes_per_token == (512 + 64) * 2
        assert shared.weight_bytes * 8 == pytest.approx(11.5e9, rel=0.1), "11.5 B parameters in fp8"
        assert separate.pass_tokens == (4, 4, 4)
        assert shared.pass_tokens == (4, 1, 1)
        assert seconds_of(separate, decode(4, 500, 4)) > seconds_of(shared, decode(4, 500, 4))

    def test_a_sequential_head_holds_two_thin_matrices_by_hand(self):
        added = made("parallel-draft sequential").weight_bytes - made("parallel-draft").weight_bytes
        assert added == 2 * 256 * (128_256 + 128_256)

    def test_lookups_take_nothing_on_the_chips(self):
        drafter = made("ngram")
        assert (drafter.weight_bytes, drafter.kv_bytes_per_token, drafter.pass_tokens) == (0, 0, ())

    def test_public_heads_by_name(self):
        name = "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge"
        target = deployment("qwen3-30b-a3b")
        named = made("eagle3", target, draft={"model": name})
        guessed = made("eagle3", target)
        assert guessed.weight_bytes - named.weight_bytes == 2 * 3 * 2048 * (6 * 2048 - 6144)
        wider = made("eagle3", target, draft={"model": name, "intermediate_size": 6 * 2048})
        assert wider.weight_bytes == guessed.weight_bytes

    @pytest.mark.parametrize(
        ("name", "method", "expected"),
        [
            ("lmsys/SGLang-EAGLE3-Qwen3-30B", "eagle3", "did you mean 'lmsys/SGLang-EAGLE3-Qwen3-30B-A3B"),
            ("yuhuili/EAGLE-llama2-chat-7B", "eagle3", "is a head of method eagle, not eagle3"),
            ("AQ-MedAI/Kimi-K2-Instruct-eagle3", "eagle3", "reads hidden states of size 7168, llama-3.1-8b has 4096"),
        ],
    )
    def test_heads_that_do_not_fit_are_refused(self, name, method, expected):
        with pytest.raises(ForerunError) as caught:
            made(method, draft={"model": name})
        assert expected in str(caught.value)

    def test_mtp_needs_a_target_with_modules(self):
        with pytest.raises(ForerunError, match="without multi-token-prediction layers"):
            made("mtp", deployment())

    def test_slots_for_drafts_are_reserved_where_the_drafter_has_a_cache(self):
        slots = {name: lookahead_tokens(request(name).config, request(name).proposal) for name in METHODS}
        assert slots["ngram"] == slots["suffix"] == slots["medusa"] == 0
        assert (slots["eagle3"], slots["eagle tree"], slots["eagle2"], slots["draft-model"]) == (3, 25, 60, 4)


class TestTime:
    def test_an_eagle_pass_reads_its_layer_and_the_lm_head(self):
        """Never faster than the bytes; less than twice them while alone (218 M + 34 M + 525 M weights per pass)."""
        one = seconds_of(hostless("eagle"), decode(1, 500, 2))
        bound = (made("eagle").weight_bytes + 2 * 4096 * 128_256) / 3.35e12
        assert bound < one < 2 * bound

    def test_a_chain_costs_a_pass_per_token(self):
        costs = [seconds_of(made("eagle3", num_speculative_tokens=k), decode(1, 500, k + 1)) for k in (1, 2, 3, 6)]
        steps = np.diff(costs) / [1, 1, 3]
        assert_allclose(steps, steps[0], rtol=0.02)

    def test_a_parallel_drafter_costs_one_pass_whatever_k(self):
        costs = [seconds_of(made("parallel-draft", num_speculative_tokens=k), decode(1, 500, k + 1)) for k in (2, 7)]
        assert costs[0] <= costs[1] < 1.2 * costs[0]

    @pytest.mark.parametrize("tokens", [1, 2, 7])
    @pytest.mark.parametrize("seqs", [1, 32])
    def test_a_sequential_head_costs_its_two_kernels_per_position(self, tokens, seqs):
        work, kernels = decode(seqs, 500, tokens + 1), deployment().kernels
        with_head, without = (
            seconds_of(made(name, num_speculative_tokens=tokens), work)
            for name in ("parallel-draft sequential", "parallel-draft")
        )
        product = kernels.gemm(m=seqs, n=128_256, k=256).seconds
        bias = kernels.elementwise(bytes_moved=seqs * (2 * 256 * 2 + 3 * 128_256 * 4), launches=2).seconds
        assert with_head - without == pytest.approx(tokens * (product + bias), rel=1e-9)

    def test_medusas_heads_cost_one_reading_of_them(self):
        drafter = made("medusa")
        bound = drafter.weight_bytes / 3.35e12
        assert bound < seconds_of(drafter, decode(1, 500, 64)) < 1.6 * bound

    def test_lookups_cost_host_time_by_sequence_and_context(self):
        drafter = made("ngram", draft={"step_s": 1e-4, "per_sequence_s": 1e-5, "per_context_token_s": 1e-9})
        assert seconds_of(drafter, decode(8, 1000, 6)) == pytest.approx(1e-4 + 8e-5 + 8e-6)
        assert costs_of(drafter, arrays(decode(8, 1000, 6))).host_s == pytest.approx(1e-4 + 8e-5 + 8e-6)

    def test_given_host_times_replace_the_known_ones(self):
        arguments = {"step_s": 1e-3, "pass_s": 1e-4}
        known = request("eagle3").overhead
        assert known.per_sequence_s > 0 < known.sequence_pass_s
        assert request("eagle3", draft=arguments).overhead == replace(known, step_s=1e-3, pass_s=1e-4)
        # A measured host time per sequence includes its draft passes.
        assert request("eagle3", draft=arguments | {"per_sequence_s": 2e-5}).overhead == HostOverhead(1e-3, 1e-4, 2e-5)

    def test_host_time_of_a_sequence_counts_its_passes(self):
        """vLLM's costs by hand: four sequences in a step of three passes, and in one."""
        for name, forwards in (("eagle3", 3), ("parallel-draft", 1)):
            drafter, free = (build(name, num_speculative_tokens=3) for build in (made, hostless))
            due = drafter.overhead.step_s + 4 * (
                drafter.overhead.per_sequence_s + forwards * drafter.overhead.sequence_pass_s
            )
            work = decode(4, 500, 4)
            assert seconds_of(drafter, work) - seconds_of(free, work) == pytest.approx(due)

    def test_a_wide_layer_costs_next_to_nothing_alone_and_more_in_a_crowd(self):
        chain, tree = hostless("eagle", num_speculative_tokens=5), hostless("eagle tree")
        single = seconds_of(tree, decode(1, 500, 26)) / seconds_of(chain, decode(1, 500, 6))
        crowd = seconds_of(tree, decode(64, 500, 26)) / seconds_of(chain, decode(64, 500, 6))
        assert 1.0 <= single < 1.04
        assert crowd > 1.1

    def test_prompts_are_prefilled_by_drafters_too(self):
        prompt = StepWork(1, 1000, (500_500,), (1000,), 1, (1001,), 0, 4, (0,))
        unfinished = prompt._replace(sampled_prefills=0, sampled_kv_tokens=(0,))
        assert seconds_of(made("eagle3"), unfinished) > 0
        assert seconds_of(made("eagle3"), prompt) > seconds_of(made("eagle3"), unfinished)
        assert seconds_of(made("medusa"), unfinished) == 0
        assert seconds_of(made("ngram"), unfinished) == 0


class TestVerifySteps:
    """The target's side: graph sizes and experts follow the tokens of a verify step, not its sequences."""

    def test_graphs_are_padded_by_verified_tokens(self):
        timer = StepTimer(deployment(), 2048)
        framework = timer.deployment.framework
        heads = [timer.seconds(decode(3, 500, 5), logit_rows=0), timer.seconds(decode(2, 750, 8), logit_rows=0)]
        assert framework.padded_tokens(np.array([15, 16]), True).tolist() == [16, 16]
        costs = [timer.costs(arrays(decode(seqs, 500, q)), np.array([0])) for seqs, q in ((3, 5), (2, 8))]
        attention = [
            timer.deployment.kernels.attention_decode(
                timer.deployment.attention_shape(timer.deployment.architecture.layer_groups[0].layer.attention),
                seqs=seqs,
                q_len=q,
                kv_tokens=seqs * 500,
            ).seconds
            for seqs, q in ((3, 5), (2, 8))
        ]
        linear = [cost.device_s.item() - 32 * a for cost, a in zip(costs, attention, strict=True)]
        assert linear[0] == pytest.approx(linear[1], rel=1e-6)  # a step looks corrected decoding up in a table
        assert all(seconds > 0 for seconds in heads)

    def test_a_crowd_of_verify_steps_leaves_the_captured_sizes(self):
        """128 sequences of 5 tokens are 640 > 512 tokens: launched one by one, where 128 of 1 replay a graph."""
        timer = StepTimer(deployment("llama-3.2-1b"), 2048)
        slow = replace(
            timer.deployment, framework=timer.deployment.framework.model_copy(update={"eager_launch_s": 1e-3})
        )
        timer = StepTimer(slow, 2048)
        captured, eager = (timer.costs(arrays(decode(128, 300, q))) for q in (1, 5))
        assert captured.host_s == 0
        assert eager.host_s > 0
        assert timer.seconds(decode(128, 300, 5)) == pytest.approx((eager.device_s + eager.host_s).item(), rel=0.01)
        assert timer.seconds(decode(102, 300, 5)) < timer.seconds(decode(103, 300, 5)) / 3

    def test_verification_reads_more_experts(self):
        """Alone, a verify step of an MoE model costs far more than one token; that of a dense model does not.

        Distinct experts of 128, 4 per token: 4 for one token, 128 (1 - (1 - 4/128)^8) = 28.7 for eight of as many
        sequences; in one sequence each further token counts 0.54, so 128 (1 - (1 - 4/128)^4.78) = 18.0.
        """
        ratios = {}
        for model in ("gpt-oss-120b", "llama-3.1-8b"):
            timer = StepTimer(deployment(model), 2048)
            ratios[model] = timer.seconds(decode(1, 500, 8, timer.windows)) / timer.seconds(
                decode(1, 500, 1, timer.windows)
            )
        assert ratios["gpt-oss-120b"] > 1.5
        assert ratios["llama-3.1-8b"] < 1.15
        timer = StepTimer(deployment("gpt-oss-120b"), 2048)
        one, eight = (timer.costs(arrays(decode(1, 500, q, timer.windows))).bytes.item() for q in (1, 8))
        expert = 3 * 2880 * 2880 * 0.53125 * 36
        assert eight - one == pytest.approx((128 * (1 - (1 - 4 / 128) ** (1 + 7 * OWN_EXPERTS)) - 4) * expert, rel=0.01)


def test_the_engine_asks_in_the_drafters_order_of_windows():
    """gpt-oss has windows (128, None) or the reverse; an EAGLE head on it only None; an n-gram look-up the same."""
    target = StepTimer(deployment("gpt-oss-20b"), 2048)
    drafter = made("eagle3", deployment("gpt-oss-20b"))
    timer = ModelTimer(target, drafter)
    assert set(timer.windows) == {None, 128}
    keys = tuple(8 * (900 if w is None else 131) for w in timer.windows)
    work = decode(8, 0, 4, timer.windows)._replace(decode_kv_tokens=keys)
    assert timer.seconds(work) - ModelTimer(target).seconds(work) == pytest.approx(
        seconds_of(drafter, decode(8, 900, 4))
    )
    longer = work._replace(decode_kv_tokens=tuple(8 * (90_000 if w is None else 131) for w in timer.windows))
    assert timer.seconds(longer) - ModelTimer(target).seconds(longer) > seconds_of(drafter, decode(8, 900, 4)) * 1.2
