"""What pages are made of and what they share: the served folders and the background runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dashboards.app.jobs import Jobs
from dashboards.app.served import Served
from dashboards.app.url_state import Params


class Context(NamedTuple):
    """Shared by all pages of an app."""

    served: Served
    jobs: Jobs


class Page(NamedTuple):
    """One page of the app."""

    path: str
    """In the address."""
    name: str
    """In the menu."""
    layout: Callable[[Params, Context], Any]
    """What it shows, restored from an address."""
    register: Callable[[Any, Context], None]
    """Adds its callbacks to the app."""
    steps: Mapping[str, Sequence[float]] = {}
    """Values of its sliders, by name."""
