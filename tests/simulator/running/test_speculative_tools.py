"""Tool calls guessed before their turn has ended, against closed forms of one conversation alone."""

import numpy as np
import pytest

from forerun.errors import ForerunError
from simulator import simulate
from simulator.running.scenario import scenario_from

TURNS = 12
ALONE = {
    "model": "llama-3.2-1b",
    "hardware": {"chip": "h100-sxm"},
    "workload": {
        "arrivals": {"process": "burst"},
        "input_tokens": 200,
        "output_tokens": 300,
        "num_requests": TURNS,
        "sessions": {"turns": TURNS, "think_time_s": 1.0},
    },
}


def served(workload=ALONE["workload"], **other):
    return simulate(scenario_from(ALONE | {"workload": workload | other}, "test"), seed=3)


def test_without_a_hit_a_task_takes_as_long_and_tools_run_in_vain():
    plain, missed = served(), served(speculative_tools={"hit_rate": 0.0})
    assert missed.tasks["mean_s"] == plain.tasks["mean_s"]
    calls = missed.tasks["tool_calls"]
    assert (calls["guessed"], calls["right"], calls["hidden_s"]) == (TURNS - 1, 0, 0.0)
    assert calls["wasted_s"] > 0.0


@pytest.mark.parametrize("guessed_at", [0.0, 0.4, 1.0])
def test_with_every_hit_a_pause_is_what_the_turn_does_not_hide(guessed_at):
    plain, guessed = served(), served(speculative_tools={"hit_rate": 1.0, "guessed_at": guessed_at})
    turns_s = plain.requests.finished_s - plain.requests.arrival_s
    tools_s = plain.requests.arrival_s[1:] - plain.requests.finished_s[:-1]
    hidden_s = np.minimum(tools_s, (1.0 - guessed_at) * turns_s[:-1])
    assert guessed.tasks["mean_s"] == pytest.approx(turns_s.sum() + (tools_s - hidden_s).sum(), rel=1e-6)
    assert guessed.tasks["tool_calls"]["hidden_s"] == pytest.approx(hidden_s.sum(), rel=1e-6)
    assert guessed.tasks["tool_calls"]["wasted_s"] == 0.0


def test_a_task_of_the_agents_sample_is_all_that_wait_for_each_other():
    agents = {"trace": "agents", "arrivals": {"process": "burst"}}
    result = served(agents, speculative_tools={"hit_rate": 0.5})
    assert result.tasks["count"] == 6
    assert 0 < result.tasks["tool_calls"]["right"] < result.tasks["tool_calls"]["guessed"]


def test_requests_that_wait_for_nothing_have_no_tools():
    with pytest.raises(ForerunError, match="speculative_tools: no request waits"):
        served({"trace": "azure-conv-2023", "num_requests": 8}, speculative_tools={"hit_rate": 0.5})
