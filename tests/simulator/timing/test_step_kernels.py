"""The kernels of a step add up to the step, and plain steps hold what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_step import deployment

from simulator.build import build_alone
from simulator.scenario import scenario_from
from simulator.studies.steady_state.prices import decode_steps, prompt_chunks
from simulator.timing import StepTimer, StepWork, causal_pairs, keys_read
from simulator.timing.step_kernels import step_kernels


def timer_of(model, **hardware):
    data = {
        "model": model,
        "hardware": {"chip": "h100-sxm", **hardware},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1},
    }
    return build_alone(scenario_from(data, "test"), 0).main.timer.target


def first(steps):
    return StepWork(*(tuple(int(x[0]) for x in part) if isinstance(part, tuple) else int(part[0]) for part in steps))


@pytest.mark.parametrize(
    ("model", "hardware"),
    [
        ("llama-3.1-8b", {}),
        ("llama-3.1-8b", {"tensor_parallel": 4}),
        ("llama-3.1-8b", {"pipeline_parallel": 2}),
        ("llama-3.1-8b", {"chip": "rtx-4090", "tensor_parallel": 2}),
        ("qwen3-30b-a3b", {"tensor_parallel": 2}),
        ("qwen3-30b-a3b", {"tensor_parallel": 4, "expert_parallel": 4}),
        ("qwen3-30b-a3b", {"attention_data_parallel": 4, "expert_parallel": 4}),
        ("qwen3-30b-a3b", {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 2}),
        ("deepseek-v2-lite", {"attention_data_parallel": 4, "expert_parallel": 4}),
        ("gemma-2-9b", {}),
        ("deepseek-v2-lite", {}),
    ],
)
def test_kernels_add_up_to_the_step(model, hardware):
    timer = timer_of(model, **hardware)
    alone = "attention_data_parallel" not in hardware
    decoding = decode_steps(timer.windows, np.array([7]), 1, np.array([900]))
    prompts = prompt_chunks(timer.windows, 3001, 8192)
    both = prompts._replace(
        decode_seqs=decoding.decode_seqs, query_len=decoding.query_len, decode_kv_tokens=decoding.decode_kv_tokens
    )
    assert len(prompts.prefill_tokens) == 1
    for steps in (
        decode_steps(timer.windows, np.array([7]), 1, np.array([9000])),
        decode_steps(timer.windows, np.array([33]), 4, np.array([700])),
        prompts,
        both,
    ):
        kernels = step_kernels(timer, first(steps))
        costs = timer.costs(steps)
        assert sum(kernel.times * kernel.seconds for kernel in kernels) == pytest.approx(costs.device_s[0], rel=1e-12)
        if alone:  # else they are those of the fullest group, and costs count those of the mean one
            assert sum(kernel.times * kernel.flops for kernel in kernels) == pytest.approx(costs.flops[0], rel=1e-12)
        assert len({kernel.name for kernel in kernels}) > 5
        assert min(kernel.times for kernel in kernels) >= 1


LAYOUTS = {
    "fp32": lambda: deployment("llama-3.2-1b", weights="fp32"),
    "whole experts": lambda: deployment("qwen3-30b-a3b", tensor_parallel=2, expert_parallel=2),
    "uneven experts": lambda: deployment(
        "qwen3-30b-a3b", tensor_parallel=2, expert_parallel=2, expert_routing="power-law-1.2"
    ),
    "even experts": lambda: deployment("qwen3-30b-a3b", expert_routing="balanced"),
    "groups": lambda: deployment(
        "mixtral-8x7b", "h200-sxm", tensor_parallel=2, attention_data_parallel=2, expert_parallel=4
    ),
    "groups outside graphs": lambda: deployment(
        "mixtral-8x7b", "h200-sxm", attention_data_parallel=4, expert_parallel=4, cuda_graphs=False
    ),
    "groups with a shared expert": lambda: deployment(
        "deepseek-v2-lite", "h200-sxm", attention_data_parallel=4, expert_parallel=1
    ),
    "no gate": lambda: deployment("opt-6.7b"),
    "first stage": lambda: deployment("llama-3.1-8b").stages(2)[0],
    "last stage": lambda: deployment("llama-3.1-8b").stages(2)[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_add_up_however_the_model_is_spread(layout):
    timer = StepTimer(LAYOUTS[layout](), 1024)
    for seqs, query_len in ((8, 1), (9, 1), (33, 4), (0, 1)):
        steps = decode_steps(timer.windows, np.array([seqs]), query_len, np.array([900]))
        if not seqs:
            steps = prompt_chunks(timer.windows, 700, 1024)
        kernels = step_kernels(timer, first(steps))
        costs = timer.costs(steps)
        assert sum(kernel.times * kernel.seconds for kernel in kernels) == pytest.approx(costs.device_s[0], rel=1e-12)
        if seqs == 8:  # groups are then equally full
            assert sum(kernel.times * kernel.flops for kernel in kernels) == pytest.approx(costs.flops[0], rel=0.02)
        links = [kernel for kernel in kernels if kernel.family == "collective"]
        assert sum(kernel.times * kernel.seconds for kernel in links) == pytest.approx(costs.interconnect_s[0])
        assert all(kernel.bound in ("compute", "memory", "latency", "interconnect") for kernel in kernels)
        for kernel in kernels:
            if kernel.family == "gemm":
                assert kernel.seconds >= kernel.flops / 2e15
                assert kernel.seconds >= kernel.bytes / 4.9e12


@given(st.integers(1, 5000), st.integers(1, 2000), st.sampled_from([None, 64, 4096]))
def test_chunks_of_a_prompt_are_the_whole_prompt(prompt, budget, window):
    chunks = prompt_chunks((window,), prompt, budget)
    assert chunks.prefill_tokens.sum() == prompt
    assert chunks.prefill_tokens.max() <= budget
    assert chunks.prefill_pairs[0].sum() == causal_pairs(prompt, 0, window)
    assert chunks.sampled_prefills.sum() == 1


@given(st.integers(1, 300), st.integers(1, 9), st.integers(9, 9000), st.sampled_from([None, 512]))
def test_decode_steps_read_every_sequence(seqs, query_len, context, window):
    steps = decode_steps((window,), np.array([seqs]), query_len, np.array([context]))
    assert steps.decode_kv_tokens[0][0] == seqs * keys_read(context, query_len, window)
    assert steps.prefill_tokens[0] == 0
