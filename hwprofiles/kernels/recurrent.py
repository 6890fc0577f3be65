"""Layers with a recurrent state per sequence: a scan over prompts in chunks, an update for every decoded token."""

from typing import Any, NamedTuple

from hwprofiles.dtypes import VARIANT
from hwprofiles.formulas import Functions, KernelTime, Limits, Num, smooth_maximum
from hwprofiles.parameters import RecurrentDecodeParameters, RecurrentPrefillParameters

CHUNK_TOKENS = 64
"""Tokens that the chunked form of the delta rule takes at once (``chunk_gated_delta_rule``, flash-linear-attention)."""
DELTA_RULE = "gdn"
"""The rule whose parameter sets bear no name."""
STATE_BYTES = 4.0
"""Kernels read and write the state in fp32."""
VECTOR_BYTES = 2.0
STATE_TILES = 4.0
"""Blocks of value channels that each head's update is split into."""
WARM_FADE = 2.0
"""A repeated update of states this many times as large as what stays on the chip finds none of them there."""


class RecurrentShape(NamedTuple):
    """One recurrent layer as one chip sees it (heads already divided by tensor parallelism)."""

    key_heads: Num
    value_heads: Num
    key_dim: Num
    value_dim: Num
    dtype: str = "bf16"
    """Of the activations; ``format@kernel`` where a kernel of its own serves the layer."""
    conv_channels: Num = 0.0
    """Channels of the causal convolution before it."""
    conv_kernel: Num = 1.0
    """Tokens that the convolution sees."""
    tail_growth: Num = 1.0
    """Tokens that the convolution's tail keeps more for each token that is verified beyond the first, to roll back."""
    vector_bytes: float = 2.0
    """Of one element of its channels."""


def convolution(shape: RecurrentShape, seqs: Num, tokens: Num, phase: str) -> dict[str, Any]:
    """The convolution before a recurrence as a pass over memory: it reads and writes its channels, and each sequence's
    tail, which is written longer where tokens are verified.

    Args:
        shape: of one layer on this chip.
        seqs: sequences.
        tokens: of all of them together.
        phase: ``scan`` over prompts or ``update``.

    Returns:
        What ``KernelLibrary.elementwise`` takes.
    """
    moved = 2.0 * (tokens + (shape.conv_kernel - 1.0) * seqs)
    if phase == "update":
        moved = moved + shape.tail_growth * (tokens - seqs)
    moved = moved * shape.conv_channels * shape.vector_bytes
    rule = shape.dtype.partition(VARIANT)[2] or DELTA_RULE
    return {"bytes_moved": moved, "pieces": seqs * shape.conv_channels, "kernel": f"{rule}-{phase}"}


def prefill_time(
    xp: Functions, limits: Limits, parameters: RecurrentPrefillParameters, shape: RecurrentShape, seqs: Num, tokens: Num
) -> KernelTime:
    """Time of the scan over ``tokens`` prompt tokens of ``seqs`` sequences.

    Inside a chunk of C tokens the products are those of attention (C rows against C), between chunks the state is read
    and updated (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", arXiv:2406.06484, section 3). The
    chunks of a sequence wait for one another; heads and sequences do not, as far as there are cores.

    Args:
        xp: scalar or array functions.
        limits: of the chip, in 16 bits.
        parameters: of the library's kernels.
        shape: of one layer on this chip.
        seqs: sequences.
        tokens: in all of them together, taken as equally long.
    """
    key, value, heads = shape.key_dim, shape.value_dim, shape.value_heads
    chunks = xp.ceil(tokens / seqs / CHUNK_TOKENS)
    per_token = 4.0 * CHUNK_TOKENS * (key + value) + 6.0 * key * value
    flops = tokens * heads * per_token
    moved = tokens * VECTOR_BYTES * 2.0 * (shape.key_heads * key + heads * value)
    moved = moved + 2.0 * seqs * heads * key * value * STATE_BYTES
    computing = flops / (limits.peak_flops * parameters.compute_efficiency)
    reading = moved / (limits.bandwidth * parameters.memory_efficiency)
    waiting = chunks * xp.ceil(seqs * heads / limits.cores) * parameters.chunk_s
    busy = smooth_maximum(xp, computing, waiting, parameters.overlap)
    launch = parameters.launch_s + 0.0 * busy
    return KernelTime(
        launch + smooth_maximum(xp, busy, reading, parameters.overlap), launch, busy, reading, flops, moved
    )


def decode_time(
    xp: Functions,
    limits: Limits,
    parameters: RecurrentDecodeParameters,
    shape: RecurrentShape,
    seqs: Num,
    q_len: Num,
    warm: bool = False,
) -> KernelTime:
    """Time of the update of ``seqs`` states by ``q_len`` tokens each.

    The state is read once. A verification keeps the state after every token, so that it can roll back to the last one
    that is accepted. Few heads and sequences draw less than the memory's bandwidth. A kernel that verifies head by head
    takes its time for each, whatever the memory could give.

    Args:
        xp: scalar or array functions.
        limits: of the chip, in 16 bits.
        parameters: of the library's kernels.
        shape: of one layer on this chip.
        seqs: sequences.
        q_len: tokens of each: 1, or those that a step verifies.
        warm: the same states were just updated and may still be on the chip, as kernel benchmarks measure it.
    """
    key, value, heads = shape.key_dim, shape.value_dim, shape.value_heads
    states = seqs * heads * key * value * STATE_BYTES
    vectors = seqs * q_len * VECTOR_BYTES * 2.0 * (shape.key_heads * key + heads * value)
    moved = states * (1.0 + q_len) + vectors
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    reading = moved / bandwidth
    if warm:
        kept = parameters.warm_share * limits.on_chip_bytes
        hit = xp.minimum(1.0, xp.maximum(0.0, (WARM_FADE * kept - states) / ((WARM_FADE - 1.0) * kept + 1e-9)))
        fast = max(limits.on_chip_bandwidth * parameters.warm_efficiency, bandwidth)
        reading = moved * (hit / fast + (1.0 - hit) / bandwidth)
    units = seqs * heads * STATE_TILES
    drawn = moved * limits.cores / (bandwidth * limits.memory_share * parameters.core_bandwidth_ratio * units)
    reading = smooth_maximum(xp, reading, drawn, parameters.overlap)
    if parameters.verify_s:
        alone = xp.where(q_len > 1, xp.maximum(1.0, seqs * heads / limits.cores) * parameters.verify_s, 1e-12)
        reading = smooth_maximum(xp, reading, alone, parameters.overlap)
    flops = 6.0 * seqs * q_len * heads * key * value
    launch = parameters.launch_s + 0.0 * reading
    return KernelTime(launch + reading, launch, 0.0 * reading, reading, flops, moved)
