"""Replicas of more chips than a server has say which link they are priced on."""

import pytest
from scenario_parts import closed_loop, on_h100

from simulator.running.build import build_run


@pytest.mark.parametrize(
    ("hardware", "noted"),
    [
        ({"chip": "h100-sxm", "tensor_parallel": 16}, "16 chips are priced on nvlink4"),
        ({"chip": "mi300x", "tensor_parallel": 16}, "16 chips are priced on infinity-fabric"),
        ({"chip": "h100-sxm", "tensor_parallel": 8, "attention_data_parallel": 2}, "16 chips are priced on nvlink4"),
        ({"chip": "h100-sxm", "tensor_parallel": 8, "pipeline_parallel": 2}, "2 stages of 8 chips are more than one"),
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
