"""Sample traces shipped with the package, usable by name wherever a trace path is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forerun.yaml_files import parse
from traces.errors import TraceError, did_you_mean


@dataclass(frozen=True, slots=True)
class Sample:
    """One shipped trace: name, file in ``traces/samples``, description, origin and licence."""

    name: str
    file: str
    title: str
    origin: str
    licence: str


_FOLDER = Path(__file__).parent / "samples"


@cache
def _samples() -> dict[str, Sample]:
    """Shipped traces by name."""
    described = parse((_FOLDER / "samples.yaml").read_text(encoding="utf-8"))
    return {name: Sample(name, **fields) for name, fields in described.items()}


def sample_names() -> list[str]:
    """Names of the shipped traces."""
    return list(_samples())


def sample(name: str) -> Sample:
    """Return the description of a shipped trace; an unknown name raises TraceError with the nearest name."""
    if name not in _samples():
        raise TraceError(f"no sample trace {name!r}{did_you_mean(name, _samples())}; known: {', '.join(_samples())}")
    return _samples()[name]


def sample_path(name: str) -> Path:
    """Return the file of a shipped trace; an unknown name raises TraceError with the nearest name."""
    return _FOLDER / sample(name).file


def resolve(path: str | Path) -> Path:
    """Return a sample's file if ``path`` is a sample's name, else the path; raises TraceError if it does not exist.

    Write ``./azure-conv-2023`` for a file of your own that has a sample's name.
    """
    if isinstance(path, str) and path in _samples():
        return sample_path(path)
    resolved = Path(path)
    try:
        if resolved.exists():
            return resolved
    except (OSError, ValueError) as problem:
        raise TraceError(f"{str(path)[:80]!r}: not a usable path ({problem})") from None
    if str(resolved) in _samples():
        return sample_path(str(resolved))
    hint = did_you_mean(str(path), _samples())
    raise TraceError(f"{path}: no such file, folder or sample{hint} (samples: {', '.join(_samples())})")
