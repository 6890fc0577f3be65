"""Scenario: the validated description of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator

from forerun.document import Json
from forerun.errors import (
    ForerunError,
    UnknownFieldError,
    did_you_mean,
    got,
    in_words,
    named_arguments,
    shown,
    without_unit,
)
from forerun.types import PositiveFloat, Section
from forerun.yaml_files import TooLargeError, bounded_text, packaged, parse, problem_of
from hwprofiles.dtypes import formats_meant
from simulator.running.engine_defaults import chosen_fields, default_formats, with_defaults
from simulator.running.names import catalogue_words, check_names, places
from simulator.running.refusals import check_sections
from simulator.serving.engine_config import EngineConfig
from simulator.serving.fleet.fleet_config import (
    AutoscalerConfig,
    FaultsConfig,
    KvTransferConfig,
    PoolConfig,
    PoolName,
    RouterConfig,
)
from simulator.serving.store_config import SharedStoreConfig
from simulator.speculation import SpeculationConfig, carry_acceptance
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig
from simulator.timing.hardware_config import HardwareConfig
from simulator.workload.workload_config import WorkloadConfig

QUOTED = re.compile(r"'([^']*)'")
ROLE_NAME = re.compile("(prefill|(?:context|ctx)(?![a-z]))|decode|(?:generation|gen)(?![a-z])")
"""Pattern of a pool name that implies a role: prefill if the group matches, else decode."""
LIMIT_KEY = re.compile(r"(p50|p90|p95|p99|mean|median)_(ttft|tpot|itl|e2el)_ms")


class PricesConfig(Section):
    """Prices of the hardware."""

    usd_per_chip_hour: PositiveFloat | Annotated[dict[str, PositiveFloat], Field(min_length=1)]
    """US dollars per chip-hour; or a price by chip name, e.g. ``{h100-sxm: 2.5, l40s: 0.9}``."""

    def of(self, chip: str) -> float | None:
        """US dollars per hour of ``chip``; None if prices are given by name and ``chip`` has none."""
        usd = self.usd_per_chip_hour
        return usd.get(chip) if isinstance(usd, dict) else usd


class MeasuredConfig(Section):
    """Benchmark results of the user's own deployment."""

    files: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Files or folders, in any format that ``forerun replay requests`` reads."""
    deployment: Json | None = None
    """Scenario without workload that the results are of; default: the scenario that names them."""


ARRIVALS = {"request_rate": "poisson", "max_concurrency": "closed-loop"}
"""Arrival process that each shortcut for arrivals means."""
SHORTCUTS = {
    **{name: f"hardware.{name}" for name in ("chip", "tensor_parallel", "replicas")},
    "framework": "engine.framework",
    **{name: f"workload.{name}" for name in ("trace", "num_requests", "input_tokens", "output_tokens")},
    **dict.fromkeys(ARRIVALS, "workload.arrivals"),
    "usd_per_chip_hour": "prices.usd_per_chip_hour",
}
"""Field of a scenario that each shortcut of the Python interface sets."""
DEPLOYMENT = ("model", "weights_dtype", "kv_cache_dtype", "hardware", "engine", "pools", "kv_transfer", "kv_store",
              "speculation", "attention_speculation")  # fmt: skip
"""Fields of a scenario that describe the deployment."""


class Scenario(Section):
    """A model on hardware, an engine and a workload; optionally speculation, latency limits and prices.

    In Python, keyword arguments are the fields below or shortcuts for nested ones: ``chip``, ``tensor_parallel``,
    ``replicas``, ``framework``, ``trace``, ``num_requests``, ``input_tokens``, ``output_tokens``,
    ``usd_per_chip_hour``, and ``request_rate`` (Poisson arrivals per second) or ``max_concurrency`` (a closed loop).

    >>> Scenario(model="llama-3.1-8b", chip="h100-sxm", trace="azure-conv-2023").hardware.chip
    'h100-sxm'

    Raises:
        ForerunError: a field or a value is invalid; one line that names it.
    """

    model: str | Json
    """Model: catalogue name, path to a HF config.json, or inline fields."""
    weights_dtype: str | dict[str, str] | None = None
    """One dtype for the layers' weight matrices, or a dtype by part; default: the checkpoint's own."""
    kv_cache_dtype: str = "bf16"
    """Format of keys and values in the cache: bf16, fp8 or another format of the catalogue. Default: that of the
    checkpoint's scales; fp8 for DeepSeek-V3.2 and GLM-5 under SGLang on Blackwell."""
    hardware: HardwareConfig = Field(examples=[{"chip": "h100-sxm"}])
    engine: EngineConfig = Field(default_factory=EngineConfig)
    router: RouterConfig = Field(default_factory=RouterConfig)
    """Parameters of ``engine.routing`` and admission limits of the router."""
    pools: dict[PoolName, PoolConfig] | None = None
    """Pools of different kinds of replicas, by name; default: ``hardware.replicas`` equal replicas."""
    kv_transfer: KvTransferConfig | None = None
    """KV transfer from prefill pools to decode pools."""
    kv_store: SharedStoreConfig | None = None
    """Store for prefix-cache blocks that all servers share, behind ``engine.kv_stores``."""
    faults: FaultsConfig | None = None
    """Replica failures."""
    autoscaler: AutoscalerConfig | None = None
    """Autoscaler that starts and stops replicas with the load."""
    speculation: SpeculationConfig | None = None
    attention_speculation: AttentionSpeculationConfig | None = None
    """Attention-level speculation; needs ``hardware.speculative_parallel: 2``."""
    workload: WorkloadConfig = Field(examples=[{"trace": "azure-conv-2023"}])
    measured: MeasuredConfig | None = None
    """Benchmark results of this deployment that every prediction takes into account; a list of files is enough."""
    slo: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Latency limits in milliseconds, such as ``p99_ttft_ms: 500``."""
    prices: PricesConfig | None = None
    notes: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Remarks that stand with every result, such as what a launch line left open."""

    def __init__(
        self,
        *unnamed: object,
        chip: str | None = None,
        tensor_parallel: int | None = None,
        replicas: int | None = None,
        framework: str | None = None,
        trace: str | Path | None = None,
        num_requests: int | None = None,
        input_tokens: int | Mapping[str, Any] | None = None,
        output_tokens: int | Mapping[str, Any] | None = None,
        usd_per_chip_hour: float | Mapping[str, float] | None = None,
        request_rate: float | None = None,
        max_concurrency: int | None = None,
        **fields: Any,
    ) -> None:
        if unnamed:
            raise ForerunError(f"Scenario: takes fields by name, such as Scenario(model={shown(unnamed[0])}, ...)")
        given = {name: value for name, value in locals().items() if name in SHORTCUTS and value is not None}
        try:
            super().__init__(**_expanded({**fields, **given}))
        except ValidationError as error:
            raise _refusal(error, "Scenario", _as_keywords) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # files are validated without the shortcuts

    _readings: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _in_catalogue_words(cls, data: Any, validate: Callable[[Any], Scenario]) -> Scenario:
        data, notes = catalogue_words(data)
        data, of_router = _with_endpoint_picker(data)
        notes |= of_router
        scenario = validate(data)
        scenario._readings.update(notes)
        return scenario

    @property
    def readings(self) -> tuple[str, ...]:
        """Notes on names from other tools and their interpretation."""
        return tuple(self._readings.values())

    @field_validator("measured", mode="before")
    @classmethod
    def _list_of_files(cls, measured: Any) -> Any:
        files = [measured] if isinstance(measured, str) else measured
        return {"files": files} if isinstance(files, list | tuple) else measured

    @field_validator("pools", mode="before")
    @classmethod
    def _roles_by_name(cls, pools: Any) -> Any:
        """Set the role of pools whose names begin with prefill or decode, or with context, ctx, generation or gen."""
        if not isinstance(pools, dict):
            return pools
        named = {name: ROLE_NAME.match(str(name).lower()) for name in pools}
        roles = {
            name: "prefill" if match and match[1] else "decode" if match else None for name, match in named.items()
        }
        return {
            name: {"role": roles[name], **pool} if roles[name] and isinstance(pool, dict) else pool
            for name, pool in pools.items()
        }

    @field_validator("slo")
    @classmethod
    def _known_limits(cls, slo: dict[str, float]) -> dict[str, float]:
        for key in slo:
            if not LIMIT_KEY.fullmatch(key):
                raise ValueError(
                    f"'{key}' is no latency limit; write STATISTIC_METRIC_ms with one of p50 p90 p95 p99 mean median "
                    f"and one of ttft tpot itl e2el"
                )
        return slo

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Scenario:
        pooled = self.pools is not None
        engine = with_defaults(self.engine, self.hardware, self.model, self.speculation, pooled)
        known = chosen_fields(self)
        stored = default_formats(engine, self.model, self.hardware.chip)
        formats = {name: value for name, value in stored.items() if name not in known}
        self.model_fields_set.difference_update(formats)
        self.__dict__.update(formats, engine=engine)
        if self.measured is not None and self.measured.deployment is None:
            own = {name: value for name, value in self.model_dump(exclude_unset=True).items() if name in DEPLOYMENT}
            self.__dict__.update(measured=self.measured.model_copy(update={"deployment": own}))
        check_sections(self)
        check_names(self, files=False)
        return self

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Scenario:
        """Validate plain data as a scenario; errors are a ``ForerunError`` of one line."""
        return _validated(super().model_validate, "Scenario", obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Scenario:
        """Validate JSON text as a scenario; errors are a ``ForerunError`` of one line."""
        return _validated(super().model_validate_json, "Scenario", json_data, **options)

    @property
    def random(self) -> bool:
        """True if the run depends on the seed."""
        drafts = self.speculation is not None and self.speculation.method != "none"
        hits = self.attention_speculation is not None and self.attention_speculation.hits == "drawn"
        transfer = self.kv_transfer or KvTransferConfig()
        routed = {"scored", "random"} & {self.engine.routing, transfer.routing}  # equal scores, exploration
        return drafts or hits or bool(routed) or self.faults is not None or self.workload.random

    def pool_section(self, pool: str, section: str) -> Any:
        """Section ``hardware`` or ``engine`` of a pool: the scenario's section with the pool's fields replaced.

        Raises:
            ValueError: an unknown field or invalid value; one line that names it.
        """
        base = getattr(self, section)
        assert self.pools is not None
        try:
            fields = base.model_dump(exclude_unset=True) | getattr(self.pools[pool], section)
            made = type(base).model_validate(fields)
            if section != "engine":
                return made
            return with_defaults(made, self.pool_section(pool, "hardware"), self.model, self.speculation, pooled=True)
        except ValidationError as error:
            raise ValueError(f"pools.{pool}.{section}.{explain(error, type(base))}") from None

    def with_values(self, overrides: Mapping[str, Any]) -> Scenario:
        """Copy with values set by dotted path, validated again.

        Raises:
            ForerunError: a path that does not exist, or an invalid value.
        """
        other = scenario_from(with_settings(self.model_dump(exclude_unset=True), overrides, "override"), "scenario")
        kept = {field: note for field, note in self._readings.items() if field not in overrides}
        other._readings.update(kept | other._readings)
        return other


def _with_endpoint_picker(data: object) -> tuple[object, dict[str, str]]:
    """Scenario data with the rule of ``router.endpoint_picker`` in ``router``, and its notes."""
    router = data.get("router") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(router, dict) or router.get("endpoint_picker") is None:
        return data, {}
    from simulator.launch.endpoint_picker import read_endpoint_picker

    engine, transfer, pools = (_plain(data.get(name)) for name in ("engine", "kv_transfer", "pools"))
    if engine.get("routing", "scored") != "scored":
        raise ForerunError(
            f"router.endpoint_picker: engine.routing {engine['routing']} has no use for it; set it to scored"
        )
    roles = [_plain(pool).get("role") or name for name, pool in pools.items()]
    picker = read_endpoint_picker(router["endpoint_picker"], any(str(role).startswith("prefill") for role in roles))
    unused = {"filters", "scorers", "picker", *({"scrape_interval_s"} - set(picker.router))}
    own = {name: value for name, value in router.items() if name not in {"endpoint_picker", *unused}}
    data = {**data, "router": picker.router | own, "engine": {**engine, "routing": "scored"}}
    if picker.decodes and "routing" not in transfer:
        data["kv_transfer"] = {**transfer, "routing": "scored"}
    replaced = [f"endpoint picker: it replaces router.{name}" for name in router if name in unused]
    return data, {f"router.{place}": note for place, note in enumerate([*replaced, *picker.notes])}


def _plain(section: object) -> Json:
    """A section as plain data, whatever it is given as."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, dict) else {}


ScenarioSource = Scenario | Mapping[str, Any] | str | Path
"""A scenario, its fields as plain data, or its file."""


def as_scenario(source: ScenarioSource) -> Scenario:
    """Convert ``source`` to a scenario."""
    if isinstance(source, Scenario):
        return source
    if isinstance(source, str | Path):
        return load_scenario(source)
    if isinstance(source, Mapping):
        return scenario_in(_expanded(deepcopy(dict(source))), Path(), "scenario")
    raise ForerunError(f"scenario: a Scenario, a dict or a path to a file is expected (got {type(source).__name__})")


def _expanded(fields: Mapping[str, Any]) -> Json:
    """``fields`` with the value of each shortcut set at its dotted path."""
    if fields.get("request_rate") is not None and fields.get("max_concurrency") is not None:
        raise ForerunError("Scenario: request_rate, max_concurrency: give one of the two")
    data = {name: value for name, value in fields.items() if name not in SHORTCUTS}
    for name in SHORTCUTS:
        if (value := fields.get(name)) is None:
            continue
        section, _, field = SHORTCUTS[name].partition(".")
        present = data.get(section, {})
        if isinstance(present, BaseModel):
            present = present.model_dump(exclude_unset=True)
        if not isinstance(present, Mapping) or field in present:
            raise ForerunError(
                f"Scenario: {SHORTCUTS[name]} is set twice, in {section} and by a shortcut; give one of the two"
            )
        process = ARRIVALS.get(name)
        data[section] = {**present, field: {"process": process, name: value} if process else value}
    return data


@named_arguments
def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario from a YAML or JSON file and apply ``a.b=value`` overrides.

    Relative trace, model and profile paths in the file are looked up in its folder, then in the working folder.

    Raises:
        ForerunError: the file, a field or an override is invalid; one line that names it and a valid value.
    """
    if not isinstance(path, str | Path):
        raise ForerunError(f"scenario: a path to a file is expected (got {path!r})")
    place, data = read_source(path, overrides)
    if "scenario" in data:
        raise ForerunError(f"{place}: is a study file; forerun compare and forerun sweep take it, or run its scenario")
    return scenario_in(data, folder_of(path), place, overrides)


def read_mapping(file: Path) -> Json:
    """Read the top-level mapping of a YAML or JSON file."""
    data = parse_yaml(_text_of(file), str(file))
    if not isinstance(data, dict):
        raise ForerunError(f"{file}: a scenario is a mapping with model, hardware and workload at its top")
    return data


def place_of(source: str | Path) -> str:
    """Name of a scenario's source in errors: its file, or that it is a launch line."""
    return "launch line" if re.search(r"\s", str(source)) and not _is_there(Path(source)) else str(source)


def read_source(
    source: str | Path, overrides: Sequence[str] = (), receive: Callable[[Any], object] = lambda launch: None
) -> tuple[str, Json]:
    """Name of a source in errors, and the mapping of its YAML or JSON, or of its launch line.

    Args:
        source: a file, or the line itself.
        overrides: ``a.b=value`` texts that fill in what a line leaves open; the caller applies them.
        receive: called with the ``Launch`` where the source is one.
    """
    place = place_of(source)
    from_line = place != str(source)
    text = str(source) if from_line else _text_of(Path(source))
    data, refusal = None, None
    if not from_line:
        try:
            data = parse_yaml(text, place)
        except ForerunError as error:
            refusal = error
    own = data if isinstance(data, dict) else {}
    recipe = isinstance(own.get("model"), dict) and "model_id" in own["model"]
    studied = own.keys() & {"hardware", "workload", "vary", "variants"} or isinstance(own.get("scenario"), dict | str)
    if recipe or not studied:
        from simulator.launch.reading import read_launch, refuse_line

        given = dict(one.partition("=")[::2] for one in overrides)
        launch = read_launch(text, folder_of(source), place, given)
        if launch is not None:
            receive(launch)
            return place, {**launch.data, "notes": launch.notes}
        if from_line or not (refusal or isinstance(data, dict)):
            refuse_line(text, place)
    if refusal is not None:
        raise refusal
    return place, own


def folder_of(source: str | Path) -> Path:
    """Folder of a scenario file, in which its relative names are looked up; the current one for a launch line."""
    return Path(source).parent if _is_there(Path(source)) else Path()


def _text_of(file: Path) -> str:
    """The text of a scenario file."""
    if is_log(file):
        raise ForerunError(
            f"{file}: is a log of requests, not a scenario; forerun plan {file} --slo p99_ttft_ms=1000 takes it by "
            f"itself; in other commands name it in a scenario, workload: {{trace: {file}}}"
        )
    try:
        return bounded_text(file)
    except TooLargeError as error:
        raise ForerunError(f"{error}; is this a scenario?") from None
    except FileNotFoundError:
        raise ForerunError(f"{file}: no such scenario file{_file_near(file)}") from None
    except IsADirectoryError:
        raise ForerunError(f"{file}: is a folder; name a scenario file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ForerunError(f"{file}: cannot be read as text ({error})") from None


LOG_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".gz")


def is_log(path: str | Path) -> bool:
    """True if a path names a request log or a sample rather than a scenario."""
    from traces.catalogue import sample_names

    file = Path(path)
    return file.suffix.lower() in LOG_SUFFIXES or (not file.suffix and str(path) in sample_names())


def _file_near(file: Path) -> str:
    """Name of a similarly named file in the same folder, such as ``chat.yaml`` for ``chat.yml``; empty without one."""
    try:
        others = [other.name for other in file.parent.iterdir() if other.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return ""
    near = [name for name in others if Path(name).stem == file.stem]
    if near:
        return f"; did you mean '{file.with_name(near[0])}'?"
    return did_you_mean(file.stem, {Path(name).stem: name for name in others})


def scenario_in(data: Json, folder: Path, place: str, overrides: Sequence[str] = ()) -> Scenario:
    """Scenario from plain data with file names relative to ``folder``, and with ``a.b=value`` overrides."""
    resolve_paths(data, folder)
    settings = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals or not all(name.split(".")):
            raise ForerunError(f"--set {override}: write PATH=VALUE, for example engine.max_num_seqs=128")
        settings[name] = parse_yaml(value, f"--set {name}")
    return scenario_from(with_settings(data, settings, "--set"), place)


def scenario_from(data: Mapping[str, Any], place: str) -> Scenario:
    """Scenario from plain data; ``place`` is the name of its source in error messages."""
    return _validated(super(Scenario, Scenario).model_validate, place, data)


def _validated(validate: Callable[..., Any], place: str, data: Any, **options: Any) -> Scenario:
    try:
        scenario: Scenario = validate(data, **options)
    except ValidationError as error:
        raise _refusal(error, place) from None
    return scenario


def _refusal(error: ValidationError, place: str, written: Callable[[str], str] = str) -> ForerunError:
    unknown = any(problem["type"] == "extra_forbidden" for problem in error.errors(include_url=False))
    kind = UnknownFieldError if unknown else ForerunError
    return kind(f"{place}: {written(explain(error, Scenario))}")


def _as_keywords(message: str) -> str:
    """Message with the suggested dotted path as Python takes it, ``hardware={"expert_parallel": ...}``."""
    path = re.search(r"did you mean '(\w+)\.([\w.]+)'\?", message)
    if path is None:
        return message
    value = reduce(lambda inner, name: f'{{"{name}": {inner}}}', reversed(path[2].split(".")), "...")
    return message.replace(path[0], f"did you mean {path[1]}={value}?")


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line about the most relevant validation error: unknown fields first, then the most deeply nested error."""
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    if unknown:
        return _unknown_field(model, unknown[0]["loc"], unknown[0]["input"])
    fitting = [p for p in problems if not _wrong_branch(p["type"], p["input"])] or problems
    problem = max(fitting, key=lambda p: len(_fields(p["loc"])))
    kind, value, path = problem["type"], problem["input"], ".".join(_fields(problem["loc"]))
    message = in_words(problem)
    if kind == "missing":
        missing = [p["loc"] for p in problems if p["type"] == "missing" and len(p["loc"]) == len(problem["loc"])]
        return "; ".join(f"{'.'.join(_fields(loc))}: {message}{_example(model, loc)}" for loc in missing)
    if path and kind in ("model_type", "dict_type"):
        message += _example(model, problem["loc"])
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"{path}: {message}; write {value:.0f} (got {value!r})"
    if kind in ("int_type", "int_parsing", "float_type", "float_parsing") and isinstance(value, str):
        return f"{path}: {without_unit(value, path)}"
    if kind == "literal_error" and isinstance(value, str):
        return f"{path}: {message}{did_you_mean(value, re.findall(QUOTED, message))} (got '{value}')"
    return f"{path + ': ' if path else ''}{message[0].lower() + message[1:]}{got(value, message)}"


def _example(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Hint with an example of a section, or an empty string."""
    field = model.model_fields.get(str(location[0])) if len(location) == 1 else None
    return f", for example {json.dumps(field.examples[0])}" if field is not None and field.examples else ""


def _unknown_field(model: type[BaseModel], location: Sequence[int | str], value: object) -> str:
    place, name = _fields(location[:-1]), str(location[-1])
    known = _known_fields(model, place)
    plain = name.lower().replace("-", "_")
    if place == ["speculation", "tree"]:
        plain = {"steps": "speculative_num_steps", "topk": "speculative_eagle_topk"}.get(plain, plain)
    others = packaged("simulator.running", "other_names.yaml")
    own = any(path.rsplit(".", 1)[-1] == plain for path in _paths_of(model))
    if meant := others.get(".".join([*place, plain]), others.get(plain)) or ("" if own else _flag_meaning(plain)):
        if meant == "weights_dtype" and isinstance(value, str) and (formats := formats_meant(value)):
            meant = f"{meant}: {' or '.join(formats)}"
        return f"{'.'.join([*place, name])}: unknown field; it is {meant} here (fields here: {', '.join(known)})"
    hint = did_you_mean(plain, known)
    nested = [path for path in _paths_of(model) if "." in path]
    paths = [path for path in nested if path.rsplit(".", 1)[-1] == name]
    if not paths and not any(name in one.split("_") for one in known):
        paths = [path for path in nested if name in path.rsplit(".", 1)[-1].split("_")]
        paths.sort(key=lambda path: not path.startswith("workload."))
    within = [path for path in paths if not place or path.partition(".")[0] in known]
    if within:
        hint = f"; did you mean '{'.'.join([*place, within[0]])}'?"
    return f"{'.'.join([*place, name])}: unknown field{hint} (fields here: {', '.join(known)})"


def _flag_meaning(name: str) -> str:
    from simulator.launch.tables import meaning

    return meaning(name)


def parse_yaml(text: str, place: str) -> Any:
    """Parse YAML or JSON text; 1e3 is a number, duplicate keys are refused."""
    try:
        return parse(text)
    except yaml.YAMLError as error:
        what, line = problem_of(error)
        where = "" if line is None else f":{min(line, len(text.splitlines()) or 1)}"  # LibYAML names the end a line on
        raise ForerunError(f"{place}{where}: {what}") from None


def _wrong_branch(kind: str, value: Any) -> bool:
    """True if a validation error comes from a branch of a union that does not match the value's type."""
    if isinstance(value, dict | list):
        return kind in ("int_type", "string_type", "float_type", "none_required", "literal_error")
    return kind in ("model_type", "dict_type", "list_type", "none_required")


def _fields(location: Iterable[int | str]) -> list[str]:
    words = [str(part) for part in location if isinstance(part, int) or re.fullmatch(r"[a-z_][a-z0-9_]*", part)]
    return [word for word in words if word not in ("str", "int", "float", "none", "constrained")]


def _known_fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        if name in model.model_fields:
            nested = _models_in(model.model_fields[name].annotation)
            if not nested:
                return []
            model = nested[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def field_paths() -> list[str]:
    """Dotted paths of all fields of a scenario."""
    return _paths_of(Scenario)


def _paths_of(model: type[BaseModel], place: str = "") -> list[str]:
    names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    paths = [f"{place}{name}" for name in names]
    for name, annotation in names.items():
        for nested in _models_in(annotation, depth=1):
            paths += _paths_of(nested, f"{place}{name}.")
    return paths


def _models_in(annotation: Any, depth: int = 2) -> list[type[BaseModel]]:
    """Pydantic models in an annotation and its type arguments, down to nesting ``depth``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, "__args__", ()) if depth else ()
    return [model for branch in inner for model in _models_in(branch, depth - 1)]


def with_settings(data: Json, settings: Mapping[str, Any], place: str) -> Json:
    """Plain scenario data with values set by dotted path; acceptance stays with its method and target."""
    if not isinstance(settings, Mapping) or not all(isinstance(path, str) for path in settings):
        raise ForerunError(f"{place}: values by dotted path are needed, as {{'engine.max_num_seqs': 64}}")
    changed = deepcopy(data)
    for path, value in settings.items():
        here = changed
        names = path.split(".")
        for name, following in pairwise(names):
            key = _entry(here, name, f"{place} {path}")
            if not isinstance(key, int) and here.get(key) is None:
                here[key] = [] if following.isdecimal() else {}
            if isinstance(here[key], tuple):
                here[key] = list(here[key])
            here = here[key]
            if not isinstance(here, dict | list):
                raise ForerunError(f"{place} {path}: {name} is a single value, it has no field '{names[-1]}'")
        here[_entry(here, names[-1], f"{place} {path}")] = value
    carry_acceptance(data, changed, settings)
    return changed


def _entry(holder: Json | list[Json], name: str, place: str) -> str:
    """Key of a mapping's entry, or index of a list's, which is an integer."""
    if isinstance(holder, dict):
        return name
    if name.isdecimal() and int(name) < len(holder):
        return int(name)  # type: ignore[return-value]
    known = ", ".join(map(str, range(len(holder)))) or "none, the list is empty"
    raise ForerunError(f"{place}: {name} is no index of the list (valid: {known})")


FILE_FIELDS = (
    "model",
    "hardware.chip",
    "hardware.link",
    "hardware.pipeline_link",
    "hardware.layers_on.*.chip",
    "engine.host_link",
    "pools.*.hardware.chip",
    "pools.*.hardware.link",
    "pools.*.hardware.pipeline_link",
    "pools.*.engine.host_link",
    "kv_transfer.link",
    "kv_store.link",
    "router.endpoint_picker",
    "measured",
    "measured.*",
    "measured.files.*",
    "workload.trace",
    "workload.input_tokens.file",
    "workload.output_tokens.file",
    "speculation.draft.model",
    "speculation.draft.chip",
    "speculation.draft.link",
    "speculation.acceptance.log",
)
"""Fields that may name a file; ``*`` stands for every entry of a list or mapping."""


def resolve_paths(data: Json, folder: Path) -> None:
    """Turn relative names of files next to the scenario file into paths that work from any folder."""
    for holder, key, _ in places(data, FILE_FIELDS):
        name = holder[key]
        if not Path(name).is_absolute() and ("/" in name or "." in name):
            holder[key] = str(folder / name) if _is_there(folder / name) else name


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def scenario_schema() -> str:
    return json.dumps(Scenario.model_json_schema(), indent=2)
