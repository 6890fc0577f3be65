"""Dataclasses with slots, whose methods are generated when the first of them is used.

Generating them takes ``dataclasses`` half a millisecond a class, a tenth of a short run, which uses a third of the
classes that it imports, and of these mostly ``__init__``, which is generated alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from inspect import get_annotations
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, slots=False, **options):
        """``dataclasses.dataclass``; with ``slots`` it generates the methods later."""
        if cls is None:
            return partial(dataclass, slots=slots, **options)
        return _with_methods_later(cls, options) if slots else dataclasses.dataclass(cls, **options)


TO_MAKE = ("__init__", "__match_args__", "__dataclass_fields__")
_COMPLETING = RLock()


class _Later:
    """An attribute of a class that the completed class has in place of it."""

    def __init__(self, name: str, complete: Callable[[str], type]) -> None:
        self._name, self._complete = name, complete

    def __get__(self, instance: Any, owner: type) -> Any:
        value = self._complete(self._name).__dict__[self._name]
        return value.__get__(instance, owner) if callable(value) else value


def _with_methods_later(cls: type, options: dict[str, Any]) -> type:
    frozen, eq = options.get("frozen", False), options.get("eq", True)
    own = [name for name, kind in get_annotations(cls).items() if "ClassVar" not in str(kind)]
    inherited = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
    body = {name: value for name, value in cls.__dict__.items() if name not in (*own, "__dict__", "__weakref__")}
    body |= {"__slots__": tuple(name for name in own if name not in inherited), "__qualname__": cls.__qualname__}
    explicit_hash = body.get("__hash__") is not None
    if frozen:
        body = {"__getstate__": _state, "__setstate__": _set_state, **body}
        body |= {"__setattr__": _refuse, "__delattr__": _refuse}
    elif eq and not explicit_hash:
        body["__hash__"] = None
    names = [name for name in ("__init__", "__repr__", *(["__eq__"] if eq else [])) if name not in body]
    names += ["__hash__"] if eq and frozen and not explicit_hash else []
    names += ["__match_args__", "__dataclass_fields__", "__dataclass_params__"]

    def complete(name: str) -> type:
        """Generate what is needed to make records, or the methods that are used less."""
        first = name in TO_MAKE
        with _COMPLETING:
            if isinstance(made.__dict__.get(name), _Later):
                fields = {key: value for key, value in cls.__dict__.items() if key not in ("__dict__", "__weakref__")}
                again = type(cls)(cls.__name__, cls.__bases__, fields | {"__doc__": "else its signature is written"})
                fewer = {"repr": False, "eq": False} if first else {}
                methods = dataclasses.dataclass(again, slots=True, **options | fewer).__dict__
                for later in names:
                    if (later in TO_MAKE) == first:
                        setattr(made, later, methods[later])
        return made

    made: type = type(cls)(cls.__name__, cls.__bases__, body | {name: _Later(name, complete) for name in names})
    return made


def _refuse(record: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(record: Any) -> list[Any]:
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def _set_state(record: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(record), state, strict=True):
        object.__setattr__(record, field.name, value)
