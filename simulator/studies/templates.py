"""The renderer of ``artefacts.yaml``: commands and files with fields of a scenario in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from forerun.document import Json
from forerun.yaml_files import packaged
from simulator.running.scenario import Scenario

FIELD = re.compile(r"\$(?:\{(\w+)\}|([a-z_]+(?:\.[a-z_]+)*))")


def templates() -> Json:
    """The templates by name."""
    return packaged("simulator.studies", "artefacts.yaml")


def command_words(name: str, scenario: Scenario, values: Mapping[str, Any]) -> list[str]:
    """The words of a command; a line of its template that lacks a value is left out."""
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
    """A template with ``values``, and otherwise fields of the scenario, by dotted path, in place of ``$name``."""
    if isinstance(template, dict):
        parts = {key: render(part, scenario, values) for key, part in template.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(template, list):
        return [render(part, scenario, values) for part in template]
    if not isinstance(template, str):
        return template
    if whole := FIELD.fullmatch(template):
        return _value(whole[1] or whole[2], scenario, values)
    return FIELD.sub(lambda found: _text(_value(found[1] or found[2], scenario, values)), template)


def _value(name: str, scenario: Scenario, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    part: Any = scenario
    for field in name.split("."):
        part = getattr(part, field)
    return part


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
