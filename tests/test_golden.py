"""Golden runs: no figure of ten scenarios moves without a word in the CHANGELOG."""

import copy

import pytest
from golden.golden import FOLDER, SEED, differences, document, scenarios, stored

ADVICE = "explain this in CHANGELOG.md, then run: python tests/golden/golden.py"


@pytest.mark.parametrize("name", scenarios())
def test_no_figure_moves_unexplained(name):
    moved = list(differences(stored(name), document(scenarios()[name])))
    assert not moved, f"{len(moved)} figures of {name} moved; {ADVICE}\n" + "\n".join(moved[:10])


def test_each_scenario_has_its_file_and_each_file_its_scenario():
    assert {file.stem for file in FOLDER.glob("*.json")} == set(scenarios())
    assert len(scenarios()) == 10


def test_what_is_stored_is_what_happened_once():
    """The scenarios reach the mechanisms that they are there for."""
    runs = {name: stored(name) for name in scenarios()}
    assert all(run["seed"] == SEED and run["summary"]["completed"] for run in runs.values())
    assert runs["short-of-blocks"]["kv_cache"]["preemptions"] > 0
    assert runs["agents-with-prefixes"]["kv_cache"]["prefix_hit_tokens"] > 0
    assert runs["chat-eagle3"]["summary"]["spec_decode_acceptance_length"] > 2
    assert runs["draft-model-off-above-a-batch"]["summary"]["spec_decode_num_drafts"] > 0
    assert runs["attention-groups-n150"]["chips"] == 2
    assert runs["experts-two-replicas"]["chips"] == 4


def test_a_change_of_a_billionth_is_seen_and_less_is_not():
    old = stored("chat-open-loop")
    for factor, seen in ((1 + 3e-9, 1), (1 + 1e-11, 0)):
        new = copy.deepcopy(old)
        new["summary"]["mean_ttft_ms"] *= factor
        assert len(list(differences(old, new))) == seen
    assert len(list(differences({"a": [1, None]}, {"a": [1, 0], "b": 1}))) == 2
