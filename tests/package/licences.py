"""Licences of what Forerun depends on, from the metadata of the installed packages.

Run: python tests/package/licences.py [EXTRA...]   prints a table; exits 1 where a licence is copyleft or not stated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata

COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|SSPL|EUPL|CC-BY-SA|OSL)\b|(?<!L)GPLv\d", re.IGNORECASE)
"""Licences that would bind a program that merely imports the package; LGPL and MPL bind changes to themselves."""
WEAK = re.compile(r"\b(LGPL|GNU Lesser|MPL|Mozilla Public)", re.IGNORECASE)
PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Python-2\.0|Unlicense|Zlib|0BSD|HPND|CC0", re.IGNORECASE
)


def requirements(name: str, extras: frozenset[str]) -> Iterator[str]:
    """Names that a distribution requires here, markers of extras heeded, others taken as true."""
    for text in metadata.requires(name) or ():
        marker = text.partition(";")[2]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if extra is None or extra[1] in extras:
            yield re.split(r"[\s;<>=!~\[(]", text.strip(), maxsplit=1)[0].lower().replace("_", "-")


def closure(extras: frozenset[str] = frozenset()) -> list[str]:
    """Everything that ``forerun`` pulls in, itself left out; what is not installed here is not followed."""
    values: dict[str, None] = {}
    waiting = list(requirements("forerun", extras))
    while waiting:
        name = waiting.pop()
        if name in values or name == "forerun":
            continue
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        values[name] = None
        waiting += requirements(name, frozenset())
    return sorted(values)


def licence(name: str) -> str:
    """Licence of an installed distribution in one line; empty where it does not say."""
    message = metadata.metadata(name)
    classified = [
        line.split(" :: ")[-1] for line in message.get_all("Classifier") or () if line.startswith("License ::")
    ]
    text = (
        message.get("License-Expression")
        or ", ".join(c for c in classified if c != "OSI Approved")
        or message.get("License")
    )
    return " ".join((text or "").split())[:80]


def verdict(text: str) -> str:
    """``permissive``, ``weak copyleft``, ``copyleft`` or ``unknown``."""
    if WEAK.search(text):
        return "weak copyleft"
    if COPYLEFT.search(text):
        return "copyleft"
    return "permissive" if PERMISSIVE.search(text) else "unknown"


def main(extras: list[str]) -> int:
    """Print name, version, licence and verdict of every dependency."""
    bad = 0
    for name in closure(frozenset(extras)):
        text = licence(name)
        judged = verdict(text)
        bad += judged in ("copyleft", "unknown")
        print(f"{name:<28} {metadata.version(name):<14} {judged:<14} {text}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
