"""Learned correction of kernel times: a sum of hinge functions of analytical time and sizes. Never below the
speed-of-light time.

Every hinge function rises with the analytical time, the sizes and their products, and has a non-negative gain: a kernel
that is larger or analytically slower is never faster after correction. (Unconstrained trees halve the held-out error
again, but make thousands of products faster as they grow.) A profile's corrections are stored beside its YAML file and
are on by default: ``KernelLibrary`` applies them to every kernel with a fit on its chip, unless ``corrected`` is
False, which leaves the analytical times.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.yaml_files import packaged
from hwprofiles.errors import ProfileError
from hwprofiles.formulas import KernelTime, Num, functions_of, look_up
from hwprofiles.parameters import FAMILIES

Key = tuple[str, str, str]
"""Key of a correction: library, kernel family, stored format."""
Pairs = Mapping[str, tuple[float, float]]

LARGEST = math.log(3.0)
"""Logarithm of the largest correction factor, 3; a larger error means that the analytical model misses an effect."""
_STORED = ("feature", "low", "high", "greatest", "gain")
"""Names of the arrays that store the hinge functions in a file of corrections."""
MOST_BYTES = 1 << 28
"""Maximum unpacked size of a file of corrections, in bytes."""
_DAMAGE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, MemoryError,
           RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)  # fmt: skip
"""Exceptions that reading a damaged array archive may raise."""

TILINGS = ((64, 64), (64, 128), (128, 256), (256, 128))
"""GEMM tile shapes (rows, columns) whose wave counts are features of a correction."""
_FAMILIES = packaged("hwprofiles", "evidence.yaml")["corrected"]
SIZES: Mapping[str, tuple[str, ...]] = {family: tuple(entry["sizes"]) for family, entry in _FAMILIES.items()}
"""Sizes that the correction of each family depends on, named as in ``KernelLibrary``."""
FALLING = ("expert_parallel", "tensor_parallel")
"""Sizes that divide a kernel's work between chips: larger values make it faster."""
PRODUCTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    family: tuple(map(tuple, entry["products"])) for family, entry in _FAMILIES.items()
}
"""Products of sizes that measure the bytes and operations of a kernel."""

PARTS = 3
"""Number of single hinge functions combined in each hinge function of a correction."""
_ROWS = 512
"""Number of kernels whose hinge functions are evaluated together. Matrix products of more start threads, which take up
to 50 ms where other processes run and make the last bit depend on the number of cores."""


def feature_names(family: str) -> tuple[str, ...]:
    """Names of the features of a family, in order; empty for families without corrections."""
    if family not in SIZES:
        return ()
    products = (" x ".join(names) for names in PRODUCTS[family])
    waves = (f"waves {rows}x{columns}" for rows, columns in TILINGS) if family == "gemm" else ()
    return ("seconds", *SIZES[family], *products, *waves)


def feature_matrix(family: str, sizes: Mapping[str, Num], time: KernelTime, cores: float) -> FloatArray:
    """Logarithmic input features of the hinge functions, ``feature_names`` x kernels; none decreases as a kernel grows.

    ``sizes`` are numbers or arrays and contain those of ``SIZES``; ``time`` is analytical.
    """
    known = {name: np.ravel(np.asarray(sizes[name], dtype=np.float64)) for name in SIZES[family]}
    logs = {name: np.log1p(size) * (-1.0 if name in FALLING else 1.0) for name, size in known.items()}
    log_features = [np.log(np.maximum(1e-12, np.ravel(np.asarray(time.seconds, dtype=np.float64)))), *logs.values()]
    log_features += [np.asarray(sum(logs[name] for name in names)) for names in PRODUCTS[family]]
    if family == "gemm":
        for rows, columns in TILINGS:
            tiles = np.ceil(known["m"] / rows) * np.ceil(known["n"] / columns)
            log_features.append(np.log(np.maximum(1.0, np.ceil(tiles / cores))))
    return np.array(np.broadcast_arrays(*log_features))


def hinge_values(
    features: FloatArray, feature: NDArray[np.int16], low: FloatArray, high: FloatArray, greatest: BoolArray
) -> FloatArray:
    """Values in [0, 1], hinges x kernels: maximum or minimum of ``PARTS`` single hinge functions rising from ``low`` to
    ``high``.

    Args:
        features: result of ``feature_matrix``.
        feature: index of each single hinge's feature, hinges x ``PARTS``; ``low`` and ``high`` have the same shape.
        low: feature value above which a single hinge function is greater than 0.
        high: feature value at which a single hinge function reaches 1.
        greatest: for each hinge function, true if it is the maximum of its parts, else the minimum.
    """
    ends = ((end[feature] - low) / (high - low) for end in (features.min(axis=1), features.max(axis=1)))
    least, most = (np.where(greatest, end.max(axis=1), end.min(axis=1)) for end in ends)
    # For similar kernels, most hinge functions are constant.
    above = least >= 1.0
    slopes = ~(above | (most <= 0.0))
    values: FloatArray = np.repeat(above.astype(np.float64), features.shape[1]).reshape(len(above), -1)

    def unclipped(chosen: BoolArray, part: int) -> FloatArray:
        risen: FloatArray = features[feature[chosen, part]]
        risen -= low[chosen, part, None]
        risen /= (high - low)[chosen, part, None]
        return risen

    for chosen, of_both in ((greatest & slopes, np.maximum), (~greatest & slopes, np.minimum)):
        best = unclipped(chosen, 0)
        for part in range(1, PARTS):
            of_both(best, unclipped(chosen, part), out=best)
        values[chosen] = np.clip(best, 0.0, 1.0)
    return values


class HingeBasis(NamedTuple):
    """Logarithm of corrected seconds: ``base`` plus hinge functions (see ``hinge_values``) times their ``gain``, never
    negative.

    Outside ``ends``, the range of log seconds in the training data, corrected times are proportional to the analytical.

    Source: sums of lattice functions that are monotone by construction, as in Gupta et al., "Monotonic Calibrated
        Interpolated Look-Up Tables" (2016), JMLR 17(109); the form here, random hinge functions with gains by
        non-negative least squares, is this project's own.
    """

    feature: NDArray[np.int16]
    low: FloatArray
    high: FloatArray
    greatest: BoolArray
    gain: FloatArray
    base: float
    ends: tuple[float, float]

    def __call__(self, features: FloatArray) -> FloatArray:
        """Corrected log seconds of each kernel in ``features`` (result of ``feature_matrix``)."""
        physics, clipped = features[0], self.clipped(np.eye(1 + len(features))[1:])
        values = np.vstack([np.ones_like(physics), features])
        log_seconds = self.base + np.minimum(0.0, physics - self.ends[0]) + np.maximum(0.0, physics - self.ends[1])
        for start in range(0, len(physics), _ROWS):
            part = slice(start, start + _ROWS)
            log_seconds[part] += clipped.of_many(values[:, part])
        return np.asarray(np.clip(log_seconds, physics - LARGEST, physics + LARGEST))

    def clipped(self, features: FloatArray) -> Clipped:
        """Sum of hinge functions times their gain, for features that are linear in some values. ``features`` contains
        the coefficients of each feature: features x (constant, values)."""
        lines = features[self.feature]
        lines[:, :, 0] -= self.low
        # min(x) is -max(-x).
        sign = np.where(self.greatest, 1.0, -1.0)
        lines *= (sign[:, None] / (self.high - self.low))[:, :, None]
        return Clipped(lines, np.minimum(sign, 0.0), np.maximum(sign, 0.0), self.gain * sign)


class Correction(NamedTuple):
    """Correction of one parameter set: hinge functions, the shapes it was learned on, and its 90 % intervals.

    Shapes inside and outside the fitted ranges of the analytical model have separate intervals.
    """

    hinges: HingeBasis
    ranges: Pairs
    intervals: Pairs

    def seconds(self, family: str, sizes: Mapping[str, Num], time: KernelTime, cores: float) -> Num:
        """Corrected seconds; a shape outside the training range is corrected like the nearest shape inside it.

        Sizes that are constant in the training data (queries per sequence of decode attention) have no effect.
        """
        shape = np.shape(time.seconds)
        sizes = {name: sizes[name] if low < high else low for name, (low, high) in self._known(family)}
        if len(shape) > 1:
            sizes = {name: np.broadcast_to(size, shape) for name, size in sizes.items()}
        features = feature_matrix(family, sizes, time, cores)
        some = np.broadcast_to(np.ravel(np.asarray(time.seconds)) > 0, features.shape[1])  # most steps have no prompts
        factors = np.zeros(len(some))
        if some.any():
            factors[some] = np.exp(self.hinges(features if some.all() else features[:, some]))
        return factors.reshape(shape) if shape else factors[0]

    def _known(self, family: str) -> list[tuple[str, tuple[float, float]]]:
        """Sizes of the family, each with its smallest and largest value in the training data."""
        return [(name, self.ranges.get(name, (0.0, np.inf))) for name in SIZES[family]]

    def along(self, family: str, fixed: Mapping[str, float], moving: tuple[str, ...]) -> Callable[..., float]:
        """Return a fifty times as fast correction for single kernels that differ in a few sizes.

        Every single hinge function is linear in the logarithms of the variable sizes. The function also accepts traced
        numbers.

        Not for GEMM, whose tile waves are not linear in the log sizes. The result takes the analytical seconds (> 0)
        and the ``moving`` sizes, all scalars; ``fixed`` are the sizes common to all kernels.
        """
        one, physics, *units = np.eye(2 + len(moving))
        logs = {name: np.log1p(size) * one for name, size in fixed.items()} | dict(zip(moving, units, strict=True))
        logs |= {name: np.log1p(low) * one for name, (low, high) in self._known(family) if low == high}
        logs = {name: logs[name] * (-1.0 if name in FALLING else 1.0) for name in SIZES[family]}
        products = [np.sum([logs[name] for name in names], axis=0) for names in PRODUCTS[family]]
        hinges = self.hinges
        clipped = hinges.clipped(np.array([physics, *logs.values(), *products]))
        start, end = hinges.ends

        def seconds(physics_s: Num, *sizes: Num) -> Num:
            xp = functions_of(physics_s)
            log_s = xp.log(xp.maximum(1e-12, physics_s))
            logs = (log_s, *(xp.log(1.0 + size) for size in sizes))
            corrected = hinges.base + xp.minimum(0.0, log_s - start) + xp.maximum(0.0, log_s - end)
            corrected += look_up(clipped, *logs)
            return xp.exp(xp.minimum(xp.maximum(corrected, log_s - LARGEST), log_s + LARGEST))

        return seconds


class Clipped(NamedTuple):
    """Sum of terms: each is the maximum of ``PARTS`` lines, clipped to [low, high] and multiplied by a gain."""

    lines: FloatArray
    """Coefficients of the lines, terms x ``PARTS`` x (constant, slopes)."""
    low: FloatArray
    high: FloatArray
    gain: FloatArray

    def __call__(self, *values: float) -> float:
        """Value of the sum, with terms added in order."""
        line = self.lines[:, :, 0]
        for place, value in enumerate(values, 1):
            line = line + self.lines[:, :, place] * value
        terms = self.gain * np.minimum(np.maximum(line.max(axis=1), self.low), self.high)
        return float(np.add.accumulate(terms)[-1]) if len(terms) else 0.0

    def of_many(self, values: FloatArray) -> FloatArray:
        """Values of the sum for many kernels: (1, values) x kernels."""
        ends = self.lines * values.min(axis=1), self.lines * values.max(axis=1)
        least, most = (of_both(*ends).sum(axis=2).max(axis=1) for of_both in (np.minimum, np.maximum))
        # For similar kernels, most terms are constant.
        above = least >= self.high
        some = ~(above | (most <= self.low))
        still: float = self.gain[~some] @ np.where(above, self.high, self.low)[~some]
        best, *others = (self.lines[some, part] @ values for part in range(self.lines.shape[1]))
        for other in others:
            np.maximum(best, other, out=best)
        np.maximum(best, self.low[some, None], out=best)
        np.minimum(best, self.high[some, None], out=best)
        return np.asarray(still + self.gain[some] @ best)


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int) -> Mapping[Key, Correction]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as data:
            index = json.loads(data["index"].tobytes())
            parts = {name: np.asarray(data[name], dtype=np.float64) for name in _STORED}
        return {tuple(one["key"]): _unpacked(one, parts) for one in index}
    except _DAMAGE as problem:
        raise ProfileError(f"{path}: damaged file of corrections ({' '.join(str(problem).split())[:100]})") from None


def load_corrections(path: Path | None) -> Mapping[Key, Correction]:
    """Read a file of corrections, keyed by library, family and format; empty if the file does not exist.

    Raises:
        ProfileError: the file is damaged.
    """
    if path is None or not path.is_file():
        return {}
    return _read(path, path.stat().st_mtime_ns)


def save_corrections(corrections: Mapping[Key, Correction], path: Path) -> Path:
    """Write corrections and return the path. The file has the concatenated hinge functions and an index; hinges that
    two sets share are stored once."""
    index: list[dict[str, Any]] = []
    stored: dict[str, list[NDArray[np.generic]]] = {name: [] for name in _STORED}
    starts: dict[bytes, int] = {}
    place = 0
    for key, (hinges, ranges, intervals) in corrections.items():
        # Half the digits are enough, as long as a hinge function has some width.
        low, gain = hinges.low.astype(np.float32), hinges.gain.astype(np.float32)
        high = np.maximum(hinges.high.astype(np.float32), np.nextafter(low, np.inf))
        parts: tuple[NDArray[np.generic], ...] = (hinges.feature.astype(np.int8), low, high, hinges.greatest, gain)
        start = starts.setdefault(b"".join(part.tobytes() for part in parts), place)
        names, count = feature_names(key[1]), len(gain)
        index.append({"key": key, "names": names, "start": start, "count": count, "base": hinges.base,
                      "ends": hinges.ends, "ranges": ranges, "intervals": intervals})  # fmt: skip
        if start == place:
            place += count
            for name, part in zip(_STORED, parts, strict=True):
                stored[name].append(part)
    arrays = {name: np.concatenate(parts) for name, parts in stored.items()}
    np.savez_compressed(path, index=np.frombuffer(json.dumps(index).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    return path


def _unpacked(entry: Mapping[str, Any], stored: Mapping[str, FloatArray]) -> Correction:
    library, family, name = entry["key"]
    place, names = f"{library}/{family}/{name}", feature_names(family)
    if family not in FAMILIES or tuple(entry["names"]) != names:
        raise ValueError(f"{place}: other features than those of the family; calibrate again")
    start, count = entry["start"], (entry["count"],)
    parts = {name: part[start : start + count[0]] for name, part in stored.items()}
    whole = all(parts[name].shape == (*count, PARTS) for name in ("feature", "low", "high"))
    if not whole or parts["greatest"].shape != count or parts["gain"].shape != count or len(entry["ends"]) != 2:
        raise ValueError(f"{place}: hinge functions of which parts are missing")
    parts |= {name: np.array(entry[name], dtype=np.float64) for name in ("base", "ends")}
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise ValueError(f"{place}: a hinge function that is no number")
    if (parts["gain"] < 0).any() or (parts["high"] <= parts["low"]).any():
        raise ValueError(f"{place}: a hinge function that falls")
    if parts["feature"].size and not 0 <= parts["feature"].min() <= parts["feature"].max() < len(names):
        raise ValueError(f"{place}: hinge functions over features that are not there")
    low, high = (float(end) for end in parts["ends"])
    shaped: dict[str, Any] = {"feature": parts["feature"].astype(np.int16), "greatest": parts["greatest"] > 0}
    hinges = HingeBasis(**parts | shaped | {"base": float(parts["base"]), "ends": (low, high)})
    pairs = ({key: (float(low), float(high)) for key, (low, high) in entry[name].items()}
             for name in ("ranges", "intervals"))  # fmt: skip
    return Correction(hinges, *pairs)
