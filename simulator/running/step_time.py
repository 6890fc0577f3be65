"""The time of one engine step, for other simulators and for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

import simulator.timing as timing
from forerun.arrays import FloatArray, IntArray
from forerun.errors import ArgumentError, ForerunError, check_number, named_arguments, shown
from hwprofiles.choice import BASES, CALIBRATED
from simulator.running.build import build_pools
from simulator.running.refusals import refuse_failures_and_pools
from simulator.running.scenario import SHORTCUTS, Scenario, ScenarioSource, as_scenario
from simulator.serving.compiled import engine_module
from simulator.serving.prices import prices_of

Prompts = Sequence[tuple[int, int]] | IntArray
Contexts = int | Sequence[int] | IntArray
NO_LOAD: dict[str, Any] = {"num_requests": 1, "input_tokens": 1, "output_tokens": 1, "max_concurrency": 1}
PLAIN = (list, tuple)
MOST_TOKENS = 2**26
"""Maximum tokens of a step, those in the KV cache included: 512 sequences of 128k. Tables of prices grow with them."""


class StepTime:
    """Seconds of an engine step of one replica: the price on which every run of Forerun rests.

    >>> step = StepTime("llama-3.1-8b", "h100-sxm")
    >>> f"{1e3 * step.seconds(decode=[1000] * 8):.0f} ms"
    '7 ms'
    >>> f"{1e3 * step.seconds(prefill=[(2048, 0)], decode=[1000] * 8):.0f} ms"
    '45 ms'

    Args:
        model: catalogue name, repository, path to a ``config.json``, or its fields.
        chip: catalogue name or path of a chip profile.
        tensor_parallel: chips that share every layer.
        framework: engine whose kernels and host costs are priced; default: as in a scenario.
        fields: further fields of a scenario without its workload, such as ``hardware={"expert_parallel": 8}``,
            ``engine={"release": "0.11.0"}``, ``weights_dtype="fp8"`` or ``speculation={...}``.

    Raises:
        ForerunError: an unknown model, chip or field, or a model that does not fit; one line.
    """

    @named_arguments
    def __init__(
        self,
        model: str | Mapping[str, Any],
        chip: str,
        *,
        tensor_parallel: int | None = None,
        framework: str | None = None,
        **fields: Any,
    ) -> None:
        load = ("workload", *(name for name, place in SHORTCUTS.items() if place.startswith("workload.")))
        if given := ", ".join(name for name in load if name in fields):
            raise ForerunError(f"StepTime: {given}: a step's time does not depend on the workload; leave it out")
        self._take(
            Scenario(model=model, chip=chip, tensor_parallel=tensor_parallel, framework=framework, **NO_LOAD, **fields)
        )

    @classmethod
    def of(cls, scenario: ScenarioSource) -> StepTime:
        """Step time of the deployment of a scenario, its fields, its file or a launch line.

        Raises:
            ForerunError: several kinds of replicas (``pools``), or an invalid scenario.
        """
        made = cls.__new__(cls)
        made._take(as_scenario(scenario))
        return made

    def _take(self, scenario: Scenario) -> None:
        """Build the replica of a scenario."""
        self.scenario = scenario
        """The deployment as a scenario, with the defaults of its engine."""
        refuse_failures_and_pools(scenario)
        (self._pool,) = build_pools(scenario)
        timer, speculation = self._pool.timer, scenario.speculation
        assert isinstance(timer, timing.ModelTimer)
        self._drafts, self._most, self._depth = timer.drafter is not None, 0, 0
        if timer.drafter is not None and speculation is not None:
            self._most, self._depth = self._pool.limits.query_len - 1, speculation.depth
            timer = replace(timer, adjusted=timer.adjusted or timing.AdjustedDrafter(timer.drafter, self._depth))
        self._timer, self._windows, self._longest = timer, timer.windows, timing.tracked_longest(timer)
        self._prices = prices_of(timer, engine_module(scenario.engine.stepping == "exact-steps"))
        self._largest = timer.target.max_tokens

    def seconds(
        self,
        prefill: Prompts = (),
        decode: Contexts = (),
        draft_tokens: int | None = None,
        *,
        sampled: int | None = None,
    ) -> float:
        """Seconds of one step, host included; a step of nothing costs the host's part alone.

        The size of the KV cache is no limit here: ``memory().num_blocks`` is the one of a replica.

        Args:
            prefill: a pair per prompt chunk: tokens that the step computes, and tokens already in the KV cache.
            decode: tokens in the KV cache of each decoding sequence, before the step. All tokens of a step are at most
                ``MOST_TOKENS``.
            draft_tokens: draft tokens per decoding sequence that the step verifies. With ``speculation``, the drafter's
                passes for as many are part of the step; default: its ``num_speculative_tokens``, else 0.
            sampled: prompt chunks that complete their prompt and so yield a token; default: all.

        Raises:
            ForerunError: a number that no step can have.
        """
        work, draft = self._work(prefill, decode, draft_tokens, sampled)
        seconds: float = self._prices.seconds_of(work, draft)
        return seconds

    def seconds_of_decodes(self, sequences: IntArray, context: IntArray, draft_tokens: int | None = None) -> FloatArray:
        """Seconds of many decode steps at once: of every pair of a batch size and a context, broadcast together.

        Args:
            sequences: decoding sequences of each step.
            context: tokens in the KV cache of each of its sequences.
            draft_tokens: as in ``seconds``.
        """
        try:
            sizes, contexts = np.broadcast_arrays(np.asarray(sequences), np.asarray(context))
        except ValueError:
            raise ArgumentError("sequences, context", "must be arrays that broadcast together") from None
        for size in sizes.ravel().tolist():
            check_number("sequences", size, 1, self._largest, whole=True)
        pairs = zip(sizes.ravel().tolist(), contexts.ravel().tolist(), strict=True)
        seconds = [self.seconds((), [tokens] * count, draft_tokens) for count, tokens in pairs]
        return np.array(seconds, dtype=np.float64).reshape(sizes.shape)

    def kernels(
        self,
        prefill: Prompts = (),
        decode: Contexts = (),
        draft_tokens: int | None = None,
        *,
        sampled: int | None = None,
    ) -> list[timing.Kernel]:
        """Kernels of one step, with arguments as in ``seconds``: each has a name, family, bound, FLOPs and bytes.

        The exposed work of the host is the last one, of family ``host``: the sum of ``step_s`` is the step's seconds.
        """
        work, draft = self._work(prefill, decode, draft_tokens, sampled)
        many = timing.StepWork.of_numbers([np.array([number]) for number in work.numbers])
        drafts = None if draft is None else [np.array([number]) for number in draft.numbers]
        drafted = None if drafts is None else timing.DraftStep.of_numbers(drafts)
        host = timing.kernels.other_device_kernel("host", "host", self._timer.costs(many, drafted).host_s)
        return timing.running([*self._timer.kernels(many, drafted), host])

    def memory(self) -> timing.MemoryPlan:
        """Bytes in use on a chip by what they hold, and the KV blocks of the replica."""
        return self._pool.memory

    @property
    def evidence(self) -> str:
        """Evidence level of usual steps: ``datasheet``, ``calibrated`` or ``extrapolated``."""
        return self._pool.basis

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what was assumed, as a run prints them, and the kernels of usual steps that were not measured."""
        work = self._pool.usual_steps
        kernels, shares = list(self._timer.kernels(work)), self._timer.costs(work).evidence
        notes = list(self._pool.notes)
        for level, basis in enumerate(BASES):
            names = dict.fromkeys(one.name for one in kernels if np.any((one.basis == level) & (one.step_s > 0)))
            if level != CALIBRATED and names:
                share = f"{getattr(shares, basis):.0%} of usual steps' device time"
                notes.append(f"{share} is {basis}: {', '.join(names)}")
        return tuple(notes)

    def _work(
        self, prefill: Prompts, decode: Contexts, draft_tokens: int | None, sampled: int | None
    ) -> tuple[timing.StepWork[int], timing.DraftStep[int] | None]:
        """Work of a step and of its drafter; one line for numbers that no step can have."""
        chunks, contexts = _chunks(prefill), _contexts(decode)
        drafts = self._most
        if draft_tokens is not None:
            check_number("draft_tokens", draft_tokens, 0, self._largest, whole=True)
            drafts = int(draft_tokens)
        if sampled is not None:
            check_number("sampled", sampled, 0, len(chunks), whole=True)
        tokens = sum(contexts) + sum(map(sum, chunks))
        if tokens > MOST_TOKENS:
            raise ForerunError(
                f"StepTime: prefill and decode: {shown(tokens)} tokens in all are more than are priced, {MOST_TOKENS}"
            )
        work = timing.sequence_work(self._windows, chunks, contexts, drafts + 1, sampled, self._longest)
        if work.tokens > self._largest:
            raise ForerunError(
                f"StepTime: {work.tokens:,} tokens are more than a step of this engine has, {self._largest:,}: set "
                f"engine.max_num_batched_tokens (and max_num_seqs) higher"
            )
        if not self._drafts or drafts == self._most:
            return work, None
        if drafts > self._depth:
            raise ForerunError(f"StepTime: draft_tokens {drafts}: the drafter proposes at most {self._depth}")
        none = (0,) * len(self._windows)
        return work, timing.DraftStep(drafts, 0, 0, 0, none, none)


def _listed(numbers: Any) -> list[Any]:
    """Items of an argument as a list; a number is a list of one."""
    if isinstance(numbers, str | bytes | Mapping | Set):
        raise TypeError
    items = numbers.tolist() if isinstance(numbers, np.ndarray | np.generic) else numbers
    return [items] if isinstance(items, int | float) else list(items)


def _contexts(decode: Contexts) -> Sequence[int]:
    """Tokens in the KV cache of each decoding sequence, as Python's own numbers."""
    try:
        contexts: Any = decode if type(decode) in PLAIN else _listed(decode)
        if type(sum(contexts)) is not int:  # numbers of NumPy, or none that counts
            contexts = [index(one) for one in contexts]
        if not contexts or (type(least := min(contexts)) is int and least >= 0):
            return contexts  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        pass
    raise ArgumentError("decode", f"must be whole numbers from 0, tokens in the KV cache (got {shown(decode)})")


def _chunks(prefill: Prompts) -> Sequence[tuple[int, int]]:
    """Tokens to compute and tokens in the KV cache of each prompt chunk, as Python's own numbers."""
    try:
        chunks: Any = prefill if type(prefill) in PLAIN else _listed(prefill)
        if type(sum(map(sum, chunks))) is not int:
            chunks = [(index(new), index(cached)) for new, cached in chunks]
        if all(new >= 1 and cached >= 0 for new, cached in chunks):
            return chunks  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        pass
    raise ArgumentError(
        "prefill",
        f"must be pairs of whole numbers: tokens to compute, from 1, and tokens in the KV cache, from 0 "
        f"(got {shown(prefill)})",
    )
