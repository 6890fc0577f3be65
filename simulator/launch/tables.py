"""Flags of engines: one table for each, which commands are written from and launch lines read by."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from forerun.document import Json
from forerun.yaml_files import packaged

ENGINES = ("vllm", "sglang", "trtllm", "llama.cpp")
ONE, SEVERAL = 1, 2
"""Words that a flag takes; 0 for a switch."""

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""vLLM's names of the two sides of a KV transfer."""


class EngineFlag(NamedTuple):
    """Meaning of a flag for a scenario."""

    meaning: str = ""
    """Field of a scenario, or a value that ``translate.py`` derives fields from; empty for one without an effect."""
    takes: int = 0
    constant: bool | str = True
    """Value of a switch, or the only value that the emitted command gives."""
    no_effect: str = ""
    """Why the flag has no effect on time."""
    not_modelled: str = ""
    """Change that the flag would make."""


def table(engine: str) -> Json:
    """The table of an engine, as its file has it."""
    return packaged("simulator.launch", f"{engine}.yaml")


@cache
def known_flags(engine: str) -> Mapping[str, EngineFlag]:
    """Every known flag of an engine by its name, without dashes in front and with dashes within."""
    values = table(engine)
    known: dict[str, EngineFlag] = {}
    for kind in ("no_effect", "not_modelled"):
        for reason, names in values[kind].items():
            for name in names:
                takes = SEVERAL if name.endswith("*") else ONE if name.endswith("=") else 0
                known[name.rstrip("=*")] = EngineFlag(takes=takes, **{kind: reason})
    command = values["command"]
    written = _fields(command) if isinstance(command, dict) else [one for line in command for one in _line(line)]
    for name, flag in (*written, *(one for line in values["reads"] for one in _line(line))):
        known[name] = flag._replace(takes=SEVERAL) if name in values.get("several", ()) else flag
    return known


def _line(entry: Any) -> Iterator[tuple[str, EngineFlag]]:
    """Flags of a line of a command's template."""
    line, field, default = entry if isinstance(entry, list) else (entry, "", None)
    words = shlex.split(line)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("--"):
            continue
        name = word[2:]
        if following.startswith("$"):
            yield name, EngineFlag(re.sub(r"[${}]|\.gguf", "", following), ONE)
        elif following and not following.startswith("--"):
            yield name, EngineFlag(takes=ONE, constant=following, no_effect="the only kind that is modelled")
        else:
            on = not default if isinstance(default, bool) else True
            yield (
                (name[3:], EngineFlag(field, 0, not on)) if name.startswith("no-") else (name, EngineFlag(field, 0, on))
            )


def _fields(template: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, EngineFlag]]:
    """Flags that the entries of a file's template stand for."""
    for key, value in template.items():
        name = f"{place}{key}".replace("_", "-")
        if isinstance(value, Mapping):
            yield from _fields(value, f"{name}.")
        else:
            yield name, EngineFlag(str(value).lstrip("$"), ONE)


def find(engine: str, word: str) -> tuple[str, EngineFlag] | None:
    """A flag by its name as written: short or long, negated, or the begin of one name alone; None for no flag."""
    known, aliases = known_flags(engine), table(engine)["aliases"]
    name = word.lstrip("-").replace("_", "-")
    name = aliases.get(name, name)
    if name in known:
        return name, known[name]
    if name.startswith("no-") and (positive := find(engine, name[3:])) and not positive[1].takes:
        flag = positive[1]
        return positive[0], flag._replace(constant=not flag.constant)
    begun = {aliases.get(one, one) for one in (*known, *aliases) if one.startswith(name) and len(name) > 3}
    if len(begun) == 1 and engine != "llama.cpp" and word.startswith("--"):
        return (one := begun.pop()), known[one]
    return None


def meaning(name: str) -> str:
    """The field of a scenario, with its value for a switch, that an engine's flag of this name stands for."""
    plain = name.replace("_", "-")
    for engine in ENGINES:
        known = {*known_flags(engine), *table(engine)["aliases"]}
        matched = find(engine, f"--{name}") if plain in known or plain.removeprefix("no-") in known else None
        if matched is not None and matched[1].not_modelled:
            return f"not modelled ({matched[1].not_modelled})"
        if matched is not None and "." in matched[1].meaning:
            flag = matched[1]
            return flag.meaning if flag.takes else f"{flag.meaning}: {str(flag.constant).lower()}"
    return ""
