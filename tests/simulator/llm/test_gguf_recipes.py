"""File types of llama.cpp by name: the size of the file that the quantiser makes."""

import pytest

from forerun.errors import ForerunError
from hwprofiles.dtypes import dtype_bytes
from simulator.llm import load_architecture
from simulator.llm.gguf_file import recipe_dtypes, recipe_names
from simulator.timing.deployment import resolve_weight_dtypes


@pytest.mark.parametrize(
    ("model", "recipe", "gib"),
    [
        ("llama-2-7b", "Q4_0", 3.56),
        ("llama-2-7b", "Q8_0", 6.67),
        ("llama-2-7b", "Q4_K_M", 3.80),
        ("llama-2-7b", "Q5_K_M", 4.45),
        ("llama-2-7b", "Q6_K", 5.15),
        ("llama-3-8b", "Q4_K_M", 4.58),
        ("llama-3-70b", "Q4_K_M", 39.59),
        ("llama-3-8b", "F16", 14.96),
    ],
)
def test_files_are_as_large_as_published(model, recipe, gib):
    architecture = load_architecture(model)
    size = sum(architecture.weight_bytes(recipe_dtypes(architecture, recipe), dtype_bytes).values()) / 2**30
    assert size == pytest.approx(gib, rel=0.012)


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_names_formats_that_exist(recipe):
    dtypes = recipe_dtypes(load_architecture("gpt-oss-20b"), recipe)
    assert all(dtype_bytes(dtype) > 0 for dtype in dtypes.values())


def test_a_name_that_is_format_and_file_type_is_the_file():
    """llama.cpp quantises the embedding too, and keeps more bits of the output."""
    dtypes = resolve_weight_dtypes(load_architecture("llama-2-7b"), "q4_0")
    assert (dtypes["mlp"], dtypes["embedding"], dtypes["lm_head"]) == ("q4_0", "q4_0", "q6_k")


def test_a_table_that_is_the_head_too_gets_the_formats_of_the_head():
    """Files of Qwen3-0.6B: a quarter of the weights of a Q4_0 file are its table, in Q6_K."""
    tied, disaggregated = (recipe_dtypes(load_architecture(model), "q4_0") for model in ("qwen3-0.6b", "llama-2-7b"))
    assert (tied["embedding"], tied["lm_head"]) == ("q6_k", "q6_k")
    assert disaggregated["embedding"] == "q4_0"


def test_gpt_oss_keeps_8_bits_beside_its_experts():
    """ggml-org's file of gpt-oss-120b has 59.02 GiB."""
    architecture = load_architecture("gpt-oss-120b")
    dtypes = recipe_dtypes(architecture, "mxfp4_moe")
    assert (dtypes["expert"], dtypes["attention"], dtypes["lm_head"]) == ("mxfp4", "q8_0", "q8_0")
    assert sum(architecture.weight_bytes(dtypes, dtype_bytes).values()) / 2**30 == pytest.approx(59.02, rel=0.012)


def test_q4_k_is_short_for_q4_k_m_and_others_are_refused():
    architecture = load_architecture("llama-2-7b")
    assert recipe_dtypes(architecture, "q4_k") == recipe_dtypes(architecture, "q4_k_m")
    with pytest.raises(ForerunError, match=r"no format or GGUF file type 'q4_k_x'; did you mean 'q4_k_"):
        resolve_weight_dtypes(architecture, "q4_k_x")
