"""Gain of K draft tokens by batch and context, from step times and acceptance alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError
from simulator.running.build import Build, build_replica
from simulator.running.run import measured_build
from simulator.running.scenario import Scenario
from simulator.speculation import draft_survival
from simulator.studies.tune.token_time import MeanRequest, TokenTime, busy_steps


@dataclass(frozen=True, slots=True)
class SpeculationGrid:
    """Speed-up of decoding by number of draft tokens, at a steady batch of sequences with equal context."""

    method: str
    draft_tokens: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    batch: int
    """Batch of ``by_context``."""
    context_tokens: int
    """Context of ``by_batch``, in tokens."""
    acceptance_length: FloatArray
    """[K] Tokens per verify step, bonus token included."""
    by_batch: FloatArray
    """[K, batch] Decoding speed of a request, relative to decoding without speculation."""
    by_context: FloatArray
    """[K, context] Decoding speed of a request, relative to decoding without speculation."""
    crossover_batch: tuple[float | None, ...]
    """[K] Batch at which the speed-up falls below 1; None if it does not within ``batches``; 0 if it never pays.
    """
    crossover_rate: tuple[float | None, ...]
    """[K] The crossover as requests per second of one replica whose engine is always busy."""
    basis: str
    notes: tuple[str, ...]

    @property
    def best(self) -> tuple[int, ...]:
        """[batch] Number of draft tokens with the highest speed-up; 0 if none pays."""
        top = self.by_batch.argmax(axis=0)
        pays = self.by_batch.max(axis=0) > 1.0
        return tuple(self.draft_tokens[k] if pay else 0 for k, pay in zip(top.tolist(), pays.tolist(), strict=True))


def speculation_grid(
    scenario: Scenario,
    draft_tokens: Sequence[int],
    batches: Sequence[int],
    contexts: Sequence[int],
    batch: int,
    prompt_tokens: int,
    output_tokens: int,
) -> SpeculationGrid:
    """Price every number of draft tokens at every batch and at every context.

    The speed-up is the time of an output token without speculation over its time with K draft tokens, in steps of
    sequences in the middle of their output that the prompts of the batch's other requests join (``token_time``).

    Args:
        scenario: scenario with a ``speculation`` section that drafts a chain; its number of draft tokens is replaced.
        draft_tokens, batches, contexts: axes, ascending.
        batch: batch size of ``by_context``.
        prompt_tokens, output_tokens: lengths of the mean request. The context of ``by_batch`` is the prompt plus half
            the output; both lengths convert a batch into requests per second.
    """
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        raise ForerunError("speculation: the scenario has none; give a method and its acceptance")
    if speculation.tree is not None:
        raise ForerunError("speculation.tree: a grid over K drafts chains; give num_speculative_tokens instead")
    context = prompt_tokens + output_tokens // 2
    axis, lengths = np.asarray(batches, np.int64), np.asarray(contexts, np.int64)
    seqs = np.concatenate((axis, np.full_like(lengths, batch)))
    cells = seqs, np.concatenate((np.full_like(axis, context), lengths))
    request = MeanRequest(prompt_tokens, output_tokens, 1.0)
    room = int(seqs.max()), max(draft_tokens)
    plain, without = _priced(roomy(scenario, *room, method="none"), request, *cells, 1.0)
    accepted, speedups, notes, last = [], [], list(plain.notes), plain
    for k in draft_tokens:
        drafting = roomy(scenario, *room, num_speculative_tokens=k)
        assert drafting.speculation is not None
        length = 1.0 + float(draft_survival(drafting.speculation).sum())
        last, time = _priced(drafting, request, *cells, length)
        accepted.append(length)
        speedups.append(without.seconds(1.0) / time.seconds(length))
        notes += [note for note in last.notes if note not in notes]
    by_batch, by_context = np.split(np.array(speedups), [len(axis)], axis=1)
    crossings = [crossover(axis, speedups) for speedups in by_batch]
    return SpeculationGrid(
        method=speculation.method,
        draft_tokens=tuple(draft_tokens),
        batches=tuple(batches),
        contexts=tuple(contexts),
        batch=batch,
        context_tokens=context,
        acceptance_length=np.array(accepted),
        by_batch=by_batch,
        by_context=by_context,
        crossover_batch=tuple(crossings),
        crossover_rate=tuple(crossover_rate(at, axis, without, request) for at in crossings),
        basis=last.basis,
        notes=tuple(notes),
    )


def crossover(batches: IntArray, speedups: FloatArray) -> float | None:
    """Batch above which the speed-up stays below 1, interpolated in the logarithm of the batch.

    Returns:
        0.0 if the speed-up is below 1 at every batch; None if it is not below 1 at the largest batch.
    """
    if speedups[-1] >= 1.0:
        return None
    points = list(zip(batches.tolist(), speedups.tolist(), strict=True))
    for (low, above), (high, below) in reversed(list(pairwise(points))):
        if above >= 1.0 > below:
            share = (above - 1.0) / (above - below)
            return float(np.exp((1 - share) * np.log(low) + share * np.log(high)))
    return 0.0


def crossover_rate(at: float | None, batches: IntArray, plain: TokenTime, request: MeanRequest) -> float | None:
    """``busy_rate`` at a crossover, by interpolation between the first cells of a grid; None without a crossover."""
    if not at:
        return None
    step_s, prompt_s = (float(np.interp(at, batches, part[: len(batches)])) for part in (plain.step_s, plain.prompt_s))
    return busy_rate(at, step_s, prompt_s, request.decoded_tokens)


def busy_rate(batch: float, step_s: float, prompt_s: float, decoded_tokens: int) -> float:
    """Requests per second of one engine that is always busy with ``batch`` requests, without speculation.

    While ``batch`` requests get their ``decoded_tokens`` (one per step of ``step_s``), the same number of prompts join
    and add ``prompt_s`` each: ``batch / (batch prompt_s + decoded_tokens step_s)``.
    """
    return batch / (batch * prompt_s + decoded_tokens * step_s)


def _priced(
    scenario: Scenario, request: MeanRequest, seqs: IntArray, contexts: IntArray, length: float
) -> tuple[Build, TokenTime]:
    build, _ = measured_build(build_replica(scenario, 0))
    steps = busy_steps(scenario, build, request, seqs, contexts, np.full(len(seqs), length))
    return build, steps.seconds(build.main)


def roomy(scenario: Scenario, batch: int, most_drafted: int, **speculation: object) -> Scenario:
    """Copy of the scenario with limits for ``batch`` sequences that verify ``most_drafted`` tokens plus a prompt. Its
    ``speculation`` fields are replaced."""
    engine = scenario.engine
    return scenario.with_values(
        {
            "engine.num_kv_blocks": engine.num_kv_blocks and max(engine.num_kv_blocks, batch * engine.page_tokens),
            "engine.max_num_seqs": max(engine.max_num_seqs, batch),
            "engine.max_num_batched_tokens": max(engine.max_num_batched_tokens, batch * (most_drafted + 1) + 1),
            **{f"speculation.{name}": value for name, value in speculation.items()},
        }
    )
