"""Steps of a scheduler taken by hand, for tests of its rules."""


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
