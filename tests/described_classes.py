"""Classes of a package, and what holds for all that describe something: complete, strict, and never changed."""

import importlib
import inspect
import pkgutil
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from pydantic import BaseModel


def classes_of(capacity):
    """Every class that a package's modules define, by its full name."""
    values = {}
    for info in pkgutil.walk_packages(capacity.__path__, capacity.__name__ + "."):
        module = importlib.import_module(info.name)
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == info.name and (is_dataclass(kind) or issubclass(kind, BaseModel)):
                values[f"{info.name}.{name}"] = kind
    return values


def check_described(kind, with_state):
    """Models refuse unknown fields and never change; a dataclass changes only if it is listed as stateful."""
    if issubclass(kind, BaseModel):
        assert kind.model_config["frozen"] is True
        assert kind.model_config["extra"] == "forbid"
        return
    one, field = object.__new__(kind), fields(kind)[0].name
    if kind.__name__ in with_state:
        setattr(one, field, None)
    else:
        with pytest.raises(FrozenInstanceError):
            setattr(one, field, None)
