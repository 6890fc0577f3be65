"""Processes that share independent runs; without any, the work is done here, later."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of ``count`` processes; with 0 the work is done by the caller when it asks for the result."""

    def __init__(self, count: int) -> None:
        self._pool = ProcessPoolExecutor(count) if count > 0 else None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """Begin ``work``; call what is returned to have its result, or the exception it raised."""
        if self._pool is None:
            return partial(work, *args, **kwargs)
        return self._pool.submit(work, *args, **kwargs).result

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
