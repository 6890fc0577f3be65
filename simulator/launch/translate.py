"""One launch command as fields of a scenario: every option is used, has no effect, or is not modelled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from forerun.document import Json
from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged, parse
from hwprofiles import dtype_bytes
from hwprofiles.dtypes import formats_meant
from simulator.launch.manifests import words_of
from simulator.launch.shell import Command
from simulator.launch.tables import KV_ROLES, ONE, SEVERAL, EngineFlag, find, known_flags, table
from simulator.llm import Architecture, load_architecture, published_head_names
from simulator.llm.load import catalogue_model
from simulator.speculation.curves import curve_names, load_curve
from simulator.speculation.methods import METHODS
from simulator.timing.framework import load_framework
from simulator.timing.releases import release_numbers

ASSUMED_DISK = {"medium": "disk", "read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9, "saves": "computed"}
"""Disk of a launch line, which names none."""
SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
FILE_TYPE = re.compile(
    r"[-._:]((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?$", re.IGNORECASE
)
HOST = "cpu-ddr5-2ch"
"""Host whose memory holds layers that a launch line leaves there."""
DSPARK_RANK = 256
"""``dspark_markov_rank`` of DeepSeek-V4's config.json."""
Written = tuple[str, str, EngineFlag | None, Any]
"""An option as written, with its name, its flag where one is known, and its value."""
USED, IDLE, NOT_MODELLED, UNKNOWN = "used", "no effect on time", "not modelled", "unknown"


@dataclass
class LaunchOption:
    """An option of a launch line and what became of it."""

    text: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.text}: {self.kind}{self.why and f', {self.why}'}"


@dataclass
class Translation:
    """Fields of a scenario that a command sets, its options, and guesses."""

    command: Command
    data: Json = field(default_factory=lambda: {"hardware": {}, "engine": {}})
    options: list[LaunchOption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    role: str = "both"
    rank: int = 0


def translate(command: Command, folder: Path, model: str | None = None) -> Translation:
    """The fields that a command sets.

    Args:
        command: engine, words and place of the command.
        folder: folder from which files that it names are looked up.
        model: model that stands for that of the command; None for its own.
    """
    reader = _Reader(command, folder)
    reader.read_options()
    reader.derive(model)
    return reader.made


class _Reader:
    """Applies one option after the other, then what follows from several."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.engine, self.folder = command, command.engine, folder
        self.made = Translation(command, notes=list(command.notes), role=command.role)
        self.kept: Json = {}
        self.draft: Json = {}
        self.hardware: Json = self.made.data["hardware"]
        self.fields: Json = self.made.data["engine"]
        self.words = packaged("simulator.launch", "values.yaml")

    def read_options(self) -> None:
        """Apply every option of the command, its container and its environment."""
        for text in self.command.container:
            self._record(text, IDLE, "an option of the container")
        for text, name, flag, value in self._options(list(self.command.words)):
            self._apply(text, name, flag, value)
        llama = packaged("simulator.launch", "manifests.yaml")["environment"]
        for name, value in self.command.env.items():
            if name.startswith("LLAMA_ARG_") and self.engine == "llama.cpp":
                word = llama.get(name, name.removeprefix("LLAMA_ARG_").lower())
                known = find(self.engine, f"--{word}")
                self._apply(f"{name}={value}", known[0] if known else word, known[1] if known else None, value)
            elif name.startswith("LMCACHE_"):
                kind = USED if re.search("LOCAL_(CPU|DISK)", name) else NOT_MODELLED
                self._record(f"{name}={value}", kind, "engine.kv_stores" if kind == USED else "a detail of LMCache")
            elif re.match("VLLM_|SGLANG_|SGL_|TRTLLM_|TLLM_|CUDA_VIS|HIP_VIS|ROCR_VIS|NCCL_", name):
                self._record(f"{name}={value}", *self._variable(name, value))

    def derive(self, model: str | None) -> None:
        """Set what follows from several options."""
        self._set_framework()
        self._set_model(model)
        self._set_layout()
        self._set_formats()
        self._set_speculation()
        self._set_limits()

    def _options(self, words: list[str]) -> Iterator[Written]:
        """(text, name, flag, value) of each option, those of config files first, dotted ones together."""
        listed = list(self._written(words))
        inner = [one for _, name, _, value in listed if name == "config" for one in self._config(str(value))]
        dotted: dict[str, tuple[EngineFlag, Json]] = {}
        for text, name, flag, value in [*self._written(inner), *listed]:
            base, dot, key = name.partition(".")
            whole = find(self.engine, f"--{base}") if dot and flag is None else None
            if whole is None:
                yield text, name, flag, value
            else:
                there = dotted.setdefault(whole[0], (whole[1], {}))[1]
                there[key.replace("-", "_")] = True if value is None else _value(value)
        for name, (flag, values) in dotted.items():
            yield f"--{name} {values}", name, flag, values

    def _written(self, words: list[str]) -> Iterator[Written]:
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if not _is_flag(word):
                if word not in ("--", "-"):
                    yield word, "", None, word
                continue
            head, equals, value = word.partition("=")
            of_file = head.replace("_", "-") in ("--config", "--extra-engine-args", "--extra-llm-api-options")
            known = ("config", EngineFlag(takes=ONE)) if of_file else find(self.engine, head) or _of_orchestrator(head)
            if known is None and (short := re.fullmatch(r"(-[A-Za-z]+)(\d+)", word)):
                (head, value), equals = short.groups(), "="
                known = find(self.engine, head)
            name, flag = known or (head.lstrip("-").replace("_", "-"), None)
            if equals:
                yield word, name, flag, value
                continue
            stop = next((at for at in range(place, len(words)) if _is_flag(words[at])), len(words))
            following = words[place:stop]
            several = flag is not None and flag.takes == SEVERAL
            if flag is not None and not flag.takes:
                following = [one for one in following[:1] if one.lower() in ("true", "false")]
            taken = following if several else following[:1]
            place += len(taken)
            yield " ".join([word, *taken]), name, flag, taken if several else next(iter(taken), None)

    def _config(self, file: str) -> list[str]:
        """The words that a config file stands for; a script may write it, or it lies beside the line."""
        text = self.command.files.get(PurePosixPath(file).name)
        if text is None:
            try:
                text = (self.folder / file).read_text("utf-8")
            except (OSError, UnicodeDecodeError, ValueError):
                self.kept["missing config"] = True
                return []
        for name, value in self.command.env.items():
            text = re.sub(rf"\$\{{?{name}\b\}}?", lambda _, value=value: str(value), text)  # type: ignore[misc]
        values = _value(text)
        if not isinstance(values, Mapping):
            self.kept["missing config"] = True
            return []
        return words_of(self.engine, values)

    def _apply(self, text: str, name: str, flag: EngineFlag | None, value: Any) -> None:
        if name == "" and "model" not in self.kept and "[" not in str(value):
            self.kept["model"] = value
            self._record(text, USED, "model")
        elif name == "config" and "missing config" in self.kept:
            self._record(text, UNKNOWN, "no such file with YAML options, which are missing therefore")
            self.made.notes.append(f"{value}: not there, or no YAML; its options are missing")
        elif name == "config":
            self._record(text, USED, "its options are listed one by one")
        elif flag is None:
            near = did_you_mean(name, known_flags(self.engine)) if name else ""
            why = f"no flag of this name is known here{near}" if name else "a word without a flag"
            self._record(text, UNKNOWN, why.replace("mean '", "mean '--"))
        elif flag.not_modelled:
            self._record(text, NOT_MODELLED, flag.not_modelled)
        elif not flag.meaning:
            self._record(text, IDLE, flag.no_effect)
        elif isinstance(value, str) and flag.meaning != "checkpoint" and re.search(r"\$\w|\$\{", value):
            self._record(text, UNKNOWN, f"{value} has no value in the text; it would set {flag.meaning}")
        elif flag.takes and value is None and flag.meaning != "flash":
            self._record(text, UNKNOWN, "a value is missing")
        else:
            if not flag.takes:
                value = flag.constant if value is None or value.lower() == "true" else not flag.constant
            self._record(text, *self._use(flag.meaning, value))

    def _record(self, text: str, kind: str, why: str) -> None:
        self.made.options.append(LaunchOption(text, kind, why))

    def _use(self, meaning: str, value: object) -> tuple[str, str]:
        """Apply a value; return what became of it and why."""
        special = getattr(self, f"_{meaning}", None)
        if special is not None:
            kind_and_why: tuple[str, str] = special(value)
            return kind_and_why
        rule = self.words.get(meaning) or {"set": meaning}
        word, known = str(value).lower(), rule.get("map")
        idle = rule.get("idle", ())
        if known is not None and word in known:
            value = known[word]
        elif idle is True or word in idle:
            if "keep" in rule and idle is True:
                self.kept[rule["keep"]] = value
            return IDLE, rule["why"]
        elif known is not None:
            return NOT_MODELLED, rule.get("unless", "this value")
        value = self._number(meaning, rule, value)
        if "keep" in rule:
            self.kept[rule["keep"]] = value
            return USED, self.words["says"][rule["keep"]]
        if "draft" in rule:
            self.draft[rule["draft"]] = value
            return USED, "speculation"
        return self._set(rule["set"], value)

    def _number(self, meaning: str, rule: Json, text: object) -> object:
        """A typed value, a number where the table wants one."""
        value, key = _value(text), rule.get("keep", rule.get("draft", rule.get("set")))
        whole = key in self.words["whole"]
        if (whole and not isinstance(value, int)) or ("scale" in rule and not isinstance(value, int | float)):
            name = meaning if "." in meaning else meaning.replace("_", " ")
            raise ForerunError(f"{name}: a {'whole ' * whole}number is expected (got {text})")
        return value * rule["scale"] if "scale" in rule else value

    def _set(self, path: str, value: object) -> tuple[str, str]:
        section, _, name = path.rpartition(".")
        (self.made.data[section] if section else self.made.data)[name] = value
        return USED, f"{path}: {str(value).lower() if isinstance(value, bool) else value}"

    # Values that need more than a table.

    def _kv_dtype(self, text: str) -> tuple[str, str]:
        word = text.lower()
        named = {name: dtype for dtype, name in table(self.engine)["kv_dtype"].items()}
        begun = {"fp8": "fp8", "nvfp4": "fp4", "int8": "int8", "bf": "bf16", "f16": "fp16"}
        known = named.get(word) or next((one for begin, one in begun.items() if word.startswith(begin)), None)
        known = known or next(iter(formats_meant(word)), None)
        if word == "auto" or known is None:
            return (IDLE, "the default") if word == "auto" else (UNKNOWN, "no format of this name is known here")
        return self._set("kv_cache_dtype", known)

    def _kv_transfer(self, text: object) -> tuple[str, str]:
        config = _mapping(text)
        role = next((side for side, name in KV_ROLES.items() if name == config.get("kv_role")), None)
        connector = str(config.get("kv_connector", ""))
        if role is not None:
            self.kept["role"] = role
            return USED, f"role {role} of a KV transfer"
        extra = config.get("kv_connector_extra_config") or {}
        if connector in ("OffloadingConnector", "SimpleCPUOffloadConnector") and extra.get("cpu_bytes_to_use"):
            self.kept["offloaded_bytes"] = float(extra["cpu_bytes_to_use"])
            return USED, "engine.kv_stores"
        if connector.startswith("LMCacheConnector"):
            self.kept["lmcache"] = {key.removeprefix("lmcache."): value for key, value in extra.items()}
            return USED, "engine.kv_stores"
        if re.search("Nixl|P2p|Mooncake(?!Store)|Mori", connector):
            return USED, "a KV transfer between pools, where there are some"
        return NOT_MODELLED, f"a KV cache in further memories ({connector}); engine.kv_offloading_bytes is the host's"

    def _speculation(self, text: object) -> tuple[str, str]:
        keys = {str(key).replace("-", "_"): value for key, value in _mapping(text).items()}
        for key, value in keys.items():
            name = self.words["draft_names"].get(key, key)
            self.draft[name] = value if value is None else self._number(key, {"draft": name}, value)
        return (USED, "speculation") if keys else (IDLE, "it is empty")

    def _compilation(self, text: object) -> tuple[str, str]:
        if re.fullmatch(r"\d", str(text)):
            return self._use("optimization", text)
        config = _mapping(text)
        if sizes := config.get("cudagraph_capture_sizes"):
            return self._set("engine.cuda_graph_sizes", sizes)
        if str(config.get("cudagraph_mode", "")).upper() == "NONE" or config.get("level", config.get("mode")) == 0:
            return self._set("engine.cuda_graphs", False)
        if most := config.get("max_cudagraph_capture_size"):
            return self._use("largest_graph", most)
        return NOT_MODELLED, "which steps are captured or compiled"

    def _cuda_graphs(self, text: object) -> tuple[str, str]:
        config = _value(text)
        if isinstance(config, Mapping) and config.get("batch_sizes"):
            return self._set("engine.cuda_graph_sizes", config["batch_sizes"])
        return self._set("engine.cuda_graphs", bool(config))

    def _chunk(self, text: str) -> tuple[str, str]:
        size = _value(text)
        off = isinstance(size, int) and size <= 0
        return (
            self._set("engine.enable_chunked_prefill", False)
            if off
            else self._set("engine.max_num_batched_tokens", size)
        )

    def _page_size(self, text: str) -> tuple[str, str]:
        self.fields["prefix_cache"] = "radix" if text == "1" else "blocks"
        return (USED, "engine.prefix_cache: radix") if text == "1" else self._set("engine.block_size", _value(text))

    def _variable(self, name: str, value: str) -> tuple[str, str]:
        if name == "VLLM_MXFP4_USE_MARLIN" and value == "1":
            return self._set("engine.moe_backend", "marlin")
        if name == "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8" and value == "1":
            return self._set("engine.moe_backend", "mxfp8")
        if name == "VLLM_USE_V1" and value == "0":
            self.kept["v0"] = True
            return USED, "engine.framework: vllm-2024"
        if "VISIBLE_DEVICES" in name:
            self.kept["device_names"] = value
        quiet = re.search(self.words["quiet"], name) is not None
        return (IDLE, "paths, logs, waiting") if quiet else (NOT_MODELLED, "it may choose other kernels or links")

    # What follows from several options.

    def _set_framework(self) -> None:
        self.made.role = self.kept.get("role", self.made.role)
        rank = _value(self.kept.get("rank", 0))
        self.made.rank = rank if isinstance(rank, int) else 0
        image, framework = self.command.image, self.engine
        tag = re.match(r"v?(\d+\.\d+(\.\w+)*)", image.rpartition(":")[2]) if ":" in image else None
        if tag and not re.search("dynamo|llm-d|atom|llama", image) and release_numbers(tag[1]):
            self.fields["release"] = tag[1]
            self.made.notes.append(f"engine.release {tag[1]}: from the image {image}")
            self._check_releases(release_numbers(tag[1]) or ())
        elif ":" in image and self.engine != "llama.cpp" and not image.endswith(":TAG"):
            self.made.notes.append(f"the image {image} names no release of {framework}; the fitted one is assumed")
        self.fields["framework"] = "vllm-2024" if "v0" in self.kept else framework

    def _check_releases(self, release: tuple[int, ...]) -> None:
        """Note flags that the image's release does not have."""
        image = ".".join(map(str, release))
        written = [re.split("[ =]", one.text)[0] for one in self.made.options if one.text.startswith("-")]
        used = {known[0] for word in written if (known := find(self.engine, word))}
        for name, text in table(self.engine)["since"].items():
            if name in used and release < (release_numbers(text) or ()):
                self.made.notes.append(f"--{name} is a flag of {self.engine} from {text} on; the image is {image}")
        for name, text in table(self.engine)["until"].items():
            last = release_numbers(text) or ()
            if name in used and release[: len(last)] > last:
                self.made.notes.append(f"--{name} is a flag of {self.engine} up to {text}; the image is {image}")

    def _set_model(self, given: str | None) -> None:
        data, text = self.made.data, str(self.kept.get("model") or "")
        if given is None and (not text or re.search(r"\$\w|\$\{", text)):
            what = f"its model {text} has no value in the text" if text else "it names no model"
            raise ForerunError(f"{what}; give --set model=NAME")
        if given is not None:
            data["model"] = given
            return
        kind = FILE_TYPE.search(PurePosixPath(str(self.kept["gguf"])).stem) if self.kept.get("gguf") else None
        name = _model_name(text) + (f":{kind[1]}" if kind else "")
        if self.engine == "llama.cpp" and re.search("-gguf$", name, re.IGNORECASE):
            name = self._default_file(name)
        for one in (name, *([self.kept["served"]] if self.kept.get("served") else [])):
            matched = _known_model(str(one))
            if matched is not None:
                data |= matched
                if matched["model"] != text:
                    self.made.notes.append(f"model {text} is read as {' with weights_dtype: '.join(matched.values())}")
                return
        data["model"] = name

    def _default_file(self, name: str) -> str:
        """The model of a repository of GGUF files in the type that llama-server loads where none is named."""
        known = catalogue_model(name[:-5])
        stored = load_architecture(known).checkpoint_dtypes.values() if known else ()
        if known and any(dtype_bytes(one) < 1 for one in stored):  # gpt-oss is published in four bits
            return known
        self.made.notes.append(f"{name}: no file type is named; llama-server loads Q4_K_M")
        return f"{name}:Q4_K_M"

    @property
    def architecture(self) -> Architecture | None:
        """The model's layers; None where the catalogue does not have it."""
        with suppress(ForerunError, KeyError):
            return load_architecture(self.made.data["model"])
        return None

    def _set_layout(self) -> None:
        hardware, kept, known = self.hardware, self.kept, self.architecture
        experts = known is None or known.parameters().expert > 0
        tensor, groups = int(kept.get("tp") or hardware.get("tensor_parallel", 1)), int(kept.get("dp", 1))
        if self.engine == "trtllm" and kept.get("enable_dp_attention"):
            groups = tensor
        shared = experts if self.engine == "vllm" else bool(kept.get("enable_dp_attention"))
        if shared and groups > 1:
            hardware["attention_data_parallel"] = groups
            if self.engine != "vllm" and tensor % groups:
                raise ForerunError(f"{groups} groups of attention do not divide {tensor} chips")
            tensor //= 1 if self.engine == "vllm" else groups
        copies = 1 if shared else groups
        if copies > 1:
            self.made.notes.append(f"data parallelism of {copies} is read as {copies} replicas, which share nothing")
        if tensor > 1:
            hardware["tensor_parallel"] = tensor
        elif "tensor_parallel" in hardware:
            del hardware["tensor_parallel"]
        stage = tensor * hardware.get("attention_data_parallel", 1)
        spread = stage if kept.get("all_experts") or kept.get("ep") is True else int(kept.get("ep") or 1)
        if spread > 1 and experts:
            hardware["expert_parallel"] = spread
        elif spread > 1:
            self.made.notes.append("expert parallelism has no effect: the model has no experts")
        if self.command.replicas * copies > 1:
            hardware["replicas"] = self.command.replicas * copies
        if self.engine == "llama.cpp":
            self._set_local_layout(known.num_layers if known is not None else 0)
        chips, given = stage * hardware.get("pipeline_parallel", 1), (self.command.chips or 0) * self.command.nodes
        if given and given != chips * copies:
            self.made.notes.append(
                f"the manifest gives {given} chips to a replica, and the command uses {chips * copies}"
            )
        self._set_stores(chips)

    def _set_stores(self, chips: int) -> None:
        """KV stores; sizes of LMCache and HiCache are of each rank."""
        kept, disk = self.kept, dict(ASSUMED_DISK)
        lmcache = {"local_cpu": True, "max_local_cpu_size": 5.0} if kept.get("kv_backend") == "lmcache" else None
        if lmcache is not None and "kv_offloading" in kept:
            lmcache["max_local_cpu_size"] = kept["kv_offloading"] / 2**30 / chips
        elif "lmcache" in kept:
            named = re.compile(r"LMCACHE_(LOCAL_CPU|MAX_LOCAL_CPU_SIZE|LOCAL_DISK|MAX_LOCAL_DISK_SIZE)")
            env = {name[8:].lower(): _value(one) for name, one in self.command.env.items() if named.fullmatch(name)}
            lmcache = {"local_cpu": True, "max_local_cpu_size": 5.0, **env, **kept["lmcache"]}
        elif "kv_offloading" in kept:
            self.fields["kv_offloading_bytes"] = kept["kv_offloading"] / chips
        stores: list[Json] = []
        if "offloaded_bytes" in kept:
            stores.append({"bytes": kept["offloaded_bytes"], "saves": "computed", "loads": "background"})
        if lmcache is not None and lmcache["local_cpu"] is True:
            size = float(lmcache["max_local_cpu_size"]) * 2**30 * chips
            stores.append({"bytes": size, "saves": "computed", "loads": "background"})
        if lmcache is not None and lmcache.get("local_disk"):
            stores.append(disk | {"bytes": float(lmcache.get("max_local_disk_size", 0.0)) * 2**30 * chips})
        if kept.get("hicache") and "hicache_bytes" in kept:
            saves = "evicted" if kept.get("hicache_policy") == "write_back" else "computed"
            stores.append({"bytes": kept["hicache_bytes"] * chips, "saves": saves})
        elif kept.get("hicache"):
            ratio = kept.get("hicache_ratio", 2.0)
            self.made.notes.append(
                f"HiCache's host memory is {ratio:g} times the chips' KV, and is left out: give --hicache-size GB"
            )
        if stores and kept.get("hicache_storage"):
            stores.append(disk | {"bytes": 1e12})
            self.made.notes.append(f"--hicache-storage-backend {kept['hicache_storage']} is read as a disk of 1 TB")
        if any(store.get("medium") for store in stores):
            self.made.notes.append("the disk is taken for an NVMe drive of 6 GB/s read and 3 GB/s written")
        if stores:
            self.fields["kv_stores"] = [store for store in stores if store["bytes"]]

    def _set_local_layout(self, layers: int) -> None:
        """Layers and experts that llama.cpp leaves to the host or to further chips."""
        kept, shares = self.kept, list[Json]()
        on_card = kept.get("gpu_layers", layers + 1)
        if on_card <= layers:
            shares.append({"chip": HOST, "layers": min(layers, layers + 1 - on_card)})
        moved = layers if kept.get("all_experts_on_host") else kept.get("experts_on_host", 0)
        if moved:
            shares.append({"chip": HOST, "layers": min(moved, layers or moved), "part": "experts"})
        if shares:
            self.made.notes.append(f"the host is taken for {HOST}; hardware.layers_on names another")
        split = [float(one) for one in re.findall(r"[\d.]+", str(kept.get("split", "")))]
        chips = len(split) or str(kept.get("device_names", "")).count(",") + 1
        if kept.get("split_mode") in ("tensor", "row") and chips > 1:
            self.hardware["tensor_parallel"] = chips
        elif len(split) > 1 and layers:
            whole = [round(layers * one / sum(split)) for one in split[:-1]]
            shares = [{"chip": "", "layers": one} for one in whole if one] + shares
        if shares:
            self.hardware["layers_on"] = shares

    def _set_formats(self) -> None:
        requested, known, data = self.kept.get("quantisation"), self.architecture, self.made.data
        if not requested:
            return
        tables = table(self.engine)
        names = {name: dtype for dtype, name in tables["quantisation"].items()}
        dtype = (tables["formats"] | names).get(str(requested).lower()) or tables["formats"].get(
            str(requested).replace("-", "_")
        )
        stored = [] if known is None else known.checkpoint_dtypes.values()
        if "weights_dtype" in data or any(dtype_bytes(one) < 2 for one in stored):
            self.made.notes.append(f"--quantization {requested} names the format that the checkpoint has by its name")
        elif dtype is not None:
            data["weights_dtype"] = dtype
        else:
            self.made.notes.append(
                f"--quantization {requested} is no format known here; weights are as the model has them"
            )

    def _set_limits(self) -> None:
        if "context" in self.kept:
            slots = 1 if self.kept.get("unified_context") else self.fields.get("max_num_seqs", 1)
            self.fields["max_model_len"] = max(1, self.kept["context"] // slots)
        if "kv_tokens" in self.kept:
            self.fields["num_kv_blocks"] = max(1, self.kept["kv_tokens"] // self.fields.get("block_size", 16))
        if most := self.kept.get("largest_graph"):
            ranges = load_framework(self.fields["framework"]).captured_sizes
            sizes = [size for first, last, step in ranges for size in range(first, last + 1, step)]
            self.fields["cuda_graph_sizes"] = [*(size for size in sizes if size < most), most]

    def _set_speculation(self) -> None:
        draft = self.draft
        method, name = self._draft_method()
        if method is None:
            return
        steps, verified = draft.get("steps"), draft.get("verified", draft.get("block"))
        made: Json = {"method": method}
        if draft.get("topk", 1) > 1 and steps:
            nodes = max(1, (verified or steps * draft["topk"] + 1) - 1)
            made["tree"] = {"depth": steps, "top_k": draft["topk"], "nodes": nodes}
        else:
            made["num_speculative_tokens"] = draft.get("num_speculative_tokens") or steps or (verified or 1) - 1 or None
        if made.get("num_speculative_tokens", 1) is None:
            made["num_speculative_tokens"] = usual = 1 if self.engine == "vllm" else 3
            self.made.notes.append(f"speculation.num_speculative_tokens: {usual}, which the line leaves open")
        head = self._head(method, name)
        made |= {"draft": head} if head else {}
        if draft.get("confidence"):
            made["policy"] = {"name": "confidence-threshold", "confidence_threshold": draft["confidence"]}
        elif draft.get("enable_adaptive_verification"):
            made["policy"] = "confidence-budget"
        elif rows := draft.get("num_speculative_tokens_per_batch_size"):
            made["policy"] = {"name": "batch-table", "table": rows}
        elif most := draft.get("disable_by_batch_size"):
            made["policy"] = {"name": "disable-above-batch", "batch": int(most)}
        curve = self._acceptance(method, made)
        made |= {"acceptance": curve} if curve else {}
        for key in draft.keys() - self.words["draft_keys"]:
            self._record(f"speculation: {key}={draft[key]}", NOT_MODELLED, "a detail of the draft")
        self.made.data["speculation"] = made

    def _draft_method(self) -> tuple[str | None, str]:
        """The method of a scenario that an engine's name means, and that name; None without drafts."""
        word, model = str(self.draft.get("method") or "").strip().lower(), str(self.draft.get("model") or "")
        if not self.draft or word == "none":
            return None, ""
        if not word:
            named = ("eagle3", "eagle", "medusa", "dspark", "dflash", "mtp", "ngram")
            word = next((one for one in named if one in model.lower()), "draft_model")
            word = "draft-simple" if self.engine == "llama.cpp" else word
            self.made.notes.append(f"speculation: the method {word} follows from the drafter's name")
        word = word.split(",")[0]
        if word.endswith("mtp") or (self.engine == "sglang" and word == "eagle" and not model):
            return "mtp", word
        if self.draft.get("parallel_drafting"):
            return "parallel-draft", word
        names = {
            method: facts.names[self.engine].name.lower().split()[-1]
            for method, facts in METHODS.items()
            if self.engine in facts.names
        }
        own = next((method for method, name in names.items() if name == word), None)
        method = "eagle3" if self.engine == "trtllm" and word == "eagle" else own or self.words["methods"].get(word)
        if method is None:
            self._record(
                f"speculation method {word}", NOT_MODELLED, "drafts of this method; steps are as without drafts"
            )
        return method, word

    def _head(self, method: str, name: str) -> Json:
        """Fields of ``speculation.draft``."""
        model = self.draft.get("model")
        made: Json = {}
        fields = METHODS[method].fields
        if "dspark" in name:
            made["markov_rank"] = DSPARK_RANK
            self.made.notes.append(f"speculation.draft.markov_rank: {DSPARK_RANK} is that of DeepSeek-V4's head")
        if method == "draft-model" and model:
            made |= _known_model(_model_name(str(model))) or {"model": _model_name(str(model))}
        elif model in published_head_names() and "model" in fields:
            made["model"] = model
        elif model and METHODS[method].checkpoint:
            self.made.notes.append(f"the drafter {model} is not in the catalogue: a usual {method} head is taken")
        ranks = self.draft.get("draft_tensor_parallel_size")
        return made | ({"tensor_parallel": int(ranks)} if ranks and "tensor_parallel" in fields else {})

    def _acceptance(self, method: str, made: Json) -> Json | None:
        """A length that the line forces; else a published curve: of the drafter, of the model, or of another model."""
        if forced := self.draft.get("synthetic_acceptance_length"):
            return {"acceptance_length": float(forced)}
        fitting = [one for one in map(load_curve, curve_names()) if one.method == method]
        target, drafter = catalogue_model(str(self.made.data["model"])), self.draft.get("model")
        if not fitting:
            return None
        best = max(
            fitting,
            key=lambda one: (one.drafter is not None and one.drafter == drafter, catalogue_model(one.target) == target),
        )
        depth = made.get("num_speculative_tokens") or made["tree"]["depth"]
        self.made.notes.append(
            f"acceptance is not in a launch line: that of {best.name} is taken ({best.target}, {best.task}); "
            "--set speculation.acceptance='{acceptance_length: L}' gives yours"
        )
        return {"curve": best.name, **({"extrapolate": True} if best.positions < depth else {})}


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _of_orchestrator(word: str) -> tuple[str, EngineFlag] | None:
    """An option of Dynamo's workers."""
    name = word.lstrip("-").replace("_", "-")
    if name in ("disaggregation-mode", "disaggregation-strategy"):
        return name, EngineFlag("side", ONE)
    if name in ("is-prefill-worker", "is-decode-worker"):
        return name, EngineFlag("side", 0, name[3:-7])
    known = packaged("simulator.launch", "manifests.yaml")["orchestrator"]
    matched = next((one for one in known if one.rstrip("=") == name), None)
    return (
        (name, EngineFlag(takes=int(matched.endswith("=")), no_effect="an option of the orchestrator"))
        if matched
        else None
    )


def _value(text: object) -> Any:
    """A typed value: a number with ``k`` or ``K``, a list, a mapping, a switch or a text."""
    if isinstance(text, list):
        return [_value(one) for one in text]
    if not isinstance(text, str):
        return text
    if number := re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", text):
        return int(float(number[1]) * SIZES[number[2]])
    if re.fullmatch(r"\d+(,\d+)+", text):
        return [int(one) for one in text.split(",")]
    try:
        return parse(text)
    except yaml.YAMLError:
        return text


def _mapping(value: object) -> Json:
    """A JSON option, also one whose quotes were lost."""
    parsed = _value(value)
    if isinstance(parsed, Mapping) and None in parsed.values() and isinstance(value, str):
        parsed = _value(re.sub(r":(?=[^\s/])", ": ", value))
    if not isinstance(parsed, Mapping):
        raise ForerunError(f"{str(value)[:60]}: a JSON object is expected here, in single quotes")
    return {str(key): one for key, one in parsed.items()}


def _model_name(text: str) -> str:
    """Model that a path or an address names: a folder here, a repository, or the last telling part."""
    if Path(text).exists():
        return text
    text = re.sub(r"^(hf|s3|gs|pvc|oci|modelscope|https?)://(huggingface\.co/)?", "", text).rstrip("/")
    if cached := re.search(r"models--([^/]+?)--([^/]+)", text):
        return f"{cached[1]}/{cached[2]}"
    text = text.removesuffix(".gguf")
    parts = [part for part in text.replace("\\", "/").split("/") if part]
    if len(parts) <= 2 and not text.startswith(("/", ".", "~")):
        return text
    general = r"[0-9a-f]{40}|snapshots|main|models?|weights|hf|\.+|~|data|mnt|workspace"
    return ([text] + [part for part in parts if not re.fullmatch(general, part)])[-1]


def _known_model(name: str) -> dict[str, str] | None:
    """``model``, and ``weights_dtype`` where a file's type says it; None for a model that nobody knows."""
    with suppress(ForerunError):
        load_architecture(name)
        return {"model": name}
    kind = FILE_TYPE.search(name)
    known = catalogue_model(re.sub("-gguf$", "", name[: kind.start()], flags=re.IGNORECASE)) if kind else None
    if kind is None or known is None:
        return None
    dtype = kind[1].lower()
    return {"model": known, "weights_dtype": {"f16": "fp16", "f32": "fp32"}.get(dtype, dtype)}
