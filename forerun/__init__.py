"""Forerun: predict how LLM inference runs. ``import forerun as fr`` lends the names of ``simulator``.

Beside them stands the ground that all packages share: errors, lazy names, YAML as people's files hold it.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what the import system asks a package for is no name of the face
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    import simulator

    return getattr(simulator, name)


def __dir__() -> list[str]:
    import simulator

    return dir(simulator)
