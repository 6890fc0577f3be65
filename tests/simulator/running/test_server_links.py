"""Replicas of more chips than a server has say which link they are priced on."""

import pytest
from scenario_parts import closed_loop, on_h100

from simulator.running.build import build_run
from simulator.running.run import simulate


@pytest.mark.parametrize(
    ("hardware", "noted"),
    [
        (
            {"chip": "h100-sxm", "tensor_parallel": 16},
            "16 chips are more than one server of 8 x h100-sxm: servers are taken as joined by infiniband-ndr",
        ),
        ({"chip": "mi300x", "tensor_parallel": 16}, "taken as joined by ethernet-400g, with infinity-fabric inside"),
        ({"chip": "h100-sxm", "tensor_parallel": 8, "attention_data_parallel": 2}, "taken as joined by infiniband-ndr"),
        ({"chip": "h100-sxm", "tensor_parallel": 8, "pipeline_parallel": 2}, "taken as joined by infiniband-ndr"),
        (
            {"chip": "h100-sxm", "tensor_parallel": 8, "pipeline_parallel": 2, "pipeline_link": "infiniband-ndr"},
            None,
        ),
        ({"chip": "h200-sxm", "tensor_parallel": 4, "pipeline_parallel": 2}, None),
        ({"chip": "h200-sxm", "tensor_parallel": 8}, None),
        ({"chip": "gb200", "tensor_parallel": 16}, None),
        ({"chip": "h100-sxm", "tensor_parallel": 16, "link": "infiniband-ndr"}, None),
    ],
)
def test_more_chips_than_a_server_has_are_noted(hardware, noted):
    build = build_run(on_h100(closed_loop(1, 1, 100, 10), model="deepseek-v3", weights_dtype="fp8", hardware=hardware))
    notes = [note for note in build.notes if note.startswith("hardware: ")]
    assert len(notes) == (noted is not None)
    assert noted is None or noted in notes[0]


def test_a_galaxy_says_whose_operations_price_it():
    load = closed_loop(1, 1, 100, 10)
    hardware = {"chip": "galaxy", "tensor_parallel": 8}
    build = build_run(on_h100(load, model="llama-3.1-8b", hardware=hardware, engine={"framework": "tt-metal"}))
    assert any("run those of smaller boards: hardware.chip: n150" in note for note in build.notes)


def test_tensor_parallelism_across_servers_costs_their_network():
    """A step of DeepSeek-V3 on 16 H100 waits for 122 all-reduces of some 50 us each; nvlink4 has to be named."""
    load = closed_loop(1, 1, 100, 10)
    tpot_ms = {}
    for link in (None, "infiniband-ndr", "nvlink4"):
        hardware = {"chip": "h100-sxm", "tensor_parallel": 16} | ({"link": link} if link else {})
        run = simulate(on_h100(load, model="deepseek-v3", weights_dtype="fp8", hardware=hardware))
        tpot_ms[link] = run.summary["mean_tpot_ms"]
    assert tpot_ms[None] == tpot_ms["infiniband-ndr"]
    assert 122 * 0.035 < tpot_ms[None] - tpot_ms["nvlink4"] < 122 * 0.06


def test_two_groups_on_two_servers_cost_the_network_only_between_them():
    """Four messages of a layer wait for the network, 12.2 us more than NVLink each; all-reduces stay in a server."""
    load = closed_loop(1, 1, 100, 10)
    tpot_ms = {}
    for link in (None, "nvlink4"):
        hardware = {"chip": "h100-sxm", "tensor_parallel": 8, "speculative_parallel": 2, "link": link}
        parts = {"attention_speculation": {"hit_rate": 0.875}, "hardware": hardware}
        tpot_ms[link] = simulate(on_h100(load, model="llama-3.1-8b", **parts)).summary["mean_tpot_ms"]
    assert 32 * 3 * 0.0122 < tpot_ms[None] - tpot_ms["nvlink4"] < 32 * 4 * 0.0125
