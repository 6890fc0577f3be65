"""Every model of the catalogue: a draft head for each, and short runs of those with layers of their own kind."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.llm import architecture_names, load_architecture
from simulator.llm.draft_heads import HeadSizes, eagle3_head, eagle_head, parallel_head
from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from

SPARSE = ("deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "glm-5", "glm-5.2")
HEADS = ("eagle", "eagle2", "eagle3", "parallel-draft")
RECURRENT = tuple(name for name in architecture_names() if load_architecture(name).state_bytes_per_sequence)
UNIT = 512
"""Prompt tokens of one prefix hash in a Mooncake trace."""
BIG = {"chip": "b300-sxm", "tensor_parallel": 8}


@pytest.mark.parametrize("make", [eagle_head, eagle3_head, parallel_head])
def test_every_model_of_the_catalogue_has_a_draft_head(make):
    for name in architecture_names():
        head = make(load_architecture(name), HeadSizes()).architecture
        assert head.kv_elements_per_token > 0, name


def test_a_model_without_attention_layers_refuses_a_draft_head():
    target = load_architecture("nemotron-3-nano-30b-a3b")
    groups = tuple(g for g in target.layer_groups if g.layer.mixer is None or g.layer.mixer.softmax_attention is None)
    with pytest.raises(ForerunError, match=r"speculation\.method: .* has no attention layer"):
        eagle_head(replace(target, layer_groups=groups), HeadSizes())


@pytest.mark.parametrize("model", SPARSE)
@pytest.mark.parametrize("method", HEADS)
def test_sparse_models_draft_with_every_head(model, method):
    speculation = {"method": method, "num_speculative_tokens": 2, "acceptance": {"alpha": 0.7}}
    run = tiny_data(num_requests=3) | {"model": model, "hardware": BIG, "speculation": speculation}
    result = simulate(scenario_from(run, "head"))
    assert result.speculation.accepted_tokens > 0


def shared_prompts(folder, tokens):
    """A trace of prompts that are equal but for their last units, sent at about the same time."""
    hashes = list(range(tokens // UNIT))
    rows = [
        {"timestamp": 10 * n, "input_length": tokens, "output_length": 200, "hash_ids": [*hashes, 1000 + n]}
        for n in range(40)
    ]
    file = folder / "shared.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"trace": str(file)}


@pytest.mark.parametrize("model", RECURRENT)
def test_recurrent_models_play_a_trace_with_prefix_hashes(model, tmp_path):
    """Prompts share blocks, though a recurrent state is kept only at the end of a page, which they do not reach."""
    run = {"model": model, "hardware": BIG}
    page = build_run(scenario_from(run | {"workload": tiny_data()["workload"]}, "pages"), 0).main.limits.page_tokens
    workload = shared_prompts(tmp_path, max(page - 1, UNIT + 1))
    assert not np.any(simulate(scenario_from(run | {"workload": workload}, "hashes")).requests.failed)


@pytest.mark.parametrize("caching", [(False, True), (True, False), (False, False)])
def test_each_pool_shares_blocks_or_not(caching, tmp_path):
    pools = {
        role: {"role": role, "engine": {"enable_prefix_caching": cached}}
        for role, cached in zip(("prefill", "decode"), caching, strict=True)
    }
    run = {"model": "llama-3.2-1b", "hardware": {"chip": "h100-sxm"}, "workload": shared_prompts(tmp_path, 1100)}
    result = simulate(scenario_from(run | {"pools": pools, "kv_transfer": {"link": "pcie5-x16"}}, "pools"))
    assert bool(result.requests.cached_tokens.any()) == caching[0]


@pytest.mark.parametrize("source", [{"alpha": 0.7, "spread": 0.2}, {"alpha": 0.7}, {"conditional": [0.8, 0.7]}])
def test_acceptance_without_drafting_has_intervals(source):
    speculation = {"method": "none", "acceptance": source}
    assert simulate(scenario_from(tiny_data() | {"speculation": speculation}, "none"), intervals=True).model_error
