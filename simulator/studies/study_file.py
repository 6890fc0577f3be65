"""Study files and ``--vary``: a scenario, the fields to vary, named variants, and the resulting points."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from math import exp, floor, inf, log, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from forerun.arrays import FloatArray
from forerun.document import Json
from forerun.errors import ArgumentError, ForerunError, did_you_mean, plain_number
from simulator.running.names import check_names
from simulator.running.scenario import (
    Scenario,
    ScenarioSource,
    as_scenario,
    folder_of,
    load_scenario,
    parse_yaml,
    read_source,
    resolve_paths,
    scenario_from,
    scenario_in,
    with_settings,
)
from simulator.speculation.engine_logs import read_acceptance
from simulator.speculation.speculation_config import NEEDS_ACCEPTANCE
from traces.llama_cpp import read_llama_cpp

STUDY_KEYS = ("scenario", "vary", "variants", "metric")
VARIANT_KEYS = ("name", "set")
RANGE_KEYS = ("low", "high", "log")
FEW_VALUES = 2
"""Maximum number of values in a section that a name lists in full."""
Settings = Mapping[str, Any]
"""Values by dotted scenario path."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of numbers from ``low`` to ``high``: integers if both ends are integers, log-uniform if ``log``."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """True if the range contains only integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Values = tuple[Any, ...] | Range
"""Values, or a range of values, of a varied field."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A scenario of a study and how it differs from the study's own."""

    name: str
    set: Settings
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A scenario, the fields to vary and named variants of it."""

    place: str
    """Name of the file, for error messages."""
    scenario: Scenario
    vary: Mapping[str, Values]
    variants: tuple[Variant, ...]
    folder: Path | None = None
    """First folder in which relative file names in settings are looked up."""
    metric: str | None = None
    """Metric by which ``compare`` ranks variants; None if the file sets none."""
    notes: tuple[str, ...] = ()
    """Notes on defaults used where the file sets no value."""

    def with_settings(self, settings: Settings) -> Scenario:
        """Copy of the scenario with values set by dotted path.

        Raises:
            ForerunError: a path that does not exist, or an invalid value.
        """
        return apply_settings(self.scenario, settings, self.place, self.folder)


def load_study(path: str | Path, overrides: Sequence[str] = (), vary: Sequence[str] = ()) -> StudyFile:
    """Load a study from a file: a plain scenario, or a mapping with ``scenario`` and ``vary`` or ``variants``.

    Args:
        path: YAML or JSON. its ``scenario`` is a path relative to the file, or an inline scenario.
        overrides: ``PATH=VALUE`` texts applied to the scenario before anything varies.
        vary: ``PATH=V1,V2,...`` texts; they replace the file's values of the same path.

    Raises:
        ForerunError: one line that names the file, the field and a valid value.
    """
    place, data = read_source(path, overrides)
    file = Path(place)
    if not any(key in data for key in STUDY_KEYS):
        folder = folder_of(path)
        return StudyFile(place, scenario_in(data, folder, place, overrides), parse_vary(vary), (), folder)
    scenario = _inner_scenario(data, file, overrides)
    axes = _file_vary(data.get("vary"), file)
    specs = data.get("variants")
    if specs is not None and not (specs and isinstance(specs, list)):
        raise ForerunError(f"{file}: variants: write a list of {{name: ..., set: {{PATH: VALUE}}}}")
    metric = data.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise ForerunError(f"{file}: metric: name a key of the summary, such as mean_tpot_ms (got {metric!r})")
    study = StudyFile(str(file), scenario, axes | parse_vary(vary), (), file.parent, metric)
    return replace(study, variants=_variants(specs or (), study))


def load_study_and_logs(
    path: str | Path, logs: Sequence[str | Path], overrides: Sequence[str] = (), vary: Sequence[str] = ()
) -> StudyFile:
    """Load a study from a file; engine logs supply the acceptance if its speculation section has none."""
    try:
        return load_study(path, overrides, vary)
    except ForerunError as problem:
        if not logs or NEEDS_ACCEPTANCE not in str(problem):
            raise
        return load_study(path, [*overrides, f"speculation.acceptance={_acceptance_of(logs)}"], vary)


def _acceptance_of(logs: Sequence[str | Path]) -> str:
    """Acceptance section from engine logs: the first with rates per position, else the acceptance length of all
    logs."""
    for file in logs:
        with suppress(ForerunError):
            if read_acceptance(file).per_position is not None:
                return f"{{log: {json.dumps(str(Path(file).resolve()))}}}"
    rates = [rate for file in logs for rate in read_llama_cpp(Path(file)) if rate.drafted]
    if not rates:
        raise ForerunError(f"{logs[0]}: counts no drafts, and the scenario's speculation states no acceptance")
    length = 1.0 + sum(rate.accepted for rate in rates) / sum(rate.cycles for rate in rates)
    return f"{{acceptance_length: {length:.4f}}}"


LOG_DEFAULTS: Mapping[str, Any] = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
"""Default scenario for a log of requests."""


def study_of_log(
    path: str | Path, overrides: Sequence[str] = (), vary: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> StudyFile:
    """Study of a request log: its arrivals and lengths, with ``LOG_DEFAULTS`` and the overrides as scenario."""
    workload = {"trace": str(path)} | ({"columns": dict(columns)} if columns else {})
    scenario = scenario_in({**deepcopy(dict(LOG_DEFAULTS)), "workload": workload}, Path(), str(path), overrides)
    varied = parse_vary(vary)
    paths = {text.partition("=")[0] for text in overrides} | set(varied)
    taken = {"model": scenario.model, "hardware.chip": scenario.hardware.chip}
    open_ = {name: value for name, value in taken.items() if name not in paths}
    note = f"{path} is a log and names no scenario; taken: " + ", ".join(f"{k} {v}" for k, v in open_.items())
    hint = " (" + " ".join(f"--set {name}=NAME" for name in open_) + " says otherwise)"
    return StudyFile(str(path), scenario, varied, (), Path(), notes=(note + hint,) if open_ else ())


Source = ScenarioSource | StudyFile
"""A scenario (or its dict), a study, or the file of a scenario or study."""


def study_of(source: Source, vary: Mapping[str, Sequence[Any] | Range] | None = None) -> StudyFile:
    """Build a study from a scenario, a study, or the file of a scenario or study."""
    if isinstance(source, str | Path):
        source = load_study(source)
    study = source if isinstance(source, StudyFile) else StudyFile("scenario", as_scenario(source), {}, ())
    values = {
        path: each
        if isinstance(each, Range)
        else checked_values(
            [each] if isinstance(each, str) else list(each) if isinstance(each, Iterable) else each, f"vary {path}"
        )
        for path, each in (vary or {}).items()
    }
    return replace(study, vary={**study.vary, **values})


def parse_pairs(text: str, name: str, example: str, value: str = "VALUE") -> dict[str, str]:
    """Parse ``WORD=VALUE,...`` into a mapping; empty text gives an empty mapping."""
    parts = [part.partition("=") for part in text.split(",")] if text.strip() else []
    pairs = {word.strip(): text_value.strip() for word, _, text_value in parts}
    if len(pairs) < len(parts) or not all(pairs) or not all(pairs.values()):
        raise ForerunError(f"{name} {text}: write WORD={value},..., each word once, for example {example}")
    return pairs


def parse_vary(texts: Sequence[str]) -> dict[str, Values]:
    """Parse ``--vary`` options into values by path.

    ``PATH=V1,V2,...`` lists YAML values; ``PATH=LOW..HIGH`` is a range, ``PATH=LOW..HIGH:log`` a logarithmic range.
    """
    axes: dict[str, Values] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        place = f"--vary {text}"
        if not equals or not all(path.split(".")) or not values.strip():
            raise ForerunError(f"{place}: write PATH=V1,V2,..., for example engine.max_num_seqs=64,128,256")
        if path in axes:
            raise ForerunError(f"{place}: {path} is varied twice; give all its values at once")
        axes[path] = _range_text(values, place) or checked_values(parse_yaml(f"[{values}]", place), place)
    return axes


def checked_values(values: Any, place: str) -> tuple[Any, ...]:
    """Check a list of values to vary and remove duplicates."""
    if not isinstance(values, list | tuple):
        raise ForerunError(f"{place}: give a list of values, or a range with low and high (got {values!r:.40})")
    if not values:
        raise ForerunError(f"{place}: the list of values is empty")
    for index, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:index]):
            raise ForerunError(f"{place}: {value!r} is given twice")
    return tuple(values)


def apply_settings(scenario: Scenario, settings: Settings, place: str, folder: Path | None = None) -> Scenario:
    """Copy of ``scenario`` with values by dotted path; file names are relative to ``folder`` or the working folder."""
    if not settings:
        return scenario
    data = with_settings(scenario.model_dump(exclude_unset=True), settings, place + ":")
    if folder is not None:
        resolve_paths(data, folder)
    changed = scenario_from(data, place)
    try:
        check_names(changed)
    except ForerunError as error:
        raise ForerunError(f"{place}: {error}") from None
    return changed


def field_words(path: str) -> str:
    """Column heading from the last part of a dotted path, e.g. ``max num seqs``."""
    return short_names([path])[0].replace("_", " ")


def settings_name(settings: Settings) -> str:
    """Short name of settings: values by the last word of their path, e.g. ``tensor_parallel=2 method=none``."""
    if not settings:
        return "as given"
    flat = dict(_flat(settings))
    return " ".join(f"{name}={_short(value)}" for name, value in zip(short_names(flat), flat.values(), strict=True))


def short_names(paths: Iterable[str]) -> list[str]:
    """Last words of dotted paths, with the list before an index; whole paths if two have the same."""
    words = {path: re.search(r"[^.]+(\.\d+(\..+)?)?$", path)[0] for path in paths}  # type: ignore[index]
    last = list(words.values())
    return [path if last.count(word) > 1 else word for path, word in words.items()]


def _flat(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Settings with sections of a few plain values flattened, such as ``prices={usd_per_chip_hour: 2.6}``."""
    for path, value in settings.items():
        plain = isinstance(value, Mapping) and all(not isinstance(inner, Mapping | list) for inner in value.values())
        if plain and 0 < len(value) <= FEW_VALUES:
            yield from ((f"{path}.{key}", inner) for key, inner in value.items())
        else:
            yield path, value


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as readable YAML."""
    return yaml.safe_dump(dict(data), sort_keys=False, default_flow_style=None, width=100)


def scenario_file(document: Mapping[str, Any]) -> dict[str, str]:
    """Scenario file (text by file name) that a study saves, and that its repeat command reads."""
    return {"study.yaml": yaml_text({"scenario": document["scenario"]})}


def study_text(variants: Sequence[Mapping[str, Any]]) -> str:
    """Text of a study file that runs the given variants again."""
    base = variants[0]["scenario"]
    listed = []
    for variant in variants:
        settings = variant["scenario"]
        changed = {key: value for key, value in settings.items() if base.get(key) != value}
        gone: Json = {key: {} if key == "slo" else None for key in base if key not in settings}
        listed.append({"name": variant["name"], "set": changed | gone})
    return yaml_text({"scenario": base, "variants": listed})


def sweep_file_text(scenario: Mapping[str, Any], points: Sequence[Settings]) -> str:
    """Text of a study file that runs the given points again, each as a variant of the scenario."""
    listed = [{"name": settings_name(point), "set": dict(point)} for point in points]
    return yaml_text({"scenario": dict(scenario), "variants": listed})


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return str(value)


def _inner_scenario(data: Json, file: Path, overrides: Sequence[str]) -> Scenario:
    for key in data:
        if key not in STUDY_KEYS:
            raise ForerunError(
                f"{file}: {key}: unknown field{did_you_mean(str(key), STUDY_KEYS)} (a study has "
                f"{', '.join(STUDY_KEYS)}; a scenario's own fields go under scenario)"
            )
    inner = data.get("scenario")
    if isinstance(inner, str):
        path = file.parent / inner
        return load_scenario(path if path.exists() else inner, overrides)
    if isinstance(inner, dict):
        return scenario_in(inner, file.parent, f"{file}: scenario", overrides)
    raise ForerunError(f"{file}: scenario: name a scenario file, or write the scenario here")


def _file_vary(data: Any, file: Path) -> dict[str, Values]:
    if not isinstance(data, dict | None):
        raise ForerunError(f"{file}: vary: write PATH: [V1, V2, ...] lines")
    axes: dict[str, Values] = {}
    for path, values in (data or {}).items():
        place = f"{file}: vary.{path}"
        axes[str(path)] = range_of(values, place) if isinstance(values, dict) else checked_values(values, place)
    return axes


def range_of(values: Mapping[str, Any], place: str) -> Range:
    """Parse a range from ``{low: ..., high: ..., log: ...}``."""
    for key in values:
        if key not in RANGE_KEYS:
            raise ForerunError(f"{place}.{key}: unknown field{did_you_mean(str(key), RANGE_KEYS)} (low, high, log)")
    low, high, log = values.get("low"), values.get("high"), values.get("log", False)
    for name, end in (("low", low), ("high", high)):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise ForerunError(f"{place}.{name}: must be a number (got {end!r})")
    assert low is not None
    assert high is not None
    if not isinstance(log, bool):
        raise ForerunError(f"{place}.log: must be true or false (got {log!r})")
    if not -inf < low < high < inf:
        raise ForerunError(f"{place}: low {low} must lie below high {high}, both finite")
    if log and low <= 0:
        raise ForerunError(f"{place}: a range in logarithms starts above 0 (got {low})")
    return Range(low, high, log)


def _range_text(text: str, place: str) -> Range | None:
    body, colon, kind = text.partition(":")
    low, dots, high = body.partition("..")
    if not dots or low.strip()[:1] in ("[", "{", "'", '"'):
        return None
    ends = [parse_yaml(end, place) for end in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        return None
    if colon and kind.strip() != "log":
        raise ForerunError(f"{place}: write LOW..HIGH or LOW..HIGH:log")
    return range_of({"low": ends[0], "high": ends[1], "log": bool(colon)}, place)


def _variants(specs: Sequence[Any], study: StudyFile) -> tuple[Variant, ...]:
    variants: list[Variant] = []
    for number, spec in enumerate(specs, start=1):
        place = f"{study.place}: variants[{number}]"
        if not isinstance(spec, dict):
            raise ForerunError(f"{place}: write {{name: ..., set: {{PATH: VALUE}}}}")
        for key in spec:
            if key not in VARIANT_KEYS:
                raise ForerunError(f"{place}.{key}: unknown field{did_you_mean(str(key), VARIANT_KEYS)} (name, set)")
        settings = spec.get("set") or {}
        if not isinstance(settings, dict):
            raise ForerunError(f"{place}.set: write PATH: VALUE lines")
        settings = {str(path): value for path, value in settings.items()}
        name = str(spec.get("name") or settings_name(settings))
        if name in (other.name for other in variants):
            raise ForerunError(f"{place}.name: '{name}' is given twice")
        variants.append(Variant(name, settings, apply_settings(study.scenario, settings, place, study.folder)))
    return tuple(variants)


MOST_ON_AXIS = 4_194_304
"""Maximum accepted batch or context."""


def axis_values(values: Sequence[int | str], axis: str) -> tuple[int, ...]:
    """Ascending values of an axis, from integers or texts such as ``8``, ``1,8,64``, or ``1..64`` (doubling)."""
    sizes: set[int] = set()
    for part in (part.strip() for value in values for part in str(value).split(",")):
        ends = [end.strip() for end in part.split("..", 1)]
        if not all(re.fullmatch("[0-9]{1,7}", end) and 1 <= int(end) <= MOST_ON_AXIS for end in ends):
            meant = plain_number(part, axis)
            example = f"; write {meant}" if meant not in ("", part) else ", such as 1,8,64 or 1..256"
            raise ArgumentError(axis, f"{part}: must be whole numbers from 1 to {MOST_ON_AXIS:,}{example}")
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise ArgumentError(axis, f"{part}: the range must ascend")
        while first < last:
            sizes.add(first)
            first *= 2
        sizes.add(last)
    return tuple(sorted(sizes))


Design = Literal["grid", "random", "latin-hypercube"]
DESIGNS: tuple[Design, ...] = ("grid", "random", "latin-hypercube")
LARGEST = 1_000_000


def design_points(
    vary: Mapping[str, Values], design: Design = "grid", samples: int | None = None, seed: int = 0
) -> list[Json]:
    """Settings of every point of a design; the first path varies slowest in a grid."""
    if design not in DESIGNS:
        raise ArgumentError("design", f"{design}: one of {', '.join(DESIGNS)}")
    if design == "grid":
        if samples is not None:
            raise ArgumentError("samples", "a grid runs every combination; ask for design random or latin-hypercube")
        return _grid(vary)
    if samples is None or samples < 1:
        raise ArgumentError("design", f"{design} says nothing without samples (how many points to draw)")
    if samples > LARGEST:
        raise ArgumentError("samples", f"{samples}: at most {LARGEST:,} points")
    if not vary:
        raise ArgumentError("design", f"{design} has nothing to draw from; vary a field over LOW..HIGH or V1,V2,...")
    unit: FloatArray
    if design == "latin-hypercube":
        from scipy.stats import qmc

        unit = qmc.LatinHypercube(d=len(vary), seed=seed).random(samples)
    else:
        unit = np.random.default_rng(seed).random((samples, len(vary)))
    return [{path: at(values, u) for (path, values), u in zip(vary.items(), row, strict=True)} for row in unit]


def at(values: Values, share: float) -> Any:
    """Value at position ``share`` in [0, 1) of a list or a range."""
    if not isinstance(values, Range):
        return values[min(floor(share * len(values)), len(values) - 1)]
    low, high = values.low, values.high
    if values.whole:
        if values.log:
            drawn = floor(exp(log(low) + share * (log(high + 1) - log(low))))
            return min(max(drawn, int(low)), int(high))
        return min(int(low) + floor(share * (int(high) - int(low) + 1)), int(high))
    if values.log:
        return exp(log(low) + share * (log(high) - log(low)))
    return low + share * (high - low)


def unique_points(points: Sequence[Settings]) -> list[Settings]:
    """Points in order without duplicates (draws of integers or from lists may repeat)."""
    kept: dict[str, Settings] = {}
    for point in points:
        kept.setdefault(repr(sorted(point.items())), point)
    return list(kept.values())


def _grid(vary: Mapping[str, Values]) -> list[Json]:
    lists: list[tuple[Any, ...]] = []
    for path, values in vary.items():
        if isinstance(values, Range):
            way = "list them, or draw from the range with design latin-hypercube and samples"
            raise ArgumentError("vary", f"{path}: a grid needs values, not a range; {way}")
        lists.append(values)
    count = prod(map(len, lists))
    if count > LARGEST:
        raise ArgumentError("vary", f"{count:,} combinations; at most {LARGEST:,} points")
    return [dict(zip(vary, combination, strict=True)) for combination in product(*lists)]
