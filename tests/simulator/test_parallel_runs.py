"""Whole runs of models spread over chips: fast equals exact, chips and notes, what cannot be is refused."""

import pytest
from numpy.testing import assert_allclose

from hwprofiles import ProfileError
from simulator.errors import ForerunError
from simulator.run import simulate
from simulator.scenario import scenario_from

LAYOUTS = [
    {"tensor_parallel": 2, "expert_parallel": 2},
    {"tensor_parallel": 1, "attention_data_parallel": 4, "expert_parallel": 4, "expert_routing": "power-law-1.2"},
    {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 1},
    {"tensor_parallel": 1, "pipeline_parallel": 3},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2, "pipeline_link": "infiniband-ndr"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_fast_and_exact_steps_agree_on_every_layout(layout, seed):
    chips = layout["tensor_parallel"] * layout.get("attention_data_parallel", 1) * layout.get("pipeline_parallel", 1)
    data = {
        "model": "qwen3-30b-a3b",
        "hardware": {"chip": "h100-sxm", **layout},
        "engine": {"max_num_seqs": 48, "max_num_batched_tokens": 512, "num_kv_blocks": 700},
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": 40.0},
            "input_tokens": {"distribution": "lognormal", "mean": 200, "cv": 1.0, "max": 900},
            "output_tokens": {"distribution": "uniform", "min": 1, "max": 60},
            "num_requests": 60,
        },
    }
    fast = simulate(scenario_from(data, "test"), seed)
    exact = simulate(scenario_from({**data, "engine": {**data["engine"], "stepping": "exact-steps"}}, "test"), seed)
    assert fast.chips == chips
    assert_allclose(fast.requests.finished_s, exact.requests.finished_s, rtol=1e-9)
    assert_allclose(fast.requests.first_token_s, exact.requests.first_token_s, rtol=1e-9)
    assert fast.steps.flops.sum() == pytest.approx(exact.steps.flops.sum())
    assert fast.steps.output_tokens.sum() == fast.requests.output_tokens.sum()
    assert any("bubbles" in note for note in fast.notes) == ("pipeline_parallel" in layout)


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ({"expert_parallel": 2, "tensor_parallel": 2}, "hardware.expert_parallel: llama-3.1-8b has no experts"),
        ({"attention_data_parallel": 2}, "hardware.attention_data_parallel: llama-3.1-8b has no experts"),
        ({"pipeline_parallel": 40}, "hardware.pipeline_parallel: llama-3.1-8b has 32 layers"),
        ({"pipeline_link": "nvlink4"}, "hardware.pipeline_link: there is one stage"),
        ({"pipeline_parallel": 2, "pipeline_link": "nvlnk4"}, "hardware.pipeline_link: no link 'nvlnk4'"),
    ],
)
def test_layouts_without_sense_are_refused(hardware, message):
    workload = {"arrivals": {"process": "burst"}, "input_tokens": 10, "output_tokens": 4, "num_requests": 4}
    data = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm", **hardware}, "workload": workload}
    with pytest.raises((ForerunError, ProfileError), match=message):
        simulate(scenario_from(data, "test"))


def test_stages_without_a_scale_up_link_go_over_the_hosts():
    workload = {"arrivals": {"process": "burst"}, "input_tokens": 10, "output_tokens": 4, "num_requests": 4}
    hardware = {"chip": "rtx-4090", "pipeline_parallel": 2}
    found = simulate(scenario_from({"model": "llama-3.1-8b", "hardware": hardware, "workload": workload}, "test"))
    assert found.chips == 2
    assert found.requests.output_tokens.tolist() == [4] * 4


def test_pipelines_need_a_scheduler_that_keeps_batches_in_flight():
    workload = {"arrivals": {"process": "burst"}, "input_tokens": 10, "output_tokens": 4, "num_requests": 4}
    data = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}, "workload": workload}
    data["engine"] = {"scheduler": "static"}
    with pytest.raises(ForerunError, match="several batches in flight need"):
        simulate(scenario_from(data, "test"))
