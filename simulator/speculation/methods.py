"""Methods of speculation, and the properties of each.

A further one is an entry here and a builder of its drafter in ``simulator.running.drafting.BUILDERS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HEAD_SIZES = ("num_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
HOST_TIMES = ("step_s", "pass_s", "per_sequence_s")
LOOK_UP = ("step_s", "per_sequence_s", "per_context_token_s")
MODEL = ("model", "weights_dtype", "tensor_parallel", "chip", "link", "overlap")
"""Fields of ``draft`` for a drafter with weights of its own, which may be placed on other chips."""


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """Properties of a method that other parts of the simulator depend on."""

    fields: tuple[str, ...] = ()
    """Fields of ``draft`` that the method uses."""
    trees: bool = False
    """Whether it can draft a tree instead of a chain."""
    draft_slots: bool = True
    """Whether it keeps KV of its own drafts, so that the engine reserves slots for the next step's.

    Source: vLLM V1 sets ``num_lookahead_tokens`` for EAGLE heads, MTP and draft models only (``vllm/v1/core/sched``).
    """
    checkpoint: bool = True
    """Whether an engine needs the path of its weights."""
    looks_up: bool = False
    """Whether it drafts by looking up repeated text in the context, and drafts nothing without a match."""
    times_of: str = ""
    """Method whose measured host times stand in for its own (``timing/draft_overheads.yaml``)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What engines call it: ``method`` of vLLM's speculative config (v0.11, docs/features/spec_decode),
    ``--speculative-algorithm`` of SGLang (v0.5, docs/advanced_features/speculative_decoding), ``decoding_type`` of
    TensorRT-LLM's (v1.0, llmapi/llm_args.py), flags of llama-server (2026)."""


METHODS: dict[str, MethodFacts] = {
    "none": MethodFacts(checkpoint=False),
    "draft-model": MethodFacts(
        (*MODEL, "kv_tokens", *HOST_TIMES),
        trees=True,
        names={
            "vllm": "draft_model",
            "sglang": "STANDALONE",
            "trtllm": "DraftTarget",
            "llama.cpp": "--model-draft DRAFT.gguf",
        },
    ),
    "ngram": MethodFacts(
        LOOK_UP,
        draft_slots=False,
        checkpoint=False,
        looks_up=True,
        names={"vllm": "ngram", "sglang": "NGRAM", "trtllm": "NGram", "llama.cpp": "--spec-type ngram-simple"},
    ),
    "suffix": MethodFacts(LOOK_UP, draft_slots=False, checkpoint=False, looks_up=True, names={"vllm": "suffix"}),
    "medusa": MethodFacts(
        ("weights_dtype", "num_layers", *HOST_TIMES),
        trees=True,
        draft_slots=False,
        names={"vllm": "medusa", "trtllm": "Medusa"},
    ),
    "eagle": MethodFacts(
        (*MODEL, *HEAD_SIZES, *HOST_TIMES), trees=True, names={"vllm": "eagle", "sglang": "EAGLE", "trtllm": "Eagle"}
    ),
    "eagle2": MethodFacts((*MODEL, *HEAD_SIZES, *HOST_TIMES), trees=True, names={"sglang": "EAGLE"}),
    "eagle3": MethodFacts(
        (*MODEL, *HEAD_SIZES, "draft_vocab_size", *HOST_TIMES),
        trees=True,
        names={"vllm": "eagle3", "sglang": "EAGLE3", "trtllm": "Eagle"},
    ),
    "mtp": MethodFacts(
        ("weights_dtype", "tensor_parallel", "modules", *HOST_TIMES),
        trees=True,
        checkpoint=False,
        names={"vllm": "mtp", "sglang": "EAGLE", "trtllm": "MTP", "llama.cpp": "--spec-type draft-mtp"},
    ),
    "parallel-draft": MethodFacts((*MODEL, *HEAD_SIZES, "draft_vocab_size", *HOST_TIMES)),
}
"""``none`` switches speculation off and leaves the rest of the block standing, to compare with."""


def names_in(engine: str) -> dict[str, str]:
    """Names of the methods that an engine supports, as the engine spells them."""
    return {method: facts.names[engine] for method, facts in METHODS.items() if engine in facts.names}
