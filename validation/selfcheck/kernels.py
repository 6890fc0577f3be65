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

from hwprofiles import Chip
from simulator.replay.measure.machine import cpu_name
from traces.kernels import KernelTable, make_table, words
from validation.selfcheck.model import PACKED_QUERIES, KernelCall, Observer, PackedBatch, ReferenceModel, Segment
from validation.selfcheck.sizes import DTYPE_BYTES, ModelSize, Sizes

LIBRARY = "reference"
"""Kernel library and framework of the engine."""
LAYER_KERNELS, OTHER_KERNELS = 4, 4
"""Memory-bound passes of a layer, and of a step beside its layers, as the simulator counts them. Two norms, rotary
embedding, activation; embedding, norm, and two over the logits."""
LEAST_MODEL = 3
"""Ratio of a nearby model's weights to the last cache, so that they come from memory."""
QUERY_LENGTHS = (1, 2, 3, 5, 6)
"""Tokens of a decoding sequence in measured steps."""
SHORTEST_CHUNK = PACKED_QUERIES + 1
"""Tokens of a prompt chunk from which on its attention is a kernel of its own."""
MOST_CHUNKS = 4

Key = tuple[str, tuple[tuple[str, int], ...]]


class KernelSamples:
    """Seconds of every kernel and shape, gathered over rounds."""

    def __init__(self) -> None:
        self._samples: dict[Key, list[float]] = defaultdict(list)
        self._passes: set[int] = set()

    def add(self, calls: Sequence[KernelCall], layers: int) -> None:
        """Note one observed step: the mean of each kernel over the layers, and one mean pass for all its passes.

        Passes differ in arithmetic per byte; their mean, in the mix of a step, is what a step adds up.
        """
        seconds_by_key: dict[Key, list[float]] = defaultdict(list)
        passes = [call for call in calls if call.op == "elementwise"]
        for call in calls:
            if call.op != "elementwise":
                seconds_by_key[call.op, tuple(sorted(call.sizes.items()))].append(call.seconds)
        count = LAYER_KERNELS * layers + OTHER_KERNELS
        self._passes.update(call.sizes["bytes_moved"] for call in passes)
        moved = round(sum(call.sizes["bytes_moved"] for call in passes) / count)
        seconds_by_key["elementwise", (("bytes_moved", moved),)].append(sum(call.seconds for call in passes) / count)
        for key, seconds in seconds_by_key.items():
            self._samples[key].append(float(np.mean(seconds)))

    def with_passes(self, chip: Chip) -> Chip:
        """``chip``, fitted on these, whose passes have the range of those that ran, not of their means per step."""
        own = {name: dict(sets) for name, sets in chip.kernels[LIBRARY].items()}
        fitted = own["elementwise"]["any"]
        assert fitted.fit is not None
        ranges = fitted.fit.ranges | {"bytes_moved": (float(min(self._passes)), float(max(self._passes)))}
        saw = fitted.fit.model_copy(update={"ranges": ranges})
        own["elementwise"]["any"] = fitted.model_copy(update={"fit": saw})
        return chip.with_kernels({**chip.kernels, LIBRARY: own})

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


class NearbyModel:
    """A model of other shapes than the target's, and the steps in which its kernels are measured.

    Args:
        sizes: of the check.
        size: of this model.
        dtype: bf16 or fp32.
        seed: of weights and steps.
    """

    def __init__(self, sizes: Sizes, size: ModelSize, dtype: str, seed: int) -> None:
        longest = sizes.load.longest + max(QUERY_LENGTHS)
        self._model = ReferenceModel(size, seed, sizes.load.concurrency, longest, dtype, repeated=True)
        generator = np.random.default_rng([seed, size.hidden])
        self._batches = list(_batches(sizes, size, sizes.load.concurrency, longest, generator))
        self._order = generator

    def measure(self, repeats: int, clock: Callable[[], float], samples: KernelSamples) -> None:
        """Run every step ``repeats`` times, in random order, and note its kernels in ``samples``."""
        with torch.inference_mode():
            self._model.observer = None
            self._model.probabilities(self._batches[0])
            observer = self._model.observer = Observer(clock)
            for _ in range(repeats):
                for index in self._order.permutation(len(self._batches)):
                    observer.calls.clear()
                    self._model.probabilities(self._batches[index])
                    samples.add(observer.calls, self._model.size.layers)


def _batches(
    sizes: Sizes, size: ModelSize, slots: int, longest: int, generator: np.random.Generator
) -> Iterator[PackedBatch]:
    """Steps with the wanted numbers of tokens: prompts alone, then batches of decoding or verifying sequences."""
    for number, tokens in enumerate(sizes.kernel_tokens):
        if tokens >= 2 * SHORTEST_CHUNK:
            parts = min(2 + number % (MOST_CHUNKS - 1), slots, tokens // SHORTEST_CHUNK)
            chunks = tuple(Segment(s, 0, n) for s, n in enumerate(_parts(tokens, parts)))
            yield _batch(size, (), chunks, generator)
            cached = int(generator.integers(1, longest - tokens))
            yield _batch(size, (), (Segment(0, cached, tokens),), generator)
        for queries in QUERY_LENGTHS:
            if tokens % queries == 0 and tokens // queries <= slots:
                contexts = generator.integers(longest // 8, longest - queries, tokens // queries)
                decodes = tuple(Segment(s, int(c), queries) for s, c in enumerate(contexts))
                yield _batch(size, decodes, (), generator)


def _parts(tokens: int, parts: int) -> list[int]:
    return [tokens // parts + (1 if part < tokens % parts else 0) for part in range(parts)]


def _batch(
    size: ModelSize, decodes: tuple[Segment, ...], chunks: tuple[Segment, ...], generator: np.random.Generator
) -> PackedBatch:
    tokens = sum(segment.tokens for segment in (*decodes, *chunks))
    ends = np.cumsum([segment.tokens for segment in chunks]) - 1
    rows = list(range(tokens)) if decodes else [int(end) for end in ends]
    return PackedBatch(generator.integers(0, size.vocabulary, tokens).tolist(), decodes, chunks, rows)
