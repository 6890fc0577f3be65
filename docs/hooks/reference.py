"""Tables of the reference pages, made while the site is built from what they describe: they cannot go stale."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MARK = re.compile(r"<!-- generated: (\w+) -->")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with what is generated in the place of its mark."""
    return MARK.sub(lambda found: "\n".join(GENERATED[found[1]]()), markdown)


def scenario_page() -> Iterator[str]:
    """Every field of a scenario, from the schema that validates it."""
    from simulator.scenario import Scenario

    schema = Scenario.model_json_schema(by_alias=True)
    yield from _section("The scenario", schema, schema)
    for name, part in sorted(schema.get("$defs", {}).items()):
        yield from _section(name, part, schema)


def _section(title: str, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    if "properties" not in part:
        return
    yield f"## {title}"
    yield ""
    if part.get("description"):
        yield " ".join(part["description"].split("\n\n")[0].split()).replace("``", "`")
        yield ""
    meanings = _meanings(title)
    yield "| field | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in part["properties"].items():
        needed = name in part.get("required", ())
        shown = f"**`{name}`**" if needed else f"`{name}`"
        default = "" if needed else _default(field.get("default"), "default" in field)
        meaning = meanings.get(name) or field.get("description") or _summary(field, schema)
        yield f"| {shown} | {_kind(field)} | {default} | {_cell(meaning)} |"
    yield ""


def _summary(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """First sentence of the section that a field holds."""
    options = [field, *field.get("anyOf", ())]
    names = [option["$ref"].rsplit("/", 1)[-1] for option in options if "$ref" in option]
    return str(schema["$defs"][names[0]].get("description", "")).split("\n")[0] if len(names) == 1 else ""


def _meanings(title: str) -> dict[str, str]:
    """Docstrings written under the fields of the model with this title."""
    import ast
    import inspect
    import textwrap

    from simulator.scenario import Scenario
    from simulator.settings import Section

    wanted = "Scenario" if title == "The scenario" else title
    classes = [Scenario, *_subclasses(Section)]
    model = next((cls for cls in classes if cls.__name__ == wanted), None)
    if model is None:
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, after in pairwise(body):
        text = getattr(getattr(after, "value", None), "value", None)
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(text, str):
            name = str(getattr(field.target, "id", ""))
            info = model.model_fields.get(name)
            found[info.alias or name if info is not None else name] = text
    return found


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
        return f"[{name}](#{name.lower()})"
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
        if key in field
    ]
    return " ".join([words.get(str(field.get("type")), "any"), *limits])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`").replace("|", "\\|")).strip()


def commands_page() -> Iterator[str]:
    """Every command with its arguments and options, from the command itself."""
    from typer.main import get_command

    from simulator.cli.app import app

    yield from _command("forerun", get_command(app), 2)


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
        fitted = ", ".join(sorted(chip.kernels)) or "none: datasheet"
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


GENERATED = {"scenario": scenario_page, "commands": commands_page, "catalogue": catalogue_page}
