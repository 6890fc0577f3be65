"""Working sets: hit rates of LRU caches of every size, against a cache that is simulated."""

from collections import OrderedDict
from math import inf

import numpy as np
import pytest

from simulator.workload import RequestStream
from simulator.workload.working_set import working_set
from traces import PrefixHashes

BLOCK = 16


def stream_of(lists):
    tokens = np.array([BLOCK * len(ids) + 1 for ids in lists])
    return RequestStream(
        np.arange(float(len(lists))), tokens, np.ones(len(lists), int), None, PrefixHashes.from_lists(lists, BLOCK)
    )


def random_lists(seed, requests=60):
    """Chains of blocks: a request continues an earlier one, or starts anew."""
    rng, lists = np.random.default_rng(seed), []
    for request in range(requests):
        start = lists[rng.integers(request)][: rng.integers(1, 9)] if request and rng.random() < 0.7 else []
        lists.append([*start, *range(100 * request + 100, 100 * request + 100 + rng.integers(1, 20))])
    return lists


def lru_hits(lists, blocks):
    """Leading blocks found in an LRU cache that a request fills in one go, its last block being the first to go."""
    cache, hits = OrderedDict(), 0
    for ids in lists:
        leading = next((at for at, block in enumerate(ids) if block not in cache), len(ids))
        hits += leading
        for block in reversed(ids):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits


@pytest.mark.parametrize("seed", range(20))
def test_hits_grow_with_the_size_up_to_those_of_a_cache_without_limit(seed):
    lists = random_lists(seed)
    used = working_set(stream_of(lists))
    sizes = [BLOCK * blocks for blocks in range(0, 800, 7)]
    rates = [used.hit_rate(size) for size in sizes]
    assert rates == sorted(rates)
    assert used.unique_tokens == BLOCK * len({block for ids in lists for block in ids})
    without_limit = BLOCK * lru_hits(lists, 10**9) / used.prompt_tokens
    assert used.hit_rate(inf) == used.hit_rate(used.unique_tokens) == pytest.approx(without_limit)
    assert used.hit_rate(used.tokens_for(1.0)) == used.hit_rate(inf)
    for size, rate in zip(sizes, rates, strict=True):
        # Blocks of one request count as used at once: a cache may keep the first of them when the last have gone.
        assert rate <= BLOCK * lru_hits(lists, size // BLOCK) / used.prompt_tokens + 1e-12


def test_a_reuse_is_as_far_as_what_was_used_since():
    used = working_set(stream_of([[1, 2], [3], [1, 2]]))
    assert used.hit_rate(3 * BLOCK - 1) == 0.0
    assert used.hit_rate(3 * BLOCK) == used.hit_rate(inf) == 2 * BLOCK / (5 * BLOCK + 3)
    assert working_set(RequestStream(np.zeros(1), np.ones(1, int), np.ones(1, int), None)) is None
