"""Tables of the reference pages, made while the site is built from what they describe: they cannot go stale."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import forerun as fr
from forerun.document import json_schema
from forerun.tables import glossary_text
from simulator.running.metrics import RunDocument
from simulator.studies.plan.thresholds import ThresholdsResult

MARK = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
"""What is generated, and what stands there for who reads the page in a checkout."""


RESEARCH = Path(__file__).resolve().parents[2] / "research" / "docs"
"""Pages of the distribution ``forerun-research``, which the site has where the folder is there."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the research studies in the menu."""
    section: list[Any] = next(one["Research"] for one in config.nav or [] if "Research" in one)
    section += [
        {page.stem.replace("-", " ").capitalize(): f"research/{page.name}"} for page in sorted(RESEARCH.glob("*.md"))
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the research studies."""
    for page in sorted(RESEARCH.glob("*.md")):
        files.append(File.generated(config, f"research/{page.name}", abs_src_path=str(page)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Write the JSON Schema of every typed document."""
    folder = Path(config.site_dir) / "reference" / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, schema in _documents().items():
        (folder / f"{kind}.json").write_text(json.dumps(schema, indent=1), encoding="utf-8")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with what is generated in the place of its mark, and of what says that it is."""
    return MARK.sub(lambda result: "\n".join(GENERATED[result[1]]()), markdown)


def scenario_page() -> Iterator[str]:
    """Every field of a scenario, from the schema that validates it, in the order in which a file would have them."""
    from simulator.running.scenario import Scenario

    schema = Scenario.model_json_schema(by_alias=True)
    examples, flags = _examples(), _flags()
    sections = {"": ["Scenario"]}
    for path, name in _nested(schema, schema):
        sections.setdefault(name, []).append(path)
    for name, paths in sections.items():
        part = schema["$defs"][name] if name else schema
        title = ", ".join(f"`{path}`" for path in paths) if name else "The whole"
        yield f"## {title} {{#{name.lower() or 'whole'}}}"
        yield ""
        yield from _section(name or "Scenario", "" if not name else paths[0], part, schema, examples, flags)


def _nested(part: dict[str, Any], schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and schema name of every section inside a part, each before its own."""
    for name, field in part.get("properties", {}).items():
        many = "NAME." if "additionalProperties" in str(field.get("anyOf", field)) and "Config" in str(field) else ""
        for inner in re.findall(r"#/\$defs/(\w+)", str(field)):
            yield f"{place}{name}{'.' + many.rstrip('.') if many else ''}", inner
            yield from _nested(schema["$defs"][inner], schema, f"{place}{name}.{many}")


def _section(
    title: str,
    place: str,
    part: dict[str, Any],
    schema: dict[str, Any],
    examples: dict[str, str],
    flags: dict[str, str],
) -> Iterator[str]:
    if part.get("description"):
        yield " ".join(part["description"].split("\n\n")[0].split()).replace("``", "`")
        yield ""
    meanings = _meanings(title)
    prefix = f"{place}." if place else ""
    yield "| field | meaning | example |"
    yield "|---|---|---|"
    for name, field in part["properties"].items():
        needed = name in part.get("required", ())
        default = "" if needed else _default(field.get("default"), "default" in field)
        meaning = _cell(meanings.get(name) or field.get("description") or _summary(field, schema))
        example = EXAMPLES.get(prefix + name) or examples.get(prefix + name) or _made_up(field)
        facts = [_kind(field), unit_of(name), f"default {default}" if default else "required" if needed else ""]
        if prefix + name in flags:
            meaning += f"<br>Engine's flag: {flags[prefix + name]}."
        shown = f"`{_cell(example)}`" if example else ""
        yield f"| **`{name}`**<br>{' · '.join(filter(None, facts))} | {meaning} | {shown} |"
    yield ""


UNITS = {"_s": "s", "_ms": "ms", "_bytes": "bytes", "_tokens": "tokens", "_w": "W", "_hour": "USD/h", "rate": "1/s",
         "_blocks": "blocks", "block_size": "tokens", "max_model_len": "tokens", "_lambda": ""}  # fmt: skip
"""The unit that a field's name ends with."""


def unit_of(name: str) -> str:
    """Unit of a field by its name; empty where it is a count, a share or a word."""
    plain = {"hit_rate", "mtp", "burstiness"}
    return "" if name in plain else next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


EXAMPLES = {
    "measured": "[result.json]",
    "measured.files": "[result.json]",
    "measured.deployment": "{model: llama-3.1-8b, hardware: {chip: h100-sxm}}",
    "hardware.expert_routing": "power-law-1.2",
    "hardware.power_limit_w": "500",
    "hardware.layers_on": "[{chip: cpu-ddr5-2ch, layers: 12}]",
    "hardware.tensor_chips": "[rtx-5080]",
    "hardware.link": "nvlink4",
    "hardware.pipeline_link": "infiniband-ndr",
    "engine": "{framework: vllm, max_num_seqs: 128}",
    "engine.framework": "sglang",
    "engine.max_model_len": "32768",
    "engine.gpu_memory_utilization": "0.85",
    "engine.num_kv_blocks": "29205",
    "engine.kv_watermark": "0.01",
    "engine.cuda_graph_sizes": "[1, 2, 4, 8, 16]",
    "engine.swap_space_bytes": "8.0e9",
    "engine.kv_offloading_bytes": "1.0e11",
    "engine.prefix_cache_eviction": "{name: pin, seconds: 60}",
    "engine.prefix_cache_eviction.name": "pin",
    "engine.prefix_cache_eviction.seconds": "60",
    "engine.kv_stores.eviction": "session-aware",
    "kv_store.eviction": "{name: ttl, seconds: 300}",
    "engine.kv_stores": "[{bytes: 1.0e11}]",
    "engine.kv_stores.bytes": "1.0e11",
    "engine.kv_stores.usd_per_gb_month": "0.1",
    "engine.kv_stores.name": "nvme",
    "engine.kv_stores.read_bytes_per_s": "6.0e9",
    "engine.kv_stores.write_bytes_per_s": "3.0e9",
    "engine.kv_stores.latency_s": "0.0001",
    "engine.kv_stores.loads": "background",
    "kv_store": "{bytes: 1.0e13, read_bytes_per_s: 2.0e10, write_bytes_per_s: 1.0e10}",
    "kv_store.bytes": "1.0e13",
    "kv_store.usd_per_gb_month": "0.1",
    "kv_store.read_bytes_per_s": "2.0e10",
    "kv_store.write_bytes_per_s": "1.0e10",
    "kv_store.name": "ceph",
    "kv_store.latency_s": "0.001",
    "kv_store.link": "infiniband-ndr",
    "kv_store.links": "1",
    "engine.host_link": "pcie5-x16",
    "router": "{max_outstanding: 64, when_full: refuse}",
    "router.endpoint_picker": "endpoint-picker.yaml",
    "router.filters": "[{filter: prefix-affinity, threshold: 0.8}]",
    "router.scorers": "[{scorer: prefix, weight: 3}, {scorer: queue}]",
    "faults.mtbf_s": "86400",
    "faults.mttr_s": "600",
    "faults.events.replica": "0",
    "autoscaler": "{target: 8, max_replicas: 6, start_up_s: 120}",
    "autoscaler.rule": "llm-d",
    "faults.events.at_s": "20",
    "faults.events.down_s": "30",
    "pools": "{prefill: {role: prefill}, decode: {role: decode}}",
    "pools.hardware": "{chip: h200-sxm, replicas: 2}",
    "pools.engine": "{max_num_batched_tokens: 16384}",
    "pools.usd_per_chip_hour": "3.5",
    "notes": "[the load is assumed]",
    "speculation": "{method: eagle3, num_speculative_tokens: 3}",
    "speculation.tree.name": "eagle-25",
    "speculation.tree.choices": "[[0], [1], [0, 0]]",
    "speculation.draft.weights_dtype": "fp8",
    "speculation.draft.chip": "n150",
    "speculation.draft.link": "pcie5-x16",
    "speculation.draft.tensor_parallel": "1",
    "speculation.draft.kv_tokens": "2048",
    "speculation.draft.trained_window": "2048",
    "speculation.draft.num_layers": "1",
    "speculation.draft.intermediate_size": "14336",
    "speculation.draft.num_attention_heads": "32",
    "speculation.draft.head_dim": "128",
    "speculation.draft.draft_vocab_size": "32000",
    "speculation.draft.markov_rank": "256",
    "speculation.draft.step_s": "0.0002",
    "speculation.draft.pass_s": "0.00005",
    "speculation.draft.per_sequence_s": "0.00001",
    "speculation.draft.per_context_token_s": "1.0e-9",
    "speculation.acceptance.per_position": "[0.73, 0.52, 0.35]",
    "speculation.acceptance.curve": "eagle3-llama-3.1-8b-mt-bench",
    "speculation.acceptance.log": "engine.log",
    "speculation.acceptance.method": "eagle3",
    "speculation.acceptance.model": "llama-3.1-8b",
    "speculation.acceptance.instead_of": "{method: eagle3, acceptance: {alpha: 0.7}}",
    "speculation.acceptance.other_ranks": "[0.4, 0.2]",
    "speculation.acceptance.decay": "0.95",
    "speculation.acceptance.spread": "0.1",
    "speculation.acceptance.context_decay": "0.97",
    "speculation.acceptance.context_from": "2048",
    "speculation.policy.name": "disable-above-batch",
    "speculation.policy.table": "[[1, 32, 4], [33, 64, 2]]",
    "speculation.policy.candidates": "[1, 3, 7]",
    "attention_speculation": "{hit_rate: 0.875}",
    "attention_speculation.task": "gsm8k",
    "attention_speculation.hit_rate": "0.875",
    "attention_speculation.hit_rate_by_context": "[[1024, 0.9], [131072, 0.8]]",
    "attention_speculation.hit_rate_by_layer": "[0.9, 0.85, 0.8]",
    "hardware.layers_on.chip": "rtx-4090",
    "workload.arrivals.max_concurrency": "32",
    "workload.arrivals.rate_scale": "4",
    "workload.input_tokens.value": "512",
    "workload.input_tokens.min": "64",
    "workload.input_tokens.max": "4096",
    "workload.input_tokens.values": "[128, 512, 2048]",
    "workload.input_tokens.file": "lengths.txt",
    "workload.priorities": "[0, 0, 1]",
    "workload.sessions.system_prompts": "6",
    "workload.shared_prefixes": "{groups: 150, prompts: 5, system_tokens: 6000, question_tokens: 1200}",
    "workload.warm_up": "{stages: 1}",
    "workload.warm_up.requests": "100",
    "workload.warm_up.seconds": "60.0",
    "workload.warm_up.stages": "1",
    "workload.arrivals.stages": "[{rate: 5, seconds: 60}, {rate: 10, seconds: 60}]",
    "workload.sessions": "{turns: 4, think_time_s: 5.0}",
    "workload.columns": "{arrival: ts, input: prompt_toks}",
    "workload.format": "mooncake",
    "engine.release": "0.11.0",
    "speculation.grammar": "{forced_share: 0.4}",
    "speculation.grammar.outputs": "answers.jsonl",
    "speculation.grammar.json_schema": "schema.json",
}
"""Values of fields that no example of the repository has, or one that tells less."""


def _examples() -> dict[str, str]:
    """A value of each field that stands in an example or a page, by dotted path."""
    import yaml

    root = Path(__file__).resolve().parents[2]
    texts = [path.read_text(encoding="utf-8") for path in sorted(root.glob("examples/*.yaml"))]
    for page in sorted(root.glob("docs/**/*.md")):
        texts += re.findall(r"```yaml title=[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    values: dict[str, str] = {}

    def walk(data: Any, place: str) -> None:
        if not isinstance(data, dict):
            return
        for name, value in data.items():
            path = f"{place}NAME" if place == "pools." else f"{place}{name}"
            text = yaml.safe_dump(value, default_flow_style=True, width=1000).replace("...", "").strip()
            if len(text) <= LONGEST_EXAMPLE:
                values.setdefault(path, text)
            walk(value, f"{path}.")

    for text in texts:
        data = yaml.safe_load(text)
        walk(data.get("scenario") if isinstance(data.get("scenario"), dict) else data, "")
    return values


LONGEST_EXAMPLE = 60
UNSAID = 1e9
"""Limits from which on a table does not say them."""


def _made_up(field: dict[str, Any]) -> str:
    """A value that a field can have, where no example has one."""
    options = [field, *field.get("anyOf", ()), *field.get("oneOf", ())]
    for option in options:
        others = [value for value in option.get("enum", ()) if value != field.get("default")]
        if others:
            return str(others[0])
    kinds = {option.get("type") for option in options}
    default = field.get("default")
    if "boolean" in kinds:
        return str(not default).lower()
    if "integer" in kinds:
        return str(2 * default) if isinstance(default, int) and default else "8"
    if "number" in kinds:
        most = min((option.get("maximum", 1e9) for option in options), default=1e9)
        return f"{min(2 * default, most):g}" if isinstance(default, int | float) and default else "0.5"
    return ""


def _flags() -> dict[str, str]:
    """What a field becomes on each engine's command line, by dotted path: a command with it against one without."""
    from simulator.running.scenario import Scenario
    from simulator.studies.engine_flags import launch_flags

    plain = Scenario.model_validate(
        {
            "model": "llama-3.1-8b",
            "hardware": {"chip": "h100-sxm"},
            "workload": {"arrivals": {"process": "burst"}, "input_tokens": 8, "output_tokens": 8, "num_requests": 1},
        }
    )
    changes = {
        "weights_dtype": "fp8",
        "kv_cache_dtype": "fp8",
        "hardware.tensor_parallel": 2,
        "hardware.pipeline_parallel": 2,
        "engine.scheduler": "priority",
        "engine.max_num_seqs": 64,
        "engine.max_num_batched_tokens": 4096,
        "engine.max_model_len": 4096,
        "engine.block_size": 32,
        "engine.gpu_memory_utilization": 0.8,
        "engine.enable_chunked_prefill": False,
        "engine.enable_prefix_caching": False,
        "engine.cuda_graphs": False,
        "speculation": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": {"alpha": 0.5}},
    }
    before = {engine: _options(command) for engine, command in launch_flags(plain).items()}
    values = {}
    for path, value in changes.items():
        after = {engine: _options(text) for engine, text in launch_flags(plain.with_values({path: value})).items()}
        message = []
        for engine, options in after.items():
            new = [name for name, inputs in options.items() if before[engine].get(name) != inputs]
            if new:
                message.append(f"{engine}: {' '.join(f'`{name}`' for name in new)}")
        values[path] = "; ".join(message)
    return values


def _options(command: str) -> dict[str, str]:
    """Options of a command with their values."""
    words = command.partition(" # ")[0].split(" --")[1:]
    return {f"--{name}": value for name, _, value in (word.partition(" ") for word in words)}


def _summary(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """First sentence of the section that a field holds."""
    options = [field, *field.get("anyOf", ())]
    names = [option["$ref"].rsplit("/", 1)[-1] for option in options if "$ref" in option]
    return str(schema["$defs"][names[0]].get("description", "")).split("\n")[0] if len(names) == 1 else ""


def _meanings(title: str) -> dict[str, str]:
    """Docstrings written under the fields of the model with this title, and of the sections that it builds on."""
    import ast
    import inspect
    import textwrap

    from forerun.types import Section
    from simulator.running.scenario import Scenario

    classes = [Scenario, *_subclasses(Section)]
    model = next((cls for cls in classes if cls.__name__ == title), None)
    if model is None:
        return {}
    sections = [cls for cls in reversed(model.__mro__) if issubclass(cls, Section) and cls is not Section]
    sources = [ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0] for cls in sections]
    body = [node for source in sources for node in source.body]  # type: ignore[attr-defined]
    values = {}
    for field, after in pairwise(body):
        text = getattr(getattr(after, "value", None), "value", None)
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(text, str):
            name = str(getattr(field.target, "id", ""))
            info = model.model_fields.get(name)
            values[info.alias or name if info is not None else name] = text
    return values


def _subclasses(cls: type) -> list[Any]:
    return [other for sub in cls.__subclasses__() for other in (sub, *_subclasses(sub))]


def _default(value: Any, known: bool) -> str:
    if value is None:
        return "none" if known else ""
    if isinstance(value, dict):
        return "by its fields" if value else "none"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[fields](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            kinds = [_kind(option) for option in field[key] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}" if isinstance(field.get("items"), dict) else "list"
    if field.get("type") == "object":
        return "mapping"
    limits = [
        f"{sign} {field[key]:g}"
        for key, sign in (
            ("exclusiveMinimum", "&gt;"),
            ("minimum", "&ge;"),
            ("exclusiveMaximum", "&lt;"),
            ("maximum", "&le;"),
        )
        if key in field and abs(field[key]) < UNSAID
    ]
    return " ".join([words.get(str(field.get("type")), "any"), *limits])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`").replace("|", "\\|")).strip()


def commands_page() -> Iterator[str]:
    """Every command with its arguments and options, from the command itself."""
    from typer.main import get_command

    from simulator.cli.app import application

    yield from _command("forerun", get_command(application()), 2)


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None or path != "forerun":
        yield f"{'#' * level} `{path}`"
        yield ""
        yield " ".join(str(command.help or "").split())
        yield ""
        yield from _parameters(command)
        if command.epilog:
            yield f"> {command.epilog.replace(chr(10), ' ')}"
            yield ""
    for name, sub in (inner or {}).items():
        yield from _command(f"{path} {name}", sub, level if path == "forerun" else level + 1)


def _parameters(command: Any) -> Iterator[str]:
    rows = [
        parameter for parameter in command.params if parameter.name != "help" and not getattr(parameter, "hidden", 0)
    ]
    if not rows:
        return
    yield "| argument or option | default | meaning |"
    yield "|---|---|---|"
    for parameter in rows:
        option = parameter.param_type_name == "option"
        name = ", ".join(parameter.opts) if option else (parameter.metavar or parameter.name.upper())
        value = "" if not option or parameter.is_flag else f" {parameter.metavar or _placeholder(parameter.default)}"
        default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else parameter.default
        many = " (may be repeated)" if option and parameter.multiple else ""
        shown = f"`{default}`" if default != "" and "UNSET" not in str(default).upper() else ""
        yield f"| `{name}{value}` | {shown} | {_cell(str(parameter.help or ''))}{many} |"
    yield ""


def _placeholder(default: Any) -> str:
    return "N" if isinstance(default, int | float) or default is None else "TEXT"


def catalogue_page() -> Iterator[str]:
    """Chips, links, models, acceptance curves and sample traces that ship."""
    from hwprofiles import chip_names, link_names, load_chip, load_link
    from simulator.llm import architecture_names, load_architecture
    from simulator.speculation import curve_names, load_curve

    yield "## Chips"
    yield ""
    yield "| name | what | dense bf16 TFLOP/s | memory GB/s | memory GB | kernels fitted for |"
    yield "|---|---|---:|---:|---:|---|"
    for name in chip_names():
        chip = load_chip(name)
        flops = chip.compute.dense_flops_per_s.get("bf16")
        fitted = ", ".join(chip.fitted_libraries) or "none: datasheet"
        yield (
            f"| `{name}` | {_cell(chip.description)} | {'' if flops is None else f'{flops / 1e12:.4g}'} | "
            f"{chip.memory.bandwidth_bytes_per_s / 1e9:.4g} | {chip.memory.capacity_bytes / 1e9:.4g} | {fitted} |"
        )
    yield ""
    yield "## Links"
    yield ""
    yield "| name | what |"
    yield "|---|---|"
    for name in link_names():
        yield f"| `{name}` | {_cell(load_link(name).description)} |"
    yield ""
    yield "## Models"
    yield ""
    yield "| name | parameters | for each token | layers |"
    yield "|---|---:|---:|---:|"
    for name in architecture_names():
        model = load_architecture(name)
        count = model.parameters()
        yield f"| `{name}` | {count.total / 1e9:.3g} B | {count.active / 1e9:.3g} B | {model.num_layers} |"
    yield ""
    yield "## Acceptance curves"
    yield ""
    yield "| name | source |"
    yield "|---|---|"
    for name in curve_names():
        yield f"| `{name}` | {_cell(load_curve(name).source)} |"


def traces_page() -> Iterator[str]:
    """Formats of request traces that are read, and the names by which columns are known."""
    from traces import FORMATS
    from traces.requests.formats import PLAIN
    from traces.requests.layout import MAPPED

    yield "| format | what it is |"
    yield "|---|---|"
    for name, title in FORMATS.items():
        yield f"| `{name}` | {_cell(title)} |"
    yield ""
    yield "## Columns of a plain table {#columns}"
    yield ""
    yield "| column | `--map` word | names that are recognised |"
    yield "|---|---|---|"
    words = {canonical: word for word, canonical in MAPPED.items()}
    for canonical, candidates in PLAIN.columns.items():
        names = ", ".join(f"`{column.name}`" for column in candidates)
        yield f"| `{canonical}` | {f'`{words[canonical]}`' if canonical in words else ''} | {names} |"


def _documents() -> dict[str, Any]:
    """JSON Schema of the typed documents, by kind of result."""
    results = (fr.CompareResult, fr.PlanResult, ThresholdsResult, fr.SweepResult, fr.TuneResult)
    return {"run": json_schema(RunDocument)} | {one.kind: json_schema(one.document_type) for one in results}


def documents_page() -> Iterator[str]:
    """Every field of a document with its type, parts after the whole."""
    for kind, schema in _documents().items():
        yield f"## `{kind}` {{#{kind}}}"
        for name, part in {"": schema, **schema.get("$defs", {})}.items():
            yield ""
            yield f"{f'**{name}**: ' if name else ''}{part.get('description', '').strip()}"
            yield ""
            yield "| key | type |"
            yield "|---|---|"
            for key, described in part.get("properties", {}).items():
                yield f"| `{key}` | {_type_words(described)} |"
        yield ""


def _type_words(described: dict[str, Any]) -> str:
    """The type of a key of a JSON Schema, such as ``list of Crossing`` or ``number or null``."""
    if "$ref" in described:
        return str(described["$ref"].rpartition("/")[2])
    if "anyOf" in described:
        return " or ".join(map(_type_words, described["anyOf"]))
    if described.get("type") == "array":
        return f"list of {_type_words(described.get('items', {}))}"
    inner = described.get("additionalProperties")
    if isinstance(inner, dict):
        return f"object of {_type_words(inner)}"
    return str(described.get("type", "any value"))


def changelog() -> Iterator[str]:
    """CHANGELOG.md without its title."""
    text = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    yield text.partition("\n")[2].replace("](docs/", "](")


def nothing() -> Iterator[str]:
    """In the place of a remark that is for readers of a checkout alone."""
    yield from ()


def rows_page() -> Iterator[str]:
    """Tables of every comparison as data for ``assets/rows.js``."""
    from dashboards.recorded_errors import read_errors
    from validation.page import ROWS_FILE, error_rows, fitted_rows, plain, read_rows

    folder = Path(__file__).resolve().parents[1] / "validation"
    tables = [error_rows(read_errors(folder / "errors.json")), *read_rows(folder / ROWS_FILE).values(), fitted_rows()]
    data = json.dumps([plain(table) for table in tables]).replace("<", "\\u003c")
    yield '<div id="rows"></div>'
    yield f'<script type="application/json" id="rows-data">{data}</script>'


GENERATED = {
    "rows": rows_page,
    "changelog": changelog,
    "documents": documents_page,
    "scenario": scenario_page,
    "commands": commands_page,
    "glossary": lambda: [glossary_text()],
    "catalogue": catalogue_page,
    "traces": traces_page,
    "nothing": nothing,
}
