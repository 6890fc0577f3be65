"""Host work beside the device, pipelines and their P2P sends: one price by every route, equal to closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_prices import costs as costs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_drafters import made
from timing_steps import arrays, decode, deployment, mixed

from hwprofiles import load_link
from simulator.llm import load_architecture
from simulator.timing import HostDrafter, ModelTimer, PipelineTimer, StepTimer, load_framework, stage_timers
from simulator.timing.engine import send_kernel

PLAIN = {
    "step_s": 0.0,
    "per_sequence_s": 0.0,
    "per_prompt_s": 0.0,
    "rank_s": 0.0,
    "overlapped_s": 0.0,
    "overlapped_per_sequence_s": 0.0,
}


def hosted(model="llama-3.2-1b", tensor_parallel=1, **costs):
    """A deployment whose engine has these host costs and no others."""
    one = deployment(model, tensor_parallel=tensor_parallel)
    return replace(one, framework=one.framework.model_copy(update=PLAIN | costs))


def total(costs):
    return float((costs.device_s + costs.host_s)[0])


class TestHostWork:
    def test_steps_sequences_prompts_and_ranks_add_up(self):
        """step + broadcast to further ranks, however many + sequences x per sequence + prompts x per prompt."""
        bare, busy = (
            ModelTimer(StepTimer(hosted("llama-3.1-8b", 4, **costs), 512))
            for costs in ({}, {"step_s": 1e-3, "per_sequence_s": 1e-4, "per_prompt_s": 1e-5, "rank_s": 1e-6})
        )
        for work, due in (
            (decode(7, 300), 1e-3 + 1e-6 + 7e-4),
            (mixed(7, 300, 2, 50), 1e-3 + 1e-6 + 9e-4 + 2e-5),
        ):
            assert busy.seconds(work) - bare.seconds(work) == pytest.approx(due, rel=1e-9)
            gap = busy.costs(arrays(work)).host_s - bare.costs(arrays(work)).host_s
            assert gap == pytest.approx(due, rel=1e-9)

    @settings(max_examples=40)
    @given(st.floats(0, 0.02), st.floats(0, 2e-3), st.integers(1, 60), st.integers(0, 3), st.floats(0, 3e-3))
    def test_a_step_lasts_at_least_as_long_as_what_runs_beside_it(self, other, each, seqs, prompts, step_s):
        """max(device and exposed host, beside + each x sequences): alone, in a run of steps and among many."""
        target = StepTimer(hosted(step_s=step_s, overlapped_s=other, overlapped_per_sequence_s=each), 1024)
        bare = ModelTimer(StepTimer(hosted(step_s=step_s), 1024))
        timer = ModelTimer(target)
        work = mixed(seqs, 300, prompts, 50)
        due = max(bare.seconds(work), other + each * (seqs + prompts))
        assert timer.seconds(work) == pytest.approx(due, rel=1e-12)
        assert total(timer.costs(arrays(work))) == pytest.approx(max(total(bare.costs(arrays(work))), due), rel=0.01)
        run = decode(seqs, 300)._replace(decode_kv_tokens=(seqs * np.arange(300, 320),))
        expected = [max(s, other + each * seqs) for s in bare.seconds(run)]
        assert_allclose(timer.seconds(run), expected, rtol=1e-12)

    def test_drafting_and_what_hides_it_make_up_the_step(self):
        target = StepTimer(hosted("llama-3.1-8b"), 2048)
        drafter = made("eagle3")
        timer = ModelTimer(target, drafter)
        work = arrays(decode(8, 900, query_len=4))
        with_it, without = timer.costs(work), ModelTimer(target).costs(work)
        single = costs_of(drafter, work)
        assert total(with_it) == pytest.approx(total(without) + total(single), rel=1e-12)
        assert timer.exposed_drafting_s(work) == pytest.approx(total(single), rel=1e-12)
        assert ModelTimer(target).exposed_drafting_s(work) is None


LINK = "infiniband-ndr"


def pipeline(stages, model="llama-3.1-8b", tensor_parallel=1, drafter=None, **costs):
    one = hosted(model, tensor_parallel, **costs)
    timers = stage_timers(one, stages, 2048)
    return PipelineTimer(timers[0], drafter, later=timers[1:], link=load_link(LINK))


class TestPipelines:
    @pytest.mark.parametrize("stages", [1, 2, 4])
    @pytest.mark.parametrize(
        ("model", "tensor_parallel"), [("llama-3.1-8b", 1), ("llama-3.1-8b", 4), ("gpt-oss-20b", 2), ("deepseek-v3", 2)]
    )
    def test_stages_and_sends_make_up_the_whole(self, model, stages, tensor_parallel):
        """The same layers in pieces, and between two pieces one message; without a link's worth of work none."""
        whole = ModelTimer(StepTimer(hosted(model, tensor_parallel), 2048))
        timer = pipeline(stages, model, tensor_parallel)
        work = mixed(7, 900, 2, 100, whole.windows)
        send = float(send_kernel(timer.target.deployment, timer.link, np.array([207])).seconds[0])
        assert send > 0
        assert timer.stages == stages
        parts = timer.stage_seconds(work)
        assert len(parts) == stages
        assert sum(parts) == pytest.approx(whole.seconds(work) + (stages - 1) * send, rel=1e-9)
        costs, plain = timer.costs(arrays(work)), whole.costs(arrays(work))
        assert costs.flops == pytest.approx(plain.flops)
        gap = costs.interconnect_s - plain.interconnect_s
        assert gap == pytest.approx((stages - 1) * send, rel=1e-9, abs=1e-15)

    def test_a_message_by_hand(self):
        """Hidden states and residual in bf16, a TP share over the link between stages, then gathered on the next."""
        for tp in (1, 2, 4):
            timer = pipeline(2, tensor_parallel=tp)
            one = timer.target.deployment
            size = 2 * 300 * 4096 * 2.0
            due = one.kernels.collective("send_recv", np.array([size / tp]), 2, timer.link).seconds
            if tp > 1:
                due = due + one.kernels.collective("all_gather", np.array([size]), tp, one.link).seconds
            assert send_kernel(one, timer.link, np.array([0, 300])).seconds[1] == pytest.approx(due[0])
            assert send_kernel(one, timer.link, np.array([0, 300])).seconds[0] == 0.0

    @pytest.mark.parametrize(("stages", "fused"), [(2, 1), (4, 1), (8, 0)])
    def test_the_last_stage_but_one_also_sends_the_hidden_states_that_eagle_3_takes_from_it(self, stages, fused):
        """Layers 2, 16 and 29 of 32: with 2 stages the first has one of them, with 4 the third, with 8 none."""
        one = hosted("llama-3.1-8b")
        timers = stage_timers(one, stages, 2048)
        plain, timer = (
            PipelineTimer(timers[0], later=timers[1:], link=load_link(LINK), fused_hidden_states=states)
            for states in (0, 3)
        )
        work = mixed(7, 900, 2, 100, timer.windows)
        tokens = np.array([207])
        due = [float(send_kernel(one, timer.link, tokens, states).seconds[0]) for states in (0, fused)]
        gap = np.array(timer.stage_seconds(work)) - plain.stage_seconds(work)
        assert gap == pytest.approx([0.0] * (stages - 2) + [due[1] - due[0], 0.0], abs=1e-15)
        assert (due[1] > due[0]) == bool(fused)
        costs, listed = timer.costs(arrays(work)), list(timer.kernels(arrays(work)))
        links = sum(np.sum(kernel.step_s) for kernel in listed if kernel.name == "p2p-send")
        assert links == pytest.approx((stages - 2) * due[0] + due[1], rel=1e-9)
        more = costs.interconnect_s - plain.costs(arrays(work)).interconnect_s
        assert more == pytest.approx(due[1] - due[0], abs=1e-15)

    @pytest.mark.parametrize("other", [0.0, 1e-3, 0.05])
    @pytest.mark.parametrize("stages", [1, 2, 3])
    def test_one_price_alone_and_among_many(self, stages, other):
        """The last stage hands tokens out no faster than the host streams them, on both code paths."""
        drafter = HostDrafter(1e-4, 1e-5)
        timer = pipeline(
            stages,
            drafter=drafter,
            step_s=2e-4,
            per_sequence_s=1e-6,
            per_prompt_s=1e-5,
            overlapped_s=other,
            overlapped_per_sequence_s=other / 10,
        )
        for work in (decode(16, 700), mixed(5, 300, 2, 200), decode(1, 700)):
            assert total(timer.costs(arrays(work))) == pytest.approx(timer.seconds(work), rel=0.01)
            sequences = work.decode_seqs + work.prefill_seqs
            assert timer.seconds(work) == pytest.approx(timer.host_seconds(work) + sum(timer.stage_seconds(work)))
            assert timer.stage_seconds(work)[-1] >= other * (1 + sequences / 10) * (1 - 1e-12)
            assert timer.host_seconds(work) == pytest.approx(2e-4 + 1e-6 * sequences + 1e-5 * work.prefill_seqs)

    @pytest.mark.parametrize(("seqs", "slowest"), [(8, 2), (9, 3), (12, 3)])
    def test_a_group_sends_its_own_tokens(self, seqs, slowest):
        """Of four attention groups the slowest hands over last."""
        one = replace(hosted("mixtral-8x7b"), attention_data_parallel=4, expert_parallel=4)
        timers = stage_timers(one, 2, 256)
        timer = PipelineTimer(timers[0], later=timers[1:], link=load_link(LINK))
        work = decode(seqs, 700)
        send = send_kernel(one, timer.link, np.array([slowest])).seconds[0]
        parts = timer.stage_seconds(work)
        assert parts[0] - timers[0].seconds(work) == pytest.approx(send, rel=1e-6)
        assert parts[1] == pytest.approx(timers[1].seconds(work))
        together = sum(stage.costs(arrays(work)).interconnect_s for stage in timers)
        assert timer.costs(arrays(work)).interconnect_s - together == pytest.approx(send, rel=1e-6)

    def test_drafts_are_made_on_the_last_stage(self):
        drafter = HostDrafter(1e-4, 1e-5)
        work = decode(16, 700)
        with_it, without = pipeline(3, drafter=drafter).stage_seconds(work), pipeline(3).stage_seconds(work)
        assert with_it[:-1] == without[:-1]
        assert with_it[-1] - without[-1] == pytest.approx(1e-4 + 16e-5)


@pytest.mark.parametrize(("model", "measured_ms"), [("qwen3-14b", 20.6), ("qwen3-0.6b", 10.0)])
@pytest.mark.parametrize("framework", ["vllm", "vllm-0.11"])
def test_eager_steps_take_as_long_as_their_launches(framework, model, measured_ms):
    """Milliseconds a token under --enforce-eager: on an A100 (vllm#20469), of a small Qwen3 (torchtitan#2373)."""
    launching, architecture = load_framework(framework), load_architecture(model)
    assert 1e3 * launching.launches_s(architecture, "bf16", graphs=False) == pytest.approx(measured_ms, rel=0.2)
    assert launching.launches_s(architecture, "bf16") < 0.25e-3 * measured_ms


@pytest.mark.parametrize(("model", "layers"), [("qwen3.5-397b-a17b", 45), ("llama-3.1-8b", 0)])
def test_layers_with_a_recurrent_state_launch_more_kernels_outside_graphs(model, layers):
    framework, architecture = load_framework("sglang"), load_architecture(model)
    without = framework.model_copy(update={"eager_recurrent_s": 0.0})
    more_s = framework.launches_s(architecture, "fp8_block") - without.launches_s(architecture, "fp8_block")
    assert more_s == pytest.approx(layers * framework.eager_recurrent_s)
    assert framework.eager_recurrent_s > 0.0


def test_layers_with_sparse_attention_launch_as_slowly_under_both_engines():
    vllm, sglang = map(load_framework, ("vllm", "sglang"))
    assert vllm.eager_sparse_s == sglang.eager_sparse_s
    architecture = load_architecture("glm-5")
    without = sglang.model_copy(update={"eager_sparse_s": 0.0})
    more_s = sglang.launches_s(architecture, "fp8_block") - without.launches_s(architecture, "fp8_block")
    assert more_s == pytest.approx(architecture.num_layers * sglang.eager_sparse_s)
