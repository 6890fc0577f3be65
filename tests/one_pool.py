"""Fleets of one kind of replica, in one line, and variants of them."""

import dataclasses

from simulator.serving import Fleet, Pool, RouterConfig


def one_pool(replicas, routing, *pool, router=None, **fields):
    """Equal replicas: ``pool`` is scheduler, stepping, limits, timer, then what fields of a ``Pool`` follow."""
    return Fleet((Pool(replicas, *pool, **fields),), routing, RouterConfig() if router is None else router)


def changed(fleet, **fields):
    """The fleet with fields of its pools changed."""
    return dataclasses.replace(fleet, pools=tuple(dataclasses.replace(pool, **fields) for pool in fleet.pools))
