"""Names of the release before work for one more release, with a warning."""

import pytest

import simulator
from hwprofiles.catalogue import load_chip
from hwprofiles.schema import Chip
from simulator.running.scenario import as_scenario
from simulator.speculation.speculation_config import PolicyConfig


def test_an_old_field_of_a_scenario_sets_the_new_one():
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm"},
        "engine": {"front_end": "offline"},
        "workload": {"trace": "azure-conv-2023"},
    }
    with pytest.warns(DeprecationWarning, match="front_end is now entry_point"):
        assert as_scenario(data).engine.entry_point == "offline"


def test_an_old_policy_is_the_new_one():
    old = {"name": "draft-gate", "p_min": 0.6}
    with pytest.warns(DeprecationWarning, match="is now confidence") as warned:
        policy = PolicyConfig.model_validate(old)
    assert policy == PolicyConfig(name="confidence-threshold", confidence_threshold=0.6)
    assert len(warned) == 2


def test_an_old_public_name_is_the_new_one():
    with pytest.warns(DeprecationWarning, match="simulator.InvariantError"):
        assert simulator.LawBrokenError is simulator.InvariantError


def test_an_old_parameter_of_a_profile_is_read():
    card = load_chip("rtx-4090").model_dump(mode="json")
    (parameters,) = [p for sets in card["kernels"].values() for p in sets["attention_decode"].values()][:1]
    parameters["alone_key_s"] = parameters.pop("tail_key_s")
    with pytest.warns(DeprecationWarning, match="alone_key_s is now tail_key_s"):
        assert Chip.model_validate(card) == load_chip("rtx-4090")
