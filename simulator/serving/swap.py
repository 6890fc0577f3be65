"""Host memory that preempted sequences are copied to, and what the copies cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """KV blocks in host memory beside one replica, behind the link between each chip and its host."""

    num_blocks: int
    """KV blocks of the replica that fit in host memory."""
    block_s: float
    """Seconds to copy one block, all chips of the replica at the same time."""
    latency_s: float
    """Seconds before the first byte of a copy."""

    def seconds(self, blocks_out: int, blocks_in: int) -> float:
        """Seconds that a step waits for its copies: ``sum over both directions of latency + blocks * block_s``.

        Copies run before the step's kernels and one direction after the other, as vLLM V0 issues them.
        """
        return sum(self.latency_s + blocks * self.block_s for blocks in (blocks_out, blocks_in) if blocks)
