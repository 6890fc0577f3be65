"""A formula traced into a list of steps yields what the formula yields, to the bit."""

import math
import operator
import random

import numpy as np
import pytest

from hwprofiles import KernelLibrary, load_chip, tape
from hwprofiles.formulas import OPERATIONS, AttentionShape, Num
from hwprofiles.kernels.recurrent import RecurrentShape
from simulator.serving.engine import Formula

PYTHON = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "power": operator.pow, "maximum": max, "minimum": min, "ceil": lambda one, two: float(math.ceil(one)),
    "log": lambda one, two: math.log(one), "exp": lambda one, two: math.exp(one),
    "less": operator.lt, "at_most": operator.le, "both": lambda one, two: bool(one) and bool(two),
}  # fmt: skip


def played(formula, *arguments):
    """What the steps of a formula yield, one after the other."""
    result = tape(formula, len(arguments))
    values = [*map(float, arguments), *result.values[len(arguments) :]]
    place = len(values) - len(result.steps)
    for operation, one, two, three in result.steps:
        name = OPERATIONS[operation]
        if name == "where":
            values[place] = values[two] if values[one] else values[three]
        else:
            values[place] = float(PYTHON[name](values[one], values[two]))
        place += 1
    return values[-1]


def prompts(kernels, shape):
    """Seconds of prompts in a layer, by (sequences, tokens, pairs, keys)."""
    if isinstance(shape, RecurrentShape):
        return lambda seqs, tokens, *_: kernels.recurrent_prefill(shape, seqs=seqs, q_tokens=tokens).seconds
    return lambda s, q, p, kv: kernels.attention_prefill(shape, seqs=s, q_tokens=q, pairs=p, kv_tokens=kv).seconds


def sizes(rng):
    seqs = rng.randint(1, 40)
    tokens = seqs + rng.choice([0, 7, 4000])
    keys = tokens + rng.randint(0, 9000)
    return seqs, tokens, tokens * rng.randint(1, 3000), keys


SHAPES = [AttentionShape(32, 8, 128, 128, 4096.0, "bf16"), RecurrentShape(16, 32, 128, 128)]


@pytest.mark.parametrize("shape", SHAPES, ids=["attention", "recurrent"])
@pytest.mark.parametrize("chip", ["h100-sxm", "rtx-4090", "n150"])
def test_prompts(chip, shape):
    formula, rng = prompts(KernelLibrary(load_chip(chip)), shape), random.Random(chip)
    for _ in range(200):
        requested = sizes(rng)
        assert played(formula, *requested) == formula(*requested)


def test_prompts_and_single_queries_in_one_kernel():
    kernels, rng = KernelLibrary(load_chip("rtx-4090"), "vllm"), random.Random(1)
    names = ("seqs", "q_tokens", "pairs", "kv_tokens", "decode_seqs", "decode_kv_tokens", "longest_kv")

    def formula(*sizes):
        return kernels.attention_mixed(SHAPES[0], **dict(zip(names, sizes, strict=True))).seconds

    for _ in range(200):
        seqs = rng.randint(1, 200)
        requested = (*sizes(rng), seqs, seqs * rng.randint(1, 5000), rng.choice([0, 6000]))
        assert played(formula, *requested) == formula(*requested)


def test_a_formula_that_branches_stays_as_it_is():
    def branching(first: Num, second: Num) -> Num:
        return first if first > second else second

    assert tape(branching, 2) is None
    assert tape(lambda first: 1.0, 1) is None
    assert Formula(branching, 2) is not None


@pytest.mark.parametrize("shape", SHAPES, ids=["attention", "recurrent"])
@pytest.mark.parametrize("library", ["vllm", "sglang"])
@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm"])
def test_learned_corrections_are_traced_too(chip, library, shape):
    kernels, rng = KernelLibrary(chip, library), random.Random(chip)
    formula, physics = prompts(kernels, shape), prompts(kernels.reading(False), shape)
    moved = 0
    for _ in range(60):
        requested = sizes(rng)
        assert played(formula, *requested) == formula(*requested)
        together = formula(*(np.array([float(size)]) for size in requested))
        assert formula(*requested) == pytest.approx(together[0], rel=1e-12)
        moved += formula(*requested) != physics(*requested)
    assert moved > 50


def test_what_does_not_count_is_left_out():
    result = tape(lambda one, two: (one * two, one + 2.0)[1], 2)
    assert [OPERATIONS[operation] for operation, *_ in result.steps] == ["add"]
    assert result.values == [0.0, 0.0, 2.0, 0.0]
