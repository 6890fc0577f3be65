"""Draft policy of a cluster: its settings, and the policy that a scenario names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forerun.errors import ForerunError
from simulator.serving.compiled import engine_module
from simulator.speculation import BatchTable, PolicyConfig, PolicyFactory
from simulator.speculation.policies import POLICIES, batch_table

DISABLE_ABOVE = 32
"""Default ``batch`` of the policy ``disable-above-batch``: largest batch that drafts; assumed."""
DOCUMENTED_TABLE = ((1, 64, None), (65, 128, 1), (129, 512, 0))
"""Example table of vLLM's documentation (features/speculative_decoding/dynamic_speculative_decoding, v0.25); None is
``num_speculative_tokens``."""
SGLANG_CANDIDATES: Mapping[int, tuple[int, ...]] = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
SGLANG_SMALL_BATCH = 8
SGLANG_DOWN_HYSTERESIS = -0.25
"""Default for batches below ``SGLANG_SMALL_BATCH``; larger ones use 0. This and the candidates are SGLang's
``DEFAULT_ADAPTIVE_CONFIG`` (``python/sglang/srt/speculative/adaptive_spec_params.py``, 2026)."""
StepSeconds = Callable[..., float]
"""Seconds of a step, drafting included. Arguments: decoding sequences, draft tokens of each, mean context, and
optionally prompt tokens."""
SwitchSeconds = Callable[[int, int], float]
"""Seconds that a change of K takes, by (sequences, total tokens that the drafter has not seen)."""


@dataclass(frozen=True, slots=True)
class DraftingRule:
    """Draft policy and its settings, the same for all replicas of a cluster."""

    make_policy: PolicyFactory
    most: int
    """Draft tokens of a full proposal that can be accepted: the policy's largest choice."""
    follows: bool = False
    """True if the drafter keeps its cache up to date in steps that draft nothing, instead of catching up later."""
    recovery_tokens: int = 0
    """Tokens after which a token that the drafter never saw weighs 1/e; 0: the drafter catches up on skipped tokens."""


def policy_factory(
    config: PolicyConfig,
    most: int,
    step_seconds: StepSeconds,
    switch_seconds: SwitchSeconds = lambda seqs, skipped: 0.0,
    engine: Any = None,
) -> PolicyFactory | None:
    """Factory of the policy that a scenario names; None if K never changes.

    Args:
        config: policy section of the scenario.
        most: draft tokens of a full proposal.
        step_seconds, switch_seconds: functions of the timing model, for policies that use them.
        engine: the engine's module, which has the policies that learn; default: the compiled one.

    Raises:
        ForerunError: no candidate of ``ema`` is at most ``most``.
    """
    if config.name == "fixed":
        return None
    if config.name in POLICIES:
        return partial(POLICIES[config.name], most)
    if config.name == "disable-above-batch":
        # vLLM's speculative_disable_by_batch_size (vllm-project/vllm#4592), by the requests in the step.
        above = BatchTable((most, 0), (0, (DISABLE_ABOVE if config.batch is None else config.batch) + 1))
        return lambda: above
    if config.name == "batch-table":
        documented = [[first, last, most if tokens is None else tokens] for first, last, tokens in DOCUMENTED_TABLE]
        table = batch_table(documented if config.table is None else config.table, most)
        return lambda: table
    engine = engine or engine_module()
    if config.name == "goodput":
        return partial(
            engine.Goodput, most, step_seconds, **_given(config, "prior", "window", "hysteresis", "interval")
        )
    if config.name == "ema":
        slots = _slots(config, most)
        make = engine.MovingAverageSlot
        return lambda: engine.MovingAverage({size: make(**slot) for size, slot in slots.items()})

    rates = partial(engine.PositionRates, most, **_given(config, "prior", "window"))
    if config.name == "forerun":
        return lambda: engine.Forerun(rates(carried=True), step_seconds, switch_seconds)
    gate = engine.Gate if config.name == "p-min" else engine.EntropyGate
    return lambda: gate(rates(), **_given(config, "least"))


def _given(config: PolicyConfig, *names: str) -> dict[str, Any]:
    """Parameters that the scenario gives; the others take the policy's default."""
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _slots(config: PolicyConfig, most: int) -> dict[int, dict[str, Any]]:
    """Arguments of each ``MovingAverageSlot`` of ``ema``, by its smallest batch."""
    by_batch: Mapping[int, Sequence[int]] = SGLANG_CANDIDATES
    if config.candidates is not None:
        by_batch = config.candidates if isinstance(config.candidates, dict) else {1: config.candidates}
    slots: dict[int, dict[str, Any]] = {}
    for size, tokens in by_batch.items():
        candidates = tuple(sorted({k for k in tokens if k <= most}))
        if not candidates:
            raise ForerunError(
                f"speculation.policy.candidates: none of {list(tokens)} for batches from {size} is at most the {most} "
                f"draft tokens of the scenario"
            )
        down = SGLANG_DOWN_HYSTERESIS if size < SGLANG_SMALL_BATCH else 0.0
        slots[size] = {
            "candidates": candidates,
            "present": most,
            "alpha": 0.2 if config.ema_alpha is None else config.ema_alpha,
            "update_interval": config.update_interval or 5,
            "warmup": 10 if config.warmup_batches is None else config.warmup_batches,
            "up": config.up_hysteresis or 0.0,
            "down": down if config.down_hysteresis is None else config.down_hysteresis,
        }
    return slots
