"""Routed experts over the chips of a group: the fullest chip's kernels, and the exchange of tokens between chips."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwprofiles import KernelTime
from hwprofiles.numeric import ARRAY
from hwprofiles.routing import read_routing, slowest_rank_factor
from simulator.llm.layers import MoeMlp
from simulator.timing.costs import Costs
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.work import StepWork

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FP8_DISPATCH_BYTES = 1.0
"""Bytes per element sent to fp8 experts; the way back is in bf16 (DeepEP, README: FP8 dispatch, BF16 combine)."""


OWN_EXPERTS = 0.54
"""Independent tokens that a further token of the same sequence counts as, where experts are concerned.

Four tokens in a row touch 2.5 times the experts of one (Cohere, "Why MoE models get more from speculative decoding",
2026-04; 38 % of a token's experts are those of the token before it). With 8 of 128 experts, independent tokens would
touch 3.64 times as many, and 2.63 of them 2.5 times: (2.63 - 1) / 3."""


def alike_tokens(query_len: int) -> float:
    """Tokens per independent choice of experts where each sequence has ``query_len`` tokens in a row."""
    return query_len / (1.0 + OWN_EXPERTS * (query_len - 1))


def expert_kernel(deployment: Deployment, mlp: MoeMlp, tokens: IntArray, query_len: int = 1) -> KernelTime:
    """Routed feed-forward of one layer on the fullest chip; flops and bytes as on the mean chip.

    Args:
        deployment: says how experts are spread and how tokens choose them.
        mlp: of the layer.
        tokens: of all attention groups together.
        query_len: tokens of each sequence.
    """
    time = deployment.kernels.moe(
        tokens=tokens,
        num_experts=mlp.num_experts,
        experts_per_token=mlp.experts_per_token,
        hidden=deployment.architecture.hidden_size,
        intermediate=mlp.intermediate_size,
        dtype=deployment.weight_dtypes["expert"],
        expert_parallel=deployment.expert_parallel,
        tensor_parallel=deployment.expert_tensor_parallel,
        gated=mlp.gated,
        routing=deployment.expert_routing,
        alike=alike_tokens(query_len),
    )
    if deployment.expert_parallel == 1:
        return time
    factor = np.ones(len(tokens))
    factor[tokens > 0] = _imbalance(deployment, mlp, tokens[tokens > 0])
    return time._replace(flops=time.flops / factor, bytes=time.bytes / factor)


def exchange_bytes(deployment: Deployment, mlp: MoeMlp, tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    """Bytes that the busiest chip sends to the experts (its own part included), and that come back to it.

    Tokens lie evenly on the chips. Each goes once to every chip that holds any of its experts: of ``R`` chips it
    reaches ``R (1 - (1 - 1/R)^k)``, and the chip whose experts are most wanted sets the pace.

    Source: DeepEP (github.com/deepseek-ai/DeepEP), normal kernels: one copy per destination rank.
    """
    chips = deployment.expert_parallel
    reached = chips * (1.0 - (1.0 - 1.0 / chips) ** mlp.experts_per_token)
    copies = tokens / deployment.group_chips * reached
    copies[tokens > 0] *= _imbalance(deployment, mlp, tokens[tokens > 0])
    sent = copies * deployment.architecture.hidden_size
    narrow = deployment.weight_dtypes["expert"] in ("fp8", "fp8_block", "mxfp8")
    return sent * (FP8_DISPATCH_BYTES if narrow else ACTIVATION_BYTES), sent * ACTIVATION_BYTES


def exchange_seconds(deployment: Deployment, mlp: MoeMlp, tokens: IntArray) -> FloatArray:
    """Seconds that one layer's tokens take from the attention groups to the experts and back.

    Where whole experts are spread over all chips of the group, an all-to-all each way; where each expert is split,
    every group gathers the tokens of all and the results are reduced and scattered (vLLM's ``allgather_reducescatter``
    and ``deepep_high_throughput`` all-to-all backends).

    Args:
        tokens: of all attention groups together.
    """
    assert deployment.link is not None
    kernels, link = deployment.kernels, deployment.link
    if deployment.expert_parallel == deployment.group_chips:
        there, back = exchange_bytes(deployment, mlp, tokens)
        first = kernels.collective("all_to_all", there, deployment.expert_parallel, link)
        second = kernels.collective("all_to_all", back, deployment.expert_parallel, link)
    else:
        message = tokens * deployment.architecture.hidden_size * ACTIVATION_BYTES
        first = kernels.collective("all_gather", message, deployment.attention_data_parallel, link)
        second = kernels.collective("reduce_scatter", message, deployment.attention_data_parallel, link)
    seconds: FloatArray = np.where(tokens > 0, first.seconds + second.seconds, 0.0)
    return seconds


def _imbalance(deployment: Deployment, mlp: MoeMlp, tokens: IntArray) -> FloatArray:
    """Load of the fullest chip's experts over the mean."""
    routing = read_routing(deployment.expert_routing)
    factor: FloatArray = slowest_rank_factor(
        ARRAY, routing, tokens * 1.0, mlp.num_experts, mlp.experts_per_token, deployment.expert_parallel
    )
    return factor


class ExpertTable:
    """Experts and exchange of all layers by the tokens of all attention groups of a deployment.

    Steps that replay a captured graph are padded alike on every group (vLLM's ``coordinate_batch_across_dp``); others
    compute the tokens there are.
    """

    def __init__(self, deployment: Deployment, max_tokens: int) -> None:
        framework = deployment.framework
        self.groups = deployment.attention_data_parallel
        own = np.arange(max_tokens + 1, dtype=np.int64)
        padded = framework.padded_tokens(own, deployment.cuda_graphs)
        captured = (own <= framework.max_captured_tokens) & deployment.cuda_graphs
        self._padded = np.where(captured, self.groups * padded, 0)
        tokens = np.arange(max(max_tokens, int(self._padded.max())) + 1, dtype=np.int64)
        self._costs = Costs.zeros(len(tokens))
        for group in deployment.architecture.layer_groups:
            if isinstance(group.layer.mlp, MoeMlp):
                one = Costs.zeros(len(tokens))
                one.add_kernel(expert_kernel(deployment, group.layer.mlp, tokens))
                one.interconnect_s += exchange_seconds(deployment, group.layer.mlp, tokens)
                self._costs.add(one, group.count)
        self._seconds: list[float] = self._costs.device_s.tolist()
        self._padded_list: list[int] = self._padded.tolist()

    def seconds(self, everyone: int, fullest: int) -> float:
        """Seconds when all groups have ``everyone`` tokens and the fullest has ``fullest``."""
        return self._seconds[self.tokens(everyone, fullest)]

    def tokens(self, everyone: int, fullest: int) -> int:
        """Tokens that the experts then compute."""
        return max(everyone, self._padded_list[fullest])

    def rows(self, everyone: IntArray, fullest: IntArray) -> Costs:
        """Costs of many steps, on one chip."""
        return self._costs.rows(np.maximum(everyone, self._padded[fullest]))


def fullest_group(work: StepWork[Any], groups: int) -> StepWork[Any]:
    """The part of a step that the fullest of ``groups`` attention groups does.

    Sequences are dealt out evenly, whole: a single prompt keeps one group busy while the others wait.
    """
    decoding, prefilling = _share(work.decode_seqs, groups), _share(work.prefill_seqs, groups)

    def decodes(total: Any) -> Any:
        return _part(total, decoding, work.decode_seqs)

    def prompts(total: Any) -> Any:
        return _part(total, prefilling, work.prefill_seqs)

    return StepWork(
        prefill_seqs=prefilling,
        prefill_tokens=prompts(work.prefill_tokens),
        prefill_pairs=tuple(prompts(total) for total in work.prefill_pairs),
        prefill_kv_tokens=tuple(prompts(total) for total in work.prefill_kv_tokens),
        sampled_prefills=prompts(work.sampled_prefills),
        sampled_kv_tokens=tuple(prompts(total) for total in work.sampled_kv_tokens),
        decode_seqs=decoding,
        query_len=work.query_len,
        decode_kv_tokens=tuple(decodes(total) for total in work.decode_kv_tokens),
    )


def _share(sequences: Any, groups: int) -> Any:
    return -(-sequences // groups)


def _part(total: Any, share: Any, sequences: Any) -> Any:
    """``share`` of ``sequences`` equal parts of ``total``, rounded up."""
    if isinstance(sequences, np.ndarray):
        return -(-total * share // np.maximum(sequences, 1))
    return -(-total * share // sequences) if sequences else total
