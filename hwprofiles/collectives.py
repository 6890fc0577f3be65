"""Collectives over a link: alpha-beta with the algorithm that is fastest for the message."""

from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.numeric import Functions, Num
from hwprofiles.parameters import CollectiveParameters
from hwprofiles.results import CollectiveTime
from hwprofiles.schema import Link

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Supported collectives."""


def collective_time(
    xp: Functions, parameters: CollectiveParameters, link: Link, operation: str, message_bytes: Num, world_size: int
) -> CollectiveTime:
    """Time of one collective.

    Args:
        xp: scalar or array functions.
        parameters: of the library's collectives on this chip.
        link: between the chips.
        operation: one of ``OPERATIONS``.
        message_bytes: the whole tensor: input of all_reduce and reduce_scatter, output of all_gather, what one chip
            sends in all_to_all (its own part included) and in send_recv; > 0.
        world_size: chips taking part, >= 2.

    Raises:
        ProfileError: unknown operation.

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005),
        doi:10.1177/1094342005051521.
    """
    if operation not in OPERATIONS:
        raise ProfileError(f"no collective '{operation}'{did_you_mean(operation, OPERATIONS)} (one of {', '.join(OPERATIONS)})")
    share = (world_size - 1) / world_size
    volume = message_bytes * {"all_reduce": 2.0 * share, "send_recv": 1.0}.get(operation, share)
    steps = {"all_reduce": 2.0 * (world_size - 1), "send_recv": 1.0, "all_to_all": 1.0}.get(operation, world_size - 1.0)
    latency = parameters.launch_s + steps * link.latency_s
    transfer = volume / (link.bandwidth_bytes_per_s * parameters.bandwidth_efficiency)
    transfer = transfer + parameters.fill_s * volume / (volume + parameters.fill_bytes)
    return CollectiveTime(latency + transfer, latency + 0.0 * transfer, transfer)
