"""The ``attention_speculation`` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from forerun.types import PositiveFloat, PositiveInt, Section, Share
from simulator.speculation.attention_level.hit_rates import (
    LAYER_CORRELATION,
    TOKEN_CORRELATION,
    TOLERANCE,
    WINDOW_TOKENS,
    error_model,
    published_hit_rate,
    rate_at_context,
)
from simulator.speculation.attention_level.layer import Reading
from simulator.timing.hardware_config import HardwareConfig

Cost = Annotated[float, Field(ge=0, lt=1.0, allow_inf_nan=False)]
"""Seconds of one step of the mechanism; a second or more is a slip of units."""
Correlation = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
MOST_TOLERANCE = 1.0


class AttentionSpeculationConfig(Section):
    """Pass rate, scope and costs of attention-level speculation.

    Give one of ``hit_rate``, ``hit_rate_by_context`` and ``task``. Costs left out are estimated from the chip and its
    link, with ranges (``simulator.speculation.attention_level.parameters``).
    """

    hit_rate: Share | Annotated[list[Share], Field(min_length=1)] | None = None
    """Share of layers that pass; or one share per layer."""
    hit_rate_by_context: Annotated[list[list[float]], Field(min_length=1)] | None = None
    """[context in tokens, hit rate] points; between them linear in the logarithm of the context."""
    task: str | None = None
    """A task with published hit rates: ifeval, gpqa, gsm8k, hotpotqa."""
    lambda_: Annotated[PositiveFloat | None, Field(alias="lambda")] = None
    """Tolerance of the verification rule. Default 0.10, which every hit rate is taken to belong to: another lambda
    moves it by ``ErrorModel``."""
    window_tokens: PositiveInt = WINDOW_TOKENS
    """S: tokens of the first and of the last chunk, 2 S in all. Hit rates belong to the default and move likewise."""
    reading: Reading = "next-attention"
    """Point at which the groups wait for one another: the next attention kernel, the same layer, or never
    (``pipelined``)."""
    prefill: Literal["context-parallel", "replicated"] = "context-parallel"
    """Division of a prompt: each group computes half and exchanges keys and values, or each computes all of it."""
    verification: Literal["joint", "every-query", "per-request"] = "joint"
    """Unit that passes or fails: the whole batch by one norm, every query, or each request. Verified by themselves,
    requests that fail alone are rolled back."""
    batch_correlation: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Correlation of the errors of a batch's queries in one layer. 0 = queries fail independently, 1 = all together. No
    value is published: try both ends."""
    hits: Literal["mean", "drawn"] = "mean"
    """Time of a step: the mean over hits and misses, or the time of outcomes drawn for each layer."""
    layer_correlation: Correlation = LAYER_CORRELATION
    """Correlation of the errors of neighbouring layers of one step, if hits are drawn."""
    token_correlation: Correlation = TOKEN_CORRELATION
    """Correlation of the errors of a layer in one step and in the next, likewise."""
    send_s: Cost | None = None
    """Fixed part of the one-hop send; the transfer of its bytes and the latency of a network are added."""
    verify_s: Cost | None = None
    """Fixed part of a verification; the read of both outputs is added."""
    sync_s: Cost | None = None
    """Fixed part of the synchronisation at the end of a layer. The transfer of residual and KV rows is added, and
    the latency of a network for each of three messages."""
    skip_launch_s: Cost | None = None
    """Seconds to launch one skipped kernel."""

    @model_validator(mode="after")
    def _one_rate(self) -> AttentionSpeculationConfig:
        given = [name for name in ("hit_rate", "hit_rate_by_context", "task") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of hit_rate, hit_rate_by_context, task (got {', '.join(given) or 'none'})")
        if self.lambda_ is not None and self.lambda_ > MOST_TOLERANCE:
            raise ValueError(f"lambda: beyond {MOST_TOLERANCE:g} nothing is verified any more (got {self.lambda_:g})")
        if self.task is not None:
            published_hit_rate(self.task)
        if self.batch_correlation and self.verification == "joint":
            raise ValueError(
                "batch_correlation: one norm decides for the whole batch; set verification: every-query or per-request"
            )
        if self.verification == "per-request" and self.reading == "pipelined":
            raise ValueError("verification: per-request is not modelled in the ideal pipeline; set another reading")
        correlations = (self.layer_correlation, self.token_correlation)
        if self.hits == "mean" and correlations != (LAYER_CORRELATION, TOKEN_CORRELATION):
            raise ValueError("layer_correlation, token_correlation: nothing is drawn from them; set hits: drawn")
        points = self.hit_rate_by_context or []
        for point in points:
            if len(point) != 2 or not (1 <= point[0] <= 1e12 and 0 <= point[1] <= 1):
                raise ValueError(f"hit_rate_by_context: {point} is no [context in tokens, hit rate] pair")
        contexts = [point[0] for point in points]
        if contexts != sorted(set(contexts)):
            raise ValueError("hit_rate_by_context: contexts must rise from point to point")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plain data that can be parsed again, with ``lambda`` as the field's name."""
        data: dict[str, Any] = handler(self)
        return {"lambda" if name == "lambda_" else name: value for name, value in data.items()}

    def layer_hit_rates(self, num_layers: int, context_tokens: Any) -> list[Any]:
        """Hit rate of one query in every layer; arrays if the rate depends on an array of contexts.

        Raises:
            ValueError: a rate per layer, but for another number of layers.
        """
        if isinstance(self.hit_rate, list):
            if len(self.hit_rate) != num_layers:
                raise ValueError(f"{len(self.hit_rate)} rates for {num_layers} layers that speculate")
            return [self._moved(rate) for rate in self.hit_rate]
        if self.hit_rate_by_context is not None:
            rate = rate_at_context(self.hit_rate_by_context, context_tokens)
        else:
            rate = self.hit_rate if self.task is None else published_hit_rate(self.task)
        return [self._moved(rate)] * num_layers

    @property
    def tolerance(self) -> float:
        """Lambda."""
        return TOLERANCE if self.lambda_ is None else self.lambda_

    @property
    def one_rate(self) -> float | None:
        """Hit rate at the default lambda and S; None unless it is one number for all layers and contexts."""
        if self.task is not None:
            return published_hit_rate(self.task)
        return self.hit_rate if isinstance(self.hit_rate, float | int) else None

    def _moved(self, rate: Any) -> Any:
        return error_model().moved(rate, self.tolerance, self.window_tokens)


def check_groups(config: AttentionSpeculationConfig | None, hardware: HardwareConfig) -> None:
    """Check that the hardware has the two device groups of speculation, and a layout that composes with them."""
    groups = hardware.speculative_parallel
    if config is None:
        if groups != 1:
            raise ValueError(
                f"hardware.speculative_parallel: {groups} device groups do nothing without an attention_speculation "
                f"block; add one, or set it to 1"
            )
        return
    if groups != 2:
        raise ValueError(
            f"hardware.speculative_parallel: attention_speculation runs on 2 device groups of tensor_parallel chips "
            f"each (got {groups})"
        )
    for name in ("pipeline_parallel", "expert_parallel"):
        if getattr(hardware, name) != 1:
            raise ValueError(
                f"hardware.{name}: attention_speculation is modelled with tensor parallelism only; set it to 1 "
                f"(got {getattr(hardware, name)})"
            )
