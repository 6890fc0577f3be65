"""Every limit of the speculation sections, tried on both sides."""

import math

import pytest
from pydantic import ValidationError

from simulator.speculation import SpeculationConfig
from simulator.speculation.attention_level import AttentionSpeculationConfig
from simulator.speculation.curves import Curve
from simulator.speculation.speculation_config import AcceptanceConfig, DraftConfig, PolicyConfig, TreeConfig

CURVE = {"name": "made", "method": "eagle", "target": "t", "task": "made", "source": "made"}
TREE = {"depth": 4, "top_k": 3, "nodes": 15}
EAGLE3 = "eagle3-llama-3.1-8b-mt-bench"
EAGLE3_CHAIN = {"method": "eagle3", "num_speculative_tokens": 1}
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
    (AcceptanceConfig, {"alpha": 0.5}, "window_half", [1e-3, 4.0], [0.0, -1.0, math.inf]),
    (DraftConfig, {}, "trained_window", [1, 2048], [0, -1]),
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
    *(
        (PolicyConfig, {"name": "ema"}, field, [0.0, 59.9], [-1e-9, 60.0, math.inf])
        for field in ("switch_s", "step_s", "per_sequence_s")
    ),
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


TOKENS = {"num_speculative_tokens": 3}
RANKS = {"other_ranks": [0.3, 0.2]}


def speculation(method="eagle3", **fields):
    return SpeculationConfig.model_validate({"method": method, "acceptance": {"alpha": 0.5}, **fields})


@pytest.mark.parametrize(
    ("method", "fields", "words"),
    [
        ("eagle3", {}, "needs num_speculative_tokens or tree .got neither"),
        ("eagle3", {**TOKENS, "tree": TREE}, "needs num_speculative_tokens or tree .got both"),
        ("ngram", {}, "needs num_speculative_tokens .got neither"),
        ("ngram", {"tree": TREE}, "'ngram' drafts a chain; give num_speculative_tokens instead of tree"),
        ("eagle", {"tree": "eagel-25"}, "no tree 'eagel-25'; did you mean 'eagle-25'?"),
        ("eagle", {"tree": {"choices": [[0, 0]]}}, "hangs on .0."),
        ("eagle", {**TOKENS, "acceptance": None}, "forerun workloads curves lists them"),
        *(
            ("eagle3", {"tree": TREE, "policy": name}, f"policy '{name}' shortens a chain")
            for name in ("batch-table", "goodput", "ema")
        ),
        *(
            ("eagle3", {**rest, "acceptance": {source: [0.7, 0.5]}}, f"{source} has 2 positions, {words}")
            for source in ("per_position", "conditional")
            for rest, words in ((TOKENS, "num_speculative_tokens is 3"), ({"tree": TREE}, "the tree's depth is 4"))
        ),
        ("eagle3", {**TOKENS, "acceptance": {"alpha": 0.5, **RANKS}}, "other_ranks goes with tree"),
        (
            "eagle3",
            {"tree": TREE, "acceptance": {"per_position": [0.7, 0.5, 0.3, 0.2], **RANKS}},
            "no use beside per_position, which counts all ranks",
        ),
        ("medusa", {**TOKENS, "draft": {"model": "x"}}, r"'medusa' has no use for draft\.model"),
        ("eagle", {**TOKENS, "draft": {"draft_vocab_size": 9}}, r"no use for draft\.draft_vocab_size"),
        ("ngram", {**TOKENS, "draft": {"num_layers": 1}}, r"no use for draft\.num_layers"),
        ("draft-model", TOKENS, "needs draft: .model"),
        ("draft-model", {**TOKENS, "draft": {"step_s": 0.0}}, "needs draft: .model"),
        ("mtp", {"tree": TREE, "draft": {"modules": "separate"}}, "separate modules draft a chain"),
        ("eagle3", {**TOKENS, "draft": {"link": "infiniband-ndr"}}, "link goes with chip"),
        ("eagle3", {**TOKENS, "draft": {"overlap": 0.5}}, "overlap goes with chip"),
    ],
)
def test_speculation_of_parts_that_do_not_fit_is_refused(method, fields, words):
    with pytest.raises(ValidationError, match=words):
        speculation(method, **fields)


@pytest.mark.parametrize(
    ("method", "fields", "depth"),
    [
        ("eagle3", TOKENS, 3),
        ("eagle3", {"tree": TREE}, 4),
        ("eagle3", {"tree": {**TREE, "nodes": 2}}, 2),
        ("eagle3", {"tree": "medusa-63"}, 4),
        ("none", {"acceptance": None}, 0),
        ("none", {"acceptance": None, "tree": {"name": "medusa-63"}, **TOKENS}, 4),
        ("eagle3", {"tree": TREE, "policy": "fixed"}, 4),
        ("eagle3", {"tree": TREE, "policy": "disable-above-batch"}, 4),
        ("eagle3", {**TOKENS, "policy": "goodput"}, 3),
        ("eagle3", {**TOKENS, "acceptance": {"per_position": [0.7, 0.5], "extrapolate": True}}, 3),
        ("eagle3", {**TOKENS, "acceptance": {"conditional": [0.7, 0.5], "extrapolate": True}}, 3),
        ("eagle3", {"tree": TREE, "acceptance": {"alpha": 0.5, **RANKS}}, 4),
        ("eagle3", {"tree": TREE, "acceptance": {"acceptance_length": 2.0, **RANKS}}, 4),
        ("mtp", {"tree": TREE, "draft": {"modules": "shared"}}, 4),
        ("mtp", {**TOKENS, "draft": {"modules": "separate"}}, 3),
        ("ngram", {**TOKENS, "draft": {"model": None}}, 3),
    ],
)
def test_parts_that_fit_draft_so_deep(method, fields, depth):
    assert speculation(method, **fields).depth == depth


@pytest.mark.parametrize(
    ("section", "fields", "words"),
    [
        (AcceptanceConfig, {"per_position": [0.5], "decay": 0.9}, "per_position has a decay of its own"),
        (AcceptanceConfig, {"curve": EAGLE3, "decay": 0.9}, "curve has a decay of its own"),
        (AcceptanceConfig, {"curve": "eagle3-llama-3.1-8b"}, "no acceptance curve .*; did you mean"),
        (AcceptanceConfig, {"conditional": [0.5], "alpha": 0.9}, "exactly one of .* .got conditional, alpha"),
        (AcceptanceConfig, {"decay": 0.9}, "got none"),
        (AcceptanceConfig, {"alpha": 0.5, "context_from": 10}, "context_from goes with context_decay"),
        (DraftConfig, {"windowed": True}, "windowed needs trained_window"),
        (DraftConfig, {"trained_window": 9, "kv_tokens": 9}, "give one of trained_window and kv_tokens"),
        (
            SpeculationConfig,
            {**EAGLE3_CHAIN, "acceptance": {"alpha": 0.5, "window_half": 2.0}},
            "window_half goes with",
        ),
        (
            SpeculationConfig,
            {**EAGLE3_CHAIN, "acceptance": {"alpha": 0.5, "context_decay": 0.9}, "draft": {"trained_window": 9}},
            "give one of acceptance.context_decay and draft.trained_window",
        ),
        (
            AcceptanceConfig,
            {"alpha": 0.5, "extrapolate": True},
            "holds for any number of positions; remove extrapolate",
        ),
        (AcceptanceConfig, {"acceptance_length": 2.0, "extrapolate": True}, "holds for any number of positions"),
        (AcceptanceConfig, {"per_position": [0.7], "extrapolate": True}, "extrapolate needs two positions or more"),
        (AcceptanceConfig, {"conditional": [0.7], "extrapolate": True}, "extrapolate needs two positions or more"),
        (AcceptanceConfig, {"per_position": [0.5, 0.4, 0.5]}, r"rises at position 3 \(0.4 to 0.5\)"),
        (PolicyConfig, {"name": "fixed", "switch_s": 1e-3}, "'fixed' has no use for switch_s .it takes no parameters"),
        (PolicyConfig, {"name": "goodput", "batch": 3}, "'goodput' has no use for batch .it takes prior, window"),
        (PolicyConfig, {"name": "ema", "candidates": {"x": [0, 1]}}, "valid integer"),
        (
            PolicyConfig,
            {"name": "batch-table", "table": [[1, 2, 1]], "num_speculative_tokens_per_batch_size": [[1, 9, 2]]},
            "Extra inputs",
        ),
        (TreeConfig, {}, "got none"),
        (TreeConfig, {"name": "medusa-63", "choices": [[0]]}, "got name, choices"),
        (TreeConfig, {"name": "medusa-63", "depth": 3}, "got name, depth"),
        (TreeConfig, {"depth": 3, "top_k": 2}, "nodes missing"),
        (TreeConfig, {"concentration": 2.0}, "depth, top_k, nodes missing"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(section, fields, words):
    with pytest.raises(ValidationError, match=words):
        section.model_validate(fields)


def test_every_policy_that_changes_k_has_a_cost_of_doing_so():
    for name in ("disable-above-batch", "batch-table", "goodput", "ema"):
        assert PolicyConfig(name=name, while_off="follow", switch_s=1e-3).while_off == "follow"
    assert PolicyConfig.model_validate({"name": "ema", "candidates": {"8": [0, 1]}}).candidates == {8: [0, 1]}
