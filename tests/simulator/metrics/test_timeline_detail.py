"""Inside the steps of a trace: lanes tile their steps, kernels fill the device time, every chip does the same."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from scenario_parts import drafts, on_h100, poisson

from hwprofiles import KernelTime
from simulator.running.metrics import timeline
from simulator.running.metrics.timeline import kernel_layer_order, timeline_events
from simulator.running.run import simulate
from simulator.timing import Kernel


def run_of(**sections):
    two = {"model": "llama-3.2-1b", "hardware": {"chip": "h100-sxm", "tensor_parallel": 2}}
    return simulate(on_h100(poisson(20.0, 12, 200, 20), **two | sections))


@pytest.fixture(scope="module")
def result():
    return run_of(speculation=drafts("eagle3", 3, 0.6))


def by_track(result):
    tracks = defaultdict(list)
    for event in timeline_events(result):
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    return tracks


def test_slices_of_a_track_never_cross(result):
    tracks = by_track(result)
    assert max(map(len, tracks.values())) > 20
    for track, events in tracks.items():
        events.sort(key=lambda event: event["ts"])
        for one, other in pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"] + 2e-3, track
        assert min(event["dur"] for event in events) >= 0


def test_drafting_and_verifying_fill_their_steps(result):
    tracks = by_track(result)
    drafted = result.detail.draft_s > 0
    assert len(tracks[timeline.DRAFT_TRACK]) == len(tracks[timeline.VERIFY_TRACK]) == drafted.sum() > 0
    lanes = sum(event["dur"] for lane in (timeline.DRAFT_TRACK, timeline.VERIFY_TRACK) for event in tracks[lane])
    assert lanes == pytest.approx(result.steps.seconds[drafted].sum() * 1e6, rel=1e-5)


def test_kernels_of_every_chip_fill_the_sampled_steps(result):
    tracks = by_track(result)
    assert len(result.detail.sampled) >= 2
    seconds = sum(result.steps.seconds[sample.row] for sample in result.detail.sampled)
    chips = [[(e["name"], e["ts"], e["dur"]) for e in tracks[timeline.FIRST_CHIP_TRACK + chip]] for chip in range(2)]
    assert chips[0] == chips[1]
    assert timeline.FIRST_CHIP_TRACK + 2 not in tracks
    host = sum(event["dur"] for event in tracks[timeline.HOST_TRACK])
    kernels = sum(duration for _, _, duration in chips[0])
    assert host + kernels == pytest.approx(seconds * 1e6, rel=0.01)
    count = Counter()
    for event in tracks[timeline.FIRST_CHIP_TRACK]:
        count[event["name"]] += event["args"].get("kernels", 0)
    layers = 16 * len(result.detail.sampled)
    assert count["qkv_proj"] == count["down_proj"] == layers
    assert count["layer all-reduce"] == 2 * layers


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel": 4, "expert_parallel": 4}, {"attention_data_parallel": 4, "expert_parallel": 4}]
)
def test_kernels_of_spread_experts_fill_their_steps_too(layout):
    """The host waits no longer than without the kernels' names: what kernels and host take is what the step took."""
    run = run_of(model="qwen3-30b-a3b", hardware={"chip": "h100-sxm", **layout})
    assert run.detail.devices == 4
    assert len(run.detail.sampled) >= 2
    for sample in run.detail.sampled:
        device_s = sum(kernel.step_s for kernel in sample.kernels)
        row = sample.row
        assert device_s + sample.host_s == pytest.approx(run.steps.seconds[row], rel=0.01)
        assert device_s == pytest.approx(run.steps.seconds[row] - run.steps.host_s[row], rel=0.01)


def test_without_drafter_there_is_no_draft_lane():
    plain = run_of()
    assert plain.detail.draft_s is None
    names = [event["args"]["name"] for event in timeline_events(plain) if event["name"] == "thread_name"]
    assert "draft" not in names
    assert "chip 1: kernels of sampled steps" in names
    assert all(event["pid"] in (1, timeline.FIRST_REPLICA_PID) for event in timeline_events(plain))


def test_steps_whose_stages_run_overlap_are_not_split():
    run = run_of(hardware={"chip": "n300", "pipeline_parallel": 2}, engine={"framework": "vllm"})
    assert run.detail.sampled == ()
    names = {event["args"]["name"] for event in timeline_events(run) if event["name"] == "thread_name"}
    assert not {name for name in names if "kernels of sampled steps" in name}


def test_what_is_hidden_of_attention_takes_no_place():
    """Under attention-level speculation the list holds what is exposed of it, and what crosses the link."""
    run = run_of(hardware={"chip": "n300", "speculative_parallel": 2}, attention_speculation={"hit_rate": 0.9})
    decoding = next(sample for sample in run.detail.sampled if run.steps.prefill_seqs[sample.row] == 0)
    by_name = {kernel.name: kernel for kernel in decoding.kernels}
    assert by_name["decode attention"].exposed != 1.0
    assert by_name["p2p-send"].family == "collective"
    device_s = sum(kernel.step_s for kernel in decoding.kernels)
    assert device_s + decoding.host_s == pytest.approx(run.steps.seconds[decoding.row], rel=1e-9)


def test_layers_take_turns_and_keep_every_kernel():
    def kernel(name, times):
        return Kernel(name, "gemm", "", times, KernelTime(1.0, 0.0, 0.0, 1.0, 0.0, 0.0))

    names = ("embedding", 1), ("a", 3), ("b", 3), ("reduce", 6), ("a", 2), ("head", 1)
    inputs = [kernel(name, times) for name, times in names]
    ordered = kernel_layer_order(inputs)
    assert [one.name for one in ordered[:5]] == ["embedding", "a", "b", "reduce", "a"]
    assert ordered[-1].name == "head"
    total = Counter()
    for one in ordered:
        total[one.name] += one.times
    assert total == {"embedding": 1, "a": 5, "b": 3, "reduce": 6, "head": 1}
