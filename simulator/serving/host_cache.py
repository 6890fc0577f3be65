"""Prefix-cache units in host memory: where what leaves the chip is kept, and from where it comes back over the link."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from simulator.serving.clock import on_grid


@dataclass(frozen=True, slots=True)
class OffloadSpace:
    """Host memory beside one replica for KV that the prefix cache evicts, behind the link of each chip to its host."""

    num_blocks: int
    """KV blocks of the replica that fit in it."""
    block_s: float
    """Seconds to copy one block, all chips of the replica at the same time."""
    latency_s: float
    """Seconds before the first byte of a copy."""

    def seconds(self, blocks: int) -> float:
        """Seconds to bring ``blocks`` blocks to the chip: ``latency + blocks * block_s``; none for none."""
        return self.latency_s + blocks * self.block_s if blocks else 0.0


def exposed_load_s(space: OffloadSpace, blocks: int, step_s: float) -> float:
    """Seconds by which copies from host memory outlast the step that they run beside, on the grid of simulated time.

    They arrive layer by layer, each before its layer is computed (SGLang HiCache, "layer-wise overlapping"; LMCache's
    layerwise retrieval), so that a step lasts as long as the longer of the two. Copies to host memory go the other way
    on a duplex link and are waited for by nobody.

    Args:
        space: host memory and its link.
        blocks: to bring back.
        step_s: the step without them, on the grid.
    """
    return max(0.0, on_grid(space.seconds(blocks)) - step_s) if blocks else 0.0


class HostCache:
    """Evicted prefix units in LRU order.

    A unit that comes back to the chip stays here too, so that its next eviction copies nothing (vLLM's
    ``OffloadingConnector`` keeps blocks on the CPU likewise).

    Args:
        num_blocks: room for so many blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._room = num_blocks
        self._blocks: OrderedDict[int, int] = OrderedDict()
        """Blocks of each unit, least recently used first."""
        self.used_blocks = 0
        self.peak_blocks = 0
        self.offloaded_blocks = 0
        """Blocks copied here so far."""
        self.loaded_blocks = 0
        """Blocks copied back so far."""

    def get(self, unit: int) -> int | None:
        """Blocks of a unit that is here, else None."""
        return self._blocks.get(unit)

    def put(self, unit: int, blocks: int) -> None:
        """The chip evicts a unit: keep it as the latest, and drop the oldest until all fit."""
        if unit in self._blocks:
            self._blocks.move_to_end(unit)
            return
        if blocks > self._room:
            return
        while self.used_blocks + blocks > self._room:
            self.used_blocks -= self._blocks.popitem(last=False)[1]
        self._blocks[unit] = blocks
        self.used_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        self.offloaded_blocks += blocks

    def load(self, unit: int) -> int:
        """A unit goes back to the chip; returns its blocks."""
        self._blocks.move_to_end(unit)
        blocks = self._blocks[unit]
        self.loaded_blocks += blocks
        return blocks
