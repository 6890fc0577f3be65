"""A launch line, a script or a manifest as a scenario, with a remark on each of its options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from forerun.document import Json
from forerun.errors import ForerunError
from forerun.yaml_files import parse
from hwprofiles import machine_name
from simulator.launch.endpoint_picker import KIND, configuration_of
from simulator.launch.manifests import manifest_commands, words_of
from simulator.launch.shell import READ, Command, commands_in, is_line
from simulator.launch.tables import find
from simulator.launch.translate import LaunchOption, Translation, translate

INPUT_TOKENS, OUTPUT_TOKENS, REQUEST_RATE, NUM_REQUESTS = 1024, 256, 1.0, 200
"""Load of a launch line that comes without one."""
TRTLLM_KEYS = {
    "kv_cache_config",
    "cuda_graph_config",
    "moe_expert_parallel_size",
    "enable_attention_dp",
    "max_num_tokens",
    "max_batch_size",
}
LOAD_ASSUMED = "the load is assumed"
"""Beginning of the guess on a load that no benchmark states."""
SHARED = ("weights_dtype", "kv_cache_dtype", "speculation")


@dataclass(frozen=True)
class Launch:
    """A scenario as a launch line gives it."""

    data: Json
    """Fields of the scenario; without ``hardware.chip`` where nothing names it."""
    options: Sequence[LaunchOption]
    guesses: Sequence[str]
    """Notes on what was assumed or left open."""

    @property
    def notes(self) -> list[str]:
        """Guesses, and the options that the prediction does not contain."""
        unknown, left_out = ([one for one in self.options if one.kind == kind] for kind in ("unknown", "not modelled"))
        notes = [f"launch line: {one}" for one in (*unknown, *self.guesses, *left_out)]
        idle = ", ".join(re.split("[ =]", one.text)[0] for one in self.options if one.kind == "no effect on time")
        return notes + ([f"launch line: no effect on time: {idle}"] if idle else [])


def read_launch(text: str, folder: Path, place: str, given: Mapping[str, str] | None = None) -> Launch | None:
    """The scenario of a launch line or manifest; None for a text that holds none.

    Args:
        text: the line, or the content of a file.
        folder: folder from which files that it names are looked up.
        place: name of the text in errors.
        given: fields that options set, by dotted path: of use for what a line leaves open.

    Raises:
        ForerunError: a line that cannot be read, or that leaves open what no default stands for.
    """
    given = given or {}
    try:
        documents = _documents(text)
        commands = _commands(text, documents)
        if not commands:
            return None
        parts = [translate(one, folder, given.get("model")) for one in commands]
        launch = _joined(parts, given)
        picker = configuration_of(documents, place) if KIND in text else None
        chosen = any(path.startswith(("router", "engine.routing")) for path in given)
        if picker is not None and not chosen:
            launch.data["router"] = {"endpoint_picker": picker}
        elif not chosen and launch.data["hardware"].get("replicas", 1) > 1 and _behind_a_service(documents):
            launch.data["engine"]["routing"] = "random"
            drawn = "engine.routing random: a Kubernetes Service draws a replica a connection; --set names another"
            launch = replace(launch, guesses=[*launch.guesses, drawn])
    except ForerunError as error:
        raise ForerunError(f"{place}: {str(error).removeprefix('launch line: ')}") from None
    if "chip" not in launch.data["hardware"] and not any("hardware" in path for path in given):
        missing = [pool for pool in launch.data.get("pools", {}).values() if "chip" not in pool["hardware"]]
        if missing or "pools" not in launch.data:
            way_out = "--chip h100-sxm, or --set hardware.chip=h100-sxm (forerun chips list has the names)"
            raise ForerunError(f"{place}: names no chip; give {way_out}")
        launch.data["hardware"]["chip"] = next(iter(launch.data["pools"].values()))["hardware"]["chip"]
    return launch


def refuse_line(text: str, place: str) -> None:
    """Refuse a text that starts no engine, in one line that names what is read."""
    program = next(iter(text.split()), "")
    what = f"'{program[:40]}' starts no engine that is read" if program else "is empty"
    raise ForerunError(
        f"{place}: {what}; a scenario is a mapping with model, hardware and workload at its top, a launch line {READ}"
    )


def _behind_a_service(documents: Sequence[object]) -> bool:
    """True if the documents start plain pods of Kubernetes, and nothing that routes to them."""
    kinds = {str(one.get("kind")) for one in documents if isinstance(one, Mapping)}
    return bool(kinds & {"Deployment", "StatefulSet"}) and not kinds & {"InferencePool", KIND}


def _commands(text: str, documents: list[object]) -> list[Command]:
    if not documents or not any(isinstance(one, Mapping) for one in documents):
        return commands_in(text) if is_line(text) else []
    first = next(one for one in documents if isinstance(one, Mapping))
    if first.get("kind") == KIND:
        raise ForerunError("configures an endpoint picker; give it with a scenario: forerun run SCENARIO --router FILE")
    served = re.search(r"^#\s*(trtllm-serve\s+(\S+).*)$", text, re.MULTILINE)
    if "apiVersion" not in first and (served or TRTLLM_KEYS & {*first}):
        model = [served[2]] if served else []
        return [Command("trtllm", [*model, *words_of("trtllm", first)])]
    matched = manifest_commands(documents, {})
    if not matched and "apiVersion" not in first and sum(find("vllm", f"--{key}") is not None for key in first) > 1:
        return [Command("vllm", words_of("vllm", first))]
    if not matched and re.search(r"{{.*}}", text):
        raise ForerunError("holds Helm's {{ }}; render it first (helm template)")
    return matched


def _documents(text: str) -> list[object]:
    """The YAML documents of a text; none where it is no YAML."""
    plain = re.sub(r"^\s*(#.*)?\n", "", text, flags=re.MULTILINE)
    if is_line(plain.split("\n", 1)[0]) or text.startswith("#!"):
        return []
    try:
        return [parse(part) for part in re.split(r"^---.*$", text, flags=re.MULTILINE) if part.strip()]
    except yaml.YAMLError:
        if re.search(r"^(apiVersion|kind|services):", text, re.MULTILINE):
            raise ForerunError(
                "is no YAML that can be read; render it first if it is a template (helm template)"
            ) from None
        return []


def _joined(parts: Sequence[Translation], given: Mapping[str, str]) -> Launch:
    """One scenario of several commands: pools where they differ."""
    main = [one for one in parts if one.rank == 0] or list(parts[:1])
    seen = [(one.command.name, one.role, one.data) for one in main]
    alike = [one for place, one in enumerate(main) if seen[place] not in seen[:place]]
    options, notes = [option for one in alike for option in one.options], [note for one in alike for note in one.notes]
    if len(alike) < len(parts):
        notes.append(
            f"{len(parts) - len(alike)} further commands start the same server's other processes, and are left out"
        )
    for one in alike:
        chip, word = _chip_of(one.command)
        if chip:
            one.data["hardware"] = {"chip": chip, **one.data["hardware"]}
            notes.append(f"hardware.chip {chip}: from '{word}'")
        elif word and "hardware.chip" not in given:
            notes.append(f"the chip '{word}' is none of the catalogue")
    models = {str(one.data.get("model")) for one in alike}
    if len(models) > 1:
        raise ForerunError(f"starts engines with different models ({', '.join(sorted(models))}); keep one of them")
    data = alike[0].data if len(alike) == 1 else _pools(alike, notes)
    if len(alike) == 1 and alike[0].role != "both":
        notes.append(f"only the {alike[0].role} side of a KV transfer is there; it is simulated as a whole server")
    chip = given.get("hardware.chip", data["hardware"].get("chip", ""))
    for share in data["hardware"].get("layers_on", []):
        share["chip"] = share["chip"] or chip
    data["workload"] = _workload(alike, data, given, notes)
    empty = [section for section in ("engine",) if not data[section]]
    return Launch({key: value for key, value in data.items() if key not in empty}, options, list(dict.fromkeys(notes)))


def _pools(parts: Sequence[Translation], notes: list[str]) -> Json:
    """The fields that all commands share, and a pool for each command with the others."""
    first = next((one for one in parts if one.role == "decode"), parts[0])
    data: Json = {"model": first.data["model"]}
    for key in SHARED:
        values = [one.data.get(key) for one in parts]
        if first.data.get(key) is not None:
            data[key] = first.data[key]
        if any(value != first.data.get(key) for value in values):
            notes.append(
                f"{key} differs between the commands; that of {first.command.name or first.role} is taken for all"
            )
    for section in ("hardware", "engine"):
        sections = [one.data[section] for one in parts]
        data[section] = {
            key: value
            for key, value in sections[0].items()
            if all(key in one and one[key] == value for one in sections)
        }
    data["pools"] = {}
    for place, one in enumerate(parts):
        name = re.sub(r"[^a-z0-9_-]", "-", (one.command.name or one.role).lower()) or f"pool-{place}"
        name = name if name not in data["pools"] else f"{name}-{place}"
        own = {
            section: {key: value for key, value in one.data[section].items() if key not in data[section]}
            for section in ("hardware", "engine")
        }
        data["pools"][name] = {"role": one.role, **own}
    return data


def _workload(parts: Sequence[Translation], data: Json, given: Mapping[str, str], notes: list[str]) -> Json:
    stated = next((dict(one.command.workload) for one in parts if one.command.workload), None)
    if stated:
        notes.append(f"workload: {stated['input_tokens']} + {stated['output_tokens']} tokens, as the file's benchmark")
        return stated
    longest = data.get("engine", {}).get("max_model_len") or INPUT_TOKENS + OUTPUT_TOKENS
    part = min(1.0, longest / (INPUT_TOKENS + OUTPUT_TOKENS))
    lengths = {"input_tokens": max(1, int(INPUT_TOKENS * part)), "output_tokens": max(1, int(OUTPUT_TOKENS * part))}
    if not any(path.startswith("workload") for path in given):
        tokens = f"{lengths['input_tokens']} + {lengths['output_tokens']} tokens"
        notes.append(
            f"{LOAD_ASSUMED}: {tokens}, {REQUEST_RATE:g} request/s, {NUM_REQUESTS} requests; "
            "--trace FILE or --rate R gives yours"
        )
    return {"arrivals": {"request_rate": REQUEST_RATE}, **lengths, "num_requests": NUM_REQUESTS}


def scenario_text(launch: Launch, fields: Json, source: str) -> str:
    """The scenario as YAML, with a comment on each option and each guess."""
    plain = {key: value for key, value in fields.items() if key != "notes"}
    lines = [f"# {one}" for one in (f"from {source}", *launch.guesses)]
    lines += ["#", "# Options:"] + [f"#   {' '.join(str(one).split())}" for one in launch.options]
    return "\n".join(lines) + "\n" + yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)


def _chip_of(command: Command) -> tuple[str, str]:
    """Chip of the catalogue that a manifest or an image names, and the word for it; empty without one."""
    word = command.chip or next(iter(re.findall(r"mi3\d+x", command.image)), "")
    known = machine_name(word.lower().replace("-multinode", "")) if word else None
    return known or "", word
