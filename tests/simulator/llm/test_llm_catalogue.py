"""The catalogue: every published count is reproduced, every name loads, every entry says where it comes from."""

import math
import re
from pathlib import Path

import pytest
import yaml

import simulator.llm
from forerun.errors import ForerunError
from simulator.llm import (
    architecture_aliases,
    architecture_names,
    architecture_summary,
    load_architecture,
    mtp_architecture,
    published_parameters,
)
from simulator.llm.load import catalogue_model

CONTRACT_NAMES = [
    "llama-2-7b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b",
    "llama-3.2-3b", "llama-3.3-70b", "qwen2.5-7b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b",
    "qwen3-235b-a22b", "mistral-7b", "mixtral-8x7b", "gemma-3-27b", "gpt-oss-20b", "gpt-oss-120b",
    "deepseek-v3", "deepseek-r1", "glm-4.5-air", "vicuna-7b", "vicuna-13b", "vicuna-33b",
]  # fmt: skip


def total_as_published(name: str) -> int:
    """Our count of everything that the published total counts."""
    architecture, published = load_architecture(name), published_parameters(name)
    total = architecture.parameters().total + published.other_parameters
    if published.includes_mtp:
        own_tables = 2 * architecture.vocab_size * architecture.hidden_size
        total += architecture.mtp.parameters(architecture.hidden_size) + architecture.mtp.count * own_tables
    return total


@pytest.mark.parametrize("name", architecture_names())
def test_published_total_is_reproduced(name):
    published = published_parameters(name)
    assert total_as_published(name) == pytest.approx(published.total, rel=0 if published.exact else 0.01)


@pytest.mark.parametrize("name", [name for name in architecture_names() if published_parameters(name).active])
def test_published_active_count_is_reproduced_to_its_last_digit(name):
    architecture, published = load_architecture(name), published_parameters(name)
    counts = architecture.parameters()
    table = architecture.vocab_size * architecture.hidden_size
    ours = counts.active + {"with-embedding": table, "without-embedding": 0, "layers": -table}[published.active_counts]
    last_digit = 10 ** (math.floor(math.log10(published.active)) - 1)
    assert abs(ours - published.active) <= max(0.01 * published.active, last_digit)


def test_catalogue_has_every_name_of_the_contract():
    assert set(CONTRACT_NAMES) <= set(architecture_names())
    assert len(architecture_names()) >= 35


@pytest.mark.parametrize("name", architecture_names())
def test_entry_is_complete_and_consistent(name):
    architecture = load_architecture(name)
    assert architecture.name == name
    assert architecture.source.startswith("https://huggingface.co/")
    published = published_parameters(name)
    assert published.source
    counts = architecture.parameters()
    assert counts.total == sum(counts[2:])
    assert counts.active <= counts.total
    assert set(architecture.checkpoint_dtypes.values()) <= {"bf16", "fp16", "fp32", "fp8_block", "int4", "fp4", "mxfp4"}
    summary = architecture_summary(architecture)
    assert summary["parameters"] == counts.total
    assert sum(layer["count"] for layer in summary["layers"]) == architecture.num_layers


@pytest.mark.parametrize(
    ("name", "expert"),
    [
        *((name, "fp8_block") for name in ("deepseek-v3", "deepseek-r1", "deepseek-v3.2", "kimi-k2", "minimax-m2")),
        ("mimo-v2-flash", "fp8_block"),
        ("deepseek-v4-pro", "mxfp4"),
        ("deepseek-v4-flash", "mxfp4"),
    ],
)
def test_checkpoints_in_blocks_say_so(name, expert):
    dtypes = load_architecture(name).checkpoint_dtypes
    assert (dtypes["attention"], dtypes["expert"], dtypes["lm_head"]) == ("fp8_block", expert, "bf16")


@pytest.mark.parametrize("name", architecture_names())
def test_tensor_shapes_sum_to_the_parameter_counts(name):
    """What the engine multiplies is the model: matrices plus a small rest of biases, norms and tables."""
    architecture = load_architecture(name)
    by_part = architecture.parameters_by_part()
    matrices = dict.fromkeys(by_part, 0)
    for group in architecture.layer_groups:
        for tensor in group.layer.tensors(architecture.hidden_size):
            matrices[tensor.part] += group.count * tensor.out_features * tensor.in_features * tensor.copies
    for part in ("attention", "mlp", "expert", "shared_expert", "router"):
        assert matrices[part] <= by_part[part] <= 1.003 * matrices[part]
    for part in ("embedding", "lm_head", "norm"):
        assert matrices[part] == 0


def test_repository_names_find_their_model():
    assert load_architecture("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert load_architecture("qwen/qwen3-8b").name == "qwen3-8b"
    assert set(architecture_aliases().values()) == set(architecture_names())


def test_aliases_name_one_model_each():
    entries = (Path(simulator.llm.__file__).parent / "catalogue").glob("*.yaml")
    declared = [
        name.lower() for path in entries for name in yaml.safe_load(path.read_text(encoding="utf-8"))["aliases"]
    ]
    assert len(declared) == len(set(declared)) > 0


NAMED = {
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic": ("llama-3.1-8b", "fp8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "int4"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama-3.1-8b", "int8"),
    "RedHatAI/Qwen3-32B-NVFP4A16": ("qwen3-32b", "nvfp4a16"),
    "Qwen/Qwen3-32B-FP8": ("qwen3-32b", "fp8_block"),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("llama-3.3-70b", "fp4"),
    "cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit": ("qwen3.6-35b-a3b", "int4"),
    "cyankiwi/Qwen3.6-35B-A3B-AWQ-8bit": ("qwen3.6-35b-a3b", "w8a16"),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8": ("qwen2.5-72b", "w8a16"),
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": ("llama-3.1-8b", "int4"),
    "mlx-community/Qwen3-8B-4bit": ("qwen3-8b", "mlx4"),
    "x/Qwen3-8B-4bit": ("qwen3-8b", "int4"),
    "amd/DeepSeek-R1-0528-MXFP4": ("deepseek-r1", "mxfp4"),
    "bartowski/Qwen_Qwen3-8B-GGUF:Q6_K": ("qwen3-8b", "q6_k"),
    "google/gemma-3-27b-it-qat-q4_0-gguf": ("gemma-3-27b", "q4_0"),
    "unsloth/gpt-oss-20b-BF16": ("gpt-oss-20b", "bf16"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_repository_name_is_its_model_in_its_format(name):
    model, dtype = NAMED[name]
    architecture = load_architecture(name)
    part = "expert" if architecture.parameters().expert else "mlp"
    assert architecture.name == model
    assert (architecture.checkpoint_dtypes[part] + ":").split(":")[0] == dtype
    assert name in architecture.notes[0]
    tables = {architecture.checkpoint_dtypes[table] for table in ("embedding", "lm_head")}
    assert tables == {dtype} if dtype in ("mlx4", "bf16", "q6_k") else tables == {"bf16"} or dtype == "q4_0"


def test_gguf_files_of_a_model_in_mxfp4_keep_its_experts():
    for tag in ("F16", "Q4_K_M", "BF16"):
        assert load_architecture(f"unsloth/gpt-oss-20b-GGUF:{tag}").checkpoint_dtypes["expert"] == "mxfp4"
    assert load_architecture("unsloth/gpt-oss-20b-BF16").checkpoint_dtypes["expert"] == "bf16"


def test_a_model_in_4_bits_keeps_its_other_parts_in_another_format_of_4_bits():
    own, converted = load_architecture("kimi-k2.5"), load_architecture("nvidia/Kimi-K2.6-NVFP4")
    assert converted.checkpoint_dtypes == {**own.checkpoint_dtypes, "expert": "fp4"}


ENDINGS = ("FP8", "FP8-dynamic", "NVFP4", "AWQ", "GPTQ-Int4", "quantized.w4a16", "bnb-4bit", "GGUF:Q4_K_M", "MXFP4")


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_changes_the_format_of_every_repository_and_never_its_model(ending):
    for alias, name in architecture_aliases().items():
        owner, _, tail = alias.rpartition("/")
        for text in (f"{alias}-{ending}", f"Someone/{tail}-{ending}", f"someone/{owner}_{tail}-{ending}"):
            plain = re.sub("-bf16$", "", alias)
            if plain == alias and owner:
                assert load_architecture(text).name == name, text


def test_a_name_of_another_size_generation_or_kind_is_never_read():
    """Each number of each repository changed, and each of many kinds added: no name is read as the same model."""
    numbers = re.compile(r"(?<=[/a-z-])\d+")
    others = [
        f"{alias[: number.start()]}97{alias[number.end() :]}"
        for alias in architecture_aliases()
        for number in numbers.finditer(alias, alias.find("/"))
    ]
    kinds = ("omni", "math", "vl", "distill", "nano", "mini", "moe", "1m", "eagle3", "reranker", "embedding", "pruned")
    others += [f"{alias}-{kind}" for alias in architecture_aliases() for kind in kinds]
    for name in set(others) - {"microsoft/phi-4-mini"}:  # a model of the catalogue by itself
        assert catalogue_model(name) is catalogue_model(f"{name}-fp8") is None, name


@pytest.mark.parametrize(
    ("word", "message"),
    [
        *((word, "did you mean") for word in ("lama-3.1-8b", "lama3.1-8b", "Qwen/Qwen3-8")),
        *((word, "model") for word in ("", " ", "nothing-like-it", "a/b/c", "\0", "x" * 5000, None, 3)),
    ],
)
def test_no_such_model_is_one_line_with_the_nearest(word, message):
    with pytest.raises(ForerunError, match=message) as error:
        load_architecture(word)
    assert len(str(error.value).splitlines()) == 1


def test_deepseek_v3_with_its_mtp_module_is_the_published_685b():
    architecture = load_architecture("deepseek-v3")
    assert architecture.mtp.count == 1
    stored = architecture.mtp.parameters(7168) + 2 * architecture.vocab_size * architecture.hidden_size
    assert architecture.parameters().total + stored == 684_489_845_504


def test_mtp_drafter_is_one_layer_that_starts_with_the_joining_projection():
    drafter = mtp_architecture(load_architecture("deepseek-v3"))
    assert drafter.num_layers == 1
    first = drafter.layer_groups[0].layer.tensors(7168)[0]
    assert (first.out_features, first.in_features) == (7168, 2 * 7168)
    with pytest.raises(ForerunError, match=r"llama-3\.1-8b"):
        mtp_architecture(load_architecture("llama-3.1-8b"))


def test_every_sparse_model_states_an_active_count():
    for name in architecture_names():
        sparse = load_architecture(name).parameters().expert > 0
        assert sparse == (published_parameters(name).active is not None), name
