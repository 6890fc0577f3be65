"""Measured kernels made up from the physics itself."""

import numpy as np
import pytest
from made_kernels import attention_rows, gemm_rows, measured

from traces.kernels import concatenate


@pytest.fixture(scope="session")
def kernels():
    """A few hundred kernels as H100 with SGLang would run them, 3 % noise."""
    generator = np.random.default_rng(3)
    table = concatenate([gemm_rows(400, generator), attention_rows(300, generator)])
    return measured(table, "h100-sxm", "sglang", 0.03)
