"""A bounded cache of recent results that threads share."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentResults(Generic[V]):
    """The most recently used results by key; threads may share it, which a plain dict with eviction does not allow.

    Results are made outside the lock. If threads make one for the same key at once, all of them get the first stored.

    Args:
        size: results to keep, >= 1; the least recently used leaves first.

    >>> squares = RecentResults(2)
    >>> squares.get(3, lambda: 9), squares.get(3, lambda: 10)
    (9, 9)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The result of a key, made now if it is not here."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
