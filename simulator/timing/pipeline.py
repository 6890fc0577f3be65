"""Seconds of a batch in each stage of a pipeline, the hand-over to the next stage included."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Link
from simulator.errors import ForerunError
from simulator.timing.costs import Costs
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.drafter import DraftStep
from simulator.timing.engine import EngineTimer, ModelTimer
from simulator.timing.experts import fullest_group
from simulator.timing.step import StepTimer, attention_windows
from simulator.timing.work import StepWork

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SENT_TENSORS = 2
"""Hidden states and residual go from stage to stage (vLLM's ``IntermediateTensors``)."""


def send_seconds(deployment: Deployment, link: Link, tokens: IntArray) -> FloatArray:
    """Seconds that a stage's output for ``tokens`` tokens takes to the next stage.

    Every chip sends its TP share to its peer; the next stage's chips gather the whole from one another
    (``send_tensor_dict`` with ``all_gather_group`` in ``vllm/distributed/parallel_state.py``).
    """
    message = SENT_TENSORS * tokens * deployment.architecture.hidden_size * ACTIVATION_BYTES
    kernels, tp = deployment.kernels, deployment.tensor_parallel
    seconds = kernels.collective("send_recv", message / tp, 2, link).seconds
    if tp > 1 and deployment.link is not None:
        seconds = seconds + kernels.collective("all_gather", message, tp, deployment.link).seconds
    sent: FloatArray = np.where(tokens > 0, seconds, 0.0)
    return sent


def stage_timers(deployment: Deployment, count: int, max_tokens: int) -> tuple[StepTimer, ...]:
    """One timer per pipeline stage; equal stages share one."""
    windows = attention_windows(deployment.architecture)
    known: dict[Any, StepTimer] = {}
    timers = []
    for stage in deployment.stages(count):
        key = (stage.architecture.layer_groups, stage.first_stage, stage.last_stage)
        if key not in known:
            known[key] = StepTimer(stage, max_tokens, windows=windows)
        timers.append(known[key])
    return tuple(timers)


@runtime_checkable
class StagedTimer(EngineTimer, Protocol):
    """What a pipelined replica asks of a timing model beyond whole steps."""

    @property
    def stages(self) -> int:
        """Pipeline stages."""

    def stage_seconds(self, work: StepWork[Any]) -> list[float]:
        """Seconds that a batch keeps each stage busy, its hand-over included; host work before the first excluded."""

    def host_seconds(self, work: StepWork[Any]) -> float:
        """Seconds of the scheduler before a batch enters the first stage."""


@dataclass(slots=True)
class PipelineTimer(ModelTimer):
    """Prices batches that pass through several stages; the drafter runs on the last one.

    ``target`` is the first stage. ``seconds`` is a pass through all stages with nothing in the way; what several
    batches in flight make of it is up to the replica.
    """

    later: tuple[StepTimer, ...] = ()
    """Stages after the first."""
    link: Link | None = None
    """Between stages."""
    _send: FloatArray = field(init=False)
    _send_list: list[float] = field(init=False)

    def __post_init__(self) -> None:
        ModelTimer.__post_init__(self)
        deployment = self.target.deployment
        if self.later and self.link is None:
            raise ForerunError(
                f"hardware.pipeline_link: chip '{deployment.chip.name}' has no scale-up link of its own; name one for "
                f"pipeline_parallel {self.stages} (forerun chips list)"
            )
        tokens = np.arange(self.target.max_tokens + 1, dtype=np.int64)
        self._send = np.zeros(len(tokens)) if self.link is None else send_seconds(deployment, self.link, tokens)
        self._send_list = self._send.tolist()

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return 1 + len(self.later)

    def stage_seconds(self, work: StepWork[Any]) -> list[Any]:
        """Seconds that a batch keeps each stage busy, its hand-over included; host work before the first excluded.

        The last stage also drafts, and hands out tokens no faster than the host beside it streams them.
        """
        send = self._send_list[self._sent_tokens(work)]
        seconds = [self.target.seconds(work) + send, *(stage.seconds(work) + send for stage in self.later)]
        seconds[-1] -= send
        if self.drafter is not None:
            seconds[-1] += self.drafter.seconds(self._seen_by_draft(work))
        beside = self._beside_s + self._beside_per_sequence_s * (work.decode_seqs + work.prefill_seqs)
        last = seconds[-1]
        seconds[-1] = np.maximum(last, beside) if isinstance(last, np.ndarray) else max(last, beside)
        return seconds

    def host_seconds(self, work: StepWork[Any]) -> float:
        """Seconds of the scheduler before a batch enters the first stage."""
        sequences = work.decode_seqs + work.prefill_seqs
        seconds: float = self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        return seconds

    def seconds(self, work: StepWork[Any], draft: DraftStep[int] | None = None) -> Any:
        """Seconds of one batch that has the pipeline to itself, host included."""
        assert draft is None, "policies that change K are refused beside a pipeline"
        return self.host_seconds(work) + sum(self.stage_seconds(work))

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many batches over all stages, host included; work on one chip of each stage."""
        parts = [stage.costs(work) for stage in (self.target, *self.later)]
        last = parts[-1]
        if self.drafter is not None:
            last.add(self.drafter.costs(self._seen_by_draft(work)))
        beside = self._beside_s + self._beside_per_sequence_s * (work.decode_seqs + work.prefill_seqs)
        last.host_s += np.maximum(0.0, beside - last.device_s - last.host_s)
        total = parts[0]
        for part in parts[1:]:
            total.add(part)
        total.interconnect_s += len(self.later) * self._send[self._sent_tokens(work)]
        total.host_s += self.host_seconds(work)
        return total

    def _sent_tokens(self, work: StepWork[Any]) -> Any:
        groups = self.target.deployment.attention_data_parallel
        seen = work if groups == 1 else fullest_group(work, groups)
        return seen.prefill_tokens + seen.decode_seqs * seen.query_len
