"""What verifying costs: batch expansion, experts that tokens of one sequence share, host work per sequence."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from timing_steps import arrays, decode, deployment, mixed

from hwprofiles import AttentionShape, KernelLibrary, load_chip
from simulator.timing import (
    ModelTimer,
    StepTimer,
    StepWork,
    load_draft_overhead,
    load_framework,
)
from simulator.timing.kernels import alike_tokens
from simulator.timing.work import expanded


class TestBatchExpansion:
    @given(contexts=st.lists(st.integers(8, 5000), min_size=1, max_size=20), query_len=st.integers(1, 8))
    def test_every_verified_token_reads_its_own_context(self, contexts, query_len):
        """A sequence of n cached tokens: its rows read n + 1, n + 2, ... n + q keys."""
        none = (0,)
        total = sum(n + query_len for n in contexts)
        work = StepWork(0, 0, none, none, 0, none, len(contexts), query_len, (total,))
        result = expanded(work, (None,))
        assert result.decode_seqs == len(contexts) * query_len
        assert result.query_len == 1
        assert result.decode_kv_tokens == (sum(n + i for n in contexts for i in range(1, query_len + 1)),)

    def test_within_a_window_no_row_reads_more(self):
        work = decode(10, 4000, 5, (None, 128))
        assert expanded(work, (None, 128)).decode_kv_tokens[1] == 10 * 5 * 128

    def test_a_plain_step_stays_as_it_is(self):
        work = decode(7, 100, 1)
        assert expanded(work, (None,)) == work

    def test_an_engine_of_2024_pays_rows_and_keys_again(self):
        """Its verify step is its plain step over K + 1 times as many sequences, less the host work that only whole
        sequences need; a step of today's engine over the same tokens takes less."""
        plain = ModelTimer(StepTimer(deployment("llama-3.1-8b", framework="vllm-2024"), 2048))
        host = load_framework("vllm-2024")
        verify, rows = decode(16, 1000, 5), expanded(decode(16, 1000, 5), (None,))
        fewer = 64 * (host.per_sequence_s - host.scored_row_s)
        assert plain.seconds(verify) == pytest.approx(plain.seconds(rows) - fewer, rel=1e-12)
        today = ModelTimer(StepTimer(deployment("llama-3.1-8b"), 2048))
        assert plain.seconds(verify) > 1.2 * today.seconds(verify)
        costs = plain.costs(arrays(verify))
        assert_allclose(costs.device_s + costs.host_s, plain.seconds(verify), rtol=2e-3)

    def test_scoring_of_llama_7b_on_one_a100_as_measured(self):
        """vllm-project/vllm#5691: milliseconds of scoring K = 5 by batch expansion, by batch; within 12 %.

        Two constants were fitted here (``scored_row_s`` and what a step costs once). Contexts as its script has them:
        32 prompt tokens and half of 128 generated.
        """
        measured = {4: 15.4, 8: 17.7, 16: 23.9, 32: 36.4, 64: 54.5, 128: 96.2}
        timer = StepTimer(deployment("llama-2-7b", "a100-sxm-80gb", framework="vllm-2024"), 2048)
        host, verification_s = load_framework("vllm-2024"), 1.3e-3
        once = host.step_s + load_draft_overhead("vllm-2024", "draft-model").step_s - verification_s
        for batch, milliseconds in measured.items():
            device = timer.seconds(expanded(decode(batch, 96 + 6, 6), (None,)))
            assert device + once + 6 * batch * host.scored_row_s == pytest.approx(milliseconds / 1e3, rel=0.12), batch


class TestExpertsOfOneSequence:
    def test_four_tokens_touch_two_and_a_half_times_the_experts_of_one(self):
        """Cohere's measurement, for 8 of 128 experts."""
        touched = 128 * (1 - (1 - 8 / 128) ** (4 / alike_tokens(4)))
        assert touched / 8 == pytest.approx(2.5, rel=0.01)

    @given(query_len=st.integers(1, 64))
    def test_a_token_more_never_counts_as_more_than_one_nor_as_none(self, query_len):
        disaggregated, further = query_len / alike_tokens(query_len), (query_len + 1) / alike_tokens(query_len + 1)
        assert disaggregated < further < disaggregated + 1
        assert alike_tokens(1) == 1

    @pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3-30b-a3b"])
    def test_verifying_costs_between_one_token_and_as_many_sequences(self, model):
        timer = StepTimer(deployment(model), 1024)
        one, verify, disaggregated = (
            timer.seconds(decode(seqs, 64, q, timer.windows)) for seqs, q in ((4, 1), (4, 4), (16, 1))
        )
        assert one < verify < disaggregated

    @pytest.mark.parametrize("prompts", [0, 1])
    def test_one_step_and_many_agree(self, prompts):
        timer = StepTimer(deployment("gpt-oss-120b"), 2048)
        for query_len in (1, 2, 8):
            work = mixed(16, 1500, prompts, 300, timer.windows)._replace(query_len=query_len)
            costs = timer.costs(arrays(work))
            assert_allclose(costs.device_s + costs.host_s, timer.seconds(work), rtol=1e-12)


def test_verify_attention_may_cost_more_with_every_query():
    """``further_query``: nothing for one query, and that share of one query's time for each further one."""
    chip = load_chip("h100-sxm")
    shape = AttentionShape(num_heads=32, num_kv_heads=8, qk_dim=128, v_dim=128, kv_bytes_per_token=4096.0, dtype="bf16")
    usual = KernelLibrary(chip, "generic")
    known = usual.parameters("attention_decode", "bf16")
    dearer = SimpleNamespace(kernels=KernelLibrary(chip, "generic"))
    dearer.kernels.parameters = lambda family, dtype="bf16": (  # type: ignore[method-assign]
        known.model_copy(update={"further_query": 0.2}) if family == "attention_decode" else known
    )

    def busy(kernels, queries):
        time = kernels.attention_decode(shape, seqs=64, q_len=queries, kv_tokens=64 * 8192)
        return time.seconds - time.launch_s

    assert busy(dearer.kernels, 1) == busy(usual, 1)
    assert busy(dearer.kernels, 4) == pytest.approx(1.6 * busy(usual, 4), rel=0.02)


def test_kernels_of_another_name():
    """An engine that runs another's kernels says so; the library follows."""
    assert load_framework("vllm-2024").kernel_library == "vllm"
    assert load_framework("sglang").kernel_library == "sglang"
