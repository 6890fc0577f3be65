"""Models on chips, and steps of equal sequences, from which tests of step times are built."""

import numpy as np

from hwprofiles import KernelLibrary, load_chip, load_link
from simulator.llm import load_architecture
from simulator.timing import (
    Deployment,
    StepWork,
    causal_pairs,
    keys_read,
    load_framework,
    plan_memory,
    resolve_weight_dtypes,
)


def deployment(model="llama-3.1-8b", chip="h100-sxm", tensor_parallel=1, weights=None, framework="vllm", **changes):
    profile, architecture, engine = load_chip(chip), load_architecture(model), load_framework(framework)
    return Deployment(
        architecture=architecture,
        chip=profile,
        kernels=KernelLibrary(profile, engine.kernel_library),
        link=load_link(profile.links.scale_up) if profile.links.scale_up else None,
        framework=engine,
        tensor_parallel=tensor_parallel,
        weight_dtypes=resolve_weight_dtypes(architecture, weights),
        **{"kv_dtype": "bf16"} | changes,
    )


def memory_plan(one, draft=None, blocks=None, **changes):
    limits = {"gpu_memory_utilization": 0.9, "block_size": 16, "max_tokens": 2048, "max_sampled": 64} | changes
    return plan_memory(one, draft, num_kv_blocks=blocks, **limits)


def decode(seqs, context, query_len=1, windows=(None,)):
    """A decode or verify step of sequences of one context."""
    keys = tuple(seqs * keys_read(context, query_len, window) for window in windows)
    empty = (0,) * len(windows)
    return StepWork(0, 0, empty, empty, 0, empty, seqs, query_len, keys)


def mixed(seqs, context, prompts, tokens, windows=(None,)):
    """Equal prompts beside an equal decoding batch."""
    return decode(seqs, context, windows=windows)._replace(
        prefill_seqs=prompts,
        prefill_tokens=prompts * tokens,
        prefill_pairs=tuple(prompts * causal_pairs(tokens, 0, w) for w in windows),
        prefill_kv_tokens=tuple(prompts * keys_read(tokens, tokens, w) for w in windows),
        sampled_prefills=prompts,
        sampled_kv_tokens=tuple(prompts * (tokens + 1) for _ in windows),
    )


def stacked(steps):
    """Steps, or drafts of steps, as one of arrays."""
    parts = zip(*steps, strict=True)
    return type(steps[0])(
        *(
            tuple(map(np.array, zip(*part, strict=True))) if isinstance(part[0], tuple) else np.array(part)
            for part in parts
        )
    )


def arrays(work):
    """One step as arrays of length one."""
    return stacked([work])
