"""Steps of a scheduler taken by hand, for tests of its rules."""

from simulator.serving import EngineLimits
from simulator.serving.engine import NoPrefixCache, Sequence


def limits(**changes):
    """Small blocks and budgets."""
    values = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4, "num_blocks": 1000}
    return EngineLimits(**values | {"watermark_blocks": 0, "max_model_len": None, "chunked_prefill": True} | changes)


def scheduler_of(kind, cache=None, **changes):
    return kind(limits(**changes), cache or NoPrefixCache())


def add(engine, *requests, first=0):
    """Queue requests of (prompt, output) tokens, and of what else a sequence has, numbered from ``first``."""
    sequences = [Sequence(index, *request) for index, request in enumerate(requests, start=first)]
    for sequence in sequences:
        engine.add(sequence)
    return sequences


def step(engine):
    """Plan and commit a step; returns ({request: prompt tokens}, [decoding requests])."""
    plan = engine.plan()
    chunks = {sequence.index: tokens for sequence, tokens in plan.chunks}
    decodes = [sequence.index for sequence in plan.decodes]
    for sequence, tokens in plan.chunks:
        sequence.computed_tokens += tokens
        if sequence.computed_tokens == sequence.known_tokens:
            sequence.decoding = True
            sequence.generated_tokens += 1
    for sequence in plan.decodes:
        sequence.computed_tokens += 1
        sequence.generated_tokens += 1
    for sequence in [s for s in engine.running if not s.remaining_tokens]:
        engine.release(sequence)
    return chunks, decodes
