"""The least time that engine steps can take: weights, keys and products at the peak of the chips that hold them.

Counted from the architecture and the datasheet alone, apart from the kernel formulas, so that one can catch the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hwprofiles import dtype_bytes
from simulator.llm.layers import MoeMlp
from simulator.timing.deployment import Deployment
from simulator.timing.engine import EngineTimer, ModelTimer
from simulator.timing.pipeline import PipelineTimer


@dataclass(frozen=True, slots=True)
class LightSpeed:
    """Seconds that no engine step of one model (of one pipeline stage of it) can beat, on the chips that share it."""

    token_s: float
    """Multiplying one token with the layers' weights, each at the dense peak of its own dtype."""
    logits_s: float
    """Multiplying one token with the LM head."""
    weights_s: float
    """Reading the layers' weights once; of routed experts, as many as one token is sent to."""
    head_s: float
    """Reading the LM head once."""
    key_s: float
    """Reading keys and values of one token in the layers with the attention window that is asked for."""

    def compute_s(self, tokens: Any, logit_rows: Any) -> Any:
        """Products of steps with so many tokens, of which ``logit_rows`` go on to the LM head."""
        return tokens * self.token_s + logit_rows * self.logits_s

    def weight_reads_s(self, tokens: Any, logit_rows: Any) -> Any:
        """Weights read by steps with so many tokens."""
        return (tokens > 0) * self.weights_s + (logit_rows > 0) * self.head_s

    def key_reads_s(self, keys: Any) -> Any:
        """Keys and values read by steps whose decoding sequences attend to so many tokens."""
        return keys * self.key_s


def light_speed(deployment: Deployment, window: int | None) -> LightSpeed:
    """The bounds of a model on the chips of one replica, or of one pipeline stage.

    Dense weights are spread over the chips of an attention group and tokens over the groups; routed experts are spread
    over all of them. Activations, prompts' attention and unevenness are left out: they only add.

    Args:
        deployment: the model, its dtypes and its chips.
        window: of the layers whose keys are counted; None = full attention.
    """
    chip, groups = deployment.chip, deployment.attention_data_parallel
    bandwidth = chip.memory.bandwidth_bytes_per_s
    hidden = deployment.architecture.hidden_size
    token_s = weights_s = key_s = 0.0
    for group in deployment.architecture.layer_groups:
        layer = group.layer
        for gemm in deployment.gemms(layer):
            elements = group.count * gemm.n * gemm.k
            token_s += 2.0 * elements / chip.peak_flops(gemm.dtype) / groups
            weights_s += elements * dtype_bytes(gemm.dtype) / bandwidth
        if isinstance(layer.mlp, MoeMlp):
            dtype = deployment.weight_dtypes["expert"]
            experts = [tensor for tensor in layer.tensors(hidden) if tensor.part == "expert"]
            one = sum(tensor.out_features * tensor.in_features for tensor in experts)
            chosen = group.count * one * layer.mlp.experts_per_token / deployment.group_chips
            token_s += 2.0 * chosen / chip.peak_flops(dtype)
            weights_s += chosen * dtype_bytes(dtype) / bandwidth
        if layer.attention.window == window:
            key_s += group.count * deployment.attention_shape(layer.attention).kv_bytes_per_token / bandwidth / groups
    logits_s = head_s = 0.0
    if deployment.last_stage:
        architecture = deployment.architecture
        dtype = deployment.weight_dtypes["embedding" if architecture.tie_word_embeddings else "lm_head"]
        share = architecture.vocab_size * hidden / deployment.tensor_parallel
        logits_s = 2.0 * share / chip.peak_flops(dtype) / groups
        head_s = share * dtype_bytes(dtype) / bandwidth
    return LightSpeed(token_s, logits_s, weights_s, head_s, key_s)


def stage_light_speeds(timer: EngineTimer) -> tuple[LightSpeed, ...]:
    """The bounds of each pipeline stage that a timer prices, one without stages; none for timers of another kind.

    Keys are those of the first of the timer's windows, which step records keep.
    """
    if not isinstance(timer, ModelTimer):
        return ()
    stages = [timer.target, *(timer.later if isinstance(timer, PipelineTimer) else ())]
    return tuple(light_speed(stage.deployment, timer.windows[0]) for stage in stages)
