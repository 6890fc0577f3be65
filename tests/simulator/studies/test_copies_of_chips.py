"""A chip and a copy of it are one chip: equal predictions, and errors that the two share."""

import pytest
import yaml
from scenario_parts import uniform

from hwprofiles.catalogue import load_chip
from simulator.running.scenario import Scenario
from simulator.studies.compare.command import compare

ANSWERS = uniform(50, 150)
RUN = Scenario(model="llama-3.1-8b", chip="h100-sxm", request_rate=8.0, input_tokens=500, output_tokens=ANSWERS,
               num_requests=120)  # fmt: skip
SLOWER_MEMORY = """
memory: {bandwidth_bytes_per_s: 3.0e12, capacity_bytes: 8.494e10,
         source: {kind: assumed, reference: a slower part, date: 2026-11}}
"""


def compared(*chips):
    few = {"replications": 2, "crossover": "none", "sensitivity": False, "jobs": 1}
    result = compare(RUN, vary={"hardware.chip": [str(chip) for chip in chips]}, **few)
    return [variant["speedup"]["mean_tpot_ms"] for variant in result.document["variants"][1:]]


@pytest.mark.parametrize("how", ["extends", "file"])
def test_an_identical_copy_is_exactly_as_fast(how, tmp_path):
    copy = tmp_path / "copy.yaml"
    if how == "extends":
        copy.write_text("extends: h100-sxm\nname: copy\ndescription: an identical copy\n")
    else:
        data = load_chip("h100-sxm").model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        copy.write_text(yaml.safe_dump(data | {"name": "copy"}), encoding="utf-8")
    assert load_chip(copy).kernels == load_chip("h100-sxm").kernels
    (speedup,) = compared("h100-sxm", copy)
    assert speedup["ratio"] == 1.0
    assert speedup["low"] is None or 0.999 < speedup["low"] <= speedup["high"] < 1.001


def test_a_chip_that_extends_another_shares_its_errors(tmp_path):
    """The ratio is far surer than either figure, whose intervals are some 20 % wide."""
    child = tmp_path / "child.yaml"
    child.write_text("extends: h100-sxm\nname: child\ndescription: with slower memory\n" + SLOWER_MEMORY)
    shared, other = compared("h100-sxm", child, "a100-sxm-80gb")
    assert shared["ratio"] < 1.0
    assert shared["high"] / shared["low"] < 0.7 * other["high"] / other["low"] or shared["high"] / shared["low"] < 1.25
