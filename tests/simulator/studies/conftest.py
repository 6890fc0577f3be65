"""Fixtures of the study tests."""

import pytest
from tiny_scenario import tiny_data

from simulator.running.scenario import Scenario, scenario_from


@pytest.fixture
def tiny() -> Scenario:
    return scenario_from(tiny_data(), "tiny")
