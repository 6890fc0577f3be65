"""The learned layer: small corrections on top of physics, never faster than light, and gone when switched off."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip, KernelLibrary
from hwprofiles.choice import exact_names
from hwprofiles.parameters import FAMILIES
from simulator.errors import ForerunError
from simulator.replay.correction import Trees, feature_matrix, feature_names, fit_trees
from simulator.replay.evidence import Intervals, Ranges, put_intervals, rows_inside, seen_ranges, stored_rows
from simulator.replay.light_speed import light_seconds
from simulator.replay.predict import Prediction
from traces.kernels import KernelTable

FloatArray = NDArray[np.float64]
Key = tuple[str, str, str]
"""Library, family, stored format."""

MIN_ROWS = 300
MAX_ROWS = 40_000
CHECK_SHARE = 0.15
LARGEST = np.log(3.0)
"""A correction never exceeds a factor of three; what needs more is missing physics."""
SUFFIX = ".residual.npz"
MOST_BYTES = 1 << 28
"""Unpacked size of a file of corrections beyond which it is not read."""
_DAMAGE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, MemoryError,
           RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)  # fmt: skip
"""What reading a damaged archive of arrays raises."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The correction of one parameter set: where it was learned, and its 90 % intervals.

    Intervals are apart for shapes inside and outside those that physics was fitted on.
    """

    trees: Trees
    names: tuple[str, ...]
    ranges: Ranges
    intervals: Intervals

    def log_factors(self, table: KernelTable, chip: Chip, prediction: Prediction) -> FloatArray:
        """Logarithm of what physics must be multiplied with; 0 outside the shapes it was learned on."""
        matrix = _matrix(self.names, table, chip, prediction)
        factors = np.clip(self.trees(matrix), -LARGEST, LARGEST)
        return np.where(rows_inside(self.ranges, table), factors, 0.0)


def learn(
    op: str, family: str, table: KernelTable, chip: Chip, prediction: Prediction, seed: int = 0
) -> Correction | None:
    """Learn the correction of one parameter set from training rows; None when there are too few or it does not help.

    Args:
        op: operation of the rows.
        family: of kernel parameters.
        table: training rows.
        chip: their chip.
        prediction: of physics, for these rows.
        seed: of the sub-sampling and of the rows that decide how many trees are kept.
    """
    if len(table) < MIN_ROWS:
        return None
    generator = np.random.default_rng(seed)
    chosen = np.arange(len(table))
    if len(table) > MAX_ROWS:
        chosen = np.sort(generator.choice(len(table), MAX_ROWS, replace=False))
    part, physics = table.where(chosen), prediction.where(chosen)
    names = feature_names(family)
    target = np.clip(np.log(part.measured_s / physics.seconds), -LARGEST, LARGEST)
    check = generator.random(len(part)) < CHECK_SHARE
    matrix = _matrix(names, part, chip, physics)
    trees = fit_trees(matrix, target, check)
    if np.abs(target - trees(matrix))[check].mean() >= np.abs(target)[check].mean():
        return None
    return Correction(trees, names, seen_ranges(op, part), {})


@dataclass(frozen=True, eq=False)
class Residuals:
    """The corrections of one profile, by library, family and format."""

    corrections: Mapping[Key, Correction]

    def apply(self, table: KernelTable, prediction: Prediction, kernels: KernelLibrary) -> None:
        """Correct the predicted seconds of the rows that have a correction, and their intervals."""
        light = light_seconds(prediction, kernels.chip)
        for (family, dtype), rows in stored_rows(table, prediction).items():
            correction = self.find(kernels, family, dtype)
            if correction is None:
                continue
            part = table.where(rows)
            factors = np.exp(correction.log_factors(part, kernels.chip, prediction.where(rows)))
            corrected = np.maximum(prediction.seconds[rows] * factors, light[rows])
            prediction.seconds[rows] = corrected
            fit = kernels.parameters(family, dtype).fit
            fitted = correction.ranges if fit is None else fit.ranges
            learned = rows_inside(correction.ranges, part)  # the others stay as physics has them, interval and all
            put_intervals(prediction, rows[learned], correction.intervals, rows_inside(fitted, part)[learned])

    def find(self, kernels: KernelLibrary, family: str, dtype: str) -> Correction | None:
        """The correction that belongs to the parameter set ``kernels`` uses, if there is one."""
        for library in dict.fromkeys((kernels.library, "generic")):
            for name in exact_names(family, dtype):
                if name in kernels.chip.kernels.get(library, {}).get(family, {}):
                    return self.corrections.get((library, family, name))
        return None


def residual_path(profile: str | Path) -> Path:
    """The file of corrections that belongs to a profile: beside the YAML file, or inside the catalogue."""
    text = str(profile)
    if text.endswith((".yaml", ".yml")):
        return Path(text).with_suffix(SUFFIX)
    import hwprofiles

    return Path(hwprofiles.__file__).parent / "chips" / f"{text}{SUFFIX}"


def load_residuals(profile: str | Path) -> Residuals:
    """Read the corrections of a profile.

    Raises:
        ForerunError: it has none, or the file is damaged.
    """
    path = residual_path(profile)
    if not path.is_file():
        raise ForerunError(f"{profile}: this profile has no learned correction ({path.name}); run without --residual")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as data:
            keys = [tuple(str(text).split("/")) for text in data["keys"]]
            corrections = {(key[0], key[1], key[2]): _unpacked(data, key) for key in keys}
    except _DAMAGE as problem:
        raise ForerunError(f"{path}: damaged file of corrections ({' '.join(str(problem).split())[:100]})") from None
    return Residuals(corrections)


def save_residuals(residuals: Residuals, profile: str | Path) -> Path:
    """Write the corrections beside a profile and return the file's path."""
    path = residual_path(profile)
    arrays: dict[str, NDArray[np.generic]] = {}
    keys = []
    for key, correction in residuals.corrections.items():
        place = "/".join(key)
        keys.append(place)
        arrays[f"{place}/feature"] = correction.trees.feature.astype(np.int8)
        arrays[f"{place}/threshold"] = correction.trees.threshold
        arrays[f"{place}/leaf"] = correction.trees.leaf.astype(np.float16)
        arrays[f"{place}/names"] = np.array(correction.names)
        for name, pairs in (("ranges", correction.ranges), ("intervals", correction.intervals)):
            arrays[f"{place}/{name}"] = np.array(list(pairs.values()), dtype=np.float64).reshape(-1, 2)
            arrays[f"{place}/{name}_names"] = np.array(list(pairs), dtype=np.str_)
    np.savez_compressed(path, keys=np.array(keys), **arrays)  # type: ignore[arg-type]
    return path


def _unpacked(data: Mapping[str, NDArray[np.generic]], key: tuple[str, ...]) -> Correction:
    place = "/".join(key)
    names = tuple(str(text) for text in data[f"{place}/names"])
    if key[1] not in FAMILIES or not set(names) <= set(feature_names(key[1])):
        raise ValueError(f"{place}: features that no kernel of the family has")
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
    _check_trees(trees, len(names), place)
    return Correction(trees, names, pairs[0], pairs[1])


def _check_trees(trees: Trees, columns: int, place: str) -> None:
    """Raise ValueError unless questions are about some of ``columns`` features and answers have finite leaves."""
    count, levels = trees.feature.shape
    whole = trees.threshold.shape == (count, levels) and trees.leaf.shape == (count, 1 << levels)
    if not whole or not np.isfinite(trees.leaf).all():
        raise ValueError(f"{place}: trees without a leaf for every answer")
    if trees.feature.size and not 0 <= trees.feature.min() <= trees.feature.max() < columns:
        raise ValueError(f"{place}: questions about features that are not there")


def _matrix(names: tuple[str, ...], table: KernelTable, chip: Chip, prediction: Prediction) -> FloatArray:
    parts = {name: getattr(prediction, name) for name in ("launch_s", "compute_s", "memory_s")}
    return feature_matrix(names, table, chip, prediction.seconds, parts)
