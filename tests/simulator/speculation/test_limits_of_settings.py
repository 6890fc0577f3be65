"""Every limit of the speculation sections, tried on both sides."""

import math

import pytest
from described_classes import check_described, classes_of
from pydantic import ValidationError

import simulator.speculation
from simulator.speculation import SpeculationConfig
from simulator.speculation.attention_level import AttentionSpeculationConfig
from simulator.speculation.curves import Curve
from simulator.speculation.speculation_config import AcceptanceConfig, DraftConfig, PolicyConfig, TreeConfig

CURVE = {"name": "made", "method": "eagle", "target": "t", "task": "made", "source": "made"}
TREE = {"depth": 4, "top_k": 3, "nodes": 15}
CHAIN = {"method": "ngram", "acceptance": {"alpha": 0.5}}
LIMITS = [
    # section, the rest of it, field, taken, refused
    (AcceptanceConfig, {}, "per_position", [[0.0], [1.0], [1.0, 0.5, 0.5, 0.0]], [[], [1.1], [-0.1], [0.5, 0.6]]),
    (AcceptanceConfig, {}, "conditional", [[0.0], [0.5, 0.6, 1.0]], [[], [1.1], [-0.1]]),
    (AcceptanceConfig, {}, "alpha", [0.0, 0.3, 1.0], [-1e-9, 1.0 + 1e-9]),
    (AcceptanceConfig, {}, "acceptance_length", [1.0, 3.5], [1.0 - 1e-9, math.inf, math.nan]),
    (AcceptanceConfig, {"alpha": 0.5}, "decay", [1e-9, 1.0, 1.25], [0.0, -0.1, 1.25 + 1e-9]),
    (AcceptanceConfig, {"alpha": 0.5}, "spread", [0.0, 0.4999], [-1e-9, 0.5, 1.0]),
    (AcceptanceConfig, {"alpha": 0.5}, "context_decay", [1e-9, 1.0], [0.0, -0.1, 1.0 + 1e-9]),
    (AcceptanceConfig, {"alpha": 0.5, "context_decay": 0.9}, "context_from", [1, 4096], [0, -1]),
    (AcceptanceConfig, {"alpha": 0.5}, "other_ranks", [[0.0, 1.0], []], [[1.1], [-0.1]]),
    (SpeculationConfig, CHAIN, "num_speculative_tokens", [1, 1024], [0, -1, 1025]),
    *(
        (DraftConfig, {}, field, [0.0, 59.9], [-1e-12, 60.0, math.inf])
        for field in ("step_s", "pass_s", "per_sequence_s", "per_context_token_s")
    ),
    (DraftConfig, {"chip": "h100-sxm"}, "overlap", [0.0, 1.0], [-0.1, 1.1]),
    (TreeConfig, TREE, "depth", [1, 64], [0, 65]),
    (TreeConfig, TREE, "top_k", [1, 64], [0, 65]),
    (TreeConfig, TREE, "nodes", [1, 4096], [0, 4097]),
    (TreeConfig, TREE, "concentration", [1e-3, 100.0], [0.0, -1.0, math.inf]),
    (TreeConfig, {}, "choices", [[[0]], [[0], [1], [0, 0]]], [[], [[]], [[-1]]]),
    (PolicyConfig, {"name": "disable-above-batch"}, "batch", [1, 99], [0]),
    (PolicyConfig, {"name": "goodput"}, "prior", [0.0, 1.0], [-0.1, 1.1]),
    (PolicyConfig, {"name": "goodput"}, "window", [1], [0]),
    (PolicyConfig, {"name": "goodput"}, "interval", [1], [0]),
    (PolicyConfig, {"name": "goodput"}, "hysteresis", [0.0, 9.9], [-1e-9, 10.0]),
    (
        PolicyConfig,
        {"name": "ema"},
        "candidates",
        [[0], [1, 3], {1: [0]}],
        [[], [-1], {}, {1: []}, {0: [1]}, {1: [-1]}],
    ),
    (PolicyConfig, {"name": "ema"}, "ema_alpha", [1e-9, 1.0], [0.0, 1.0 + 1e-9]),
    (PolicyConfig, {"name": "ema"}, "update_interval", [1], [0]),
    (PolicyConfig, {"name": "ema"}, "warmup_batches", [0, 50], [-1]),
    (PolicyConfig, {"name": "ema"}, "up_hysteresis", [-100.0, 0.0, 100.0], [-100.1, 100.1, math.inf]),
    (PolicyConfig, {"name": "ema"}, "down_hysteresis", [-100.0, 0.0, 100.0], [-100.1, 100.1]),
    (PolicyConfig, {"name": "ema"}, "switch_s", [0.0, 59.9], [-1e-9, 60.0, math.inf]),
    (Curve, CURVE, "lengths", [{1: 1.0, 3: 2.5}], [{1: 0.99}, {0: 1.0}, {1: math.inf}]),
    (Curve, CURVE, "per_position", [[1.0, 0.5]], [[], [1.1]]),
    (Curve, CURVE, "alpha", [0.0, 1.0], [-0.1, 1.1]),
    (Curve, CURVE, "heads", [[[0.5, 0.6], [0.3]]], [[[]], [[1.1]]]),
    (AttentionSpeculationConfig, {}, "hit_rate", [0.0, 1.0, [0.5], [0.0, 1.0]], [-0.1, 1.1, [], [1.1]]),
    (
        AttentionSpeculationConfig,
        {},
        "hit_rate_by_context",
        [[[1.0, 0.0]], [[1.0, 1.0], [1e12, 0.5]]],
        [
            *([], [[0.9, 0.5]], [[2e12, 0.5]], [[1.0, 1.1]], [[1.0, -0.1]], [[1.0]], [[1.0, 0.5, 0.5]]),
            *([[2.0, 0.5], [2.0, 0.6]], [[3.0, 0.5], [2.0, 0.6]]),
        ],
    ),
    *(
        (AttentionSpeculationConfig, {"hit_rate": 0.5}, field, [0.0, 0.99], [-1e-12, 1.0])
        for field in ("send_s", "verify_s", "sync_s", "skip_launch_s")
    ),
    (AttentionSpeculationConfig, {"task": "gsm8k"}, "lambda", [0.1], [0.0, -0.1]),
    (AttentionSpeculationConfig, {"hit_rate": 0.5}, "window_tokens", [1], [0]),
]


CLASSES = classes_of(simulator.speculation)
WITH_STATE = {"Goodput", "MovingAverageSlot", "MovingAverage", "PositionRates", "Gate", "EntropyGate", "Forerun"}
"""Policies, and what they have seen."""


@pytest.mark.parametrize("name", CLASSES)
def test_described_things_are_complete_and_do_not_change(name):
    """Policies that learn keep state; all else is as it was given."""
    check_described(CLASSES[name], WITH_STATE)


@pytest.mark.parametrize(
    ("section", "rest", "field", "value"),
    [(section, rest, field, value) for section, rest, field, taken, _ in LIMITS for value in taken],
)
def test_the_last_value_within_is_taken(section, rest, field, value):
    read = section.model_validate({**rest, field: value})
    assert getattr(read, "lambda_" if field == "lambda" else field) == value


@pytest.mark.parametrize(
    ("section", "rest", "field", "value"),
    [(section, rest, field, value) for section, rest, field, _, refused in LIMITS for value in refused],
)
def test_the_first_value_outside_is_refused(section, rest, field, value):
    with pytest.raises(ValidationError) as caught:
        section.model_validate({**rest, field: value})
    assert len(caught.value.errors()) >= 1


def speculation(**fields):
    return SpeculationConfig.model_validate({"method": "eagle3", "acceptance": {"alpha": 0.5}, **fields})


class TestWhatGoesTogether:
    def test_a_chain_or_a_tree(self):
        assert speculation(num_speculative_tokens=3).depth == 3
        assert speculation(tree=TREE).depth == 4
        assert speculation(tree={**TREE, "nodes": 2}).depth == 2
        assert speculation(tree="medusa-63").depth == 4
        for inputs, words in (({}, "got neither"), ({"num_speculative_tokens": 3, "tree": TREE}, "got both")):
            with pytest.raises(ValidationError, match=f"needs num_speculative_tokens or tree .{words}"):
                speculation(**inputs)
        with pytest.raises(
            ValidationError, match="'ngram' drafts a chain; give num_speculative_tokens instead of tree"
        ):
            speculation(method="ngram", tree=TREE)

    def test_none_needs_nothing(self):
        off = SpeculationConfig(method="none")
        assert off.depth == 0
        assert SpeculationConfig(method="none", tree={"name": "medusa-63"}, num_speculative_tokens=3).depth == 4

    def test_policies_beside_a_tree(self):
        for name in ("fixed", "disable-above-batch"):
            assert speculation(tree=TREE, policy=name).policy == name
        for name in ("batch-table", "goodput", "ema"):
            assert speculation(num_speculative_tokens=3, policy=name).policy == name
            with pytest.raises(ValidationError, match=f"policy '{name}' shortens a chain"):
                speculation(tree=TREE, policy=name)

    def test_rates_must_reach_the_depth_or_be_continued(self):
        for source in ("per_position", "conditional"):
            two = {source: [0.7, 0.5]}
            assert speculation(num_speculative_tokens=2, acceptance=two).acceptance.positions == 2
            with pytest.raises(ValidationError, match=f"{source} has 2 positions, num_speculative_tokens is 3"):
                speculation(num_speculative_tokens=3, acceptance=two)
            with pytest.raises(ValidationError, match=f"{source} has 2 positions, the tree's depth is 4"):
                speculation(tree=TREE, acceptance=two)
            speculation(num_speculative_tokens=3, acceptance={**two, "extrapolate": True})
            with pytest.raises(ValidationError, match="extrapolate needs two positions or more"):
                AcceptanceConfig.model_validate({source: [0.7], "extrapolate": True})
        assert AcceptanceConfig(alpha=0.5).positions is None

    def test_other_ranks_go_with_trees_and_sources_of_first_candidates(self):
        ranks = {"other_ranks": [0.3, 0.2]}
        speculation(tree=TREE, acceptance={"alpha": 0.5, **ranks})
        speculation(tree=TREE, acceptance={"acceptance_length": 2.0, **ranks})
        with pytest.raises(ValidationError, match="other_ranks goes with tree"):
            speculation(num_speculative_tokens=3, acceptance={"alpha": 0.5, **ranks})
        with pytest.raises(ValidationError, match="no use beside per_position, which counts all ranks"):
            speculation(tree=TREE, acceptance={"per_position": [0.7, 0.5, 0.3, 0.2], **ranks})

    def test_what_a_method_has_no_use_for(self):
        with pytest.raises(ValidationError, match=r"'medusa' has no use for draft\.model"):
            speculation(method="medusa", num_speculative_tokens=3, draft={"model": "x"})
        with pytest.raises(ValidationError, match=r"needs draft: .model"):
            speculation(method="draft-model", num_speculative_tokens=3)
        with pytest.raises(ValidationError, match=r"needs draft: .model"):
            speculation(method="draft-model", num_speculative_tokens=3, draft={"step_s": 0.0})
        with pytest.raises(ValidationError, match="separate modules draft a chain"):
            speculation(method="mtp", tree=TREE, draft={"modules": "separate"})
        speculation(method="mtp", tree=TREE, draft={"modules": "shared"})
        speculation(method="mtp", num_speculative_tokens=3, draft={"modules": "separate"})
        speculation(method="ngram", num_speculative_tokens=3, draft={"model": None})
        for name, value in (("link", "infiniband-ndr"), ("overlap", 0.5)):
            with pytest.raises(ValidationError, match=f"{name} goes with chip"):
                speculation(num_speculative_tokens=3, draft={name: value})

    def test_what_a_source_of_acceptance_has_no_use_for(self):
        for fields, words in (
            ({"per_position": [0.5], "decay": 0.9}, "per_position has a decay of its own"),
            ({"conditional": [0.5], "alpha": 0.9}, "exactly one of"),
            ({"decay": 0.9}, "got none"),
            ({"alpha": 0.5, "context_from": 10}, "context_from goes with context_decay"),
            ({"alpha": 0.5, "extrapolate": True}, "holds for any number of positions"),
            ({"acceptance_length": 2.0, "extrapolate": True}, "holds for any number of positions"),
        ):
            with pytest.raises(ValidationError, match=words):
                AcceptanceConfig.model_validate(fields)
        with pytest.raises(ValidationError, match=r"rises at position 3 \(0.4 to 0.5\)"):
            AcceptanceConfig(per_position=[0.5, 0.4, 0.5])

    def test_what_a_policy_has_no_use_for(self):
        with pytest.raises(ValidationError, match=r"'fixed' has no use for switch_s \(it takes no parameters\)"):
            PolicyConfig(name="fixed", switch_s=1e-3)
        with pytest.raises(ValidationError, match=r"'goodput' has no use for batch \(it takes prior, window"):
            PolicyConfig(name="goodput", batch=3)
        for name in ("disable-above-batch", "batch-table", "goodput", "ema"):
            assert PolicyConfig(name=name, while_off="follow", switch_s=1e-3).while_off == "follow"

    def test_keys_of_json_are_numbers(self):
        assert PolicyConfig.model_validate({"name": "ema", "candidates": {"8": [0, 1]}}).candidates == {8: [0, 1]}
        with pytest.raises(ValidationError):
            PolicyConfig.model_validate({"name": "ema", "candidates": {"x": [0, 1]}})
        both = {"name": "batch-table", "table": [[1, 2, 1]], "num_speculative_tokens_per_batch_size": [[1, 9, 2]]}
        with pytest.raises(ValidationError, match="Extra inputs"):
            PolicyConfig.model_validate(both)

    def test_trees_of_one_kind(self):
        for fields, words in (
            ({}, "got none"),
            ({"name": "medusa-63", "choices": [[0]]}, "got name, choices"),
            ({"name": "medusa-63", "depth": 3}, "got name, depth"),
            ({"depth": 3, "top_k": 2}, "nodes missing"),
            ({"concentration": 2.0}, "depth, top_k, nodes missing"),
        ):
            with pytest.raises(ValidationError, match=words):
                TreeConfig.model_validate(fields)
        assert TreeConfig(name="medusa-63").growth is None
        assert TreeConfig(**TREE).static is None
        assert TreeConfig(choices=[[0], [0, 0], [0, 0, 0]]).longest_path == 3
        wide = TreeConfig(choices=[[i] for i in range(64)])
        assert (wide.longest_path, wide.static.num_nodes) == (1, 64)
