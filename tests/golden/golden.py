"""Stored figures of ten runs, and the command that stores them anew.

    python tests/golden/golden.py            # writes tests/golden/*.json and lists what moved

Do that only after the change is explained in CHANGELOG.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
TOLERANCE = 1e-9
CLOCKS = ("cpu_s", "wall_s")
SEED = 7


def scenarios() -> dict[str, dict[str, Any]]:
    """Plain scenarios by name."""
    import yaml

    values: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "scenarios.yaml").read_text("utf-8"))
    return values


def document(data: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a run without what depends on the machine or the release."""
    from simulator.running.metrics import run_document
    from simulator.running.run import simulate
    from simulator.running.scenario import scenario_from

    run = run_document(simulate(scenario_from(data, "golden"), SEED))
    del run["version"]
    run["engine"] = {name: value for name, value in run["engine"].items() if name not in CLOCKS}
    return run


def stored(name: str) -> dict[str, Any]:
    """The stored JSON."""
    values: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return values


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Every leaf that differs, numbers by more than ``TOLERANCE`` of their size."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key, "absent"), new.get(key, "absent"), f"{place}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif _is_number(old) and _is_number(new):
        if abs(new - old) > TOLERANCE * max(abs(old), abs(new)):
            yield f"{place}: {old!r} -> {new!r}"
    elif old != new:
        yield f"{place}: {old!r} -> {new!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def main() -> None:
    """Write every file anew."""
    sys.path.insert(0, str(ROOT))
    for name, data in scenarios().items():
        new = document(data)
        file = FOLDER / f"{name}.json"
        moved = list(differences(stored(name), new)) if file.exists() else ["new"]
        file.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", "utf-8")
        print(f"{name}: {'as it was' if not moved else f'{len(moved)} figures moved, first {moved[0]}'}")


if __name__ == "__main__":
    main()
