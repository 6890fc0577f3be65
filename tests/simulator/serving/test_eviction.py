"""Eviction policies: Belady's bound on random traces, retention, plug-ins, and every layout of caches and stores."""

from collections import Counter

import numpy as np
import pytest

import forerun as fr
from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving.compiled import engine_module
from simulator.serving.engine import Eviction
from simulator.serving.kv_stores import EvictionFacts, EvictionSetting
from simulator.serving.rules import EVICTION, EvictionRule
from traces import PrefixHashes

BLOCK = 16


class Hits(Eviction):
    """A policy of a user's own: what few requests had leaves first."""

    def __init__(self, facts):
        super().__init__(facts)
        self._hits = Counter()

    def begins(self, request, now):
        self._hits.update(self.facts.prompt(request))
        return ()

    def rank(self, hash_block, now):
        return float(self._hits[hash_block])


def found(name, lists, capacity, before=None):
    """Hash blocks that a cache of ``capacity`` finds when requests come one by one, and of all."""
    engine, before = engine_module(), before or {}
    hashes = PrefixHashes.from_lists(lists, BLOCK)
    tokens = np.array([BLOCK * len(one) for one in lists])
    waiting = Counter(earlier for all_of_them in before.values() for earlier in all_of_them)
    facts = EvictionFacts(hashes, before, waiting, 5.0, range(len(lists)))
    clock = np.zeros(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EVICTION, "hits", EvictionRule(Hits))
        eviction = EvictionSetting(name).policy(engine, facts)
    cache = engine.PrefixCache(hashes, BLOCK, tokens, clock=clock, eviction=None if name == "lru" else eviction)
    hits = 0
    for request, blocks in enumerate(lists):
        clock[0] += 1.0
        matched = cache.match(request, BLOCK * len(blocks) + 1)[0]
        hits += matched
        cache.hold(request, matched)
        cache.shrink(capacity - len(blocks))
        cache.finish(request, cache.add(request, matched, BLOCK * len(blocks)))
        assert cache.idle_blocks <= capacity
    return hits


def random_trace(rng):
    """Prompts as paths of a random tree, of one block or several, sessions among them, and a capacity."""
    depth, width = int(rng.integers(1, 5)), int(rng.integers(2, 5))
    lists, before = [], {}
    for request in range(int(rng.integers(20, 60))):
        path, blocks = 0, []
        for _ in range(int(rng.integers(1, depth + 1))):
            path = (
                path * (width * 3 if depth == 1 else width) + 1 + int(rng.integers(width * 3 if depth == 1 else width))
            )
            blocks.append(path)
        if lists and rng.random() < 0.3:
            before[request] = [int(rng.integers(request))]
        lists.append(blocks)
    return lists, before, int(rng.integers(depth, 3 * depth + 3))


@pytest.mark.parametrize("part", range(4))
def test_belady_finds_as_much_as_any_policy_on_a_thousand_random_traces(part):
    ahead = 0
    for seed in range(250 * part, 250 * (part + 1)):
        lists, before, capacity = random_trace(np.random.default_rng(seed))
        bound = found("belady", lists, capacity)
        for name in ("lru", "ttl", "pin", "session-aware", "largest-first", "smallest-first", "hits"):
            others = found(name, lists, capacity, before)
            assert others <= bound, (seed, name)
            ahead += others < bound
    assert ahead > 500, "the traces must be hard enough for policies to differ"


def optimal(lists, capacity):
    """Most hits on single blocks, over every choice of what to keep."""
    states = {frozenset(): 0}
    for (block,) in lists:
        after = {}
        for kept, hits in states.items():
            full = kept | {block}
            keeps = [full] if len(full) <= capacity else [full - {out} for out in kept if out != block]
            for keep in keeps:
                after[keep] = max(after.get(keep, -1), hits + (block in kept))
        states = after
    return max(states.values())


def test_belady_is_the_optimum_of_an_exhaustive_search():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lists = [[int(block)] for block in rng.integers(1, 7, 30)]
        capacity = int(rng.integers(2, 5))
        assert found("belady", lists, capacity) == optimal(lists, capacity)


SESSIONS = {
    "arrivals": {"process": "poisson", "request_rate": 3.0},
    "sessions": {"turns": 5, "think_time_s": 3.0, "system_prompt_tokens": 400},
    "input_tokens": 600,
    "output_tokens": 60,
    "num_requests": 120,
}


def eviction(policy, seconds):
    return policy if seconds is None else {"name": policy, "seconds": seconds}


def scenario(policy="lru", seconds=None, engine=None, **sections):
    """Sessions whose KV is several times as large as the chip's."""
    cache = {"num_kv_blocks": 700, "prefix_cache_eviction": eviction(policy, seconds)} | (engine or {})
    whole = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "engine": cache, "workload": SESSIONS}
    return scenario_from(whole | sections, "evicted")


def kept_s(name):
    return 4.0 if EVICTION[name].retains else None


def in_stores(name):
    extra = {"eviction": eviction(name, kept_s(name))}
    disk = {"medium": "disk", "bytes": 4e9, "read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9}
    shared = {"bytes": 6e9, "read_bytes_per_s": 2e10, "write_bytes_per_s": 1e10}
    return {"kv_stores": [{"bytes": 1e9, "saves": "computed"} | extra, disk | extra]}, shared | extra


LAYOUTS = {
    "one": lambda name: ({}, {}),
    "stores": lambda name: (in_stores(name)[0], {"kv_store": in_stores(name)[1]}),
    "three servers": lambda name: ({}, {"hardware": {"chip": "h100-sxm", "replicas": 3}}),
    "pools": lambda name: (
        in_stores(name)[0],
        {"kv_store": in_stores(name)[1], "pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}}},
    ),
    "pipeline": lambda name: ({}, {"hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}}),
    "static": lambda name: ({"scheduler": "static"}, {}),
    "sglang": lambda name: ({"framework": "sglang", "prefix_cache": "radix"}, {}),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name, rule in EVICTION.items()
        for layout in LAYOUTS
        if name != "lru" and not (rule.clairvoyant and layout == "three servers")
    ],
)
def test_both_engines_agree_under_every_policy(name, layout):
    engine, sections = LAYOUTS[layout](name)
    chosen = scenario(name, kept_s(name), engine, **sections)
    run, oracle = (simulate(chosen.with_values({"engine.stepping": how})) for how in ("fast", "exact-steps"))
    assert run.document["kv_cache"] == oracle.document["kv_cache"]
    assert run.document["summary"] == oracle.document["summary"]


def hit_rate(*arguments, **sections):
    return simulate(scenario(*arguments, **sections)).document["kv_cache"]["prefix_hit_rate"]


def test_belady_and_session_aware_eviction_find_more_than_lru():
    rates = {name: hit_rate(name, kept_s(name)) for name in EVICTION}
    assert rates["belady"] > rates["session-aware"] > rates["lru"]
    assert len(set(rates.values())) == len(rates), "no two policies are the same"


def test_an_order_by_equal_ranks_is_lru_byte_for_byte():
    fr.register.eviction("equal", replace=True)(Eviction)
    try:
        for engine in ({}, {"kv_stores": [{"bytes": 1e9, "eviction": "equal"}]}):
            runs = [simulate(scenario(name, engine=engine)).document for name in ("lru", "equal")]
            assert runs[0]["summary"] == runs[1]["summary"]
            assert runs[0]["kv_cache"] == runs[1]["kv_cache"]
    finally:
        EVICTION.pop("equal")


@pytest.mark.parametrize("name", ["ttl", "pin"])
def test_kept_blocks_are_withheld_from_others_until_their_time_or_the_return(name):
    engine, lists = engine_module(), [[1, 2, 3], [7, 8], [1, 2, 4]]
    hashes = PrefixHashes.from_lists(lists, BLOCK)
    facts = EvictionFacts(hashes, {2: [0]}, {0: 1}, 5.0)
    clock = np.zeros(1)
    tokens = np.array([BLOCK * len(one) for one in lists])
    eviction = EvictionSetting(name, 5.0).policy(engine, facts)
    cache = engine.PrefixCache(hashes, BLOCK, tokens, clock=clock, eviction=eviction)

    def withheld(request):
        cache.match(request, int(tokens[request]))
        return cache.withheld

    cache.hold(0, 0)
    cache.finish(0, cache.add(0, 0, 48))
    assert withheld(1) == 3
    assert withheld(2) == (0 if name == "pin" else 1), "two of the three are its own; a session that returns waits not"
    clock[0] = 4.9
    assert withheld(1) == 3
    cache.hold(2, 2)
    assert withheld(1) == (0 if name == "pin" else 1), "the session is back"
    clock[0] = 5.0
    assert withheld(1) == 0
    cache.shrink(0)
    assert cache.idle_blocks == 0


def test_a_store_full_of_kept_blocks_saves_nothing_new():
    def written(policy, seconds):
        store = {"bytes": 1e9, "eviction": eviction(policy, seconds)}
        return simulate(scenario(engine={"kv_stores": [store]})).document["kv_cache"]["stores"][0]["written_bytes"]

    assert written("ttl", 1e5) <= 1e9 < written("lru", None)


def test_a_policy_of_ones_own_runs_compiled_and_interpreted():
    fr.register.eviction("fewest-hits", replace=True)(Hits)
    try:
        fr.testing.check_eviction(Hits)
        runs = [simulate(scenario("fewest-hits", engine={"stepping": how})) for how in ("fast", "exact-steps")]
        assert runs[0].document["summary"] == runs[1].document["summary"]
        assert hit_rate("fewest-hits") != hit_rate("lru")
        with pytest.raises(ForerunError, match="in use"):
            fr.register.eviction("lru")(Hits)
    finally:
        EVICTION.pop("fewest-hits")


class Undecided(Eviction):
    """A policy that ranks nothing."""

    def rank(self, hash_block, now):
        return float("nan")


def test_the_check_names_a_rank_that_is_no_number():
    with pytest.raises(ForerunError, match="Undecided: rank returns nan"):
        fr.testing.check_eviction(Undecided)


def test_a_comparison_runs_the_bound_beside_the_policies_unless_it_is_one_of_them():
    def compared(*policies, **sections):
        vary = {"engine.prefix_cache_eviction": list(policies)}
        return fr.compare(scenario(**sections), vary=vary, replications=1, crossover="none", sensitivity=False).data

    several = compared("lru", "session-aware", hardware={"chip": "h100-sxm", "replicas": 2})
    assert not several.eviction_bounds, "nobody knows which replica will serve which request"
    assert [one.cache.regret for one in several.variants] == [None, None]
    beside, among = compared("lru", "session-aware"), compared("lru", "session-aware", "belady")
    assert len(beside.variants) == 2
    assert list(beside.eviction_bounds) == ["belady (bound)"]
    assert not among.eviction_bounds
    assert [one.cache.regret for one in beside.variants] == [one.cache.regret for one in among.variants[:2]]
    assert beside.eviction_bounds["belady (bound)"].prefix_hit_rate == among.variants[2].cache.prefix_hit_rate
