"""Whole attention modules of a trace: what they mean, what is refused, and errors on shapes that no fit has seen."""

import numpy as np
import pytest
from made_kernels import rows_of

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary
from hwprofiles.formulas import SCALAR
from hwprofiles.kernels.sparse import IndexShape, SparseShape, index_time
from simulator.replay import Split, replay_kernels
from simulator.replay.modules import module_layer
from simulator.replay.predict import predict_table
from traces.kernels import read_kernels


def modules(**columns):
    sizes = {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 16} | columns.pop("sizes", {})
    texts = {"dtype": "fp8_block", "kv_dtype": "fp8", "library": "sglang", "name": "deepseek-ai/DeepSeek-V3.2 dsa"}
    return rows_of("sparse_decode", sizes, 1e-4, **texts | columns)


def test_a_module_is_its_projections_passes_index_and_attention():
    """Half of what the index and the attention take is not there in a layer that reads an earlier choice."""
    kernels = KernelLibrary("h100-sxm", "sglang")
    custom = predict_table(modules(name="zai-org/GLM-5.2 dsa"), kernels)
    shared = predict_table(modules(name="zai-org/GLM-5.2-FP8 dsa-shared"), kernels)
    assert 0 < shared.seconds[0] < custom.seconds[0]
    assert shared.flops[0] < custom.flops[0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"name": "deepseek-ai/DeepSeek-V3.2 csa"}, "has no attention of the kind 'csa'"),
        ({"name": "somebody/some-model dsa"}, "no model 'some-model'"),
        ({"sizes": {"batch": 4096, "kv_len": 131072}}, "more KV than the chip's memory holds"),
    ],
)
def test_modules_that_cannot_be_are_skipped_with_their_reason(columns, reason):
    result = predict_table(modules(**columns), KernelLibrary("h100-sxm", "sglang"))
    assert np.isnan(result.seconds).all()
    assert any(reason in word for word in result.refused)


def test_a_repository_in_another_format_is_the_same_model():
    assert module_layer("zai-org/GLM-5-FP8 dsa") == module_layer("zai-org/GLM-5 dsa")
    with pytest.raises(ForerunError, match="no attention of the kind 'msa'"):
        module_layer("zai-org/GLM-5 msa")


@pytest.mark.parametrize(
    ("chip", "table", "library", "most"),
    [
        ("h100-sxm", "sparse_attention/sglang/*/dsa_generation", "sglang", 6),
        ("h100-sxm", "sparse_attention/vllm/*/dsa_generation", "vllm", 6),
        ("h100-sxm", "msa/vllm/*/msa_generation", "vllm", 8),
        ("h200-sxm", "sparse_attention/sglang/*/dsv4_hca_generation", "sglang", 8),
        ("h200-sxm", "sparse_attention/vllm/*/dsa_generation", "vllm", 6),
        ("b200-sxm", "sparse_attention/vllm/*/dsa_context", "vllm", 10),
        ("h200-sxm", "sparse_attention/trtllm/*/dsa_generation", "trtllm", 12),
        ("b200-sxm", "sparse_attention/vllm/*/dsv4_csa_generation", "vllm", 6),
        ("b200-sxm", "sparse_attention/trtllm/*/dsa_generation", "trtllm", 9),
        ("b200-sxm", "sparse_attention/sglang/*/dsa_generation", "sglang", 8),
        ("h100-sxm", "msa/trtllm/*/msa_context", "trtllm", 8),
        ("h100-sxm", "msa/trtllm/*/msa_generation", "trtllm", 9),
        ("h200-sxm", "sparse_attention/vllm/*/dsv4_csa_context", "vllm", 9),
        ("b200-sxm", "sparse_attention/vllm/*/dsv4_csa_context", "vllm", 10),
    ],
)
def test_held_out_shapes_of_measured_modules(shared_data, chip, table, library, most):
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    (path,) = folder.glob(f"{table}_module_perf.parquet")
    result = replay_kernels(read_kernels(path), KernelLibrary(chip, library), Split(0.7, 1))
    assert result.overall.mape <= most


def test_selecting_takes_longest_from_about_twice_as_many_entries():
    """Where the entries are no more than those to choose nothing is sorted, and of very many few lie near the last one
    chosen; the terms that rise with the context are left out here."""
    library = KernelLibrary("b200-sxm", "vllm")
    shape = IndexShape(64, 128, 128, "fp8@csa", ratio=4, top_k=512)
    kept = library.parameters("sparse_prefill", shape.dtype)

    def near(tokens, cached):
        sizes = (8.0, 8.0 * tokens, 0.0, 8.0 * (cached + tokens))
        with_it, without = (
            index_time(SCALAR, library.limits("fp8"), kept.model_copy(update={"near_s": near_s}), shape, *sizes).seconds
            for near_s in (kept.near_s, 0.0)
        )
        return with_it - without

    assert near(1024, 1024) == 0
    assert 0 < near(1024, 65536) < 0.2 * near(1024, 3072)
    assert 2 * near(1024, 3072) == pytest.approx(near(2048, 2560), rel=0.1)


def test_a_library_without_a_kernel_scores_masked_pairs_too():
    """TensorRT-LLM 1.3 on MiniMax-M3: a prompt of twice the length takes four times as long; under vLLM, whose kernel
    reads 2,048 keys a query, twice."""
    growth = {}
    for library in ("trtllm", "vllm"):
        texts = {"dtype": "bf16", "kv_dtype": "bf16", "library": library, "name": "MiniMaxAI/MiniMax-M3 msa"}
        sizes = {"batch": 1, "num_heads": 16, "q_len": [8192, 16384], "kv_len": [8192, 16384]}
        rows = rows_of("sparse_prefill", sizes, **texts)
        short, long = predict_table(rows, KernelLibrary("h100-sxm", library)).seconds
        growth[library] = long / short
    assert growth["trtllm"] == pytest.approx(4, rel=0.05)
    assert growth["vllm"] < 2.5


def test_single_tokens_of_prompts_cost_no_more_than_decoded_ones():
    """vLLM serves them with the batch that it decodes: nothing is added for each."""
    library = KernelLibrary("b200-sxm", "vllm")
    shape = SparseShape(64, 1, 512, 512, 584, "fp8@csa", ratio=4, local=128, most=512)
    one, two = (
        library.sparse_prefill(shape, seqs=1024, q_tokens=1024 * tokens, pairs=1024 * tokens, kv_tokens=1024 * tokens)
        for tokens in (1, 2)
    )
    assert two.launch_s - one.launch_s == pytest.approx(
        1024 * library.parameters("sparse_prefill", shape.dtype).sequence_s
    )
