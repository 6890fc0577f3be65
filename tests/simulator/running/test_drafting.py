"""Whole runs with every drafter: both engine paths agree, counters and blocks are those of the proposal."""

import json

import numpy as np
import pytest
from both_engines import assert_same_bytes, both_engines
from numpy.testing import assert_allclose, assert_array_equal
from scenario_parts import burst, closed_loop, lognormal, on_h100, poisson, uniform

from forerun.errors import ForerunError
from simulator.llm import load_architecture
from simulator.llm.draft_heads import published_head
from simulator.running.build import build_replica
from simulator.running.drafting import build_drafter
from simulator.running.run import simulate
from simulator.speculation import draft_survival
from simulator.speculation.proposal import proposal
from simulator.timing import HostDrafter, check_drafter

ALPHA = {"alpha": 0.7}
METHODS = {
    "draft-model": {"num_speculative_tokens": 3, "draft": {"model": "llama-3.2-1b"}},
    "draft-model tree": {"tree": {"choices": [[0], [1], [0, 0], [0, 1]]}, "draft": {"model": "llama-3.2-1b"}},
    "ngram": {"num_speculative_tokens": 5},
    "suffix": {"num_speculative_tokens": 8},
    "medusa": {"tree": "medusa-63", "acceptance": {"curve": "medusa-vicuna-7b"}},
    "eagle": {"tree": "eagle-25", "acceptance": {"alpha": 0.7, "spread": 0.1}},
    "eagle2": {"tree": {"depth": 6, "top_k": 10, "nodes": 60}, "acceptance": {"acceptance_length": 4.0}},
    "eagle3": {"num_speculative_tokens": 3},
    "mtp": {"num_speculative_tokens": 2},
    "parallel-draft": {"num_speculative_tokens": 7},
}


def scenario(name=None, engine=None, workload=None, **fields):
    speculation = None
    if name is not None:
        speculation = {"method": name.split()[0], "acceptance": ALPHA} | METHODS.get(name, {}) | fields
    large = {"model": "deepseek-v3", "hardware": {"chip": "h200-sxm", "tensor_parallel": 8}}
    workload = workload or poisson(40.0, 60, lognormal(300, 1.0, 2048), uniform(1, 150))
    sections = {"engine": engine or {}, "speculation": speculation}
    return on_h100(workload, **sections, **(large if name == "mtp" else {}))


@pytest.mark.parametrize("name", [None, *METHODS])
def test_fast_and_exact_stepping_agree_for_every_method(name):
    both_engines(scenario(name, engine={"num_kv_blocks": 1200, "max_num_seqs": 24}))


@pytest.mark.parametrize("scheduler", ["prefill-first", "static"])
@pytest.mark.parametrize("name", METHODS)
def test_sequences_that_ended_and_are_computed_on_stay_within_their_blocks(name, scheduler):
    """Between two looks at the queue they verified as many tokens past their answer as their last drafts had."""
    steps = {"num_scheduler_steps": 8} if scheduler == "prefill-first" else {}
    work = poisson(4.0, 50, 300, uniform(20, 120))
    assert not simulate(scenario(name, engine={"scheduler": scheduler, **steps}, workload=work)).requests.failed.any()


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_one_deployment_share_its_prices(name):
    def timer(seed=0, **fields):
        return build_replica(scenario(name, **fields), seed).main.timer

    assert timer() is timer(seed=1)
    assert timer().recordings is not timer(policy="disable-above-batch").recordings
    assert timer() is not timer(draft=METHODS[name].get("draft", {}) | {"step_s": 0.001})


@pytest.mark.parametrize("name", METHODS)
def test_counters_are_those_of_the_proposal(name):
    requested = scenario(name)
    result = simulate(requested)
    proposed, counters = proposal(requested.speculation), result.speculation
    assert not result.requests.failed.any()
    assert result.steps.output_tokens.sum() == result.requests.output_tokens.sum()
    assert counters.draft_tokens == counters.num_drafts * proposed.nodes
    assert result.requests.draft_tokens.sum() == counters.draft_tokens
    assert len(counters.accepted_per_position) == proposed.depth
    assert set(result.steps.query_len) == {proposed.nodes + 1}
    rates = np.array(counters.accepted_per_position) / counters.num_drafts
    survival = draft_survival(requested.speculation)
    assert_allclose(rates, survival, atol=5 * np.sqrt(0.25 / counters.num_drafts) + 0.05 * (name == "eagle"))


@pytest.mark.parametrize("method", ["draft-model", "eagle3", "medusa"])
def test_a_chain_given_as_a_tree_is_the_same_run(method):
    draft = {"draft": {"model": "llama-3.2-1b"}} if method == "draft-model" else {"draft": None}
    chain = simulate(scenario(method, num_speculative_tokens=3, tree=None, **draft, acceptance=ALPHA))
    choices = {"choices": [[0], [0, 0], [0, 0, 0]]}
    tree = simulate(scenario(method, num_speculative_tokens=None, tree=choices, **draft, acceptance=ALPHA))
    assert_same_bytes(chain, tree)


def test_kv_slots_of_all_nodes_are_held_and_rejected_ones_given_back():
    """One request of 100 + 100 tokens: its last verify step holds its context, all nodes and the next step's slots."""
    work = burst(1, 100, 100)
    never = {"alpha": 0.0, "other_ranks": [0.0]}
    result = simulate(scenario("eagle", engine={"block_size": 1}, workload=work, acceptance=never))
    verify = result.steps.decode_seqs > 0
    held = result.steps.kv_blocks[verify]
    assert_array_equal(held, 100 + np.arange(99) + 26 + 25)
    sure = simulate(scenario("eagle", engine={"block_size": 1}, workload=work, acceptance={"alpha": 1.0}))
    steps = sure.steps.kv_blocks[sure.steps.decode_seqs > 0]
    assert_array_equal(steps, 100 + 6 * np.arange(len(steps)) + 26 + 25)
    assert len(steps) == -(-99 // 6)
    chain = {"num_speculative_tokens": 3, "tree": None, "acceptance": {"alpha": 0.0}}
    medusa = simulate(scenario("medusa", engine={"block_size": 1}, workload=work, **chain))
    assert_array_equal(medusa.steps.kv_blocks[medusa.steps.decode_seqs > 0], 100 + np.arange(99) + 4)


def test_drafters_leave_fewer_blocks_by_what_they_hold():
    blocks = {name: simulate(scenario(name)).kv for name in (None, "ngram", "medusa", "eagle3", "draft-model")}
    assert blocks["ngram"].draft_weights_bytes == 0
    assert blocks["ngram"].bytes_per_token == blocks[None].bytes_per_token
    assert blocks["eagle3"].bytes_per_token == blocks[None].bytes_per_token * 33 / 32
    assert blocks[None].num_blocks > blocks["eagle3"].num_blocks > blocks["draft-model"].num_blocks
    assert blocks["medusa"].draft_weights_bytes > 4e9


def test_alone_speculation_pays_and_a_big_tree_does_not_in_a_crowd():
    def mean_e2e(name, concurrency, requests):
        work = closed_loop(concurrency, requests, 128, 128)
        requests = simulate(scenario(name, workload=work)).requests
        return (requests.finished_s - requests.arrival_s).mean()

    single = {name: mean_e2e(name, 1, 2) for name in (None, "eagle", "eagle2", "eagle3", "ngram", "parallel-draft")}
    assert all(single[name] < single[None] / 1.3 for name in single if name is not None)
    assert mean_e2e("eagle2", 128, 256) > 1.5 * mean_e2e(None, 128, 256)


def test_a_drafter_of_ones_own():
    requested = scenario("ngram")
    free = simulate(requested, make_drafter=lambda request: HostDrafter(0.0, 0.0))
    slow = simulate(requested, make_drafter=lambda request: HostDrafter(1.0, 0.0))
    usual = simulate(requested, make_drafter=build_drafter)
    assert free.engine.simulated_s < usual.engine.simulated_s < slow.engine.simulated_s
    assert slow.engine.simulated_s - free.engine.simulated_s > 0.9 * slow.engine.steps * 0.8
    check_drafter(HostDrafter(1.0, 0.0), 6)


@pytest.mark.parametrize("scheduler", ["prefill-first", "sglang", "static"])
@pytest.mark.parametrize("name", ["eagle2", "parallel-draft", "ngram"])
def test_other_schedulers_serve_every_method(scheduler, name):
    result = simulate(scenario(name, engine={"scheduler": scheduler, "max_num_seqs": 16}))
    assert np.isfinite(result.requests.finished_s).all()
    assert result.steps.output_tokens.sum() == result.requests.output_tokens.sum()
    assert 0 < result.speculation.accepted_tokens < result.requests.output_tokens.sum()


@pytest.mark.parametrize("scheduler", ["vllm-v1", "prefill-first", "static"])
@pytest.mark.parametrize(("name", "budget"), [("eagle2", 2000), ("eagle2", 61), ("eagle3", 101), ("medusa", 2000)])
def test_a_budget_smaller_than_the_batch_is_served_step_by_step(scheduler, name, budget):
    work = burst(64, 10, 50)
    engine = {"max_num_batched_tokens": budget, "max_num_seqs": 64, "scheduler": scheduler}
    engine["enable_chunked_prefill"] = scheduler != "prefill-first"
    result = simulate(scenario(name, engine=engine, workload=work))
    assert np.isfinite(result.requests.finished_s).all()
    assert result.steps.output_tokens.sum() == 64 * 50
    if scheduler == "vllm-v1":
        tokens = result.steps.decode_seqs * result.steps.query_len
        assert tokens.max() < budget + result.steps.query_len.max()


HEAD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256}  # fmt: skip
SPECULATORS = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 64000,
               "transformer_layer_config": HEAD | {"intermediate_size": 8192}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "sizes"),
    [(HEAD | {"draft_vocab_size": 32000}, (14336, 32000)), (SPECULATORS, (8192, 64000))],
)
def test_a_head_in_a_folder_gives_the_drafter_its_sizes(config, sizes, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = published_head(str(tmp_path), "eagle3", load_architecture("llama-3.1-8b"))
    assert (head.sizes.num_layers, head.sizes.intermediate_size, head.sizes.draft_vocab_size) == (1, *sizes)
    drafts = scenario("eagle3", draft={"model": str(tmp_path)})
    known = build_replica(scenario("eagle3", draft={"intermediate_size": sizes[0], "draft_vocab_size": sizes[1]}))
    assert build_replica(drafts).memory.draft_weight_bytes == known.memory.draft_weight_bytes
    with pytest.raises(ForerunError, match="a head of method eagle3, not eagle"):
        published_head(str(tmp_path), "eagle", load_architecture("llama-3.1-8b"))
    with pytest.raises(ForerunError, match=r"hidden states of size 4096, llama-3.3-70b has 8192"):
        published_head(str(tmp_path), "eagle3", load_architecture("llama-3.3-70b"))
    with pytest.raises(ForerunError, match=r"draft head, not a model; name its folder in speculation.draft.model"):
        load_architecture(tmp_path)
