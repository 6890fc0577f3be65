"""Prefix cache: hits counted independently, blocks conserved, oldest out first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.serving import StoreSpace
from simulator.serving.engine import HolderIndex, Lane, PrefixCache, Store, Tier
from traces import PrefixHashes


def cache_of(lists, per_block=32, block_size=16, prompts=None, **more):
    prompts = prompts or [len(hashes) * per_block for hashes in lists]
    return PrefixCache(PrefixHashes.from_lists(lists, per_block), block_size, prompts, **more)


def serve(cache, request, tokens):
    """A request runs alone from start to end; returns the tokens it found."""
    hashes, spared, _ = cache.match(request, tokens)
    cache.hold(request, hashes)
    cache.release(request, cache.add(request, hashes, tokens))
    return spared


def test_a_partial_last_unit_is_cached_in_whole_blocks():
    cache = cache_of([[1, 2], [1, 2, 3]], prompts=[50, 96])
    serve(cache, 0, 50)
    assert cache.idle_blocks == 3
    assert serve(cache, 1, 96) == 48


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


@given(st.integers(1, 6), st.sampled_from([0.0, 0.5, 1.0, 2.5, 6.0]), st.integers(0, 300))
def test_blocks_that_windows_passed_age_the_others(size, window_blocks, capacity):
    """Prompts without a common block last as far as they fit with their windows' blocks, which leave first.

    A prompt of n blocks leaves n w passed ones; then its own follow, of which the last tokens' leave first.
    """
    prompts = 40
    cache = cache_of([[100 * n + part for part in range(size)] for n in range(prompts)], window_blocks=window_blocks)
    for n in range(prompts):
        assert serve(cache, n, 32 * size) == 0
        cache.shrink(capacity)
        assert 0 <= cache.idle_blocks <= capacity
    each = int(2 * size * (1 + window_blocks))
    assert cache.idle_blocks <= prompts * each
    whole, rest = divmod(capacity, each)
    kept = [cache.match(n, 10**6)[0] for n in range(prompts)]
    if window_blocks in (0.0, 1.0, 6.0):
        last = [size] * min(whole, prompts)
        assert kept[prompts - len(last) :] == last
        assert sum(kept[: prompts - len(last)]) == (min(size, rest // 2) if len(last) < prompts else 0)


def test_idle_blocks_fill_the_room_of_windows_of_requests_that_do_not_run():
    """Each of 90 prompts of two blocks leaves two passed ones: 200 free blocks keep 50 prompts, and half more 75."""
    for room, kept in ((0.0, 50), (0.5, 75)):
        cache = cache_of([[n] for n in range(90)], window_blocks=1.0, window_room=room)
        for n in range(90):
            serve(cache, n, 32)
            cache.shrink(200)
        assert sum(cache.match(n, 10**6)[0] for n in range(90)) == kept


def test_passed_blocks_are_in_no_index_and_in_no_store():
    lists = [[1, 2, 3], [4, 5, 6]]
    index = HolderIndex(PrefixHashes.from_lists(lists, 32))
    store, space = Store(10**6), StoreSpace(num_blocks=10**6, block_bytes=16.0, read_bytes_per_s=1e9)
    tier = Tier(store, Lane(0.0, 1e9), Lane(0.0, 1e9), space)
    cache = cache_of(lists, tiers=(tier,), index=index, window_blocks=3.0)
    for request in range(2):
        serve(cache, request, 96)
    assert cache.idle_blocks == 2 * 6 * 4
    cache.shrink(0)
    assert cache.idle_blocks == 0
    assert index.leading(0, [0]) == [0]
    assert store.used_blocks == 12


@pytest.mark.parametrize("by_all_layers", [False, True])
def test_an_index_that_counts_windows_forgets_what_they_dropped(by_all_layers):
    """Two prompts of six blocks, whose windows leave six more each: the first six to go are of the first's window."""
    lists = [[1, 2, 3], [4, 5, 6]]
    index = HolderIndex(PrefixHashes.from_lists(lists, 32), by_all_layers)
    cache = cache_of(lists, index=index, window_blocks=1.0)
    for request in range(2):
        serve(cache, request, 96)
    cache.shrink(18)
    assert [cache.match(request, 10**6)[0] for request in range(2)] == [3, 3], "the cache itself has both"
    assert [index.leading(request, [0])[0] for request in range(2)] == [0 if by_all_layers else 3, 3]
    cache.shrink(0)
    assert index.leading(1, [0]) == [0]


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
    space = StoreSpace(num_blocks=3, block_bytes=1.0, read_bytes_per_s=1.0)
    tiers = [[Tier(Store(3), Lane(), Lane(), space)] if hosted else [] for _ in range(3)]
    caches = [PrefixCache(hashes, 16, prompts, None, tiers[n], index, n) for n in range(3)]
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
