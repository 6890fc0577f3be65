"""Measured kernels made up from the physics itself, so that a fit has a truth to find."""

from dataclasses import replace

import numpy as np

from hwprofiles import KernelLibrary, load_chip
from simulator.replay import predict_table
from traces.kernels import make_table

HEADS = np.array([(32, 8), (32, 32), (64, 8), (16, 2)])


def gemm_rows(count, generator, dtype="bf16"):
    sizes = {
        "m": generator.choice(2 ** np.arange(15), count),
        "n": 1024 * generator.integers(1, 20, count),
        "k": 1024 * generator.integers(1, 20, count),
    }
    return make_table(np.ones(count), "gemm", sizes, {"dtype": dtype, "cache": "cold"}, "made", "forerun")


def attention_rows(count, generator, op="attention_decode"):
    heads = HEADS[generator.integers(0, len(HEADS), count)]
    length = generator.choice(2 ** np.arange(6, 15), count)
    sizes = {
        "batch": generator.choice([1, 2, 8, 32, 128], count),
        "q_len": np.ones(count, dtype=np.int64) if op == "attention_decode" else length,
        "kv_len": length,
        "num_heads": heads[:, 0],
        "num_kv_heads": heads[:, 1],
        "head_dim": np.full(count, 128),
    }
    texts = {"dtype": "bf16", "kv_dtype": "bf16", "cache": "cold"}
    return make_table(np.ones(count), op, sizes, texts, "made", "forerun")


def measured(table, chip, library, noise=0.0, seed=0):
    """``table`` with the times that ``chip`` predicts, times a random factor."""
    seconds = predict_table(table, KernelLibrary(load_chip(chip), library, corrected=False)).seconds
    factor = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(table)))
    return replace(table, measured_s=seconds * factor)
