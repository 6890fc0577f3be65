"""Whole engine steps: target model, drafter passes and host, on one set of chips or in pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor
from typing import Any, Protocol, runtime_checkable

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError
from hwprofiles import Link
from hwprofiles.formulas import Num, look_up
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.drafters import (
    AdjustedDrafter,
    Drafter,
    RemoteDrafter,
    drafting_costs,
    drafting_seconds,
)
from simulator.timing.kernels import ByCount, Call, Costs, Kernel, other_device_kernel, price
from simulator.timing.step import StepTimer, attention_windows, step_timer
from simulator.timing.work import DraftStep, Step, StepWork, expanded, slowest_group

SENT_TENSORS = 2
"""Number of tensors sent between stages: hidden states and residual (vLLM's ``IntermediateTensors``)."""


def tracked_longest(timer: EngineTimer) -> int:
    """Number of longest decoding sequences whose contexts a step's time depends on; 0 by default."""
    return int(getattr(timer, "tracked_longest", 0))


class EngineTimer(Protocol):
    """Interface of a timing model to the serving engine."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct attention windows of the model; None is full attention."""

    def seconds(self, work: StepWork[Num], draft: DraftStep[int] | None = None) -> Num:
        """Seconds of one step; an array if ``decode_kv_tokens`` contains arrays and the step has no prompts.

        ``draft``: work of the drafter as chosen by a policy; None if the number of draft tokens is fixed.
        """

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many steps: seconds by bound, and work per chip."""


@dataclass(slots=True)
class ModelTimer:
    """Prices steps of a target model, of an optional drafter, and of the host around them."""

    target: StepTimer
    drafter: Drafter | None = None
    adjusted: AdjustedDrafter | None = None
    """Costs of the drafter under a policy that chooses its number of draft tokens; None without such a policy."""

    windows: tuple[int | None, ...] = field(init=False)
    """Attention windows of the target, then windows that only the drafter has."""
    recordings: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    """Recordings of the compiled engine (``simulator.serving.recording.recorded``)."""
    _draft_order: tuple[int, ...] | None = field(init=False, default=None)
    """Index of each of the drafter's windows in ``windows``; None if both tuples are equal."""

    _overlap: float = field(init=False, default=0.0)
    """Share of the drafting time that overlaps the target's pass."""
    _step_s: float = field(init=False)
    _per_sequence_s: float = field(init=False)
    _per_prompt_s: float = field(init=False)
    _slots: int = field(init=False)
    """Slots of a fixed batch if each costs host time like a sequence; 0 = only sequences cost host time."""
    _row_s: float = field(init=False)
    """Host seconds per draft token that is verified as a separate sequence."""
    _expands: bool = field(init=False)
    """True if every verified token is a separate sequence (batch expansion)."""
    _overlapped_s: float = field(init=False)
    _overlapped_per_sequence_s: float = field(init=False)
    """Host seconds per sequence that overlap the device: the step lasts at least as long."""

    @property
    def tracked_longest(self) -> int:
        """Number of longest sequences of a batch whose contexts attention time depends on; 0 = none."""
        return self.target.tracked_longest

    def __post_init__(self) -> None:
        host = self.target.deployment.framework
        several = self.target.deployment.tensor_parallel > 1
        self._step_s, self._per_sequence_s = host.step_s + several * host.rank_s, host.per_sequence_s
        self._per_prompt_s, self._slots = host.per_prompt_s, host.slots if host.host_rows == "slots" else 0
        self._row_s, self._expands = host.scored_row_s, host.scores == "sequences"
        self._overlapped_s, self._overlapped_per_sequence_s = host.overlapped_s, host.overlapped_per_sequence_s
        self.windows = self.target.windows
        if isinstance(self.drafter, RemoteDrafter):
            self._overlap = self.drafter.overlap
        if self.drafter is not None:
            self.windows += tuple(w for w in self.drafter.windows if w not in self.target.windows)
            if self.drafter.windows != self.windows:
                self._draft_order = tuple(self.windows.index(w) for w in self.drafter.windows)

    def seconds(self, work: StepWork[Num], draft: DraftStep[int] | None = None) -> Num:
        """Seconds of one step, host included."""
        work = self.slowest(work)
        target_s = self.target.seconds(self.scored(work))
        sequences = work.decode_seqs + work.prefill_seqs
        if self._slots and work.decode_seqs:
            sequences = self._slots + work.prefill_seqs
        exposed = self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        if self._expands:
            exposed += self._row_s * (work.decode_tokens - work.decode_seqs)
        total = target_s + exposed
        if self.drafter is not None:
            if draft is None:
                drafting = drafting_seconds(self.drafter.parts(self._ordered(work)))
            else:
                assert self.adjusted is not None
                drafting = self.adjusted.seconds(self._ordered(work), self._ordered(draft))
            total = total + drafting
            if self._overlap:
                total = total - self._overlap * np.minimum(drafting, target_s)
        if not (self._overlapped_s or self._overlapped_per_sequence_s):
            return total
        overlapped_s = self._overlapped_s + self._overlapped_per_sequence_s * sequences
        return np.maximum(total, overlapped_s) if isinstance(total, np.ndarray) else max(total, overlapped_s)

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many steps, host included."""
        work = self.slowest(work)
        total = self.target.costs(self.scored(work))
        target_s = total.device_s
        sequences = work.decode_seqs + work.prefill_seqs
        if self._slots:
            sequences = np.where(work.decode_seqs > 0, self._slots, 0) + work.prefill_seqs
        total.host_s += self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        if self._expands:
            total.host_s += self._row_s * (work.decode_tokens - work.decode_seqs)
        if self.drafter is not None:
            self._add_drafting(total, target_s, work, draft)
        overlapped_s = self._overlapped_s + self._overlapped_per_sequence_s * sequences
        total.host_s += np.maximum(0.0, overlapped_s - total.device_s - total.host_s)
        return total

    def kernels(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Iterator[Kernel]:
        """Kernels of one step, as arrays of length one: first the target's, then the drafter's.

        Host work is left out, including the drafter's: ``costs`` returns its exposed part.
        """
        work = self.slowest(work)
        target = list(self.target.kernels(self.scored(work)))
        yield from target
        if self.drafter is None:
            return
        seen = self._ordered(work)
        if draft is None:
            parts = self.drafter.parts(seen)
        else:
            assert self.adjusted is not None
            parts = self.adjusted.parts(seen, self._ordered(draft), int(draft.tokens[0]))
        share = 1.0
        if self._overlap:
            target_s, drafting_s = self._target_and_drafting_s(work, draft)
            share = 1.0 - self._overlap * min(drafting_s, target_s) / drafting_s if drafting_s else 1.0
        for part in parts:
            for kernel in part.kernels():
                if kernel.family != "host":
                    yield kernel._replace(exposed=kernel.exposed * share)

    def _target_and_drafting_s(
        self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None
    ) -> tuple[float, float]:
        drafting = self.drafting(work, draft)
        assert drafting is not None
        target_s = self.target.costs(self.scored(work)).device_s
        return float(target_s[0]), float((drafting.device_s + drafting.host_s)[0])

    def exposed_drafting_s(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Num:
        """Seconds that the drafter adds to each step, less its overlap with the target; None without a drafter."""
        work = self.slowest(work)
        costs = self.drafting(work, draft)
        if costs is None:
            return None
        seconds = costs.device_s + costs.host_s
        return seconds - self._overlap * np.minimum(seconds, self.target.costs(self.scored(work)).device_s)

    def drafting(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs | None:
        """Costs of the drafter alone in each step; None without a drafter."""
        if self.drafter is None:
            return None
        work = self.slowest(work)
        if draft is None:
            return drafting_costs(self.drafter.parts(self._ordered(work)), len(work.decode_seqs))
        assert self.adjusted is not None
        return self.adjusted.costs(self._ordered(work), self._ordered(draft))

    def _add_drafting(
        self, total: Costs, target_s: FloatArray, work: StepWork[IntArray], draft: DraftStep[IntArray] | None
    ) -> None:
        """Add the drafter's costs, less its overlap with the target's pass."""
        drafting = self.drafting(work, draft)
        assert drafting is not None
        if not self._overlap:
            total.add(drafting)
            return
        seconds = drafting.device_s + drafting.host_s
        hidden = self._overlap * np.minimum(seconds, target_s)
        total.add(drafting, np.divide(seconds - hidden, seconds, out=np.ones_like(seconds), where=seconds > 0.0))

    def slowest(self, work: StepWork[Num]) -> StepWork[Num]:
        """Work of the slowest attention group in a step, for which all groups wait. Each group has its own host
        work."""
        return slowest_group(work, self.target.deployment.attention_data_parallel)

    def scored(self, work: StepWork[Num]) -> StepWork[Num]:
        """Work of the step in the target's pass, with batch expansion if the engine uses it."""
        return expanded(work, self.windows) if self._expands else work

    def _ordered(self, step: Step) -> Step:
        """Reorder the per-window entries of a step's work, or of its drafter's work, to the drafter's order."""
        order = self._draft_order
        if order is None:
            return step
        parts = (tuple(part[i] for i in order) if isinstance(part, tuple) else part for part in step)
        return type(step)._make(parts)


def fused_layers(layers: int, states: int) -> list[int]:
    """Layers whose inputs a draft head uses, evenly spread: 2, N / 2 and N - 3 of N layers for the three of EAGLE-3.

    Source: ``get_eagle3_aux_hidden_state_layers`` of vLLM's models.

    >>> fused_layers(32, 3)
    [2, 16, 29]
    """
    return [floor(2 + (layers - 5) * place / max(1, states - 1) + 0.5) for place in range(states)]


def send_kernel(deployment: Deployment, link: Link, tokens: IntArray, fused_states: int = 0) -> Kernel:
    """P2P send of a stage's output for ``tokens`` tokens to the next stage, with hidden states for a draft head.

    Every chip sends its TP share to its peer; the next stage's chips all-gather the full tensors (``send_tensor_dict``
    with ``all_gather_group`` in ``vllm/distributed/parallel_state.py``).
    """
    message = (SENT_TENSORS + fused_states) * tokens * deployment.architecture.hidden_size * ACTIVATION_BYTES
    library, tp = deployment.kernels, deployment.tensor_parallel
    send = {"op": "send_recv", "message_bytes": message / tp, "world_size": 2, "link": link}
    kernel = price(Call("p2p-send", "collective", send), library)
    if tp == 1 or deployment.link is None:
        return kernel
    gather = {"op": "all_gather", "message_bytes": message, "world_size": tp, "link": deployment.link}
    second = price(Call("p2p-send", "collective", gather), library)
    basis = np.maximum(kernel.basis, second.basis)
    return kernel._replace(time=kernel.time._replace(seconds=kernel.seconds + second.seconds), basis=basis)


def stage_timers(deployment: Deployment, count: int, max_tokens: int) -> tuple[StepTimer, ...]:
    """One timer per pipeline stage; equal stages share a timer."""
    windows = attention_windows(deployment.architecture)
    known: dict[Any, StepTimer] = {}
    timers = []
    for stage in deployment.stages(count):
        key = (stage.architecture.layer_groups, stage.first_stage, stage.last_stage)
        if key not in known:
            known[key] = step_timer(stage, max_tokens, windows)
        timers.append(known[key])
    return tuple(timers)


@runtime_checkable
class StagedTimer(EngineTimer, Protocol):
    """Interface of a timing model to a pipelined replica, beyond whole steps."""

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""

    def stage_seconds(self, work: StepWork[Num]) -> list[float]:
        """Seconds that a batch occupies each stage, P2P send included; host work before the first stage excluded."""

    def host_seconds(self, work: StepWork[Num]) -> float:
        """Host seconds of scheduling before a batch enters the first stage."""


@dataclass(slots=True)
class PipelineTimer(ModelTimer):
    """Prices batches that pass through several stages; the drafter runs on the last stage.

    ``target`` is the first stage. ``seconds`` is a pass through all stages of an otherwise empty pipeline; the replica
    models the interaction of several batches in flight.
    """

    later: tuple[StepTimer, ...] = ()
    """Stages after the first."""
    link: Link | None = None
    """Link between stages."""
    fused_hidden_states: int = 0
    """Number of hidden states of the target that the drafter uses. The stage before the last sends its layers' hidden
    states with its output; sends of earlier stages overlap later stages (vllm-project/vllm#50514, vLLM 0.28).
    """
    _sending: tuple[tuple[Kernel, int], ...] = field(init=False)
    """P2P sends by tokens, each with its number of sending stages: before the last two, and last but one."""
    _sent_s: tuple[ByCount, ByCount] = field(init=False)
    """Seconds of the P2P sends by tokens: before the last two stages, and of the last but one."""

    def __post_init__(self) -> None:
        ModelTimer.__post_init__(self)
        deployment = self.target.deployment
        if self.later and self.link is None:
            raise ForerunError(
                f"hardware.pipeline_link: chip '{deployment.chip.name}' has no scale-up link of its own; name one for "
                f"pipeline_parallel {self.stages} (forerun chips list)"
            )
        tokens = np.arange(self.target.max_tokens + 1, dtype=np.int64)
        sizes = [stage.deployment.architecture.num_layers for stage in (self.target, *self.later)]
        last = range(sum(sizes[:-2]), sum(sizes[:-1]))
        fused = sum(layer in last for layer in fused_layers(sum(sizes), self.fused_hidden_states))
        self._sending = ()
        if self.link is not None and self.later:
            sends = (send_kernel(deployment, self.link, tokens, states) for states in (0, fused))
            self._sending = tuple(zip(sends, (len(self.later) - 1, 1), strict=True))
        none = np.zeros(len(tokens))
        early, late = [np.asarray(sent.seconds) for sent, _ in self._sending] or [none, none]
        self._sent_s = ByCount(early), ByCount(late)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return 1 + len(self.later)

    def stage_seconds(self, work: StepWork[Num]) -> list[Num]:
        """Seconds that a batch occupies each stage, P2P send included; host work before the first stage excluded.

        The last stage also drafts; it takes at least the host's overlapped time for streaming tokens.
        """
        work = self.slowest(work)
        seconds = [stage.seconds(work) for stage in (self.target, *self.later)]
        for place in range(len(self.later)):
            seconds[place] += look_up(self._sent_s[place == len(self.later) - 1], work.tokens)
        if self.drafter is not None:
            seconds[-1] += drafting_seconds(self.drafter.parts(self._ordered(work)))
        overlapped_s = self._overlapped_s + self._overlapped_per_sequence_s * (work.decode_seqs + work.prefill_seqs)
        last = seconds[-1]
        seconds[-1] = np.maximum(last, overlapped_s) if isinstance(last, np.ndarray) else max(last, overlapped_s)
        return seconds

    def host_seconds(self, work: StepWork[Num]) -> float:
        """Host seconds of scheduling before a batch enters the first stage."""
        work = self.slowest(work)
        sequences = work.decode_seqs + work.prefill_seqs
        seconds: float = self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        return seconds

    def seconds(self, work: StepWork[Num], draft: DraftStep[int] | None = None) -> Num:
        """Seconds of one batch in an otherwise empty pipeline, host included."""
        assert draft is None, "policies that change K are refused beside a pipeline"
        return self.host_seconds(work) + sum(self.stage_seconds(work))

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many batches over all stages, host included; work on one chip of each stage."""
        work = self.slowest(work)
        parts = [stage.costs(work) for stage in (self.target, *self.later)]
        last = parts[-1]
        drafting = self.drafting(work)
        if drafting is not None:
            last.add(drafting)
        overlapped_s = self._overlapped_s + self._overlapped_per_sequence_s * (work.decode_seqs + work.prefill_seqs)
        last.host_s += np.maximum(0.0, overlapped_s - last.device_s - last.host_s)
        total = parts[0]
        for part in parts[1:]:
            total.add(part)
        for sent in self._sent(work):
            total.add_kernel(sent)
        total.host_s += self.host_seconds(work)
        return total

    def kernels(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Iterator[Kernel]:
        """Kernels of one batch through all stages, as arrays of length one."""
        work = self.slowest(work)
        for number, stage in enumerate((self.target, *self.later), 1):
            for kernel in stage.kernels(work):
                yield kernel._replace(name=f"stage {number}: {kernel.name}")
            if self._sending and number < self.stages:
                yield list(self._sent(work))[number == self.stages - 1]._replace(times=1)
        if self.drafter is not None:
            for part in self.drafter.parts(self._ordered(work)):
                yield from (kernel for kernel in part.kernels() if kernel.family != "host")

    def _sent(self, work: StepWork[IntArray]) -> Iterator[Kernel]:
        """P2P sends between all stages."""
        tokens = work.tokens
        for sending, times in self._sending:
            seconds, basis = sending.seconds[tokens], sending.basis
            basis = basis[tokens] if isinstance(basis, np.ndarray) and basis.ndim else basis
            yield other_device_kernel("p2p-send", "collective", seconds, times)._replace(basis=basis)
