"""vLLM V1's documented scheduling rules, one test each, on the interpreted engine.

Documents: [optimization] "Optimization and Tuning", docs.vllm.ai/en/stable/configuration/optimization;
[prefix] "Automatic Prefix Caching", docs.vllm.ai/en/stable/design/prefix_caching; [guide] "vLLM V1" user guide,
docs.vllm.ai/en/stable/usage/v1_guide; [scheduler] and [connector] vllm/v1/core/sched/scheduler.py, v0.9 to v0.11;
[manager] vllm/v1/core/kv_cache_manager.py, the same versions.

Known differences: only prompts are cached, as traces carry no hashes of generated tokens; free blocks that hold nothing
are used before cached ones are evicted, where vLLM takes both in one LRU order.
"""

from functools import partial

import pytest
from planned_steps import add, limits, scheduler_of, step

from simulator.serving import StoreSpace
from simulator.serving.engine import Lane, PrefixCache, Sequence, Store, Tier, UnifiedScheduler
from traces import PrefixHashes

scheduler = partial(scheduler_of, UnifiedScheduler)


def test_rule_running_requests_come_before_waiting_ones():
    """[optimization] "It batches all pending decode requests before scheduling any prefill operations."""
    engine = scheduler(max_num_batched_tokens=10)
    add(engine, (4, 9), (4, 9), (20, 9))
    step(engine)
    chunks, decodes = step(engine)
    assert decodes == [0, 1]
    assert chunks == {2: 8}, "what the decodes leave of the budget"


def test_rule_one_token_budget_for_prompts_and_answers():
    """[guide] one dictionary of tokens per request, one fixed budget, no prefill or decode phase."""
    engine = scheduler(max_num_batched_tokens=16, max_num_seqs=64)
    add(engine, *[(5, 6)] * 12)
    while engine.has_work:
        chunks, decodes = step(engine)
        assert sum(chunks.values()) + len(decodes) <= 16
        if engine.waiting:
            assert sum(chunks.values()) + len(decodes) == 16, "no token of the budget is left while requests wait"


def test_rule_a_prompt_that_does_not_fit_the_budget_is_chunked():
    """[optimization] a pending prompt that "cannot fit into max_num_batched_tokens" is chunked."""
    engine = scheduler(max_num_batched_tokens=8)
    add(engine, (20, 3))
    assert [step(engine)[0] for _ in range(3)] == [{0: 8}, {0: 8}, {0: 4}]


def test_rule_without_chunking_a_prompt_waits_for_a_whole_budget():
    """[scheduler] with chunked prefill off, a prompt longer than the budget left ends the admissions of the step."""
    engine = scheduler(max_num_batched_tokens=20, chunked_prefill=False)
    add(engine, (12, 9), (12, 9), (2, 9))
    assert step(engine) == ({0: 12}, []), "the third would fit, but the second is before it"
    assert step(engine) == ({1: 12, 2: 2}, [0])


def test_rule_a_started_prompt_goes_on_before_new_ones_start():
    """[scheduler] unfinished prompts are running requests: they are scheduled in the order of their admission."""
    engine = scheduler(max_num_batched_tokens=8)
    add(engine, (12, 9), (6, 9))
    assert step(engine) == ({0: 8}, [])
    assert step(engine) == ({0: 4, 1: 4}, [])
    assert step(engine) == ({1: 2}, [0])


def test_rule_first_come_first_served():
    """[scheduler] the head of the waiting queue is admitted or nobody is."""
    engine = scheduler(num_blocks=6)
    add(engine, (12, 4), (16, 4), (4, 4))
    assert step(engine)[0] == {0: 12}, "the third would fit beside the first, but the second is before it"
    assert [s.index for s in engine.waiting] == [1, 2]


def test_rule_max_num_seqs_bounds_the_batch():
    """[optimization] fewer max_num_seqs are fewer concurrent requests in a batch."""
    engine = scheduler(max_num_seqs=2)
    add(engine, *[(4, 2)] * 3)
    assert step(engine) == ({0: 4, 1: 4}, [])
    assert step(engine) == ({}, [0, 1])
    assert step(engine) == ({2: 4}, [])


def test_rule_the_last_of_the_batch_is_preempted_first():
    """[scheduler] without priorities, ``self.running.pop()``: the latest admitted goes, as many as it takes."""
    engine = scheduler(num_blocks=8)
    add(engine, *[(8, 9)] * 4)
    step(engine)
    step(engine)
    assert [s.index for s in engine.preempted] == [3, 2]
    assert [s.index for s in engine.running] == [0, 1]


def test_rule_a_request_without_room_preempts_itself_when_it_is_the_last():
    """[scheduler] the victim may be the request itself; it is then not scheduled."""
    engine = scheduler(num_blocks=4)
    first, last = add(engine, (8, 4), (8, 4))
    step(engine)
    chunks, decodes = step(engine)
    assert (chunks, decodes) == ({}, [0])
    assert engine.preempted == [last]
    assert engine.running == [first]


def test_rule_the_preempted_come_back_first():
    """[scheduler] preempted requests are put at the head of the waiting queue."""
    engine = scheduler(num_blocks=8)
    add(engine, *[(8, 9)] * 4)
    step(engine)
    engine.add(Sequence(4, 4, 4))
    step(engine)
    assert [s.index for s in engine.waiting] == [2, 3, 4]


def test_rule_preemption_recomputes_prompt_and_answer():
    """[optimization] the default preemption mode is RECOMPUTE: all known tokens are prefilled again."""
    engine = scheduler(num_blocks=5)
    add(engine, (8, 8), (7, 8))
    step(engine)
    step(engine)
    victim = engine.running[-1]
    while not engine.preempted:
        step(engine)
    assert engine.preempted == [victim]
    assert (victim.computed_tokens, victim.blocks) == (0, 0)
    known = victim.known_tokens
    while victim not in engine.running:
        chunks, _ = step(engine)
    assert chunks == {victim.index: known}


def test_rule_no_admission_in_a_step_that_preempted():
    """[scheduler] "if not preempted_reqs": waiting requests are looked at only when nobody was preempted."""
    engine = scheduler(num_blocks=6)
    add(engine, (8, 9), (8, 9), (8, 9))
    step(engine)
    engine.add(Sequence(3, 1, 4))
    step(engine)
    assert engine.preempted
    assert 3 not in {s.index for s in engine.running}


def test_rule_blocks_are_allocated_as_tokens_need_them():
    """[prefix] a block is allocated when the one before it is full, not for the whole answer in advance."""
    engine = scheduler()
    add(engine, (6, 9))
    held = []
    for _ in range(9):
        step(engine)
        held.append(engine.used_blocks)
    # tokens in the cache during the steps: 6 7 8 | 9 10 11 12 | 13 14
    assert held == [2, 2, 2, 3, 3, 3, 3, 4, 0]


def test_rule_lookahead_slots_are_reserved_for_drafts():
    """[manager] ``num_lookahead_tokens``: slots for the tokens that the drafter will propose."""
    plain, drafting = limits(), limits(query_len=4, lookahead_tokens=3)
    assert plain.decode_blocks(7) == 2
    assert drafting.decode_blocks(7) == 4, "7 computed, 4 verified, 3 drafted: 14 tokens"


def test_rule_drafts_take_their_share_of_the_budget():
    """[scheduler] ``num_tokens_with_spec``: a sequence with K drafts takes 1 + K tokens before any prompt; those of the
    last sequence end with the budget (``scheduled_spec_decode_tokens``)."""
    engine = scheduler(max_num_batched_tokens=10, query_len=4)
    add(engine, *[(2, 40)] * 3, (20, 9))
    step(engine)
    plan = engine.plan()
    assert ([s.index for s in plan.decodes], plan.cut, plan.chunks) == ([0, 1, 2], 2, [])
    engine = scheduler(max_num_batched_tokens=10, query_len=4)
    add(engine, *[(2, 40)] * 2, (20, 9))
    step(engine)
    plan = engine.plan()
    assert (len(plan.decodes), plan.cut, [tokens for _, tokens in plan.chunks]) == (2, 0, [2])


def test_rule_a_drafter_that_lengthens_the_batch_takes_slots_of_the_budget():
    """[scheduler] ``max_num_new_slots_for_drafting`` (v0.28): each sequence that is scheduled takes them too."""
    engine = scheduler(max_num_batched_tokens=16, query_len=4, draft_slots=3)
    add(engine, (2, 40), (20, 9))
    assert step(engine)[0] == {0: 2, 1: 8}, "two and three of slots, then eight and three"
    assert step(engine) == ({1: 6}, [0]), "four and three of slots, then six and three"
    assert step(engine) == ({1: 6}, [0])
    assert step(engine) == ({}, [0, 1])


def test_rule_a_prompt_joins_when_all_of_it_fits():
    """[manager] v0.19 to v0.27, ``full_sequence_must_fit``: a first chunk that fits is not enough."""
    for whole, chunks in ((False, {1: 7}), (True, {})):
        engine = scheduler(num_blocks=10, max_num_batched_tokens=8, reserve_full_isl=whole)
        add(engine, (8, 9), (32, 2))
        assert step(engine)[0] == {0: 8}
        assert step(engine) == (chunks, [0]), "3 of 10 blocks are taken and the second prompt needs 8"
    add(engine := scheduler(num_blocks=8, max_num_batched_tokens=8, reserve_full_isl=True), (32, 1))
    assert [step(engine)[0] for _ in range(4)] == [{0: 8}] * 4, "alone it may fill the cache"


def test_a_cached_prefix_in_use_counts_once_towards_a_whole_prompt():
    cache = PrefixCache(PrefixHashes.from_lists([[1, 2, 3], [1, 2, 4]], 4), 4, [12, 13])
    engine = scheduler(cache, num_blocks=6, max_num_batched_tokens=12, reserve_full_isl=True)
    add(engine, (12, 3), (13, 1))
    step(engine)
    assert step(engine) == ({1: 5}, [0]), "two of its four blocks are the first one's"


def test_rule_the_watermark_holds_back_admission_only():
    """V0's watermark: new requests leave these blocks free, running ones may take them."""
    engine = scheduler(num_blocks=6, watermark_blocks=2)
    add(engine, (16, 8), (4, 4))
    assert step(engine)[0] == {0: 16}, "the second would take one of the two blocks"
    step(engine)
    assert engine.used_blocks == 5


def cached(lists, prompts, num_blocks=1000, per_block=4):
    return scheduler(PrefixCache(PrefixHashes.from_lists(lists, per_block), 4, prompts), num_blocks=num_blocks)


def test_rule_only_full_blocks_are_cached():
    """[prefix] "We only cache full blocks"; the example's requests of 15, 14 and 29 tokens in blocks of 4."""
    prompts = [15, 14, 29]
    lists = [[1, 2, 3, 4], [1, 2, 13, 14], [1, 2, 3, 24, 25, 26, 27, 28]]
    engine = cached(lists, prompts)
    sequences = add(engine, *[(prompt, 2) for prompt in prompts])
    step(engine)
    result = [sequence.cached_tokens for sequence in sequences]
    assert result == [0, 8, 12], "time 4: 2 blocks of 10 equal tokens; time 7: 3 blocks of 12"


def test_rule_full_blocks_serve_requests_of_the_same_step():
    """[prefix] a full block is added "immediately", so that requests in the same batch can use it."""
    engine = cached([[1, 2], [1, 2, 3]], [8, 12])
    _, second = add(engine, (8, 2), (12, 2))
    chunks, _ = step(engine)
    assert second.cached_tokens == 8
    assert chunks == {0: 8, 1: 4}


def test_rule_the_last_token_is_never_a_hit():
    """[manager] "max_cache_hit_length = request.num_tokens - 1": logits need one computed token, so one block."""
    engine = cached([[1, 2], [1, 2]], [8, 8])
    _, second = add(engine, (8, 2), (8, 2))
    chunks, _ = step(engine)
    assert second.cached_tokens == 4
    assert chunks == {0: 8, 1: 4}


def test_rule_shared_blocks_take_room_once():
    """[prefix] a hit raises the reference count of a block; the block itself is there once."""
    engine = cached([[1, 2, 3], [1, 2, 4]], [12, 12])
    add(engine, (12, 5), (12, 5))
    step(engine)
    assert engine.used_blocks == 3 + 1


def test_rule_of_a_finished_request_the_tail_is_evicted_first():
    """[prefix] blocks are freed in reverse order: "the last block ... must hash more tokens"."""
    engine = cached([[1, 2, 3], [7, 8], [1, 2, 3, 4]], [12, 8, 16], num_blocks=4)
    sequences = add(engine, (12, 1))
    step(engine)
    engine.add(Sequence(1, 8, 1))
    step(engine)
    assert not sequences[0].remaining_tokens
    engine.add(late := Sequence(2, 16, 1))
    step(engine)
    assert late.cached_tokens == 8, "of three blocks the last gave way to the two of the second request"


def test_rule_the_least_recently_used_are_evicted_first():
    """[prefix] eviction pops the head of the free queue; a hit takes a block out of it and so renews it."""
    lists = [[1], [2], [1, 9], [5], [1, 6], [2, 6]]
    engine = cached(lists, [4, 4, 8, 4, 8, 8], num_blocks=3)
    for index in range(3):
        engine.add(Sequence(index, [4, 4, 8][index], 1))
        step(engine)
    engine.add(Sequence(3, 4, 1))
    step(engine)
    assert [engine.cached_tokens(request, 8) for request in (4, 5)] == [4, 0]


def test_rule_hits_in_use_need_no_new_blocks_on_admission():
    """[manager] blocks to allocate are those beyond the hits; hits that nobody uses come out of the free ones."""
    engine = cached([[1, 2, 3], [1, 2, 4]], [12, 12], num_blocks=5)
    add(engine, (12, 3), (12, 3))
    chunks, _ = step(engine)
    assert chunks == {0: 12, 1: 4}


@pytest.mark.parametrize("cached_first", [False, True])
def test_rule_a_hit_counts_against_the_budget_only_with_what_is_computed(cached_first):
    """[scheduler] ``num_new_tokens = request.num_tokens - num_computed_tokens`` is what the budget pays for."""
    engine = cached([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], [20, 20])
    if cached_first:
        engine.add(Sequence(0, 20, 1))
        step(engine)
    engine.add(Sequence(1, 20, 2))
    chunks, _ = step(engine)
    assert chunks == {1: 4 if cached_first else 20}


def test_rule_the_preempted_find_what_nobody_took_of_their_blocks():
    """[manager] freed blocks keep their hashes until they are handed out again; preemption frees the tail first."""
    engine = cached([[1, 2], [7, 8, 9]], [8, 12], num_blocks=6)
    first, second = add(engine, (8, 6), (12, 6))
    while not engine.preempted:
        step(engine)
    assert engine.preempted == [second]
    assert (first.blocks, second.computed_tokens) == (3, 0)
    assert engine.cached_tokens(1, second.known_tokens) == 12, "the block that the first took was a free one"
    while first.remaining_tokens:
        step(engine)
    step(engine)
    assert second.computed_tokens > 0
    assert second.cached_tokens == 0, "what it found when it first ran"


def test_rule_host_memory_goes_on_where_the_chip_ends():
    """[connector] ``get_num_new_matched_tokens`` of vllm/v1/core/sched/scheduler.py requests tokens beyond those that
    the chip's cache holds (v0.11, OffloadingConnector): what the chip still holds after a gap is not looked for."""
    space = StoreSpace(num_blocks=100, block_bytes=1.0, read_bytes_per_s=1.0)
    host = Tier(Store(100), Lane(), Lane(), space)
    cache = PrefixCache(PrefixHashes.from_lists([[1, 2, 3, 4]], 4), 4, [16], None, [host])
    cache.release(0, cache.add(0, 0, 16))
    cache.shrink(2)
    assert cache.match(0, 17) == (4, 16, 0)
    assert cache.tier_tokens == {"host": 8}
    cache.hold(0, 1)
    cache.shrink(0)
    cache.release(0, 1)
    assert cache.match(0, 17) == (4, 16, 0)
    assert cache.tier_tokens == {"host": 12}
    cache.hold(0, 4)
    assert host.read_blocks == 3
