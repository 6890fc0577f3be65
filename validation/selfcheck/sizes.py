"""Sizes of the reference model, its calibration models and the runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

HEAD_DIM = 64
DTYPE_BYTES = {"bf16": 2, "fp32": 4}
"""Formats the engine runs in, with their bytes."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A decoder-only transformer: grouped-query attention, SwiGLU, RMSNorm, rotary embedding, untied LM head.

    ``gain`` scales what every layer adds to the residual stream: the smaller, the more a model cut after its first
    layers agrees with the whole. ``sharpness`` is the standard deviation of the logits.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    layers: int
    vocabulary: int
    head_dim: int = HEAD_DIM
    gain: float = 0.2
    sharpness: float = 3.0

    @property
    def layer_elements(self) -> int:
        """Weights of the matrices of one layer."""
        attention = self.head_dim * self.hidden * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    def first(self, layers: int) -> ModelSize:
        """The same model cut after its first ``layers`` layers."""
        return replace(self, name=f"{self.name}-first-{layers}", layers=layers)

    def described(self) -> dict[str, Any]:
        """The model in Forerun's own fields, as ``model`` of a scenario takes it."""
        attention = {"num_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.head_dim}
        layer = {"count": self.layers, "attention": attention, "mlp": {"intermediate_size": self.intermediate}}
        return {
            "name": self.name,
            "hidden_size": self.hidden,
            "vocab_size": self.vocabulary,
            "layers": [layer],
        }


@dataclass(frozen=True, slots=True)
class CheckLoad:
    """Requests of one run: a closed loop with uniform lengths, and the limits of the engine."""

    requests: int
    concurrency: int
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    max_num_batched_tokens: int

    @property
    def longest(self) -> int:
        """Most tokens of one request."""
        return self.input_tokens[1] + self.output_tokens[1]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that determine the duration of a check.

    Attributes:
        target: model whose runs are predicted.
        draft_layers: first layers of it that draft.
        num_speculative_tokens: K.
        nearby: models around it on which kernels are measured; none has its shapes, its sizes lie between theirs.
        load: load of the predicted runs.
        calibration_load: of the runs that give host costs and acceptance.
        kernel_tokens: tokens per step at which kernels are measured.
        repeats: of every measured step in each round; the median of all rounds counts.
        rounds: most times that kernels are measured and predicted runs repeated, in turn.
        enough_s: no further round begins that would end later than so many seconds after the first one began.
        fill_cache: whether nearby models get so many layers that their weights come from memory.
    """

    target: ModelSize
    draft_layers: int
    num_speculative_tokens: int
    nearby: tuple[ModelSize, ...]
    load: CheckLoad
    calibration_load: CheckLoad
    kernel_tokens: tuple[int, ...]
    repeats: int
    rounds: int
    enough_s: float = 75.0
    fill_cache: bool = True


FULL = Sizes(
    target=ModelSize("reference-90m", 1152, 18, 6, 3072, 6, 4096),
    draft_layers=1,
    num_speculative_tokens=3,
    nearby=(
        ModelSize("nearby-1024", 1024, 16, 4, 2816, 4, 3072),
        ModelSize("nearby-1280", 1280, 21, 7, 3456, 3, 5120),
    ),
    load=CheckLoad(15, 6, (24, 120), (24, 56), 96),
    calibration_load=CheckLoad(6, 5, (16, 96), (16, 40), 80),
    kernel_tokens=(1, 2, 3, 5, 6, 8, 9, 12, 15, 18, 20, 24, 28, 32, 36, 44, 56, 72, 80, 88, 104),
    repeats=2,
    rounds=4,
)
"""One or two minutes on one core: as many rounds as go into that, one at least."""

TINY = Sizes(
    target=ModelSize("tiny", 64, 4, 2, 96, 3, 64, head_dim=16),
    draft_layers=1,
    num_speculative_tokens=2,
    nearby=(
        ModelSize("tiny-48", 48, 3, 1, 80, 2, 48, head_dim=16),
        ModelSize("tiny-80", 80, 6, 3, 112, 2, 80, head_dim=16),
    ),
    load=CheckLoad(6, 3, (4, 20), (6, 12), 16),
    calibration_load=CheckLoad(4, 2, (4, 16), (6, 10), 12),
    kernel_tokens=(1, 2, 4, 8, 16, 18, 20, 24),
    repeats=2,
    rounds=1,
    fill_cache=False,
)
"""Seconds; for tests of the machinery. Its kernels are all overhead, so its errors say nothing."""
