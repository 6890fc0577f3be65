"""Seconds per output token of a replica that is always busy with the same number of requests.

Of ``B`` requests with ``O`` output tokens each, one request decodes in ``(O - 1) / L`` steps, L the acceptance length,
while the prompts of the ``B - 1`` other requests are prefilled once each: ``T = d(B) / L + (B - 1) / (O - 1) x(B)``, d
the time of a decode-only step and x the time that a prompt adds to the steps that it joins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from simulator.running.build import Build, PoolBuild
from simulator.running.scenario import Scenario
from simulator.studies.steady_state.prices import decode_steps, prompt_steps
from simulator.studies.steady_state.traffic import population, traffic
from simulator.timing import ModelTimer, StepWork


@dataclass(frozen=True, slots=True)
class MeanRequest:
    """Mean prompt and output of a workload."""

    prompt_tokens: int
    output_tokens: int
    new_share: float
    """Share of prompt tokens that are not in the prefix cache."""

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache half-way through the output."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def decoded_tokens(self) -> int:
        """Output tokens after the first token, which the prompt's last step yields."""
        return max(1, self.output_tokens - 1)

    def prompts_at(self, context_tokens: IntArray) -> IntArray:
        """Computed prompt tokens of requests that are half-way through their output at these contexts."""
        prompts = np.maximum(1, context_tokens - self.output_tokens // 2)
        return np.maximum(1, np.rint(prompts * self.new_share)).astype(np.int64)


def mean_request(scenario: Scenario, build: Build) -> MeanRequest:
    """Mean request of the scenario's workload on a replica."""
    lengths = population(scenario.workload)
    new_share = 1.0
    if lengths.stream is not None and build.main.prefix_caching:
        served = traffic(lengths, build.main.limits, build.main.replicas, prefix_caching=True)
        new_share = float(served.new_tokens.sum() / served.input_tokens.sum())
    mean_prompt, mean_output = (float(part.mean()) for part in (lengths.input_tokens, lengths.output_tokens))
    return MeanRequest(max(1, round(mean_prompt)), max(1, round(mean_output)), new_share)


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Parts of the time of an output token in seconds; one entry per batch and context."""

    step_s: FloatArray
    prompt_s: FloatArray
    """Seconds that a prompt adds to the steps that it joins."""
    prompts: FloatArray
    """Number of other requests' prompts that are prefilled per output token of a request."""
    host: FloatArray
    """Share of host work in a decode-only step."""

    def seconds(self, length: FloatArray | float) -> FloatArray:
        """Seconds per output token if a step delivers ``length`` tokens of each request."""
        seconds: FloatArray = self.step_s / length + self.prompts * self.prompt_s
        return seconds

    def length_for(self, seconds: FloatArray) -> FloatArray:
        """Acceptance length at which a token takes ``seconds``; infinite if the prompts alone take as long."""
        left = seconds - self.prompts * self.prompt_s
        return np.divide(self.step_s, left, out=np.full_like(self.step_s, np.inf), where=left > 0.0)


@dataclass(frozen=True, slots=True)
class BusySteps:
    """Decode-only steps and steps with prompts of a busy replica, and the number of each per output token."""

    decoding: StepWork[IntArray]
    joined: StepWork[IntArray]
    """Steps with a prompt chunk; they also decode if the scheduler mixes prompts and decoding."""
    joined_steps: FloatArray
    """Number of steps with a chunk per prompt."""
    mixed: bool
    prompts: FloatArray

    def seconds(self, pool: PoolBuild, drafting: float = 1.0) -> TokenTime:
        """Price both kinds of steps; ``drafting`` is a factor on the drafter's time."""
        timer = pool.timer
        costs = [timer.costs(work) for work in (self.decoding, self.joined)]
        step_s, joined_s = (cost.device_s + cost.host_s for cost in costs)
        host = costs[0].host_s / step_s
        if drafting != 1.0:
            assert isinstance(timer, ModelTimer)
            step_s = step_s - (1.0 - drafting) * timer.exposed_drafting_s(self.decoding)
            joined_s = joined_s - (1.0 - drafting) * timer.exposed_drafting_s(self.joined)
        step_s, joined_s = pool.taken_s(step_s, prompts=False), pool.taken_s(joined_s, prompts=True)
        added = np.maximum(0.0, joined_s - step_s) if self.mixed else joined_s
        return TokenTime(step_s, self.joined_steps * added, self.prompts, host)

    def shares(self, length: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps per output token: number of decode-only steps, and number of steps with a prompt chunk."""
        joined = self.prompts * self.joined_steps
        return np.maximum(0.0, 1.0 / length - joined) if self.mixed else 1.0 / length, joined


def busy_steps(
    scenario: Scenario, build: Build, request: MeanRequest, seqs: IntArray, contexts: IntArray, length: FloatArray
) -> BusySteps:
    """Steps of a replica with a constant number of ``seqs`` requests.

    Args:
        scenario: scenario whose scheduler and token budget fill the steps with prompts.
        build: build of the scenario, with limits for the widest step.
        request: mean request; every request has its output length.
        seqs, contexts: number of requests of the replica, and tokens in the cache of each request.
        length: tokens per request that a step delivers; it determines the number of prompts that join a step.
    """
    windows, query_len = build.main.timer.windows, build.main.limits.query_len
    engine = scenario.engine
    mixed, cut = engine.rules.mixes, engine.rules.cuts_prompts
    decoding = decode_steps(windows, seqs, query_len, contexts + query_len)
    prompt_tokens = request.prompts_at(contexts)
    prompts = (seqs - 1) / request.decoded_tokens
    prompt_budget = np.maximum(1, engine.max_num_batched_tokens - seqs * build.main.limits.decode_tokens * mixed)
    prompt_budget = prompt_budget if cut else np.maximum(prompt_budget, prompt_tokens)
    group = np.maximum(1.0, np.minimum(prompts * length, prompt_budget // prompt_tokens))
    steps, joined = prompt_steps(windows, group, prompt_tokens, prompt_budget, decoding if mixed else None)
    return BusySteps(decoding, joined, steps / group, mixed, prompts)
