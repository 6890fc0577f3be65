"""A kernel formula that was recorded returns what the formula itself returns, to the bit."""

import random

import numpy as np
import pytest

from hwprofiles import KernelLibrary
from hwprofiles.formulas import AttentionShape
from hwprofiles.kernels.recurrent import RecurrentShape
from simulator.serving.recording import Recording

SHAPES = [AttentionShape(32, 8, 128, 128, 4096.0, "bf16"), RecurrentShape(16, 32, 128, 128)]


def prompts(kernels, shape):
    """Seconds of prompts in a layer, by (sequences, tokens, pairs, keys)."""
    if isinstance(shape, RecurrentShape):
        return lambda seqs, tokens, *_: kernels.recurrent_prefill(shape, seqs=seqs, q_tokens=tokens).seconds
    return lambda s, q, p, kv: kernels.attention_prefill(shape, seqs=s, q_tokens=q, pairs=p, kv_tokens=kv).seconds


def sizes(rng):
    seqs = rng.randint(1, 40)
    tokens = seqs + rng.choice([0, 7, 4000])
    return seqs, tokens, tokens * rng.randint(1, 3000), tokens + rng.randint(0, 9000)


@pytest.mark.parametrize("shape", SHAPES, ids=["attention", "recurrent"])
@pytest.mark.parametrize("library", ["vllm", "sglang"])
@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm", "rtx-4090", "n150"])
def test_recorded_and_array_prices_are_those_of_the_formula(chip, library, shape):
    kernels, rng = KernelLibrary(chip, library), random.Random(chip)
    formula = prompts(kernels, shape)
    recorded = []
    recording = Recording(lambda *args: recorded.append(formula(*args)) or recorded[-1], 4)
    for _ in range(60):
        requested = sizes(rng)
        recording.extend(requested)
        assert recorded[-1].value == formula(*requested)
        together = formula(*(np.array([float(size)]) for size in requested))
        assert formula(*requested) == pytest.approx(together[0], rel=1e-12)
