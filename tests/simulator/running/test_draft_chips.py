"""A drafter on chips of its own, or with a part of the KV: what crosses the link, and whose memory it takes."""

import numpy as np
import pytest
from both_engines import both_engines
from drafter_prices import seconds as seconds_of
from refused import refused
from scenario_parts import burst, drafts, on_h100
from test_drafting import scenario

from forerun.errors import ForerunError
from hwprofiles import load_link
from simulator.running.build import build_replica
from simulator.running.run import simulate
from simulator.speculation import expected_tokens
from simulator.timing import RemoteDrafter, StepWork, check_drafter, decode_step

SEPARATE = {"model": "llama-3.2-1b", "chip": "h100-sxm"}
FAR = {"chip": "l40s", "link": "pcie4-x16", "overlap": 0.7}
ITSELF = {"model": "llama-3.1-8b", "kv_tokens": 512}
WORK = StepWork(0, 0, (0,), (0,), 0, (0,), 8, 4, (8 * 500,))


def timer(method="draft-model", **fields):
    return build_replica(scenario(method, **fields), 0).main.timer


def test_the_same_chip_over_a_link_costs_two_messages_more():
    here, there = timer(), timer(draft=SEPARATE | {"link": "pcie5-x16"})
    link = load_link("pcie5-x16")
    # 8 sequences: 4 verified tokens of 4 bytes there, 3 draft tokens of 4 bytes back.
    messages = 2 * link.latency_s + (8 * 4 + 8 * 3) * 4 / link.bandwidth_bytes_per_s
    assert there.seconds(WORK) - here.seconds(WORK) == pytest.approx(messages, rel=1e-9)


@pytest.mark.parametrize(("method", "states"), [("eagle", 1), ("eagle3", 3)])
def test_a_head_is_sent_the_hidden_states_that_it_reads(method, states):
    link, fields = load_link("pcie5-x16"), {"num_speculative_tokens": 3, "tree": None, "acceptance": {"alpha": 0.7}}
    far, near = (
        seconds_of(timer(method, draft=draft, **fields).drafter, WORK)
        for draft in ({"chip": "h100-sxm", "link": "pcie5-x16"}, None)
    )
    size = 32 * (4 + states * 4096 * 2) + 8 * 3 * 4
    assert far - near == pytest.approx(2 * link.latency_s + size / link.bandwidth_bytes_per_s, rel=1e-9)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_overlap_hides_drafting_behind_the_target(overlap):
    single = timer(draft=SEPARATE | {"overlap": overlap})
    target, drafting = single.target.seconds(WORK), seconds_of(single.drafter, WORK)
    host = single.seconds(WORK) - target - drafting + overlap * min(target, drafting)
    without = timer(draft=SEPARATE)
    assert host == pytest.approx(without.seconds(WORK) - target - drafting, rel=1e-9)
    if overlap == 1.0:
        assert single.seconds(WORK) == pytest.approx(max(target, drafting) + host, rel=1e-9)


def test_the_drafter_takes_no_memory_of_the_target():
    none, here, there = (
        simulate(scenario(name, **fields)).kv
        for name, fields in ((None, {}), ("draft-model", {}), ("draft-model", {"draft": SEPARATE}))
    )
    assert there.draft_weights_bytes == 0.0
    assert there.bytes_per_token == none.bytes_per_token < here.bytes_per_token
    assert here.num_blocks < there.num_blocks <= none.num_blocks


def test_a_small_draft_chip_limits_the_blocks_or_is_refused():
    wide, narrow = (simulate(scenario("draft-model", draft=SEPARATE | {"chip": c})).kv for c in ("h100-sxm", "l40s"))
    assert narrow.num_blocks == wide.num_blocks, "1B parameters leave room enough on 48 GB"
    big = SEPARATE | {"model": "llama-3.1-8b", "chip": "rtx-4090"}
    with refused("speculation.draft: chip: llama-3.1-8b does not fit 1 x rtx-4090"):
        simulate(scenario("draft-model", draft=big | {"weights_dtype": "fp32"}))
    assert simulate(scenario("draft-model", draft=big)).kv.num_blocks < wide.num_blocks


@pytest.mark.parametrize(
    ("method", "draft"),
    [
        ("draft-model", FAR | {"model": "llama-3.2-1b"}),
        ("eagle3", FAR),
        ("parallel-draft", FAR),
        ("draft-model", ITSELF),
        ("draft-model", {"model": "llama-3.2-1b", "kv_tokens": 64}),
    ],
)
@pytest.mark.parametrize("policy", ["fixed", {"name": "disable-above-batch", "batch": 6}])
def test_fast_and_exact_stepping_agree(method, draft, policy):
    fast, _ = both_engines(scenario(method, draft=draft, policy=policy, engine={"num_kv_blocks": 2000}))
    noted = any("the drafter runs on 1 x l40s per replica over pcie4-x16" in note for note in fast.notes)
    assert (fast.steps.interconnect_s > 0.0).any() == noted == ("chip" in draft)


@pytest.mark.parametrize(("method", "tokens"), [("eagle3", 3), ("parallel-draft", 7)])
def test_remote_drafters_keep_the_rules(method, tokens):
    drafter = timer(method, draft={"chip": "h100-sxm"}).drafter
    assert isinstance(drafter, RemoteDrafter)
    check_drafter(drafter, tokens + 1)


def test_a_slower_chip_drafts_slower_and_its_work_is_not_the_targets():
    fast, slow = (simulate(scenario("draft-model", draft=SEPARATE | {"chip": chip})) for chip in ("h100-sxm", "l40s"))
    assert slow.engine.simulated_s > fast.engine.simulated_s
    near = simulate(scenario("draft-model"))
    per_token = [r.steps.bytes.sum() / r.steps.output_tokens.sum() for r in (near, fast)]
    assert per_token[1] < per_token[0]
    assert np.isfinite(fast.steps.flops).all()


def test_unknown_chips_and_links_are_named():
    for field, value in (("chip", "h10-sxm"), ("link", "pcie55")):
        with pytest.raises(ForerunError, match=f"speculation.draft.{field}: .*{value}"):
            simulate(scenario("draft-model", draft=SEPARATE | {field: value}))


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
    none = simulate(scenario(engine={"max_num_seqs": 32})).kv
    custom, other = (
        simulate(scenario("draft-model", draft=draft, engine={"max_num_seqs": 32})).kv
        for draft in (ITSELF, {"model": "llama-3.2-1b", "kv_tokens": 512})
    )
    assert custom.draft_weights_bytes == 512 * 32 * none.bytes_per_token
    assert custom.bytes_per_token == other.bytes_per_token == none.bytes_per_token
    assert other.draft_weights_bytes > 2e9


def test_the_target_itself_on_chips_of_its_own_leaves_the_target_all_blocks():
    """Its cache of fixed size takes no KV per token, by which its room was divided once."""
    drafts, engine = (ITSELF, {"model": "llama-3.2-1b"}), {"max_num_seqs": 32}
    both = [scenario("draft-model", draft=draft | {"chip": "h100-sxm"}, engine=engine) for draft in drafts]
    custom, other = map(simulate, both)
    assert custom.kv.num_blocks == other.kv.num_blocks
    assert custom.kv.draft_weights_bytes == 0
    assert not custom.requests.failed.any()


def test_they_keep_the_rules_and_skip_the_prompt():
    drafter = timer(draft=ITSELF).drafter
    check_drafter(drafter, 4)
    assert drafter.pass_tokens == (1, 1, 1)
    chunk = StepWork(1, 1000, (500_500,), (1000,), 0, (0,), 0, 4, (0,))
    assert seconds_of(drafter, chunk) == 0.0
