"""Host memory of a replica: its size, and the seconds that copies to and from it take."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.serving.clock import on_grid


@dataclass(frozen=True, slots=True)
class HostSpace:
    """Space for KV blocks in one replica's host memory, reached over each chip's host link. It holds preempted
    sequences, or blocks that the prefix cache evicts."""

    num_blocks: int
    """KV blocks of the replica that fit in host memory."""
    block_s: float
    """Seconds to copy one block, all chips of the replica at the same time."""
    latency_s: float
    """Seconds before the first byte of a copy."""

    def seconds(self, *blocks: int) -> float:
        """Seconds of consecutive copies, by their blocks: ``latency + blocks * block_s`` each; 0 for no blocks.

        Preempted sequences are copied before the step's kernels, one direction after the other, as in vLLM V0.
        """
        return sum(self.latency_s + count * self.block_s for count in blocks if count)


def exposed_load_s(space: HostSpace, blocks: int, step_s: float) -> float:
    """Seconds by which copies from host memory outlast the step that they overlap, on the grid of simulated time.

    Blocks arrive layer by layer, each before its layer is computed (SGLang HiCache, "layer-wise overlapping"; LMCache's
    layerwise retrieval), so that a step lasts as long as the longer of the two. Copies to host memory go the other way
    on a duplex link and delay no step.

    Args:
        space: host memory and its link.
        blocks: number of KV blocks to copy back.
        step_s: seconds of the step without the copies, on the grid.
    """
    return max(0.0, on_grid(space.seconds(blocks)) - step_s) if blocks else 0.0
