"""Host memory beside a replica: its size, and what copies to and from it take."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.serving.clock import on_grid


@dataclass(frozen=True, slots=True)
class HostSpace:
    """KV blocks in host memory beside one replica, behind the link between each chip and its host: of sequences that
    were preempted, or of what the prefix cache evicts."""

    num_blocks: int
    """KV blocks of the replica that fit in it."""
    block_s: float
    """Seconds to copy one block, all chips of the replica at the same time."""
    latency_s: float
    """Seconds before the first byte of a copy."""

    def seconds(self, *blocks: int) -> float:
        """Seconds of copies of so many blocks, one after the other: ``latency + blocks * block_s`` each; none for none.

        Preempted sequences are copied before the step's kernels and one direction after the other, as vLLM V0 issues
        them.
        """
        return sum(self.latency_s + count * self.block_s for count in blocks if count)


def exposed_load_s(space: HostSpace, blocks: int, step_s: float) -> float:
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
