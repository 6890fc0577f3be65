"""Renderer of the templates in ``artefacts.yaml``: commands and files that contain fields of a scenario."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from forerun.document import Json
from forerun.yaml_files import packaged
from simulator.launch.tables import ENGINES, table
from simulator.running.scenario import Scenario

FIELD = re.compile(r"\$(?:\{(\w+)\}|([a-z_]+(?:\.[a-z_]+)*))")


@cache
def templates() -> Json:
    """Templates by name."""
    own = packaged("simulator.studies", "artefacts.yaml")
    return own | {engine: table(engine)["command"] for engine in ENGINES}


def command_words(name: str, scenario: Scenario, values: Mapping[str, Any]) -> list[str]:
    """Words of a command; lines of its template without a value are omitted."""
    words: list[str] = []
    for entry in templates()[name]:
        line, field, default = entry if isinstance(entry, list) else (entry, None, None)
        if field is not None and _value(field, scenario, values) == default:
            continue
        parts = [render(part, scenario, values) for part in shlex.split(line)]
        if None in parts:
            continue
        for part in parts:
            words += part if isinstance(part, list) else [_text(part)]
    return words


def render(template: Any, scenario: Scenario, values: Mapping[str, Any]) -> Any:
    """Render a template: ``$name`` is replaced by ``values``, else by the scenario's field with that dotted path."""
    if isinstance(template, dict):
        parts = {key: render(part, scenario, values) for key, part in template.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(template, list):
        return [render(part, scenario, values) for part in template]
    if not isinstance(template, str):
        return template
    if whole := FIELD.fullmatch(template):
        return _value(whole[1] or whole[2], scenario, values)
    return FIELD.sub(lambda matched: _text(_value(matched[1] or matched[2], scenario, values)), template)


def _value(name: str, scenario: Scenario, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    part: Any = scenario
    for field in name.split("."):
        part = getattr(part, field)
    return part


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
