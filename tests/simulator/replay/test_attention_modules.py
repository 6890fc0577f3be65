"""Whole attention modules of a trace: what they mean, what is refused, and errors on shapes that no fit has seen."""

import numpy as np
import pytest

from hwprofiles import KernelLibrary
from simulator.errors import ForerunError
from simulator.replay import Split, replay_kernels
from simulator.replay.modules import module_layer
from simulator.replay.predict import predict_table
from traces.kernels import read_kernels
from traces.kernels.table import make_table


def modules(**columns):
    sizes = {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 16} | columns.pop("sizes", {})
    texts = {"dtype": "fp8_block", "kv_dtype": "fp8", "library": "sglang", "name": "deepseek-ai/DeepSeek-V3.2 dsa"}
    arrays = {name: np.array([size]) for name, size in sizes.items()}
    return make_table(np.array([1e-4]), "sparse_decode", arrays, texts | columns, "made up", "forerun")


def test_a_module_is_its_projections_passes_index_and_attention():
    """Half of what the index and the attention take is not there in a layer that reads an earlier choice."""
    kernels = KernelLibrary("h100-sxm", "sglang")
    own = predict_table(modules(name="zai-org/GLM-5.2 dsa"), kernels)
    shared = predict_table(modules(name="zai-org/GLM-5.2-FP8 dsa-shared"), kernels)
    assert 0 < shared.seconds[0] < own.seconds[0]
    assert shared.flops[0] < own.flops[0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"name": "deepseek-ai/DeepSeek-V3.2 csa"}, "has no attention of the kind 'csa'"),
        ({"name": "somebody/some-model dsa"}, "no model 'some-model'"),
        ({"sizes": {"batch": 4096, "kv_len": 131072}}, "more KV than the chip's memory holds"),
    ],
)
def test_modules_that_cannot_be_are_skipped_with_their_reason(columns, reason):
    found = predict_table(modules(**columns), KernelLibrary("h100-sxm", "sglang"))
    assert np.isnan(found.seconds).all()
    assert any(reason in word for word in found.refused)


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
        ("h200-sxm", "sparse_attention/vllm/*/dsa_generation", "vllm", 8),
        ("h200-sxm", "sparse_attention/trtllm/*/dsa_generation", "trtllm", 12),
        ("b200-sxm", "sparse_attention/vllm/*/dsv4_csa_generation", "vllm", 6),
        ("b200-sxm", "sparse_attention/trtllm/*/dsa_generation", "trtllm", 13),
        ("b200-sxm", "sparse_attention/sglang/*/dsa_generation", "sglang", 13),
    ],
)
def test_held_out_shapes_of_measured_modules(shared_data, chip, table, library, most):
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    (path,) = folder.glob(f"{table}_module_perf.parquet")
    found = replay_kernels(read_kernels(path), KernelLibrary(chip, library), Split(0.7, 1))
    assert found.overall.mape <= most
