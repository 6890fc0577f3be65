"""The canonical kernel trace: its operations, the columns each needs, and what the columns mean."""

from __future__ import annotations

from typing import NamedTuple

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Operations between chips."""

OTHER = "other"
"""Operation of kernels for which only name and duration are known."""


class Columns(NamedTuple):
    """Columns of one operation: sizes that must be >= 1, and sizes that may be 0 or missing."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()


_ATTENTION = Columns(
    ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"),
    ("window", "v_head_dim", "latent", "kv_tokens", "longest_kv", "longest_batch"),
)

OPS: dict[str, Columns] = {
    "gemm": Columns(("m", "n", "k")),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "attention_mixed": Columns(
        (*_ATTENTION.needed, "decode_batch", "decode_kv_len"), (*_ATTENTION.optional, "decode_kv_tokens")
    ),
    "moe": Columns(
        ("tokens", "num_experts", "experts_per_token", "hidden", "intermediate"),
        ("expert_parallel", "tensor_parallel", "active_experts", "projections"),
    ),
    **dict.fromkeys(
        ("recurrent_prefill", "recurrent_decode"),
        Columns(("batch", "q_len", "num_heads", "num_kv_heads", "head_dim"), ("v_head_dim",)),
    ),
    **dict.fromkeys(("sparse_prefill", "sparse_decode"), Columns(("batch", "q_len", "kv_len", "num_heads"))),
    "elementwise": Columns(("bytes_moved",), ("pieces",)),
    **dict.fromkeys(COLLECTIVES, Columns(("message_bytes", "world_size"))),
    OTHER: Columns(()),
}
"""Columns by operation. Beyond the published ones:

* ``v_head_dim``: width of V where it differs from that of Q and K (0 = the same).
* ``latent``: 1 where K and V are one shared latent (absorbed MLA): a token stores ``head_dim`` elements per KV head.
* ``kv_tokens``: KV lengths in total, where the sequences of a batch differ (0 = ``batch * kv_len``).
* ``longest_kv``: KV length of the longest single-query sequences, where they differ (0 = all alike, or unknown), and
  ``longest_batch`` how many are that long (0 = one).
* ``attention_mixed``: one kernel over ``batch`` prefill chunks and ``decode_batch`` single-token sequences.
* ``active_experts``: different experts that were really touched (0 = not known).
* ``projections``: matrices per expert, 2 for up and down alone (0 = 3: gate, up and down).
* ``recurrent_prefill``, ``recurrent_decode``: the scan of a recurrent layer over ``batch`` prompts of ``q_len`` tokens,
  and its update by ``q_len`` tokens of each sequence; ``num_heads`` value heads and ``num_kv_heads`` key heads of
  ``head_dim``; ``name`` is ``gdn``, ``kda`` or another rule's.
* ``sparse_prefill``, ``sparse_decode``: a whole attention module of a catalogue model (projections, index, selection,
  attention over what was chosen) with ``num_heads`` heads on the chip; ``name`` is the model and, after a space, its
  kind of layer (``dsa``, ``dsa-shared`` without an index of its own, ``csa``, ``hca``, ``msa``), ``dtype`` that of its
  weights.
* ``elementwise``: a memory-bound pass (norm, activation, copy) that reads and writes ``bytes_moved`` bytes; a
  convolution serves ``pieces`` (channels of each sequence) one by one, its ``name`` is ``convolution gdn-scan``, the
  rule it stands before and the phase.
* ``other``: a kernel whose shape the trace does not tell; kept with its name and time.
"""

SIZES: tuple[str, ...] = tuple(
    dict.fromkeys(name for columns in OPS.values() for name in (*columns.needed, *columns.optional))
)
"""All size columns; 0 where a size does not apply."""

WORDS = ("op", "dtype", "kv_dtype", "library", "device", "source", "name", "cache", "routing")
"""All text columns. ``cache`` is ``warm`` if the same operands were just read and may still be on the chip,
``cold`` where not; ``device`` is the measured chip as the file calls it; ``routing`` is how evenly tokens were
spread over experts; ``name`` is the kernel's own."""

OLD_COLUMNS = {"activated_experts": "active_experts", "distribution": "routing"}
"""Earlier names of columns that a canonical trace may still have, with the present ones."""
