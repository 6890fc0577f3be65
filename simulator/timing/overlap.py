"""Decode attention that runs beside the rest of its layer: what the step timer asks of whoever models that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwprofiles import AttentionShape

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class DecodeOverlap(Protocol):
    """Seconds that attention adds to a step which only decodes, where part of it hides behind other kernels.

    ``window`` is the attention window of the layers meant, None for full attention.
    """

    def exposed(self, shape: AttentionShape, window: int | None) -> Callable[[Any, Any, Any], Any]:
        """Seconds of all layers of that kind as a function of (sequences, queries per sequence, keys in all)."""

    def exposed_parts(
        self, shape: AttentionShape, window: int | None, seqs: IntArray, query_len: IntArray, keys: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """The same for many steps: seconds in attention, seconds on the link."""
