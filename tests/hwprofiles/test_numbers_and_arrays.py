"""Every operation of every chip: a size of zero takes no time, and an array has the times of its elements."""

from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hwprofiles import KernelLibrary, chip_names, load_chip
from hwprofiles.dtypes import DTYPES
from hwprofiles.errors import ProfileError
from hwprofiles.kernels.sparse import IndexShape, SparseShape
from hwprofiles.operations import OPERATIONS, row_call
from traces.kernels import OPS

TOGETHER = {
    "num_heads": [32, 64, 48, 64], "num_kv_heads": [8, 1, 4, 64], "head_dim": [128, 100, 72, 128],
    "num_experts": [128, 64, 256, 8], "experts_per_token": [8, 2, 4, 1], "world_size": [8, 8, 8, 8],
}  # fmt: skip
"""Columns whose values belong together, or select the kernel; all others are drawn."""
OPTIONAL = ("longest_kv", "longest_batch", "pieces", "launches")
"""Optional columns that are drawn; the others are left out."""
NO_SIZES = ("tail_kv", "longest_kv", "pieces", "num_experts")
"""Arguments that may be zero though there is work, or are never zero."""


def columns(op, generator):
    """Four rows of one operation: every column an array."""
    described = OPS[op]
    drawn = {name: np.floor(np.exp(generator.uniform(0.0, 9.0, 4))) for name in described.needed + described.optional}
    row = {name: np.asarray(TOGETHER.get(name, values), dtype=float) for name, values in drawn.items()}
    row |= {name: np.zeros(4) for name in described.optional if name not in OPTIONAL}
    if "q_len" in row:
        row["q_len"] = np.minimum(row["q_len"], 6.0 if op.endswith("_decode") else 300.0)
        row["kv_len"] = row.get("kv_len", 0.0) + row["q_len"]
    return row


def sparse_calls(generator):
    """Index and sparse attention, which rows of a trace name with their model alone."""
    seqs, tokens, keys = np.floor(np.exp(generator.uniform(0.0, 5.0, (3, 4))))
    q_tokens, kv_tokens = seqs * tokens, seqs * (tokens + keys)
    pairs = q_tokens * keys + q_tokens * (tokens + 1.0) / 2.0
    top, heads, ratio = (
        np.array([64.0, 2048.0, 16.0, 512.0]),
        np.array([16.0, 64.0, 1.0, 128.0]),
        np.array([1.0, 4.0] * 2),
    )
    prompts = {"seqs": seqs, "q_tokens": q_tokens, "pairs": pairs, "kv_tokens": kv_tokens}
    decodes = {"seqs": seqs, "q_len": np.minimum(tokens, 6.0), "kv_tokens": kv_tokens}
    for name, shape in (
        ("index", IndexShape(heads, 128, 132.0, "fp8@dsa", ratio, top)),
        ("sparse", SparseShape(heads, 1, 576, 512, 656.0, "fp8@dsa", ratio, 128.0, top, 320.0)),
    ):
        yield f"{name}_prefill", (shape,), prompts
        yield f"{name}_decode", (shape,), decodes


def calls(kernels, generator):
    """Calls of a library with arrays for all sizes: method, arguments, arguments by name."""
    dtypes = [dtype for dtype in DTYPES if computes(kernels.chip, dtype)]
    for op in [op for op in OPS if op in OPERATIONS and not op.startswith("sparse")]:
        texts = {"dtype": generator.choice(dtypes), "cache": generator.choice(["warm", ""]), "link": "nvlink4"}
        if op == "moe" and "fp8_block" in dtypes:
            texts["dtype"] = "fp8_block"  # some libraries have a kernel of its own for experts spread over chips
        recorder = Mock(wraps=kernels, chip=kernels.chip)
        row_call(op, {**columns(op, generator), **texts, "name": "gdn" if "recurrent" in op else ""})(recorder)
        yield next(call for call in recorder.mock_calls if call[0] != "tail_sequences")
    yield from sparse_calls(generator)


def computes(chip, dtype):
    try:
        chip.math_dtype(dtype)
    except ProfileError:
        return False
    return True


def element(value, row):
    """One element of every array in an argument, as plain numbers."""
    if isinstance(value, np.ndarray):
        return value[row].item()
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(element(one, row) for one in value)
    return value


def libraries(name):
    for library in ("generic", *load_chip(name).kernels):
        yield KernelLibrary(name, library)
    yield KernelLibrary(name, "vllm", split_kv=False, static_scales=True, marlin=True, corrected=False, flash=False)


@pytest.mark.parametrize("name", chip_names())
def test_an_array_has_the_times_of_its_elements(name):
    """Prefill attention of a B300 was a TypeError for arrays of head sizes."""
    for kernels in libraries(name):
        for op, given, sizes in calls(kernels, np.random.default_rng(len(name))):
            together = getattr(kernels, op)(*given, **sizes)
            for row in range(4):
                alone = getattr(kernels, op)(*element(given, row), **{k: element(v, row) for k, v in sizes.items()})
                assert all(isinstance(part, int | float) for part in alone), (op, alone)
                assert_allclose([part[row] for part in together], alone, rtol=1e-12, err_msg=op)


@pytest.mark.parametrize("name", chip_names())
def test_a_size_of_zero_takes_no_time(name):
    """Without FlashAttention, a batch without prompts was charged for the scores of its decoding sequences again."""
    for kernels in libraries(name):
        for op, given, sizes in calls(kernels, np.random.default_rng(len(name))):
            if op == "attention_mixed" and not kernels.one_pass(given[0]):
                continue  # two kernels, each with the sizes of its own
            for zeroed in sizes.keys() - set(NO_SIZES):
                if isinstance(sizes[zeroed], np.ndarray):
                    some = sizes | {zeroed: sizes[zeroed] * np.array([0.0, 1.0, 0.0, 1.0])}
                    for part in getattr(kernels, op)(*given, **some):
                        assert not part[[0, 2]].any(), (op, zeroed, part)
