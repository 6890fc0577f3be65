"""The learned correction of kernel times: regression trees over what physics sees of a kernel, never past light.

A profile's corrections lie beside its YAML file and are part of the one price: ``KernelLibrary`` asks them of every
kernel that its chip was fitted on, unless it is told to leave physics alone.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwprofiles.choice import inside_ranges
from hwprofiles.errors import ProfileError
from hwprofiles.formulas import KernelTime, Num
from hwprofiles.parameters import FAMILIES

FloatArray = NDArray[np.float64]
Key = tuple[str, str, str]
"""Library, family, stored format."""
Pairs = Mapping[str, tuple[float, float]]

LARGEST = np.log(3.0)
"""A correction never exceeds a factor of three; what needs more is missing physics."""
MOST_BYTES = 1 << 28
"""Unpacked size of a file of corrections beyond which it is not read."""
_DAMAGE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, MemoryError,
           RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)  # fmt: skip
"""What reading a damaged archive of arrays raises."""

TILE = 128
TILINGS = ((64, 64), (64, 128), (128, 256), (256, 128))
"""Tiles of GEMM libraries, rows x columns: how full the last wave of each is."""
SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "seen"),
    "attention_decode": ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "kept"),
    "moe": ("tokens", "num_experts", "experts_per_token", "hidden", "intermediate", "expert_parallel",
            "tensor_parallel", "uneven"),
    "recurrent_prefill": ("batch", "q_len", "num_heads", "num_kv_heads"),
    "recurrent_decode": ("batch", "q_len", "num_heads", "num_kv_heads"),
}  # fmt: skip
"""Sizes by which a family's kernels are corrected, as ``KernelLibrary`` names them: ``kv_len`` are the keys read per
sequence, ``seen`` those a query sees in the mean, ``kept`` the share of the on-chip store that the cache fills,
``uneven`` the exponent of the routing."""
PHYSICS = ("seconds", "balance", "launch", "waves", "last_wave")
"""Features of physics: log time, log of compute over memory time, share of launch, waves of tiles over the cores, and
how full the last one is."""

_Sizes = Mapping[str, FloatArray]


def _fill(rows: int, columns: int) -> Callable[[_Sizes, float], FloatArray]:
    def filled(sizes: _Sizes, cores: float) -> FloatArray:
        waves = np.ceil(sizes["m"] / rows) * np.ceil(sizes["n"] / columns) / cores
        return np.asarray(waves / np.maximum(1.0, np.ceil(waves)))

    return filled


def _align(name: str) -> Callable[[_Sizes, float], FloatArray]:
    def power(sizes: _Sizes, cores: float) -> FloatArray:
        size = sizes[name].astype(np.int64)
        return np.asarray(np.minimum(9.0, np.log2(np.maximum(1, size & -size))))

    return power


def _log(formula: Callable[[_Sizes], FloatArray]) -> Callable[[_Sizes, float], FloatArray]:
    return lambda sizes, cores: np.log2(np.maximum(1e-9, formula(sizes)))


DERIVED: Mapping[str, Mapping[str, Callable[[_Sizes, float], FloatArray]]] = {
    "gemm": {
        **{f"fill:{rows}x{columns}": _fill(rows, columns) for rows, columns in TILINGS},
        **{f"align:{name}": _align(name) for name in ("m", "n", "k")},
        "outputs": _log(lambda s: s["m"] * s["n"]),
        "work": _log(lambda s: s["m"] * s["n"] * s["k"]),
        "wide": _log(lambda s: s["n"] / s["k"]),
        "rest:m128": lambda s, cores: s["m"] % 128 / 128,
        "rest:m256": lambda s, cores: s["m"] % 256 / 256,
        "rest:n256": lambda s, cores: s["n"] % 256 / 256,
    },
    "attention_prefill": {
        "align:q_len": _align("q_len"),
        "group": _log(lambda s: s["num_heads"] / s["num_kv_heads"]),
    },
    "attention_decode": {
        "group": _log(lambda s: s["num_heads"] / s["num_kv_heads"]),
        "items": _log(lambda s: s["batch"] * s["num_kv_heads"]),
        "heads": _log(lambda s: s["batch"] * s["num_heads"]),
        "reads": _log(lambda s: s["batch"] * s["num_kv_heads"] * s["kv_len"]),
    },
    "moe": {"align:tokens": _align("tokens")},
}
"""What else decides which kernel a library picks and how well it fits: last waves, logs of outputs, multiplications and
reads, divisibility, and what is left over of whole tiles."""


def feature_names(family: str) -> tuple[str, ...]:
    """Names of the features of a family, in the order of their columns; none where it is not corrected."""
    sizes = SIZES.get(family, ())
    return (*sizes, *DERIVED.get(family, {}), *PHYSICS) if sizes else ()


def _tiles(sizes: _Sizes) -> FloatArray:
    """Independent pieces of work, roughly."""
    if "m" in sizes:
        return np.ceil(sizes["m"] / TILE) * np.ceil(sizes["n"] / TILE)
    if "tokens" in sizes:
        return sizes["tokens"] * sizes["experts_per_token"] / TILE
    kv_heads = np.maximum(1.0, sizes["num_kv_heads"])
    return sizes["batch"] * kv_heads * np.ceil(sizes["q_len"] * sizes["num_heads"] / kv_heads / TILE)


def feature_matrix(family: str, sizes: Mapping[str, Num], time: KernelTime, cores: float) -> FloatArray:
    """Features of kernels, rows x ``feature_names``.

    Args:
        family: of the kernels.
        sizes: at least those of ``SIZES``, numbers or arrays.
        time: by physics.
        cores: of the chip.
    """
    rows = np.broadcast(np.asarray(time.seconds), *(np.asarray(sizes[name]) for name in SIZES[family])).size
    known = {name: np.broadcast_to(np.asarray(sizes[name], dtype=np.float64).ravel(), rows) for name in SIZES[family]}
    seconds, launch, compute, memory = (np.broadcast_to(np.asarray(part).ravel(), rows) for part in time[:4])
    waves = _tiles(known) / cores
    columns = [np.log2(1.0 + size) for size in known.values()]
    columns += [formula(known, cores) for formula in DERIVED.get(family, {}).values()]
    columns += [
        np.log2(np.maximum(1e-12, seconds)),
        np.log2((compute + 1e-9) / (memory + 1e-9)),
        launch / np.maximum(1e-12, seconds),
        np.log2(waves + 1e-3),
        waves / np.maximum(1.0, np.ceil(waves)),
    ]
    return np.stack(columns, axis=1)


class Trees(NamedTuple):
    """An ensemble: every tree asks the same question of all its nodes on one level.

    ``feature[t, l]`` and ``threshold[t, l]`` are the question of level l of tree t (value > threshold adds bit l to the
    leaf's number), ``leaf[t, i]`` is what leaf i adds.
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def __call__(self, features: FloatArray) -> FloatArray:
        """Sum over the trees for each row of ``features`` (rows x features)."""
        values = features.astype(np.float32)
        if len(values) == 1:  # one question to all trees at once
            bits = (values[0][self.feature] > self.threshold) @ (1 << np.arange(self.feature.shape[1]))
            return np.array([self.leaf[np.arange(len(bits)), bits].sum(dtype=np.float64)])
        total = np.zeros(len(values))
        for feature, threshold, leaf in zip(self.feature, self.threshold, self.leaf, strict=True):
            number = np.zeros(len(values), dtype=np.int16)
            for level, (column, limit) in enumerate(zip(feature, threshold, strict=True)):
                number |= (values[:, column] > limit).astype(np.int16) << level
            total += leaf[number]
        return total


class Correction(NamedTuple):
    """The correction of one parameter set: the shapes it was learned on, and its 90 % intervals.

    Intervals are apart for shapes inside and outside those that physics was fitted on.
    """

    trees: Trees
    ranges: Pairs
    intervals: Pairs

    def factor(self, family: str, sizes: Mapping[str, Num], time: KernelTime, cores: float) -> Num:
        """What seconds of physics are multiplied with; 1 outside the shapes it was learned on."""
        found = np.exp(np.clip(self.trees(feature_matrix(family, sizes, time, cores)), -LARGEST, LARGEST))
        shape = np.shape(time.seconds)
        return np.where(inside_ranges(self.ranges, sizes), found.reshape(shape) if shape else found[0], 1.0)


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int) -> Mapping[Key, Correction]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as data:
            keys = [tuple(str(text).split("/")) for text in data["keys"]]
            return {(key[0], key[1], key[2]): _unpacked(data, key) for key in keys}
    except _DAMAGE as problem:
        raise ProfileError(f"{path}: damaged file of corrections ({' '.join(str(problem).split())[:100]})") from None


def load_corrections(path: Path | None) -> Mapping[Key, Correction]:
    """Read a file of corrections, by library, family and format; none where there is no file.

    Raises:
        ProfileError: the file is damaged.
    """
    if path is None or not path.is_file():
        return {}
    return _read(path, path.stat().st_mtime_ns)


def save_corrections(corrections: Mapping[Key, Correction], path: Path) -> Path:
    """Write corrections and return the file's path."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for key, correction in corrections.items():
        place = "/".join(key)
        arrays[f"{place}/feature"] = correction.trees.feature.astype(np.int8)
        arrays[f"{place}/threshold"] = correction.trees.threshold.astype(np.float32)
        arrays[f"{place}/leaf"] = correction.trees.leaf.astype(np.float16)
        arrays[f"{place}/names"] = np.array(feature_names(key[1]))
        for name, pairs in (("ranges", correction.ranges), ("intervals", correction.intervals)):
            arrays[f"{place}/{name}"] = np.array(list(pairs.values()), dtype=np.float64).reshape(-1, 2)
            arrays[f"{place}/{name}_names"] = np.array(list(pairs), dtype=np.str_)
    np.savez_compressed(path, keys=np.array(["/".join(key) for key in corrections]), **arrays)  # type: ignore[arg-type]
    return path


def _unpacked(data: Mapping[str, NDArray[np.generic]], key: tuple[str, ...]) -> Correction:
    place = "/".join(key)
    names = tuple(str(text) for text in data[f"{place}/names"])
    if key[1] not in FAMILIES or names != feature_names(key[1]):
        raise ValueError(f"{place}: other features than those of the family; calibrate again")
    pairs = []
    for name in ("ranges", "intervals"):
        values = np.asarray(data[f"{place}/{name}"], dtype=np.float64)
        keys = [str(text) for text in data[f"{place}/{name}_names"]]
        pairs.append({key: (float(low), float(high)) for key, (low, high) in zip(keys, values, strict=True)})
    trees = Trees(
        np.asarray(data[f"{place}/feature"], dtype=np.int16),
        np.asarray(data[f"{place}/threshold"], dtype=np.float32),
        np.asarray(data[f"{place}/leaf"], dtype=np.float32),
    )
    count, levels = trees.feature.shape
    whole = trees.threshold.shape == (count, levels) and trees.leaf.shape == (count, 1 << levels)
    if not whole or not np.isfinite(trees.leaf).all():
        raise ValueError(f"{place}: trees without a leaf for every answer")
    if trees.feature.size and not 0 <= trees.feature.min() <= trees.feature.max() < len(names):
        raise ValueError(f"{place}: questions about features that are not there")
    return Correction(trees, pairs[0], pairs[1])
