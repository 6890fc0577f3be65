"""A draft model that keeps a part of the KV: cheap at any context, and the target's own model needs nothing else."""

import pytest
from both_engines import both_engines
from drafter_prices import seconds as seconds_of
from scenario_parts import burst, drafts, on_h100
from test_drafting import scenario

from simulator.running.build import build_replica
from simulator.running.run import simulate
from simulator.speculation import expected_tokens
from simulator.timing import StepWork, check_drafter, decode_step

ITSELF = {"model": "llama-3.1-8b", "kv_tokens": 512}


def gain(context, kv_tokens):
    """Speed-up of 64 sequences at one context on 8 H100, whose drafter is the model itself with a part of the KV."""
    speculation = drafts("draft-model", 3, 0.8, draft=ITSELF | {"kv_tokens": kv_tokens})
    sections = {
        "hardware": {"chip": "h100-sxm", "tensor_parallel": 8},
        "weights_dtype": "bf16",
        "engine": {"framework": "generic", "max_num_seqs": 64, "num_kv_blocks": 10**6, "max_model_len": 10**6},
    }
    plain, spec = (
        build_replica(on_h100(burst(1, 9, 9), speculation=block, **sections), 0).main.timer
        for block in (None, speculation)
    )
    plain_s, spec_s = (
        timer.seconds(decode_step(timer.windows, 64, query_len, context - query_len))
        for timer, query_len in ((plain, 1), (spec, 4))
    )
    return expected_tokens(0.8, 3) * plain_s / spec_s


def test_the_whole_cache_instead_makes_the_gain_fall():
    """What MagicDec is about: with all of the KV read by every draft pass, long contexts do not pay."""
    short, long, whole = gain(2048, 512), gain(65_536, 512), gain(65_536, 65_540)
    assert short < long
    assert whole < 1.0 < long


def test_the_target_itself_holds_no_weights_but_a_small_cache():
    engine = {"max_num_seqs": 32}
    none, custom, other = (
        simulate(scenario(name, engine=engine, **fields)).kv
        for name, fields in (
            (None, {}),
            ("draft-model", {"draft": ITSELF}),
            ("draft-model", {"draft": {"model": "llama-3.2-1b", "kv_tokens": 512}}),
        )
    )
    assert custom.draft_weights_bytes == 512 * 32 * none.bytes_per_token
    assert custom.bytes_per_token == other.bytes_per_token == none.bytes_per_token
    assert other.draft_weights_bytes > 2e9


def test_the_target_itself_on_chips_of_its_own_leaves_the_target_all_blocks():
    """Its cache of fixed size takes no KV per token, by which its room was divided once."""
    small = {"model": "llama-3.2-1b"}
    custom, other = (simulate(scenario("draft-model", draft=d | {"chip": "h100-sxm"})) for d in (ITSELF, small))
    assert custom.kv.num_blocks == other.kv.num_blocks
    assert custom.kv.draft_weights_bytes == 0
    assert not custom.requests.failed.any()


@pytest.mark.parametrize("draft", [ITSELF, {"model": "llama-3.2-1b", "kv_tokens": 64}])
@pytest.mark.parametrize("policy", ["fixed", {"name": "disable-above-batch", "batch": 6}])
def test_fast_and_exact_stepping_agree(draft, policy):
    both_engines(scenario("draft-model", draft=draft, policy=policy))


def test_they_keep_the_rules_and_skip_the_prompt():
    drafter = build_replica(scenario("draft-model", draft=ITSELF), 0).main.timer.drafter
    check_drafter(drafter, 4)
    assert drafter.pass_tokens == (1, 1, 1)
    chunk = StepWork(1, 1000, (500_500,), (1000,), 0, (0,), 0, 4, (0,))
    assert seconds_of(drafter, chunk) == 0.0
