"""llm-d's EndpointPickerConfig as fields of a scenario's router, and a router as such a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ValidationError

from forerun.document import Json
from forerun.errors import ForerunError, did_you_mean, in_words
from forerun.yaml_files import bounded_text, packaged, parse
from simulator.serving.fleet.fleet_config import SCRAPED, RouterConfig

KIND = "EndpointPickerConfig"
KINDS = ("filter", "scorer", "picker", "producer")
ROLES = re.compile("(prefill)|(decode)")
DURATION = re.compile(r"([\d.]+)(ms|us|h|m|s)")
UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
QUANTITIES = {"": 1, "k": 1000, "M": 1_000_000}


class _Named(BaseModel):
    """Entry of ``plugins``."""

    type: str
    name: str | None = None
    parameters: Json | None = None


class _Reference(BaseModel):
    """Entry of a profile."""

    pluginRef: str
    weight: float | None = None


class _Profile(BaseModel):
    """Entry of ``schedulingProfiles``."""

    name: str
    plugins: list[_Reference] | None = None


class _Configuration(BaseModel):
    """Sections of an EndpointPickerConfig that are read."""

    plugins: list[_Named] | None = None
    schedulingProfiles: list[_Profile] | None = None
    featureGates: list[str] | None = None
    flowControl: Json | None = None


class PlugIn(NamedTuple):
    """A plug-in that a configuration defines."""

    name: str
    type: str
    parameters: Json


class EndpointPicker(NamedTuple):
    """Router that a configuration describes."""

    router: Json
    """Fields of the scenario's ``router``."""
    decodes: bool
    """True if finished prompts go to a decode replica by the same rule."""
    notes: list[str]


def plug_ins() -> Json:
    """Known plug-ins and parameters."""
    return packaged("simulator.launch", "endpoint_picker.yaml")


def configurations(part: object, name: str = "") -> Iterator[tuple[str, Json]]:
    """Configurations at any depth of a document, in its texts too (ConfigMap, Helm values, arguments), by entry."""
    if isinstance(part, Mapping) and part.get("kind") == KIND:
        yield name, dict(part)
    elif isinstance(part, Mapping | list):
        for key, value in part.items() if isinstance(part, Mapping) else ((name, value) for value in part):
            yield from configurations(value, str(key))
    elif isinstance(part, str) and re.search(rf"^\s*kind:\s*{KIND}", part, re.MULTILINE):
        try:
            yield from configurations(parse(part), name)
        except yaml.YAMLError:
            raise ForerunError(
                f"{name or KIND}: is no YAML that can be read; render it first if it is a template"
            ) from None


def configuration_of(documents: object, place: str) -> Json | None:
    """The only configuration of a file; None if it has none. A Helm chart's ``pluginsConfigFile`` decides.

    Raises:
        ForerunError: several configurations, and no name that chooses one.
    """
    known = dict(enumerate(configurations(documents)))
    named = set(re.findall(r"(?:pluginsConfigFile|--?config-file)\W+(?:[\w./-]*/)?([\w.-]+)", str(documents)))
    chosen = [one for name, one in known.values() if len(known) == 1 or name in named]
    if known and len(chosen) != 1:
        names = ", ".join(name or "unnamed" for name, _ in known.values())
        raise ForerunError(
            f"{place}: holds {len(known)} configurations of endpoint pickers ({names}); keep one of them"
        )
    return next(iter(chosen), None)


def read_endpoint_picker(source: object, pooled: bool) -> EndpointPicker:
    """The router of an EndpointPickerConfig.

    Args:
        source: the file, or its content as plain data.
        pooled: True for a scenario with a prefill pool, whose profile ``prefill`` is taken then.

    Raises:
        ForerunError: no such configuration, an unknown plug-in, or a value of another type.
    """
    place = str(source) if isinstance(source, str | Path) else "router.endpoint_picker"
    if isinstance(source, str | Path):
        try:
            text = bounded_text(Path(source))
            source = [parse(part) for part in re.split(r"^---.*$", text, flags=re.MULTILINE) if part.strip()]
        except FileNotFoundError:
            raise ForerunError(f"{place}: no such file; router.endpoint_picker takes an EndpointPickerConfig") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ForerunError(f"{place}: cannot be read as YAML ({error})") from None
    document = configuration_of(source, place)
    if document is None:
        raise ForerunError(f"{place}: holds no endpoint picker's configuration (kind: {KIND})")
    try:
        return _Reading(document, pooled).picker()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ForerunError(f"{place}: {'.'.join(map(str, problem['loc']))}: {in_words(problem)}") from None
    except ForerunError as error:
        raise ForerunError(f"{place}: {error}") from None


class _Reading:
    """Reading of one configuration: its plug-ins by name, and the notes so far."""

    def __init__(self, document: Json, pooled: bool) -> None:
        self._sections, self._pooled = list(document), pooled
        self._document = _Configuration.model_validate(document)
        self._notes: list[str] = []
        self._plugins: dict[str, PlugIn] = {}
        for place, one in enumerate(self._document.plugins or ()):
            name = one.name or one.type
            if name in self._plugins:
                raise ForerunError(f"plugins.{place}: a second plug-in '{name}'; give it a name of its own")
            self._plugins[name] = PlugIn(name, one.type, one.parameters or {})

    def picker(self) -> EndpointPicker:
        """The router of the profile that places requests."""
        profiles = self._profiles()
        name, decodes = self._chosen(profiles)
        router = self._profile(profiles[name])
        router |= self._prefixes(router) | self._scraping(router) | self._admission()
        self._remarks({name for names in profiles.values() for name, _ in names})
        return EndpointPicker(router, decodes, [f"endpoint picker: {one}" for one in dict.fromkeys(self._notes)])

    def _profiles(self) -> dict[str, list[tuple[str, float]]]:
        """Plug-ins and weights of each profile; without profiles, one with all plug-ins."""
        profiles: dict[str, list[tuple[str, float]]] = {}
        for one in self._document.schedulingProfiles or ():
            parts = [(part.pluginRef, 1.0 if part.weight is None else part.weight) for part in one.plugins or ()]
            for name, _ in parts:
                if name not in self._plugins:
                    hint = did_you_mean(name, self._plugins)
                    raise ForerunError(f"schedulingProfiles.{one.name}: no plug-in '{name}' is defined{hint}")
            profiles[one.name] = parts
        return profiles or {"default": [(name, 1.0) for name in self._plugins]}

    def _chosen(self, profiles: Mapping[str, list[tuple[str, float]]]) -> tuple[str, bool]:
        """Profile that places prompts, and True if the one for decode has the same rule."""
        by_role = {role[0]: name for name in profiles if (role := ROLES.search(name.lower()))}
        wanted = ("prefill", "decode") if self._pooled else ("decode", "prefill")
        name = next((by_role[role] for role in wanted if role in by_role), next(iter(profiles)))
        others = [one for one in profiles if one != name]
        rules = {one: sorted(part for part in profiles[one] if self._type(part[0])[0] != "") for one in profiles}
        same = self._pooled and by_role.get("decode", name) != name and rules[by_role["decode"]] == rules[name]
        left = [one for one in others if not (same and one == by_role["decode"])]
        if left:
            self._notes.append(f"profile {name} is taken; left out: {', '.join(left)}")
        return name, same

    def _type(self, name: str) -> tuple[str, Json]:
        """Kind and table entry of a plug-in; both empty for one without an effect or a model.

        Raises:
            ForerunError: an unknown type.
        """
        known, one = plug_ins(), self._plugins[name].type
        for kind in KINDS:
            if one in known[kind]:
                return kind, known[kind][one]
        others = {*known["no_effect"], *(name for names in known["not_modelled"].values() for name in names)}
        if one not in others:
            hint = did_you_mean(one, {*others, *(name for kind in KINDS for name in known[kind])})
            raise ForerunError(
                f"plugins: '{one}' is no plug-in that is known here{hint}; remove it to simulate without it"
            )
        return "", {}

    def _profile(self, parts: list[tuple[str, float]]) -> Json:
        """Filters, scorers and picker of a profile."""
        router: Json = {"filters": [], "scorers": [], "picker": "max-score"}
        for name, weight in parts:
            kind, entry = self._type(name)
            if kind == "picker":
                router["picker"] = entry["value"]
            elif kind in ("filter", "scorer"):
                fields = self._fields(self._plugins[name], entry.get("parameters", {}))
                fields = {kind: entry["value"], **({"weight": weight} if kind == "scorer" else {}), **fields}
                if weight or kind == "filter":
                    router[f"{kind}s"].append(fields)
                else:
                    self._notes.append(f"{name}: weight 0, left out")
        if not router["filters"] and not router["scorers"]:
            router["picker"] = "random"
            self._notes.append("no filter or scorer that is modelled: every replica is equal, and the choice is random")
        return {key: value for key, value in router.items() if value or key == "picker"}

    def _fields(self, plugin: PlugIn, known: Mapping[str, str]) -> Json:
        """Fields of a plug-in's parameters; a note on each parameter without a field."""
        fields: Json = {}
        for name, value in plugin.parameters.items():
            if name.endswith("Ms") and not isinstance(value, int | float):
                raise ForerunError(f"{plugin.name}: {name}: a number of milliseconds is needed (got {value!r})")
            if name in known:
                fields[known[name]] = value / 1000 if name.endswith("Ms") else value
        self._left_out(plugin, {*known})
        for name, field in known.items():
            default = plug_ins()["taken_by_llm_d"].get(field)
            if field not in fields and default is not None:
                fields[field] = default
                self._notes.append(f"{plugin.type}: {name} is left out, and llm-d takes {default:,} then")
        return fields

    def _left_out(self, plugin: PlugIn, known: set[str]) -> None:
        """Note the parameters of a plug-in that have an effect and no field."""
        for name, value in plugin.parameters.items():
            if name in known or name in plug_ins()["unused_parameters"] or plug_ins()["same"].get(name) == value:
                continue
            self._notes.append(f"{plugin.name}: {name} {value} is not modelled")

    def _prefixes(self, router: Json) -> Json:
        """Source of cached prefixes, and the size of the router's own table."""
        used = {str(one.parameters.get("prefixMatchInfoProducerName", "")) for one in self._plugins.values()}
        producers = [one for one in self._plugins.values() if self._type(one.name)[1].get("value") in ("sent", "held")]
        precise = {one.name for one in producers if one.type.startswith("precise")} & used
        alone = any(one.type == "precise-prefix-cache-scorer" for one in self._plugins.values())
        sizes = []
        for one in producers:
            self._left_out(one, {"autoTune", "blockSizeTokens", "lruCapacityPerServer"})
            if one.parameters.get("autoTune") is False:
                block = max(plug_ins()["prefix_block_tokens"], _whole(one, "blockSizeTokens", 0))
                sizes.append(block * _whole(one, "lruCapacityPerServer", plug_ins()["prefix_blocks"]))
        if len(producers) > 1:
            names = ", ".join(one.name for one in producers)
            self._notes.append(f"one table of prefixes stands for {names}: events where one has them, else the largest")
        fields: Json = {"prefixes": "held"} if precise or alone else {"table_tokens": max(sizes)} if sizes else {}
        matched = {"prefix", "prefix-affinity", "token-load", "no-hit-lru"}
        users = matched & {
            str(one.get("filter", one.get("scorer"))) for key in ("filters", "scorers") for one in router.get(key, ())
        }
        return fields if users else {}

    def _scraping(self, router: Json) -> Json:
        """Interval at which metrics are scraped, where a scorer looks at them."""
        if not SCRAPED & {one["scorer"] for one in router.get("scorers", ())}:
            return {}
        stated = [one.parameters["interval"] for one in self._plugins.values()
                  if self._type(one.name)[1].get("value") == "scraped" and one.parameters.get("interval")]  # fmt: skip
        if stated:
            return {"scrape_interval_s": _seconds(str(stated[0]), "metrics-data-source: interval")}
        default = plug_ins()["scrape_interval_s"]
        self._notes.append(f"metrics are scraped every {1000 * default:g} ms, llm-d's default")
        return {"scrape_interval_s": default}

    def _admission(self) -> Json:
        """Requests in flight per replica, where flow control is on."""
        gates, control = self._document.featureGates or [], self._document.flowControl or {}
        detectors = [one for one in self._plugins.values() if self._type(one.name)[1].get("value") == "limit"]
        if not {"flowControl", "flowControl=true"} & {*gates}:
            self._notes += [f"{one.name}: no flow control, and so no limit" for one in detectors]
            return {}
        self._notes += [f"flowControl.{name} is not modelled" for name in control
                        if name not in ("saturationDetector", "maxRequests")]  # fmt: skip
        for one in detectors:
            self._left_out(one, {"maxConcurrency"})
            if one.parameters.get("concurrencyMode", "requests") == "requests":
                fields = {"max_outstanding": one.parameters.get("maxConcurrency", plug_ins()["concurrency"])}
                if control.get("maxRequests"):
                    fields["max_queue"] = _quantity(str(control["maxRequests"]))
                self._notes.append(f"{one.name}: the limit holds for each replica here, over all of them in llm-d")
                return fields
        if not any(one.type == "utilization-detector" for one in self._plugins.values()):
            self._notes.append("flow control by the load of the replicas (utilization-detector) is not modelled")
        return {}

    def _remarks(self, used: set[str]) -> None:
        """Note plug-ins without an effect, without a model, and in no profile."""
        known = plug_ins()
        reasons = {name: reason for reason, names in known["not_modelled"].items() for name in names}
        for one in self._plugins.values():
            kind, _ = self._type(one.name)
            if one.type in reasons:
                self._notes.append(f"{one.name} is not modelled ({reasons[one.type]})")
            elif kind in ("filter", "scorer", "picker") and one.name not in used:
                self._notes.append(f"{one.name} is in no profile, and has no effect")
            elif one.type in known["no_effect"] or one.type == "metrics-data-source":
                self._left_out(one, {"modelName", "vllm", "deciders", "primaryPort", "interval"})
        idle = [one.type for one in self._plugins.values() if one.type in known["no_effect"]]
        if idle:
            self._notes.append(f"no effect on the choice: {', '.join(dict.fromkeys(idle))}")
        self._notes += [f"{name} is not modelled" for name in self._sections if name not in known["sections"]]


def _whole(plugin: PlugIn, name: str, default: int) -> int:
    """A parameter that is a positive whole number, or its default where it is left out or 0."""
    value = plugin.parameters.get(name) or default
    if not isinstance(value, int) or value < 0:
        raise ForerunError(f"{plugin.name}: {name}: a whole number is needed (got {value!r})")
    return value


def _seconds(text: str, place: str) -> float:
    """Seconds of a duration as Go writes it.

    >>> _seconds("1m30s", ""), _seconds("50ms", "")
    (90.0, 0.05)
    """
    parts = DURATION.findall(text)
    if not parts or DURATION.sub("", text):
        raise ForerunError(f"{place}: a duration such as 50ms or 1s is needed (got {text!r})")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


def _quantity(text: str) -> int:
    """Count of a Kubernetes quantity.

    >>> _quantity("2k")
    2000
    """
    matched = re.fullmatch(r"(\d+)([kM]?)", text)
    if matched is None:
        raise ForerunError(f"flowControl.maxRequests: a number such as 500 or 2k is needed (got {text!r})")
    return int(matched[1]) * QUANTITIES[matched[2]]


def endpoint_picker_text(router: RouterConfig) -> str:
    """EndpointPickerConfig of a router of the routing ``scored``; comments name what it cannot hold."""
    known, remarks = plug_ins(), _unwritten(router)
    plugins, profile = _producers(router), []
    for kind, one in [*(("filter", one) for one in router.filters), *(("scorer", one) for one in router.scorers)]:
        fields, given = one.model_dump(), one.model_dump(exclude_defaults=True)
        name, entry = next((name, entry) for name, entry in known[kind].items() if entry["value"] == fields[kind])
        values: Json = {
            key: 1000 * given[field] if key.endswith("Ms") else given[field]
            for key, field in entry.get("parameters", {}).items()
            if field in given
        }
        if router.prefixes != "sent" and fields[kind] in ("prefix", "prefix-affinity"):
            values["prefixMatchInfoProducerName"] = "precise-prefix-cache-producer"
        again = sum(other["type"] == name for other in plugins)
        plugin: Json = {"type": name} | ({"name": f"{name}-{again + 1}"} if again else {})
        plugins.append(plugin | ({"parameters": values} if values else {}))
        weight = {"weight": fields["weight"]} if kind == "scorer" else {}
        profile.append({"pluginRef": plugin.get("name", name)} | weight)
    picker = "max-score" if router.picker == "first" else router.picker
    name = next(name for name, entry in known["picker"].items() if entry["value"] == picker)
    plugins.append({"type": name})
    profile.append({"pluginRef": name})
    document: Json = {"apiVersion": known["api"], "kind": KIND}
    if router.max_outstanding is not None:
        document["featureGates"] = ["flowControl"]
    document |= {"plugins": plugins, "schedulingProfiles": [{"name": "default", "plugins": profile}]}
    document |= _layers(router)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    return "".join(f"# {one}\n" for one in remarks) + text


def _producers(router: RouterConfig) -> list[Json]:
    """Producers, sources and limits that a router needs."""
    known, plugins = plug_ins(), list[Json]()
    if router.prefixes != "sent":
        plugins.append({"type": "precise-prefix-cache-producer"})
    elif router.table_tokens is not None:
        block = known["prefix_block_tokens"]
        sizes = {"autoTune": False, "blockSizeTokens": block, "lruCapacityPerServer": ceil(router.table_tokens / block)}
        plugins.append({"type": "approx-prefix-cache-producer", "parameters": sizes})
    if router.scrape_interval_s:
        interval = f"{1000 * router.scrape_interval_s:g}ms"
        plugins += [
            {"type": "metrics-data-source", "parameters": {"interval": interval}},
            {"type": "core-metrics-extractor"},
        ]
    if router.max_outstanding is not None:
        plugins.append({"type": "concurrency-detector", "parameters": {"maxConcurrency": router.max_outstanding}})
    return plugins


def _layers(router: RouterConfig) -> Json:
    """Sections ``flowControl`` and ``dataLayer`` of a router's configuration."""
    layers: Json = {}
    if router.max_outstanding is not None:
        most = {} if router.max_queue is None else {"maxRequests": str(router.max_queue)}
        layers["flowControl"] = {"saturationDetector": {"pluginRef": "concurrency-detector"}} | most
    if router.scrape_interval_s:
        source = {"pluginRef": "metrics-data-source", "extractors": [{"pluginRef": "core-metrics-extractor"}]}
        layers["dataLayer"] = {"sources": [source]}
    return layers


def _unwritten(router: RouterConfig) -> list[str]:
    """Settings of a router that llm-d's configuration has no place for."""
    remarks = []
    if router.picker == "first":
        remarks.append("picker first: the picker decides between equals at random")
    if router.latency_s:
        remarks.append(f"latency_s {router.latency_s:g}: it follows from the gateway")
    if router.when_full != "queue":
        remarks.append(f"when_full {router.when_full}: flow control queues requests")
    if not router.scrape_interval_s and SCRAPED & {one.scorer for one in router.scorers}:
        remarks.append("scrape_interval_s 0: metrics are at least as old as the picker's own interval, 50 ms")
    if router.table_tokens is not None and router.table_tokens % plug_ins()["prefix_block_tokens"]:
        remarks.append(
            f"table_tokens {router.table_tokens}: in whole blocks of {plug_ins()['prefix_block_tokens']} tokens"
        )
    return remarks
