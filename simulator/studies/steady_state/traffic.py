"""Requests of a workload for the analytic model: lengths, cached prompt prefixes, rate, burstiness."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError, NothingServedError
from simulator.serving import EngineLimits
from simulator.workload import ArrivalsConfig, RequestStream, WorkloadConfig
from simulator.workload.generate import draw_lengths, generate_requests

POPULATION = 4096
"""Number of draws that represent a synthetic length distribution."""
MOST_LOOKUPS = 50_000
"""Number of block look-ups after which the hit rate of a trace's prefix cache counts as measured."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output tokens of a population of requests, and the variability of their arrivals."""

    input_tokens: IntArray
    output_tokens: IntArray
    arrival_cv2: float
    """Squared coefficient of variation of the gaps between arrivals; 1 is Poisson."""
    trace_rate: float | None = None
    """Requests per second of a trace's own arrivals."""
    stream: RequestStream | None = None
    """The trace's requests, if prefixes can be shared; else None."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests that one replica accepts, with the cached prefix of each prompt."""

    input_tokens: FloatArray
    cached_tokens: FloatArray
    output_tokens: FloatArray
    arrival_cv2: float
    refused: float
    """Share of requests that no replica can ever serve."""

    @property
    def new_tokens(self) -> FloatArray:
        """Prompt tokens that are computed, that is, not cached."""
        return self.input_tokens - self.cached_tokens


def population(workload: WorkloadConfig) -> Lengths:
    """All requests of a trace, or draws that represent a synthetic workload."""
    if workload.trace is None:
        assert workload.arrivals is not None
        assert workload.output_tokens is not None
        if workload.sessions is not None:
            turns = generate_requests(workload.model_copy(update={"num_requests": POPULATION, "priorities": None}), 0)
            return Lengths(turns.input_tokens, turns.output_tokens, arrival_cv2(workload.arrivals))
        if workload.shared_prefixes is not None:
            sent = generate_requests(workload, 0)
            return Lengths(sent.input_tokens, sent.output_tokens, arrival_cv2(workload.arrivals), None, sent)
        assert workload.input_tokens is not None
        _, prompts, outputs = (np.random.default_rng(s) for s in np.random.SeedSequence(0).spawn(3))
        return Lengths(
            draw_lengths(workload.input_tokens, POPULATION, prompts),
            draw_lengths(workload.output_tokens, POPULATION, outputs),
            arrival_cv2(workload.arrivals),
        )
    stream = generate_requests(workload, 0)
    if not len(stream):
        raise ForerunError("workload: there is no request to serve")
    arrivals = workload.arrivals
    own_times = arrivals is None or arrivals.process == "trace"
    span = float(stream.arrival_s[-1] - stream.arrival_s[0])
    rate = (len(stream) - 1) / span if own_times and span > 0 else None
    cv2 = _measured_cv2(stream.arrival_s) if own_times else arrival_cv2(arrivals)
    kept = stream if stream.prefix_hashes is not None else None
    return Lengths(stream.input_tokens, stream.output_tokens, cv2, rate, kept, stream.notes)


def arrival_cv2(arrivals: ArrivalsConfig | None) -> float:
    """Squared coefficient of variation of the arrival gaps: ``1 / burstiness`` for gamma gaps, 0 for constant gaps."""
    if arrivals is None:
        return 1.0
    if arrivals.process == "gamma":
        return 1.0 / (arrivals.burstiness or 1.0)
    return 0.0 if arrivals.process == "constant" else 1.0


def _measured_cv2(arrival_s: FloatArray) -> float:
    gaps = np.diff(arrival_s)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.var()) / mean**2 if mean > 0 else 1.0


def traffic(lengths: Lengths, limits: EngineLimits, replicas: int, prefix_caching: bool) -> Traffic:
    """The part of a population that one of ``replicas`` replicas accepts."""
    prompts, outputs = lengths.input_tokens, lengths.output_tokens
    # What is refused depends on the tokens of a request, and on whether it decodes at all.
    _, firsts, kinds = np.unique(2 * (prompts + outputs) + (outputs > 1), return_index=True, return_inverse=True)
    reasons = [limits.refusal(int(prompts[row]), int(outputs[row])) for row in firsts]
    accepted = np.array([reason is None for reason in reasons])[kinds]
    if not accepted.any():
        raise NothingServedError(str(reasons[kinds[0]]))
    served = accepted.copy()
    cached = np.zeros(len(prompts))
    if lengths.stream is not None and prefix_caching:
        cached = cached_prompt_tokens(lengths.stream, limits, replicas * limits.groups)
    # An engine computes at least the last token of a prompt, to have logits to sample from.
    cached = np.minimum(cached, prompts - 1)
    if replicas > 1 and cached.any():
        served &= np.arange(len(prompts)) % replicas == 0
    return Traffic(
        prompts[served].astype(np.float64),
        cached[served],
        outputs[served].astype(np.float64),
        lengths.arrival_cv2,
        1.0 - float(np.count_nonzero(accepted)) / len(accepted),
    )


def cached_prompt_tokens(stream: RequestStream, limits: EngineLimits, replicas: int) -> FloatArray:
    """Prompt tokens of each request that are in the LRU prefix cache of one replica (or group) at its arrival.

    The replica sees every ``replicas``-th request, as with round-robin routing, and its cache may use all of its KV
    blocks: blocks of running requests are ignored, so hits are somewhat too high if memory is scarce. Requests of other
    replicas, and requests after ``MOST_LOOKUPS`` blocks, get the mean share of the measured requests.
    """
    hashes = stream.prefix_hashes
    assert hashes is not None
    capacity = max(1, limits.num_blocks * limits.block_size // hashes.block_tokens)
    cache: OrderedDict[int, None] = OrderedDict()
    cached = np.zeros(len(stream))
    seen = np.zeros(len(stream), dtype=bool)
    looked_up = 0
    for request in range(0, len(stream), replicas):
        ids = hashes.of(request).tolist()
        cached_blocks = next((place for place, block in enumerate(ids) if block not in cache), len(ids))
        cached[request] = min(cached_blocks * hashes.block_tokens, int(stream.input_tokens[request]))
        seen[request] = True
        for block in reversed(ids):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
        looked_up += len(ids)
        if looked_up > MOST_LOOKUPS:
            break
    share = cached[seen].sum() / stream.input_tokens[seen].sum()
    return np.where(seen, cached, np.floor(stream.input_tokens * share))
