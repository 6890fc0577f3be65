"""8-bit products whose activations' scales are known: cheaper by the search for them, never faster than light."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hwprofiles import KernelLibrary
from hwprofiles.kernels.gemm import AMAX_S

SIZES = [(1, 8192, 8192), (64, 1280, 8192), (512, 7168, 4096), (8192, 28672, 8192), (32768, 65536, 65536)]
# By physics: a learned correction is of products with the search in them and scales what is spared.
STATIC, SEARCHED = (KernelLibrary("h100-sxm", "trtllm", static_scales=each, corrected=False) for each in (True, False))


@pytest.mark.parametrize(("m", "k", "measured_s"), [(1, 8192, 7.2e-6), (64, 1024, 7.8e-6), (8192, 4096, 57.3e-6),
                                                    (4096, 8192, 57.8e-6), (8192, 3584, 50.8e-6)])  # fmt: skip
def test_what_is_spared_is_about_what_the_search_takes(m, k, measured_s):
    """Rows of ``computescale`` (aiconfigurator-core 0.12.0, trtllm 1.3.0rc20, H100): nothing was fitted on them, the
    products with the search in them gave what it costs."""
    spared = SEARCHED.gemm(m, 8192, k, "fp8").seconds - STATIC.gemm(m, 8192, k, "fp8").seconds
    assert 0.6 * measured_s < spared < 1.1 * measured_s


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_known_scales_spare_the_search(m, n, k):
    known, searched = STATIC.gemm(m, n, k, "fp8"), SEARCHED.gemm(m, n, k, "fp8")
    spared = searched.seconds - known.seconds
    assert spared > 0.6 * AMAX_S
    peak, bandwidth = STATIC.limits("fp8").peak_flops, STATIC.limits("fp8").bandwidth
    assert known.seconds >= max(known.flops / peak, known.bytes / bandwidth)
    assert (known.flops, known.bytes) == (searched.flops, searched.bytes)


def test_sixteen_bits_and_arrays():
    m, n, k = (np.array(column) for column in zip(*SIZES, strict=True))
    assert_allclose(STATIC.gemm(m, n, k, "bf16").seconds, SEARCHED.gemm(m, n, k, "bf16").seconds)
    each = [STATIC.gemm(*size, "fp8").seconds for size in SIZES]
    assert_allclose(STATIC.gemm(m, n, k, "fp8").seconds, each, rtol=1e-12)
