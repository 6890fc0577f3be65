"""Kernels of the reference engine on shapes around those it will run, each timed inside a running model.

A kernel that is repeated alone finds its code and its small operands in the first-level cache; between matrices that
stream from memory it does not. So whole steps of nearby models run, and every kernel in them is timed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from simulator.measure.machine import cpu_name
from simulator.selfcheck.model import Batch, KernelCall, Observer, ReferenceModel, Segment
from simulator.selfcheck.sizes import DTYPE_BYTES, ModelSize, Sizes
from traces.kernels import KernelTable, make_table, words

LIBRARY = "reference"
"""Kernel library and framework of the engine."""
PASSES = {"elementwise": 4, "head": 3}
"""Memory-bound passes of a layer, and of sampling, as the simulator counts them."""
LEAST_MODEL = 3
"""A nearby model's weights fill the last cache at least so many times over, else they would not come from memory."""
QUERY_LENGTHS = (1, 2, 3, 5, 6)

Key = tuple[str, tuple[tuple[str, int], ...]]


class KernelSamples:
    """Seconds of every kernel and shape, gathered over rounds."""

    def __init__(self) -> None:
        self._samples: dict[Key, list[float]] = defaultdict(list)

    def add(self, calls: Sequence[KernelCall], layers: int) -> None:
        """Note one observed step: mean over its layers, and of the passes of a layer or of the head their mean."""
        found: dict[Key, list[float]] = defaultdict(list)
        passes: dict[str, list[KernelCall]] = defaultdict(list)
        for call in calls:
            if call.op in PASSES:
                passes[call.op].append(call)
            else:
                op = "elementwise" if call.op == "embedding" else call.op
                found[op, tuple(sorted(call.sizes.items()))].append(call.seconds)
        for op, group in passes.items():
            count = PASSES[op] * (layers if op == "elementwise" else 1)
            moved = round(sum(call.sizes["bytes_moved"] for call in group) / count)
            found["elementwise", (("bytes_moved", moved),)].append(sum(call.seconds for call in group) / count)
        for key, seconds in found.items():
            self._samples[key].append(float(np.mean(seconds)))

    def __len__(self) -> int:
        return len(self._samples)

    def table(self, dtype: str, provenance: str) -> KernelTable:
        """The canonical trace: medians, with spread and count."""
        keys = list(self._samples)
        values = [np.array(self._samples[key]) for key in keys]
        names = sorted({name for _, sizes in keys for name, _ in sizes})
        sizes = [dict(pairs) for _, pairs in keys]
        attention = [op.startswith("attention") for op, _ in keys]
        return make_table(
            np.array([float(np.median(v)) for v in values]),
            words([op for op, _ in keys]),
            {name: np.array([size.get(name, 0) for size in sizes]) for name in names},
            {
                "dtype": dtype,
                "cache": words(["cold" if op == "gemm" else "" for op, _ in keys]),
                "kv_dtype": words([dtype if one else "" for one in attention]),
                "name": "reference engine",
                "library": LIBRARY,
                "device": cpu_name(),
                "source": provenance,
            },
            "forerun selfcheck",
            "forerun",
            np.array([float(np.std(v)) for v in values]),
            np.array([len(v) for v in values], dtype=np.int64),
        )


def enlarged(size: ModelSize, dtype: str, cache_bytes: int) -> ModelSize:
    """The same model with as many layers as it takes for its weights to come from memory in every step."""
    layers = -(-LEAST_MODEL * cache_bytes // (DTYPE_BYTES[dtype] * size.layer_elements))
    return replace(size, layers=max(size.layers, layers))


def measure_kernels(
    sizes: Sizes,
    model_size: ModelSize,
    dtype: str,
    clock: Callable[[], float],
    seed: int,
    number: int,
    samples: KernelSamples,
) -> None:
    """Run steps of one nearby model, in an order that the round's ``number`` decides; its kernels join ``samples``."""
    longest = sizes.load.longest + max(QUERY_LENGTHS)
    slots = max(1, sizes.load.concurrency)
    model = ReferenceModel(model_size, seed, slots, longest, dtype)
    generator = np.random.default_rng(seed)
    order = np.random.default_rng([seed, number])
    batches = list(_batches(sizes, model_size, slots, longest, generator))
    with torch.inference_mode():
        model.probabilities(batches[0])
        observer = model.observer = Observer(clock)
        for _ in range(sizes.repeats):
            for index in order.permutation(len(batches)):
                observer.calls.clear()
                model.probabilities(batches[index])
                samples.add(observer.calls, model_size.layers)


def _batches(
    sizes: Sizes, size: ModelSize, slots: int, longest: int, generator: np.random.Generator
) -> Iterator[Batch]:
    """Steps with the wanted numbers of tokens: prompts alone, then batches of decoding or verifying sequences."""
    for tokens in sizes.kernel_tokens:
        if tokens > slots * max(QUERY_LENGTHS):
            chunks = tuple(Segment(s, 0, n) for s, n in enumerate(_parts(tokens, min(2, slots))))
            yield _batch(size, (), chunks, generator)
            cached = int(generator.integers(1, longest - tokens))
            yield _batch(size, (), (Segment(0, cached, tokens),), generator)
            continue
        for queries in QUERY_LENGTHS:
            if tokens % queries == 0 and tokens // queries <= slots:
                contexts = generator.integers(longest // 8, longest - queries, tokens // queries)
                decodes = tuple(Segment(s, int(c), queries) for s, c in enumerate(contexts))
                yield _batch(size, decodes, (), generator)


def _parts(tokens: int, parts: int) -> list[int]:
    return [tokens // parts + (1 if part < tokens % parts else 0) for part in range(parts)]


def _batch(
    size: ModelSize, decodes: tuple[Segment, ...], chunks: tuple[Segment, ...], generator: np.random.Generator
) -> Batch:
    tokens = sum(segment.tokens for segment in (*decodes, *chunks))
    ends = np.cumsum([segment.tokens for segment in chunks]) - 1
    rows = list(range(tokens)) if decodes else [int(end) for end in ends]
    return Batch(generator.integers(0, size.vocabulary, tokens).tolist(), decodes, chunks, rows)
