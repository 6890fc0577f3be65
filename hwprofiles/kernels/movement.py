"""Kernels that only move bytes: elementwise kernels on one chip, collectives between chips."""

from math import ceil, log2

from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import CollectiveTime, Functions, KernelTime, Limits, Num, warm_reads
from hwprofiles.parameters import CollectiveParameters, ElementwiseParameters
from hwprofiles.schema import Link

WARM_FADE = 3.0
"""Size of a repeated operand, as a multiple of the retained bytes, at which the cache hit rate reaches 0.

The decline is gradual because written operands evict the data that is read next."""


def elementwise_time(
    xp: Functions,
    limits: Limits,
    parameters: ElementwiseParameters,
    bytes_moved: Num,
    launches: Num,
    warm: bool = False,
    element_bytes: float = 2.0,
    pieces: Num = 0.0,
) -> KernelTime:
    """Time of ``launches`` elementwise kernels that together move ``bytes_moved``.

    It is the sum of launch latency, memory time (at the achievable bandwidth, or bound by pieces that cores process one
    by one) and arithmetic that the chip does not overlap. If the kernels are ``chained``, bytes that stay on the chip
    do not count as moved.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=1e12, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> kernel = ElementwiseParameters.model_construct(launch_s=0.5, memory_efficiency=0.5)
    >>> elementwise_time(SCALAR, chip, kernel, bytes_moved=1e9, launches=2).seconds  # 2 * 0.5 + 1e9 / (0.5 * 1e9)
    3.0
    """
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    moved = bytes_moved * 1.0
    if warm or parameters.chained:
        hit, seconds_per_byte = warm_reads(xp, limits, parameters, bytes_moved / launches, WARM_FADE, bandwidth)
        memory = bytes_moved * seconds_per_byte
        moved = moved if warm else bytes_moved * (1.0 - hit)
    else:
        memory = bytes_moved / bandwidth
    if parameters.piece_s:
        # Half of a piece's time is start and end, without overlap; its bytes move in the other half.
        half = 0.5 * parameters.piece_s * pieces / limits.cores
        memory = half + xp.maximum(half, memory)
    launch = (parameters.launch_s + (0.0 if warm else parameters.cold_s)) * launches
    arithmetic = parameters.element_s / element_bytes * bytes_moved
    return KernelTime(launch + memory + arithmetic, launch, arithmetic, memory, 0.0 * memory, moved)


NETWORK_FILL_BYTES = 4e4
"""Message volume in bytes at which half of ``fill_s`` is lost between servers; it takes the place of ``fill_bytes``.

NCCL 2.30 between 2 H200 of two servers: 31 us at 1 KB, 52 at 64 KB, 94 at 1 MB; among 16: 44, 68 and 77."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Supported collectives."""


def collective_time(
    xp: Functions, parameters: CollectiveParameters, link: Link, operation: str, message_bytes: Num, world_size: int
) -> CollectiveTime:
    """Time of one collective under the fastest algorithm that the library has.

    Ring: ``steps`` messages one after the other, and every chip sends ``volume`` bytes: 2(n-1)/n of the message for
    all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, the whole message for send_recv. Filling the
    pipeline of chunks costs up to ``fill_s``. In-network: every chip sends the message once and the switch adds.
    Direct: every chip reads its peers' messages whole (one shot), or its own share and then its peers' sums (two
    shots). Links that leave the server have an algorithm of their own (``_network_time``).

    Raises:
        ProfileError: unknown operation.

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005),
        doi:10.1177/1094342005051521; constants from NCCL and vLLM measurements in NVIDIA's aiconfigurator.

    >>> from hwprofiles.formulas import SCALAR
    >>> link = Link.model_construct(bandwidth_bytes_per_s=1e9, latency_s=0.25)
    >>> ring = dict(launch_s=1.0, bandwidth_efficiency=0.5, copy_share=0.0, fill_s=0.0, fill_bytes=1.0)
    >>> parameters = CollectiveParameters.model_construct(**ring)
    >>> time = collective_time(SCALAR, parameters, link, "all_reduce", 1e9, 4)
    >>> time.latency_s, time.transfer_s  # 1 + 2 * 3 steps * 0.25; 2 * 3 / 4 * 1e9 / (0.5 * 1e9)
    (2.5, 3.0)
    """
    if operation not in OPERATIONS:
        choices = ", ".join(OPERATIONS)
        raise ProfileError(f"no collective '{operation}'{did_you_mean(operation, OPERATIONS)} (one of {choices})")
    if link.server is not None and world_size <= link.server_chips:
        link = link.server
    if link.network:
        return _network_time(xp, parameters, link, operation, message_bytes, world_size)
    chips = float(world_size)
    share = (chips - 1.0) / chips
    volume_share = {"all_reduce": 2.0 * share, "send_recv": 1.0}.get(operation, share)
    steps = {"all_reduce": 2.0 * (chips - 1.0), "send_recv": 1.0, "all_to_all": log2(chips)}.get(operation, chips - 1.0)
    own = 0.0 if operation == "send_recv" else parameters.copy_share / chips
    bandwidth = link.bandwidth_bytes_per_s * parameters.bandwidth_efficiency
    volume = volume_share * message_bytes
    fill = parameters.fill_s * volume / (volume + parameters.fill_bytes)
    latency = parameters.launch_s + steps * link.latency_s + 0.0 * fill
    transfer = (volume + own * message_bytes) / bandwidth + fill
    if operation == "all_reduce":
        if link.in_network_reduction and world_size >= parameters.in_network_min_chips:
            rate = link.bandwidth_bytes_per_s * parameters.in_network_efficiency
            transfer = xp.minimum(transfer, message_bytes / rate + fill)
        if parameters.direct_max_bytes:
            latency, transfer = _direct(xp, parameters, link, message_bytes, chips, latency, transfer)
    return CollectiveTime(latency + transfer, latency, transfer)


def _network_time(
    xp: Functions, parameters: CollectiveParameters, link: Link, operation: str, message_bytes: Num, world_size: int
) -> CollectiveTime:
    """Time of one collective between servers: a tree over the servers and a chain within each (all_reduce), else a
    ring. The chips of a server share its network adapters, one each; each sends what leaves the server over its own.

    Source: NCCL, ``src/graph/tuning.cc``: 2 (chips of a server - 1) steps inside and 2 log2(servers) between.
    """
    inner = link.server or link
    each = link.server_chips if link.server else 1
    servers = ceil(world_size / each)
    inside = {"all_reduce": 2 * (each - 1), "send_recv": 0, "all_to_all": 0}.get(operation, servers * (each - 1))
    between = {"all_reduce": 2 * ceil(log2(servers)), "send_recv": 1, "all_to_all": 1}.get(operation, servers - 1)
    share = (world_size - 1.0) / world_size
    volume = {"all_reduce": 2.0 * share, "send_recv": 1.0}.get(operation, share) * message_bytes
    sent = {"send_recv": message_bytes, "all_to_all": (world_size - each) / world_size * message_bytes}
    efficiency = parameters.bandwidth_efficiency
    transfer = xp.maximum(
        sent.get(operation, volume / each) / (link.bandwidth_bytes_per_s * efficiency),
        volume / (inner.bandwidth_bytes_per_s * efficiency),
    )
    transfer = transfer + parameters.fill_s * volume / (volume + NETWORK_FILL_BYTES)
    latency = parameters.launch_s + inside * inner.latency_s + between * link.latency_s + 0.0 * transfer
    return CollectiveTime(latency + transfer, latency, transfer)


def _direct(
    xp: Functions,
    parameters: CollectiveParameters,
    link: Link,
    message_bytes: Num,
    chips: float,
    latency: Num,
    transfer: Num,
) -> tuple[Num, Num]:
    """Latency and transfer time of the direct all-reduce if it is allowed and faster, else the input values."""
    rate = link.bandwidth_bytes_per_s * parameters.direct_efficiency
    one = (chips - 1.0) * message_bytes / rate
    two = 2.0 * (chips - 1.0) / chips * message_bytes / rate
    barrier = (chips - 1.0) * link.latency_s
    single = one <= two + barrier
    start = parameters.direct_launch_s + xp.where(single, 0.0, barrier)
    move = xp.where(single, one, two)
    allowed = message_bytes <= parameters.direct_max_bytes
    better = xp.where(allowed, start + move < latency + transfer, False)
    return xp.where(better, start, latency), xp.where(better, move, transfer)
