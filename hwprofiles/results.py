"""What a kernel prediction consists of."""

from typing import NamedTuple

import numpy as np

from hwprofiles.numeric import Num


class KernelTime(NamedTuple):
    """Time of one kernel (all fields floats, or all arrays): total, its parts, and the work it does.

    ``seconds`` is launch plus the smooth maximum of compute and memory time; ``flops`` counts useful operations and
    ``bytes`` each operand moved once, so ``flops / seconds`` is what MFU and ``bytes / seconds`` what MBU is made of.
    """

    seconds: Num
    launch_s: Num
    compute_s: Num
    memory_s: Num
    flops: Num
    bytes: Num

    @property
    def bound(self) -> Num:
        """What limits it: ``"compute"``, ``"memory"`` or ``"latency"`` (the launch); a string, or an array of them."""
        if isinstance(self.seconds, np.ndarray):
            busy = np.where(self.compute_s >= self.memory_s, "compute", "memory")
            return np.where(self.launch_s >= np.maximum(self.compute_s, self.memory_s), "latency", busy)
        if self.launch_s >= self.compute_s and self.launch_s >= self.memory_s:
            return "latency"
        return "compute" if self.compute_s >= self.memory_s else "memory"


class CollectiveTime(NamedTuple):
    """Time of one collective: total, the part that is latency, the part that is transfer."""

    seconds: Num
    latency_s: Num
    transfer_s: Num


class AttentionShape(NamedTuple):
    """One attention layer as one chip sees it (heads already divided by tensor parallelism).

    Absorbed MLA is ``num_kv_heads=1, qk_dim=576, v_dim=512, kv_bytes_per_token=576 * bytes``.
    """

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    kv_bytes_per_token: float
    """Bytes of K and V (or of the latent) one token occupies in this layer on this chip."""
    dtype: str
    """Format of the KV cache."""


class Limits(NamedTuple):
    """The chip's limits a formula needs, as plain floats."""

    peak_flops: float
    cores: float
    bandwidth: float
    """Device memory, bytes/s."""
    on_chip_bytes: float
    on_chip_bandwidth: float
    """bytes/s."""
    multicast: float = 1.0
    """Neighbouring tiles that share one read of an operand (thread block clusters)."""
    asynchronous: bool = False
    """Whether copies run beside the arithmetic (Hopper and later: TMA, warp-specialised persistent kernels)."""
