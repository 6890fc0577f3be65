"""A bounded cache of recent results that threads share."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentResults(Generic[V]):
    """The most recently used results by key; threads may share it, which a plain dict with eviction does not allow.

    Results are computed outside the lock. If threads compute one for the same key at once, all get the first.

    Args:
        size: maximum number of results, >= 1; the least recently used result is evicted first.

    >>> squares = RecentResults(2)
    >>> squares.get(3, lambda: 9), squares.get(3, lambda: 10)
    (9, 9)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the result of a key; compute it if it is not cached."""
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
