"""A kernel formula that was recorded returns what the formula itself returns, to the bit."""

import random

import numpy as np
import pytest

from hwprofiles import KernelLibrary
from hwprofiles.formulas import OPERATIONS, AttentionShape
from hwprofiles.kernels.recurrent import RecurrentShape
from simulator.serving.compiled import engine_module
from simulator.serving.recording import Recording
from simulator.timing import DraftStep, decode_work

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


class OneOperation:
    """A timing model that applies one operation to the numbers of a step."""

    windows = (None,)

    def __init__(self, operation):
        self.operation = operation
        self.taken = {"where": 3, "ceil": 1, "log": 1, "log2": 1, "exp": 1}.get(operation, 2)

    def seconds(self, work, draft=None):
        numbers = (work.tail_kv, work.decode_seqs, work.longest_kv)[: self.taken]
        return work.tail_kv.book.record(self.operation, *numbers)


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_engine_computes_every_recorded_operation(operation, interpreted):
    engine = engine_module(interpreted)
    timer = OneOperation(operation)
    prices, draft = engine.RecordedPrices(timer), DraftStep(0, 0, 0, 0, (0,), (0,))
    for numbers in ((2.5, 3, 7), (3.0, 3, 7), (4.25, 3, 7)):
        work = decode_work(3, 1, (9,))._replace(tail_kv=numbers[0], longest_kv=numbers[2])
        assert prices.seconds_of(work, draft) == OPERATIONS[operation](*numbers[: timer.taken])
