"""Prefix cache: hits counted independently, blocks conserved, oldest out first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_pool import one_pool
from stub_timers import LinearTimer

from forerun.errors import ForerunError
from simulator.serving import EngineLimits
from simulator.serving.engine import HolderIndex, HostCache, PrefixCache
from simulator.workload import RequestStream
from traces import PrefixHashes, read_requests, sample_path


def cache_of(lists, per_block=32, block_size=16, prompts=None):
    prompts = prompts or [len(hashes) * per_block for hashes in lists]
    return PrefixCache(PrefixHashes.from_lists(lists, per_block), block_size, prompts)


def serve(cache, request, tokens):
    """A request runs alone from start to end; returns the tokens it found."""
    hashes, spared, _ = cache.match(request, tokens)
    cache.hold(request, hashes)
    cache.release(request, cache.add(request, hashes, tokens))
    return spared


def test_the_last_token_is_always_computed():
    cache = cache_of([[1, 2], [1, 2]])
    assert serve(cache, 0, 64) == 0
    assert serve(cache, 1, 64) == 48, "the block that holds the last token is computed again"


def test_a_longer_prompt_finds_the_whole_earlier_one():
    cache = cache_of([[1, 2], [1, 2, 3]])
    serve(cache, 0, 64)
    assert serve(cache, 1, 96) == 64


def test_a_partial_last_unit_is_cached_in_whole_blocks():
    cache = cache_of([[1, 2], [1, 2, 3]], prompts=[50, 96])
    serve(cache, 0, 50)
    assert cache.idle_blocks == 3
    assert serve(cache, 1, 96) == 48


def test_shared_blocks_are_counted_once():
    cache = cache_of([[1, 2], [1, 2]])
    first = cache.add(0, 0, 64)
    second, _, in_use = cache.match(1, 64)
    assert in_use == 4
    cache.hold(1, second)
    assert cache.shared_blocks == 4
    cache.release(0, first)
    assert (cache.shared_blocks, cache.idle_blocks) == (0, 0)
    cache.release(1, second)
    assert (cache.shared_blocks, cache.idle_blocks) == (0, 4)


def test_oldest_leave_first_and_of_a_prompt_its_end():
    cache = cache_of([[1, 2], [3, 4], [1, 2, 9], [3, 4, 9]])
    serve(cache, 0, 64)
    serve(cache, 1, 64)
    cache.shrink(6)
    assert cache.match(2, 96)[0] == 1, "of the older prompt the end is gone, the start is kept"
    assert cache.match(3, 96)[0] == 2
    cache.shrink(0)
    assert cache.match(3, 96)[0] == 0


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=25), st.integers(0, 12))
def test_blocks_never_go_negative_and_end_idle(lists, capacity):
    cache = cache_of(lists)
    held = []
    for request, hashes in enumerate(lists):
        mine, spared, in_use = cache.match(request, len(hashes) * 32)
        assert 0 <= in_use <= 2 * mine
        assert spared < len(hashes) * 32
        cache.hold(request, mine)
        held.append((request, cache.add(request, mine, len(hashes) * 32)))
        parts = [lists[request][:mine] for request, mine in held]
        assert cache.shared_blocks == 2 * (sum(map(len, parts)) - len({u for part in parts for u in part}))
        if request % 3 == 0:
            cache.release(*held.pop(0))
        cache.shrink(capacity)
        assert 0 <= cache.idle_blocks <= capacity
    for request, mine in held:
        cache.release(request, mine)
    assert cache.shared_blocks == 0


@pytest.mark.parametrize("replicas", [1])
def test_endless_cache_hits_what_the_hashes_say(replicas):
    """Longest prefix of hashes seen before, counted without the engine, on a real trace served one by one."""
    table = read_requests(sample_path("mooncake-conversation"))
    stream = RequestStream(
        np.zeros(len(table.input_tokens)), table.input_tokens, np.ones_like(table.output_tokens), 1, table.prefix_hashes
    )
    limits = EngineLimits(1, 8192, 16, 10**7, 0, None, True)
    log = one_pool(replicas, "round-robin", "vllm-v1", "fast", limits, LinearTimer(), prefix_caching=True).run(stream)
    seen: set[int] = set()
    expected = []
    for request, prompt in enumerate(table.input_tokens.tolist()):
        hashes = table.prefix_hashes.of(request).tolist()
        result = next((i for i, block in enumerate(hashes) if block not in seen), len(hashes))
        tokens = min(result * table.prefix_hashes.block_tokens, prompt) // 16 * 16
        expected.append(min(tokens, (prompt - 1) // 16 * 16))
        seen.update(hashes)
    assert list(log.cached_tokens) == expected
    assert sum(expected) > 0


def test_block_size_must_divide_the_hashes():
    stream = RequestStream(np.zeros(1), np.array([64]), np.array([2]), None, PrefixHashes.from_lists([[1]], 64))
    limits = EngineLimits(1, 8192, 48, 1000, 0, None, True)
    with pytest.raises(ForerunError, match="choose a divisor of it"):
        one_pool(1, "round-robin", "vllm-v1", "fast", limits, LinearTimer(), prefix_caching=True).run(stream)


class RadixTree:
    """A prefix tree of single tokens; the leaf that was touched longest ago goes first, of equals the deepest."""

    def __init__(self):
        self.touched: dict[tuple[int, ...], int] = {}
        self.clock = 0

    def match(self, prompt):
        result = 0
        while result < len(prompt) and tuple(prompt[: result + 1]) in self.touched:
            result += 1
        return result

    def insert(self, prompt):
        self.clock += 1
        for end in range(1, len(prompt) + 1):
            self.touched[tuple(prompt[:end])] = self.clock

    def shrink(self, capacity):
        while len(self.touched) > capacity:
            parents = {node[:-1] for node in self.touched}
            leaves = [node for node in self.touched if node not in parents]
            del self.touched[min(leaves, key=lambda node: (self.touched[node], -len(node)))]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=25), st.integers(0, 12))
def test_token_by_token_it_is_a_radix_tree_with_lru_leaves(prompts, capacity):
    """SGLang's RadixAttention (arXiv:2312.07104, section 3): longest prefix, least recently used leaves out first."""
    names: dict[tuple[int, ...], int] = {}
    lists = [[names.setdefault(tuple(p[:end]), len(names)) for end in range(1, len(p) + 1)] for p in prompts]
    cache, tree = cache_of(lists, per_block=1, block_size=1), RadixTree()
    for request, prompt in enumerate(prompts):
        assert cache.match(request, len(prompt))[0] == tree.match(prompt)
        serve(cache, request, len(prompt))
        tree.insert(prompt)
        cache.shrink(capacity)
        tree.shrink(capacity)
        assert cache.idle_blocks == len(tree.touched)


PROMPTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=2, max_size=8)


@given(
    PROMPTS, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(0, 20)), max_size=30), st.booleans()
)
def test_one_walk_tells_what_each_replica_holds(lists, served, hosted):
    """The index that the caches of three replicas keep, against each cache by itself: prompts with parts of
    hashes at their ends, hashes that come twice, evictions, and host memory behind."""
    prompts = [len(hashes) * 32 - 5 * (len(hashes) % 2) for hashes in lists]
    hashes = PrefixHashes.from_lists(lists, 32)
    index = HolderIndex(hashes)
    caches = [PrefixCache(hashes, 16, prompts, None, HostCache(3) if hosted else None, index, n) for n in range(3)]
    for replica, request, capacity in served:
        serve(caches[replica], request % len(lists), prompts[request % len(lists)])
        caches[replica].shrink(capacity)
    for request in range(len(lists)):
        whole = index.leading(request, [2, 0, 1])
        for replica, here in zip([2, 0, 1], whole, strict=True):
            expected = caches[replica].match(request, prompts[request])[1]
            assert caches[replica].spared(request, here) == expected
    index.drop_all(1)
    assert index.leading(0, [1]) == [0]
