"""Kernels of layers with a recurrent state per sequence: chunked prompt scan, and state update per decoded token."""

from typing import Any, NamedTuple

from hwprofiles.dtypes import VARIANT
from hwprofiles.formulas import Functions, KernelTime, Limits, Num, smooth_maximum, warm_reads
from hwprofiles.parameters import RecurrentDecodeParameters, RecurrentPrefillParameters

CHUNK_TOKENS = 64
"""Tokens per chunk of the chunked delta rule (``chunk_gated_delta_rule``, flash-linear-attention)."""
DELTA_RULE = "gdn"
"""Rule whose parameter sets have no kernel name."""
STATE_BYTES = 4.0
"""Bytes per state element: kernels read and write the state in fp32."""
VECTOR_BYTES = 2.0
STATE_TILES = 4.0
"""Blocks of value channels per head in a state update."""
WARM_FADE = 2.0
"""Size of repeatedly updated states, as a multiple of the retained bytes, at which the cache hit rate reaches 0."""


class RecurrentShape(NamedTuple):
    """Sizes of one recurrent layer on one chip (heads already divided by tensor parallelism)."""

    key_heads: Num
    value_heads: Num
    key_dim: Num
    value_dim: Num
    dtype: str = "bf16"
    """Dtype of the activations; ``format@kernel`` if the layer has its own kernel."""
    conv_channels: Num = 0.0
    """Channels of the preceding causal convolution."""
    conv_kernel: Num = 1.0
    """Width of the convolution in tokens."""
    tail_growth: Num = 1.0
    """Extra tokens kept in the convolution state, for rollback, per verified token after the first."""
    vector_bytes: float = 2.0
    """Bytes per element of the convolution channels."""


def convolution(shape: RecurrentShape, seqs: Num, tokens: Num, phase: str) -> dict[str, Any]:
    """Arguments for ``KernelLibrary.elementwise`` that price the convolution before a recurrence.

    The convolution reads and writes the channels and each sequence's state; verification writes a longer state.

    ``phase`` is ``scan`` (prompts) or ``update`` (decode).
    """
    moved = 2.0 * (tokens + (shape.conv_kernel - 1.0) * seqs)
    if phase == "update":
        moved = moved + shape.tail_growth * (tokens - seqs)
    moved = moved * shape.conv_channels * shape.vector_bytes
    rule = shape.dtype.partition(VARIANT)[2] or DELTA_RULE
    return {"bytes_moved": moved, "pieces": seqs * shape.conv_channels, "kernel": f"{rule}-{phase}"}


def recurrent_prefill_time(
    xp: Functions, limits: Limits, parameters: RecurrentPrefillParameters, shape: RecurrentShape, seqs: Num, tokens: Num
) -> KernelTime:
    """Time of the scan over ``tokens`` prompt tokens of ``seqs`` sequences.

    Inside a chunk of C tokens the products are C x C as in attention; between chunks the state is read and updated.
    Chunks of one sequence are sequential; heads and sequences, assumed equally long, run in parallel over the cores.

    Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule", arXiv:2406.06484, section 3.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=14233600.0, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> shape = RecurrentShape(key_heads=1, value_heads=1, key_dim=100, value_dim=100)
    >>> scan = dict(launch_s=1.0, memory_efficiency=1.0, overlap=float("inf"))
    >>> scan = RecurrentPrefillParameters.model_construct(compute_efficiency=1.0, chunk_s=0.25, **scan)
    >>> time = recurrent_prefill_time(SCALAR, chip, scan, shape, 1, 128)  # two chunks wait 0.5 s
    >>> time.flops, time.seconds  # 128 * (4 * 64 * (100 + 100) + 6 * 100 * 100); 1 + the longest, arithmetic
    (14233600.0, 2.0)
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


def recurrent_decode_time(
    xp: Functions,
    limits: Limits,
    parameters: RecurrentDecodeParameters,
    shape: RecurrentShape,
    seqs: Num,
    q_len: Num,
    warm: bool = False,
) -> KernelTime:
    """Time of the update of ``seqs`` states by ``q_len`` tokens each.

    The state is read once. Verification writes the state after every token, to roll back to the last accepted one. Few
    heads and sequences cannot saturate the memory bandwidth. A kernel that verifies head by head takes at least
    ``verify_s`` per head.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=1e12, cores=1, bandwidth=8008000.0, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> shape = RecurrentShape(key_heads=1, value_heads=1, key_dim=1000, value_dim=1000)
    >>> update = dict(launch_s=1.0, memory_efficiency=1.0, overlap=float("inf"))
    >>> update = RecurrentDecodeParameters.model_construct(core_bandwidth_ratio=1.0, **update)
    >>> time = recurrent_decode_time(SCALAR, chip, update, shape, 1, 1)
    >>> time.bytes, time.seconds  # state twice, vectors: 2 * 4 * 1e6 + 2 * 2 * 2000; 1 + that / 8008000
    (8008000.0, 2.0)
    """
    key, value, heads = shape.key_dim, shape.value_dim, shape.value_heads
    states = seqs * heads * key * value * STATE_BYTES
    vectors = seqs * q_len * VECTOR_BYTES * 2.0 * (shape.key_heads * key + heads * value)
    moved = states * (1.0 + q_len) + vectors
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    reading = moved / bandwidth
    if warm:
        _, seconds_per_byte = warm_reads(xp, limits, parameters, states, WARM_FADE, bandwidth)
        reading = moved * seconds_per_byte
    blocks = seqs * heads * STATE_TILES
    drawn = moved * limits.cores / (bandwidth * limits.memory_share * parameters.core_bandwidth_ratio * blocks)
    reading = smooth_maximum(xp, reading, drawn, parameters.overlap)
    if parameters.verify_s:
        verifying = xp.where(q_len > 1, xp.maximum(1.0, seqs * heads / limits.cores) * parameters.verify_s, 1e-12)
        reading = smooth_maximum(xp, reading, verifying, parameters.overlap)
    flops = 6.0 * seqs * q_len * heads * key * value
    launch = parameters.launch_s + 0.0 * reading
    return KernelTime(launch + reading, launch, 0.0 * reading, reading, flops, moved)
