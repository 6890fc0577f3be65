"""Terms that FlashAttention-2 and small kernels need on consumer cards: idle tiles, lone sequences, warm passes."""

import numpy as np
import pytest

from hwprofiles import AttentionShape, KernelLibrary, load_chip
from hwprofiles.parameters import ElementwiseParameters

SHAPE = AttentionShape(32, 8, 128, 128, 4096.0, "bf16")
CHUNK = {"seqs": 1, "q_tokens": 1000, "pairs": 1000 * 501, "kv_tokens": 1000}
SINGLES = {"decode_seqs": 40, "decode_kv_tokens": 40 * 900}


def library(family, **changes):
    chip = load_chip("rtx-4090")
    sets = {name: dict(values) for name, values in chip.kernels["generic"].items()}
    name = "any" if family == "elementwise" else "bf16"
    sets[family][name] = sets[family][name].model_copy(update=changes)
    return KernelLibrary(chip.model_copy(update={"kernels": {"generic": sets}}))


def test_every_tile_past_the_end_of_a_single_query_costs_the_same():
    """1,000 new tokens are 16 tiles of 64 rows, so that each single query of 32 heads has 15 with nothing to do."""
    free, paid = (
        library("attention_prefill", idle_tile_s=s).attention_mixed(SHAPE, **CHUNK, **SINGLES) for s in (0, 2e-9)
    )
    assert paid.seconds - free.seconds == pytest.approx(2e-9 * 40 * 32 * 15)


@pytest.mark.parametrize("longest", [900, 1000, 5000])
def test_the_last_tile_of_a_mixed_batch_ends_alone(longest):
    kernels = library("attention_prefill")
    parameters, limits = kernels.parameters("attention_prefill"), kernels.limits("bf16")
    even = kernels.attention_mixed(SHAPE, **CHUNK, **SINGLES).seconds
    uneven = kernels.attention_mixed(SHAPE, **CHUNK, **SINGLES, longest_kv=longest).seconds
    per_key = 2 * 256 * parameters.tile_rows * limits.cores / (limits.peak_flops * parameters.compute_efficiency)
    assert uneven - even == pytest.approx(per_key * (longest - 900), abs=1e-12)


@pytest.mark.parametrize(("seqs", "single"), [(25, False), (26, True), (200, True)])
def test_long_sequences_end_alone_where_none_is_split(seqs, single):
    """FlashAttention-2 splits while 8 KV heads of a batch are fewer than 0.8 x 2 x 128 work items."""
    kernels = library("attention_decode", tail_key_s=3e-8)
    times = [kernels.attention_decode(SHAPE, seqs=seqs, q_len=1, kv_tokens=seqs * 800, tail_kv=b) for b in (0, 2000)]
    assert times[1].seconds - times[0].seconds == pytest.approx(2000 * 3e-8 * single, abs=1e-12)
    assert kernels.tail_seconds(SHAPE, seqs) == 3e-8 * single


def test_as_many_sequences_end_alone_as_cannot_fill_the_memory():
    kernels = library("attention_decode", tail_key_s=3e-8, memory_efficiency=0.9)
    assert kernels.tail_sequences(SHAPE) == pytest.approx(0.9 * 1.008e12 * 3e-8 / 4096)


def test_a_chained_pass_finds_on_the_chip_what_a_repeated_one_does():
    """Up to the kept bytes everything, from three times as many on nothing; what is found is not moved."""
    warm = {"launch_s": 0.0, "memory_efficiency": 0.9, "warm_share": 0.5, "warm_efficiency": 0.4}
    kernels = library("elementwise", chained=True, **warm)
    kept, fast, slow = 36e6, 0.4 * 5.80608e12, 0.9 * 1.008e12
    small, half, large = (kernels.elementwise(size) for size in (20e6, 2 * kept, 4 * kept))
    assert (small.seconds, small.bytes) == (pytest.approx(20e6 / fast), 0.0)
    assert half.seconds == pytest.approx(kept / fast + kept / slow)
    assert half.bytes == pytest.approx(kept)
    assert (large.seconds, large.bytes) == (pytest.approx(4 * kept / slow), pytest.approx(4 * kept))
    both = kernels.elementwise(np.array([20e6, 40e6]), launches=np.array([1, 2]))
    assert both.seconds[1] == pytest.approx(2 * both.seconds[0]), "two kernels find as much each"
    disaggregated = library("elementwise", chained=False, **warm)
    assert disaggregated.elementwise(20e6).seconds == pytest.approx(20e6 / slow)
    assert disaggregated.elementwise(20e6, warm=True).seconds == pytest.approx(small.seconds)


def test_only_cards_where_it_was_seen_chain_their_passes():
    source = {"kind": "assumed", "reference": "test", "date": "2026"}
    assert not ElementwiseParameters(launch_s=1e-6, memory_efficiency=0.8, source=source).chained
    for chip, chained in (("rtx-4090", True), ("rtx-pro-6000", True), ("h100-sxm", False), ("a100-sxm-80gb", False)):
        assert KernelLibrary(chip).parameters("elementwise", "any").chained == chained
