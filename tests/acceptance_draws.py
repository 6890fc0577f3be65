"""Accepted draft tokens of whole requests, as the engine draws them step by step."""

import numpy as np

from simulator.serving.compiled import engine_module


def draws(sampler, request, first_step, steps, context=0):
    """Tokens accepted in ``steps`` verify steps of a request at one context."""
    accepted = engine_module().Draws(sampler).accepted
    return np.array([accepted(request, first_step + step, context) for step in range(steps)], dtype=np.int64)


def path(sampler, request, tokens, first_step=0, context=0):
    """Tokens accepted in each verify step that a request needs to generate ``tokens`` more."""
    accepted, taken, delivered = engine_module().Draws(sampler).accepted, [], 0
    while delivered < tokens:
        taken.append(accepted(request, first_step + len(taken), context + delivered))
        delivered += taken[-1] + 1
    return np.array(taken, dtype=np.int64)
