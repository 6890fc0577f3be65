"""Routing: documented costs, hits counted without the engine, fast and exact alike."""

from types import SimpleNamespace

import numpy as np
from hypothesis import HealthCheck, settings
from one_pool import one_pool
from plain_scenario import ROUTINGS
from stub_timers import LinearTimer

from simulator.serving import EngineLimits, RouterConfig, RunLog
from simulator.serving.fleet.routing import KvAware, PrefixAware, Random
from simulator.workload import RequestStream
from traces import PrefixHashes, read_requests, sample_path

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Endpoint:
    """What a policy sees of a replica."""

    def __init__(self, index, outstanding=0, cached=0, block_size=16, capacity_tokens=10**6):
        self.index, self.outstanding, self.block_size = index, outstanding, block_size
        self.capacity_tokens = capacity_tokens
        self.prefix_cache = lambda: SimpleNamespace(spared=lambda request, whole: cached)


def log_of(lists, per_block=16, prompts=None):
    prompts = np.array(prompts or [len(hashes) * per_block for hashes in lists])
    hashes = PrefixHashes.from_lists(lists, per_block)
    return RunLog(RequestStream(np.zeros(len(lists)), prompts, np.ones_like(prompts), None, hashes), None, 0)


def test_kv_aware_cost_is_the_documented_example():
    """Dynamo's "Router Design": prefill 8, 5, 2 and decode 10, 5, 9 blocks; the second worker wins at weight 1.

    A prompt of 4 blocks: 4 - cached are new; the rest of the figures are what each worker has in flight.
    """
    lists = [[1, 2, 3, 4], *[[9] * n for n in (6, 1, 5)]]
    log = log_of(lists)
    router = KvAware(RouterConfig(), log)
    idle = [Endpoint(0, cached=0), Endpoint(1, cached=0), Endpoint(2, cached=64)]
    for request, endpoint in ((1, idle[0]), (2, idle[1]), (3, idle[2])):
        router.choose(request, [endpoint])
    for request in (1, 2, 3):
        log.first_token_s[request] = 1.0
    # costs: 4 + (6 + 4) = 14, 4 + (1 + 4) = 9, 0 + (5 + 4) = 9
    assert router.choose(0, idle) is idle[1], "the first of equals"
    costly = KvAware(RouterConfig(overlap_weight=2.0), log)
    for request, endpoint in ((1, idle[0]), (2, idle[1]), (3, idle[2])):
        costly.choose(request, [endpoint])
    assert costly.choose(0, idle) is idle[2], "a heavier overlap weight favours the cache"


def test_random_takes_every_replica_alike_whatever_it_took_before():
    """9,000 draws of three: each replica, and each pair in a row, within five standard deviations of its share."""
    endpoints = [Endpoint(n) for n in range(3)]
    router = Random(RouterConfig(), log_of([[1]]))
    drawn = np.array([router.choose(0, endpoints).index for _ in range(9000)])
    for counts in (np.bincount(drawn), np.bincount(3 * drawn[1:] + drawn[:-1])):
        share = 1 / len(counts)
        assert abs(counts - 9000 * share).max() < 5 * (9000 * share * (1 - share)) ** 0.5 + 1


def test_kv_aware_counts_prompts_still_to_compute():
    log = log_of([[1, 2], [3, 4], [5, 6]])
    router = KvAware(RouterConfig(), log)
    endpoints = [Endpoint(0), Endpoint(1, cached=16)]
    assert router.choose(0, endpoints) is endpoints[1]
    assert router.choose(1, endpoints) is endpoints[0], "the second replica still has a prompt to compute"
    log.first_token_s[0] = 1.0
    router.left(0, endpoints[1])
    assert router.choose(2, endpoints) is endpoints[1]


def test_prefix_aware_follows_the_longest_match_above_the_threshold():
    lists = [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 9], [5, 0, 0, 0]]
    router = PrefixAware(RouterConfig(cache_threshold=0.3), log_of(lists))
    endpoints = [Endpoint(0), Endpoint(1)]
    assert router.choose(0, endpoints) is endpoints[0]
    assert router.choose(1, endpoints) is endpoints[1], "no match: the smallest table"
    assert router.choose(2, endpoints) is endpoints[0], "three quarters of the prompt were sent there"
    assert router.choose(3, endpoints) is endpoints[1], "a quarter is below the threshold; the smaller table"


def test_prefix_aware_yields_to_load_when_both_thresholds_are_passed():
    lists = [[1, 2]] * 4
    config = RouterConfig(balance_abs_threshold=10, balance_rel_threshold=2.0)
    router = PrefixAware(config, log_of(lists))
    endpoints = [Endpoint(0), Endpoint(1, outstanding=1)]
    assert router.choose(0, endpoints) is endpoints[0]
    endpoints[0].outstanding, endpoints[1].outstanding = 11, 1
    assert router.choose(1, endpoints) is endpoints[0], "10 more are not more than 10 more"
    endpoints[0].outstanding, endpoints[1].outstanding = 23, 12
    assert router.choose(2, endpoints) is endpoints[0], "less than twice as many"
    endpoints[0].outstanding, endpoints[1].outstanding = 12, 1
    assert router.choose(3, endpoints) is endpoints[1]


def test_prefix_aware_forgets_the_oldest():
    lists = [[1], [2], [3], [1]]
    router = PrefixAware(RouterConfig(), log_of(lists))
    small, other = Endpoint(0, capacity_tokens=32), Endpoint(1, outstanding=5)
    for request in range(3):
        router.choose(request, [small])
    router.choose(1, [other])
    assert router.choose(3, [small, other]) is other, "no match anywhere: the smaller table"


def test_prefix_aware_remembers_as_many_tokens_as_the_router_is_given():
    lists = [[1], [2], [3], [1]]
    router = PrefixAware(RouterConfig(table_tokens=48), log_of(lists))
    small, other = Endpoint(0, capacity_tokens=32), Endpoint(1, outstanding=5)
    for request in range(3):
        router.choose(request, [small])
    assert router.choose(3, [small, other]) is small, "three hash blocks of 16 tokens are remembered"


def mooncake(path, count, stretch=1.0):
    table = read_requests(path, limit=count)
    arrivals = np.asarray(table.arrival_s) * stretch
    return RequestStream(arrivals, table.input_tokens, table.output_tokens, None, table.prefix_hashes)


def counted_hits(stream, replica_of, block_size):
    """Tokens of each prompt whose hashes its replica saw before, from the hashes alone.

    The last token of a prompt is always computed, so a prompt never hits beyond the last whole block before it.
    """
    per_block = stream.prefix_hashes.block_tokens
    seen: dict[int, set[int]] = {}
    hits = []
    for request, (prompt, replica) in enumerate(zip(stream.input_tokens.tolist(), replica_of, strict=True)):
        hashes = stream.prefix_hashes.of(request).tolist()
        known = seen.setdefault(replica, set())
        result = 0
        while result < len(hashes) and hashes[result] in known:
            result += 1
        tokens = min(result * per_block, prompt) // block_size * block_size
        hits.append(min(tokens, (prompt - 1) // block_size * block_size))
        known.update(hashes)
    return hits


ENDLESS = EngineLimits(256, 8192, 16, 10**7, 0, None, True)
H100_LIKE = LinearTimer(step_s=8e-3, token_s=2.2e-5, pair_s=1e-10, key_s=5e-9)


def compare_routings(stream, replicas):
    ttft, rate = {}, {}
    for routing in ROUTINGS:
        cluster = one_pool(replicas, routing, "vllm-v1", "fast", ENDLESS, H100_LIKE, prefix_caching=True)
        log = cluster.run(stream)
        assert log.exact_steps == 0
        assert list(log.cached_tokens) == counted_hits(stream, list(log.replica), 16), routing
        rate[routing] = sum(log.cached_tokens) / stream.input_tokens.sum()
        ttft[routing] = float(np.mean(np.asarray(log.first_token_s) - stream.arrival_s))
    return ttft, rate


def test_hits_on_eight_replicas_equal_a_count_from_the_hashes():
    """Every prompt's hits, under every policy, from the hashes and the replica it went to alone."""
    stream = mooncake(sample_path("mooncake-conversation"), None, stretch=0.5)
    _, rate = compare_routings(stream, 8)
    assert rate["prefix-aware"] > 1.05 * rate["round-robin"]
    assert rate["kv-aware"] > 1.05 * rate["round-robin"]


def test_mooncake_conversation_prefix_aware_against_round_robin(shared_data):
    trace = shared_data / "workloads" / "mooncake_fast25" / "conversation_trace.head7000.jsonl"
    stream = mooncake(trace, 2500)
    ttft, rate = compare_routings(stream, 8)
    assert rate["prefix-aware"] > 1.5 * rate["round-robin"]
    assert rate["kv-aware"] > 1.5 * rate["round-robin"]
    assert ttft["kv-aware"] < ttft["round-robin"]
