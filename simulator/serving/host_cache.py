"""Host memory behind the prefix cache: its size, and what copies back from it take."""

from __future__ import annotations

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
