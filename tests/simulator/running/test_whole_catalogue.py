"""Every model of the catalogue runs: with every method and draft head, with shared prefixes, on several layouts."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from scenario_parts import closed_loop, drafts
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.llm import architecture_names, load_architecture
from simulator.llm.draft_heads import HeadSizes, eagle3_head, eagle_head, parallel_head
from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.speculation.methods import METHODS

LAYOUTS = (
    {"chip": "gb300", "tensor_parallel": 8},
    {"chip": "gb300", "tensor_parallel": 8, "attention_data_parallel": 4, "expert_parallel": 8},
)
BLOCK = 512
SPARSE = ("deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "glm-5", "glm-5.2")


def shared_prompts(path, tokens):
    """A trace of 16 prompts of ``tokens`` tokens, of which all share the first block of 512 tokens and some more."""
    blocks = -(-tokens // BLOCK)
    rows = []
    for n in range(16):
        shared = 1 + n % 4 // 3
        hashes = [*range(shared), *range(100 * n + 100, 100 * n + 100 + blocks - shared)]
        rows.append({"timestamp": 5 * n, "input_length": tokens, "output_length": 8 + n % 5, "hash_ids": hashes})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def scenario(model, hardware, **fields):
    data = {"model": model, "hardware": hardware, "engine": {"max_num_seqs": 8}} | fields
    data.setdefault(
        "workload",
        closed_loop(2, 3, 40, 6),
    )  # fmt: skip
    return scenario_from(data, "test")


def smallest_fitting(model):
    for chips in (1, 4, 8):
        with suppress(ForerunError):
            hardware = LAYOUTS[0] | {"tensor_parallel": chips}
            build_run(scenario(model, hardware), 0)
            return hardware
    raise AssertionError(f"{model} fits none of 1, 4 and 8 chips")


@pytest.mark.parametrize("model", architecture_names())
def test_it_runs_with_every_method(model):
    """A combination runs or is refused; it does not crash, and no invariant breaks."""
    for hardware in LAYOUTS:
        for method in METHODS:
            draft = {"draft": {"model": "llama-3.2-1b"}} if method == "draft-model" else {}
            block = drafts(method, 3) | draft
            with suppress(ForerunError):
                one = scenario(model, hardware, speculation=block)
                if hardware is LAYOUTS[0] and method not in ("eagle3", "medusa"):
                    build_run(one, 0)
                else:
                    simulate(one)


@pytest.mark.parametrize("model", architecture_names())
def test_it_shares_prefixes(model, tmp_path):
    """No sequence reads keys from fewer KV blocks than it holds, where sequences share blocks, and where they wait for
    memory. The prompts end just before a page of the model's recurrent states does."""
    trace = tmp_path / "shared.jsonl"
    hardware = smallest_fitting(model)
    limits = build_run(scenario(model, hardware), 0).main.limits
    page = max(limits.page_tokens, BLOCK)
    pages = 3 if (load_architecture(model).max_position or 3 * page) > 3 * page else 2
    shared_prompts(trace, pages * page - 20)
    for blocks in (limits.num_blocks, 20 * page // limits.block_size):
        engine = {"max_num_seqs": 16, "num_kv_blocks": blocks}
        workload = {"trace": str(trace), "format": "mooncake"}
        summary = simulate(scenario(model, hardware, engine=engine, workload=workload)).summary
        assert summary["completed"] == 16


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
@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "parallel-draft"])
def test_sparse_models_draft_with_every_head(model, method):
    speculation = drafts(method, 2)
    run = tiny_data(num_requests=3) | {
        "model": model,
        "hardware": {"chip": "b300-sxm", "tensor_parallel": 8},
        "speculation": speculation,
    }
    result = simulate(scenario_from(run, "head"))
    assert result.speculation.accepted_tokens > 0
