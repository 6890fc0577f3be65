"""Seconds of one engine step, and what bounds them: linear layers by table, attention by formula, host on top."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwprofiles import AttentionShape, KernelTime
from simulator.llm import Architecture
from simulator.llm.layers import Layer, MoeMlp
from simulator.timing.costs import Costs
from simulator.timing.deployment import Deployment
from simulator.timing.experts import ExpertTable, expert_kernel, fullest_group
from simulator.timing.overlap import DecodeOverlap
from simulator.timing.tables import DecodeTable, fresh_prompt_seconds
from simulator.timing.work import StepWork

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NORM_PASSES = 4.0
"""A fused add + RMSNorm reads input and residual and writes both: four passes over the activations."""
LOGIT_PASSES = 3.0
"""Sampling reads and rewrites fp32 logits: log-softmax and the draw (vLLM's sampler works in fp32)."""
LOGIT_BYTES = 4.0


def layer_passes(layer: Layer, hidden: int, tensor_parallel: int) -> list[tuple[float, int]]:
    """Elementwise passes of one layer on one chip: (elements that a token moves, launches) of norms, rotary embedding
    and activation.

    Args:
        layer: a transformer layer.
        hidden: width of the residual stream.
        tensor_parallel: chips that share the layer.
    """
    attention, mlp = layer.attention, layer.mlp
    rotated = (attention.num_heads + attention.num_kv_heads) * attention.head_dim / tensor_parallel
    passes = [(2 * NORM_PASSES * hidden, 2)]
    passes.append((2 * rotated * 2, 2) if attention.qk_norm else (2 * rotated, 1))
    activated = (mlp.shared_intermediate_size if isinstance(mlp, MoeMlp) else mlp.intermediate_size) / tensor_parallel
    if activated:
        passes.append(((3 if mlp.gated else 2) * activated, 1))
    return passes


def attention_windows(architecture: Architecture) -> tuple[int | None, ...]:
    """Distinct attention windows of a model, full attention first."""
    found = {group.layer.attention.window for group in architecture.layer_groups}
    return tuple(sorted(found, key=lambda window: -1 if window is None else window))


@dataclass(slots=True)
class StepTimer:
    """Prices engine steps of one model on one replica.

    Linear layers, norms, MoE and collectives depend on the number of tokens alone and are tabulated once; attention
    depends on the contexts too. ``seconds`` prices one step, interpolating decode attention between nearby
    contexts (``DecodeTable``); ``costs`` prices many at once by the formulas and says what bounds them.
    """

    deployment: Deployment
    max_tokens: int
    """Largest number of tokens in a step."""
    make_overlap: Callable[[StepTimer], DecodeOverlap] | None = None
    """Prices decode attention that runs beside the rest of its layer; None: one kernel after the other."""
    windows: tuple[int | None, ...] = ()
    """Windows of the work that it is given; default: those of the model (a pipeline stage may lack some)."""
    _layers: Costs = field(init=False)
    _verifying: dict[int, tuple[Costs, list[float]]] = field(init=False, default_factory=dict)
    """Layers and their seconds by tokens, where each sequence verifies so many: fewer experts are touched then."""
    _routed: bool = field(init=False)
    """Whether that makes a difference."""
    _head: Costs = field(init=False)
    _layer_seconds: list[float] = field(init=False)
    _head_seconds: list[float] = field(init=False)
    _attention: list[tuple[AttentionShape, int, int]] = field(init=False)
    """Shape, window and number of layers of each kind of attention."""
    _attention_seconds: list[tuple[DecodeTable, Callable[..., Any], list[float], int, int]] = field(init=False)
    """The same as functions: decode, prefill, one fresh prompt by its length; then window and number of layers."""
    _one_pass: list[tuple[Callable[..., Any], int, int]] = field(init=False)
    """Attention of prompt chunks and single queries in one kernel, window and number of layers; empty where the
    chip's kernels take them apart."""
    _alone: list[tuple[float, float, int]] = field(init=False)
    """Fewest sequences of which the longest end alone, seconds per key of ``StepWork.beyond_kv``, and layers: attention
    without a window, where it costs that."""
    longest_asked: int = field(init=False)
    """How many of the longest decoding sequences a step's time depends on."""
    _overlap: DecodeOverlap | None = field(init=False, default=None)
    _overlapped: list[DecodeTable] = field(init=False, default_factory=list)
    """With an overlap: what each kind of attention adds to steps that only decode, all its layers."""
    _eager: list[bool] = field(init=False)
    """Whether a step of so many tokens runs outside captured graphs."""
    _experts: ExpertTable | None = field(init=False, default=None)
    """Experts and their exchange by the tokens of all attention groups, where there are several."""
    _special: bool = field(init=False)
    """Whether steps need more than tables and attention."""
    _decode_graphs: bool = field(init=False)
    """Whether steps with prompt chunks run outside captured graphs, whatever their size."""
    _floor_s: float = field(init=False)
    """Host time to launch every kernel of a step one by one, which an uncaptured step cannot beat."""

    def __post_init__(self) -> None:
        groups = self.deployment.architecture.layer_groups
        windows = self.windows = self.windows or attention_windows(self.deployment.architecture)
        merged: dict[tuple[AttentionShape, int], int] = {}
        for group in groups:
            attention = group.layer.attention
            key = (self.deployment.attention_shape(attention), windows.index(attention.window))
            merged[key] = merged.get(key, 0) + group.count
        self._attention = [(shape, window, count) for (shape, window), count in merged.items()]
        kernels = self.deployment.kernels
        self._attention_seconds = []
        together = [(kernels.mixed_seconds(shape), window, count) for shape, window, count in self._attention]
        self._one_pass = [(seconds, window, count) for seconds, window, count in together if seconds is not None]
        ends = [(*kernels.alone_key_seconds(shape), count) for shape, w, count in self._attention if windows[w] is None]
        self._alone = [(fewest, key_s, count) for fewest, key_s, count in ends if key_s]
        alone = [float(kernels.alone_sequences(shape)) for shape, w, _ in self._attention if windows[w] is None]
        self.longest_asked = max(1, round(max(alone))) if self._alone else int(bool(self._one_pass))
        for shape, window, count in self._attention:
            prefill = kernels.prefill_seconds(shape)
            fresh = fresh_prompt_seconds(prefill, windows[window], self.max_tokens)
            self._attention_seconds.append((DecodeTable(kernels.decode_seconds(shape)), prefill, fresh, window, count))
        if self.make_overlap is not None:
            self._overlap = self.make_overlap(self)
            kinds = [(shape, windows[window]) for shape, window, _ in self._attention]
            self._overlapped = [DecodeTable(self._overlap.exposed(*kind)) for kind in kinds]
        tokens = np.arange(self.max_tokens + 1, dtype=np.int64)
        padded = self.deployment.framework.padded_tokens(tokens, self.deployment.cuda_graphs)
        distinct, inverse = np.unique(padded, return_inverse=True)
        framework = self.deployment.framework
        self._floor_s = framework.eager_launch_s * framework.kernels_per_layer * self.deployment.architecture.num_layers
        self._eager = ((tokens > framework.max_captured_tokens) | (not self.deployment.cuda_graphs)).tolist()
        self._decode_graphs = framework.captured_steps == "decode"
        self._layers = self._layer_costs(distinct).rows(inverse)
        routed = any(isinstance(group.layer.mlp, MoeMlp) for group in groups)
        self._routed = routed and self.deployment.attention_data_parallel == 1
        self._head = self._head_costs(tokens)
        if self.deployment.attention_data_parallel > 1:
            self._experts = ExpertTable(self.deployment, self.max_tokens)
        self._special = self._experts is not None or bool(self._one_pass) or self._decode_graphs
        self._layer_seconds = self._layers.device_s.tolist()
        self._head_seconds = self._head.device_s.tolist()

    def seconds(self, work: StepWork[Any], logit_rows: int | None = None) -> Any:
        """Device seconds of one step (host work excluded).

        Args:
            work: one step; where nothing is prefilled ``decode_kv_tokens`` may hold arrays, and so does the result.
            logit_rows: rows of logits computed; default: every verified token and every completed prompt.
        """
        if self._special:
            return self._special_seconds(work, logit_rows)
        decoding = work.decode_seqs
        tokens = work.prefill_tokens + decoding * work.query_len
        if logit_rows is None:
            logit_rows = decoding * work.query_len + work.sampled_prefills
        total: Any = self._layers_by_tokens(work)[tokens] + self._head_seconds[logit_rows]
        total += self._attention_time(work)
        if not self._eager[tokens]:
            return total
        return np.maximum(total, self._floor_s) if isinstance(total, np.ndarray) else max(total, self._floor_s)

    def _special_seconds(self, work: StepWork[Any], logit_rows: int | None) -> Any:
        """The same where attention groups share experts, one kernel takes mixed batches, or prompts run uncaptured."""
        seen, experts = work, self._experts
        if experts is not None:
            seen = fullest_group(work, experts.groups)
            logit_rows = None if logit_rows is None else -(-logit_rows // experts.groups)
        decoding, prefilling = seen.decode_seqs, seen.prefill_seqs
        tokens = seen.prefill_tokens + decoding * seen.query_len
        if logit_rows is None:
            logit_rows = decoding * seen.query_len + seen.sampled_prefills
        total: Any = self._layers_by_tokens(seen)[tokens] + self._head_seconds[logit_rows]
        if self._one_pass and decoding and prefilling and seen.query_len == 1:
            for mixed, window, count in self._one_pass:
                chunks = (prefilling, seen.prefill_tokens, seen.prefill_pairs[window], seen.prefill_kv_tokens[window])
                longest = seen.longest_kv if self.windows[window] is None else 0
                total += count * mixed(*chunks, decoding, seen.decode_kv_tokens[window], longest)
        else:
            total += self._attention_time(seen)
        if experts is not None:
            total += experts.seconds(work.prefill_tokens + work.decode_seqs * work.query_len, tokens)
        if not (self._eager[tokens] or (prefilling and self._decode_graphs)):
            return total
        return np.maximum(total, self._floor_s) if isinstance(total, np.ndarray) else max(total, self._floor_s)

    def _attention_time(self, work: StepWork[Any]) -> Any:
        """Seconds of attention in all layers, prompts and decoding in kernels of their own."""
        decoding, prefilling, prompt = work.decode_seqs, work.prefill_seqs, work.prefill_tokens
        total: Any = 0.0
        if self._overlapped and decoding and not prefilling:
            for table, (_, window, _) in zip(self._overlapped, self._attention, strict=True):
                total += table(decoding, work.query_len, work.decode_kv_tokens[window])
            decoding = 0
        if decoding and self._alone:
            total += self._last_alone(work)
        for decode, prefill, fresh, window, count in self._attention_seconds:
            if decoding:
                total += count * decode(decoding, work.query_len, work.decode_kv_tokens[window])
            if prefilling:
                keys = work.prefill_kv_tokens[window]
                if prefilling == 1 and keys == prompt:
                    total += count * fresh[prompt]
                else:
                    total += count * prefill(prefilling, prompt, work.prefill_pairs[window], keys)
        return total

    def _last_alone(self, work: StepWork[Any]) -> Any:
        """What the longest decoding sequences add in layers whose kernels do not split them."""
        return work.beyond_kv * sum(key_s * count for fewest, key_s, count in self._alone if work.decode_seqs >= fewest)

    def costs(self, work: StepWork[IntArray], logit_rows: IntArray | None = None) -> Costs:
        """Costs of many steps on one chip (of the fullest attention group; work as on the mean one); ``host_s`` holds
        the wait for kernel launches outside captured graphs."""
        if self._experts is None:
            return self._costs(work, logit_rows)
        groups = self._experts.groups
        seen = fullest_group(work, groups)
        own = seen.prefill_tokens + seen.decode_seqs * seen.query_len
        everyone = work.prefill_tokens + work.decode_seqs * work.query_len
        total = self._costs(seen, None if logit_rows is None else -(-logit_rows // groups), self._experts, everyone)
        even = np.divide(everyone, groups * own, out=np.ones(len(own)), where=own > 0)
        experts = self._experts.rows(everyone, own)
        total.flops = (total.flops - experts.flops) * even + experts.flops
        total.bytes = (total.bytes - experts.bytes) * even + experts.bytes
        return total

    def _costs(
        self,
        work: StepWork[IntArray],
        logit_rows: IntArray | None,
        experts: ExpertTable | None = None,
        everyone: IntArray | None = None,
    ) -> Costs:
        verify_tokens = work.decode_seqs * work.query_len
        tokens = work.prefill_tokens + verify_tokens
        total = self._layer_rows(work, tokens)
        total.add(self._head.rows(verify_tokens + work.sampled_prefills if logit_rows is None else logit_rows))
        if experts is not None and everyone is not None:
            total.add(experts.rows(everyone, tokens))
        kernels = self.deployment.kernels
        mixed = (work.decode_seqs > 0) & (work.prefill_seqs > 0) & (work.query_len == 1) & bool(self._one_pass)
        decoding, prefilling = np.where(mixed, 0, work.decode_seqs), np.where(mixed, 0, work.prefill_seqs)
        longest, beyond = (np.asarray(keys, dtype=np.float64) for keys in (work.longest_kv, work.beyond_kv))
        for shape, window, count in self._attention:
            if mixed.any():
                total.add_kernel(
                    kernels.attention_mixed(
                        shape,
                        seqs=np.where(mixed, work.prefill_seqs, 0),
                        q_tokens=work.prefill_tokens,
                        pairs=work.prefill_pairs[window],
                        kv_tokens=work.prefill_kv_tokens[window],
                        decode_seqs=work.decode_seqs,
                        decode_kv_tokens=work.decode_kv_tokens[window],
                        longest_kv=longest if self.windows[window] is None else 0.0,
                    ),
                    count,
                )
            keys = work.decode_kv_tokens[window]
            decode = Costs.zeros(len(tokens))
            decode.add_kernel(
                kernels.attention_decode(
                    shape,
                    seqs=decoding,
                    q_len=work.query_len,
                    kv_tokens=keys,
                    beyond_kv=beyond if self.windows[window] is None else 0.0,
                ),
                count,
            )
            if self._overlap is not None:
                _expose(decode, self._overlap, shape, self.windows[window], work, keys)
            total.add(decode)
            total.add_kernel(
                kernels.attention_prefill(
                    shape,
                    seqs=prefilling,
                    q_tokens=work.prefill_tokens,
                    pairs=work.prefill_pairs[window],
                    kv_tokens=work.prefill_kv_tokens[window],
                ),
                count,
            )
        uncaptured = np.asarray(self._eager)[tokens] | ((work.prefill_seqs > 0) & self._decode_graphs)
        total.host_s += np.where(uncaptured, np.maximum(0.0, self._floor_s - total.device_s), 0.0)
        return total

    def together(self, work: StepWork[Any]) -> int:
        """Tokens in a row of each sequence that routed experts see: those verified, in steps without prompts."""
        return int(work.query_len) if self._routed and work.decode_seqs and not work.prefill_seqs else 1

    def _layers_by_tokens(self, work: StepWork[Any]) -> list[float]:
        """Seconds of all layers by tokens, in such a step."""
        query_len = self.together(work)
        return self._layer_seconds if query_len == 1 else self._verified(query_len)[1]

    def _layer_rows(self, work: StepWork[IntArray], tokens: IntArray) -> Costs:
        """Costs of all layers of many steps."""
        total = self._layers.rows(tokens)
        lengths = np.broadcast_to(work.query_len, tokens.shape)
        apart = (work.decode_seqs > 0) & (work.prefill_seqs == 0) & (lengths > 1) & self._routed
        for length in np.unique(lengths[apart]).tolist():
            rows = np.flatnonzero(apart & (lengths == length))
            part = self._verified(length)[0].rows(tokens[rows])
            for name in Costs.__slots__:
                getattr(total, name)[rows] = getattr(part, name)
        return total

    def _verified(self, query_len: int) -> tuple[Costs, list[float]]:
        """Layers by tokens where every sequence verifies ``query_len`` tokens."""
        if query_len not in self._verifying:
            tokens = np.arange(self.max_tokens + 1, dtype=np.int64)
            padded = self.deployment.framework.padded_tokens(tokens, self.deployment.cuda_graphs)
            distinct, inverse = np.unique(padded, return_inverse=True)
            costs = self._layer_costs(distinct, query_len).rows(inverse)
            self._verifying[query_len] = (costs, costs.device_s.tolist())
        return self._verifying[query_len]

    def _layer_costs(self, tokens: IntArray, query_len: int = 1) -> Costs:
        """All layers and the embedding for each token count in ``tokens``; no experts where groups share them."""
        deployment = self.deployment
        hidden = deployment.architecture.hidden_size
        total = Costs.zeros(len(tokens))
        for group in deployment.architecture.layer_groups:
            total.add(self.layer_costs(group.layer, tokens, query_len), group.count)
        if not deployment.first_stage:
            return total
        rows = tokens * hidden * deployment.activation_bytes
        total.add_kernel(deployment.kernels.elementwise(2 * rows, launches=np.minimum(tokens, 1)))
        self._add_collective(total, "all_reduce", rows, 1)
        return total

    def layer_costs(self, layer: Layer, tokens: IntArray, query_len: int = 1) -> Costs:
        """One layer apart from attention itself, for each token count in ``tokens``, collectives included; no experts
        where attention groups share them."""
        one = Costs.zeros(len(tokens))
        for time in self._layer_kernels(layer, tokens):
            one.add_kernel(time)
        deployment, mlp = self.deployment, layer.mlp
        if isinstance(mlp, MoeMlp) and deployment.attention_data_parallel == 1:
            one.add_kernel(expert_kernel(deployment, mlp, tokens, query_len))
        message = tokens * deployment.architecture.hidden_size * deployment.activation_bytes
        self._add_collective(one, "all_reduce", message, self.reductions(layer))
        return one

    def reductions(self, layer: Layer) -> int:
        """All-reduces of one layer: after attention, and after whatever of the MLP no other group shares."""
        mlp, groups = layer.mlp, self.deployment.attention_data_parallel
        return 1 if groups > 1 and isinstance(mlp, MoeMlp) and not mlp.shared_intermediate_size else 2

    def expert_tokens(self, everyone: int, fullest: int) -> int:
        """Tokens that routed experts compute where all attention groups have ``everyone``, the fullest ``fullest``."""
        return everyone if self._experts is None else self._experts.tokens(everyone, fullest)

    def _layer_kernels(self, layer: Layer, tokens: IntArray) -> Iterator[KernelTime]:
        """Kernels of one layer apart from attention itself and routed experts."""
        deployment = self.deployment
        kernels = deployment.kernels
        tp = deployment.tensor_parallel
        hidden = deployment.architecture.hidden_size
        for gemm in deployment.gemms(layer):
            yield kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype)
        present = np.minimum(tokens, 1)
        for elements, launches in layer_passes(layer, hidden, tp):
            moved = tokens * elements * deployment.activation_bytes
            yield kernels.elementwise(moved, launches=launches * present)

    def _head_costs(self, tokens: IntArray) -> Costs:
        """Final norm, LM head and sampling for each number of sampled tokens in ``tokens``; on the last stage."""
        deployment = self.deployment
        if not deployment.last_stage:
            return Costs.zeros(len(tokens))
        architecture = deployment.architecture
        vocabulary = -(-architecture.vocab_size // deployment.tensor_parallel)
        present = np.minimum(tokens, 1)
        total = Costs.zeros(len(tokens))
        head_dtype = deployment.weight_dtypes["embedding" if architecture.tie_word_embeddings else "lm_head"]
        total.add_kernel(deployment.kernels.gemm(tokens, vocabulary, architecture.hidden_size, head_dtype))
        norm = NORM_PASSES * architecture.hidden_size * deployment.activation_bytes
        logits = LOGIT_PASSES * architecture.vocab_size * LOGIT_BYTES
        total.add_kernel(deployment.kernels.elementwise(tokens * (norm + logits), launches=3 * present))
        self._add_collective(total, "all_gather", tokens * architecture.vocab_size * deployment.activation_bytes, 1)
        return total

    def _add_collective(self, total: Costs, op: str, message_bytes: NDArray[np.floating[Any]], count: int) -> None:
        deployment = self.deployment
        if deployment.tensor_parallel == 1 or deployment.link is None:
            return
        time = deployment.kernels.collective(op, message_bytes, deployment.tensor_parallel, deployment.link)
        seconds = time.seconds + deployment.skew_s
        total.interconnect_s += count * np.where(message_bytes > 0, seconds, 0.0)


def _expose(
    decode: Costs,
    overlap: DecodeOverlap,
    shape: AttentionShape,
    window: int | None,
    work: StepWork[IntArray],
    keys: IntArray,
) -> None:
    """Turn the costs of decode attention into what remains exposed of it, in the steps that only decode.

    Attention keeps its own proportion of compute, memory and launches; useful work stays what it is.
    """
    rows = np.flatnonzero((work.prefill_seqs == 0) & (work.decode_seqs > 0))
    query_len = np.broadcast_to(work.query_len, work.decode_seqs.shape)
    attention_s, link_s = overlap.exposed_parts(shape, window, work.decode_seqs[rows], query_len[rows], keys[rows])
    scale = attention_s / decode.device_s[rows]
    for part in (decode.compute_s, decode.memory_s, decode.latency_s):
        part[rows] *= scale
    decode.interconnect_s[rows] += link_s
