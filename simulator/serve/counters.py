"""Metrics for ``/metrics``, with vLLM's names and in simulated time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from simulator.serve.live import LiveFleet, running_requests
from simulator.serve.observed import metric_tables
from simulator.serving import StepLog

MOST_ROWS = 4096
"""Maximum number of step records that wait for the next scrape of the metrics."""
FINISHES = ("stop", "length", "abort")
LABELS = ("model_name", "engine")


class Histogram:
    """Histogram: counts by bucket, and the sum of the values.

    An observation takes 0.3 us (1.4 us in prometheus_client), and many equal observations take one call.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound of each bucket, as Prometheus writes it, and the cumulative count."""
        below = np.cumsum(self.counts).tolist()
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, below, strict=True))


def token_bounds(most: int) -> list[float]:
    """Bounds of vLLM's buckets of token counts: 1, 2, 5, 10, 20, 50, ... up to ``most``."""
    bounds = (float(digit * 10**power) for power in range(12) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= max(1, most)]


class Counters:
    """Counters and histograms over the requests of a fleet."""

    def __init__(self, fleet: LiveFleet, model: str, most_tokens: int) -> None:
        self._fleet = fleet
        fleet.log.steps.condense = self._take_steps
        self._labels = (model, "0" if len(fleet.schedulers) == 1 else "all")
        self._model = model
        tables = metric_tables()
        buckets = tables["buckets"] | {"lengths": token_bounds(most_tokens)}
        self._seen = {what: Histogram(buckets[bounds]) for what, (_, bounds) in tables["served"].items()}
        self.between_tokens, self.lateness = self._seen["between_tokens"], self._seen["lateness"]
        self.prompt_tokens = self.answer_tokens = 0
        self.finished = dict.fromkeys(FINISHES, 0)

    def first(self, slot: int, at_s: float) -> None:
        """Count the first token of a request."""
        log = self._fleet.log
        self.prompt_tokens += log.input_tokens[slot]
        self._seen["first_token"].observe(at_s - log.arrival_s[slot])
        self._seen["queue"].observe(log.scheduled_s[slot] - log.arrival_s[slot])
        self._seen["prefill"].observe(at_s - log.scheduled_s[slot])

    def ended(self, slot: int, first_s: float, at_s: float, tokens: int, requested: int | None, finish: str) -> None:
        """Count the end of a request."""
        log = self._fleet.log
        self.finished[finish] += 1
        if len(log.steps) > MOST_ROWS:
            self._take_steps(log.steps)
        self._seen["prompt"].observe(log.input_tokens[slot])
        self._seen["answer"].observe(tokens)
        self._seen["whole"].observe(at_s - log.arrival_s[slot])
        self._seen["decode"].observe(at_s - first_s)
        self._seen["inference"].observe(at_s - log.scheduled_s[slot])
        if tokens > 1:
            self._seen["per_token"].observe((at_s - first_s) / (tokens - 1))
        if requested is not None:
            self._seen["max_tokens_seen"].observe(requested)

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """Metric families, as expected from a collector of prometheus_client."""
        self._fleet.log.settle()
        self._take_steps(self._fleet.log.steps)
        yield from self._gauges()
        yield from self._counts()
        yield from self._histograms()

    def _take_steps(self, steps: StepLog) -> None:
        """Count the tokens of each engine step, then delete the step records."""
        tokens = steps.integers("prefill_tokens") + steps.integers("output_tokens")
        for value, count in zip(*np.unique(tokens, return_counts=True), strict=True):
            self._seen["iteration"].observe(int(value), int(count))
        steps.forget()

    def _gauges(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        fleet, limits = self._fleet, self._fleet.build.main.limits
        replicas = [((self._model, str(index)), scheduler) for index, scheduler in enumerate(fleet.schedulers)]
        blocks = [pool.limits.groups * pool.limits.num_blocks for pool in fleet.build.fleet.replicas]
        shares = [(labels, one.used_blocks / most) for (labels, one), most in zip(replicas, blocks, strict=True)]
        running = [(labels, running_requests(scheduler)) for labels, scheduler in replicas]
        waiting = [(self._labels, fleet.queued)]
        yield _family(Gauge, "vllm:num_requests_running", "Requests in the batch.", LABELS, running)
        yield _family(Gauge, "vllm:num_requests_waiting", "Requests that wait.", LABELS, waiting)
        yield _family(Gauge, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use.", LABELS, shares)
        caches = fleet.build.main.prefix_caching
        config = {"block_size": limits.block_size, "num_gpu_blocks": limits.num_blocks, "enable_prefix_caching": caches}
        info = [((*map(str, config.values()), self._labels[1]), 1)]
        yield _family(Gauge, "vllm:cache_config_info", "The KV cache.", (*config, "engine"), info)
        yield Gauge("forerun:simulated_seconds", "Simulated time since the start.", value=fleet.now)

    def _counts(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily as Counter

        fleet, totals = self._fleet, self._fleet.totals
        counts = {
            "vllm:prompt_tokens": ("Prompt tokens processed.", self.prompt_tokens),
            "vllm:generation_tokens": ("Tokens generated.", self.answer_tokens),
            "vllm:num_preemptions": ("Requests thrown out of a batch.", totals.preemptions),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", totals.cache_queries),
            "vllm:prefix_cache_hits": ("Of them found there.", totals.cache_hits),
        }
        if fleet.build.main.sampler is not None:
            steps = fleet.log.accepted_counts
            at_least = np.cumsum(steps[::-1])[::-1]
            drafted = totals.draft_tokens + int(np.sum(fleet.log.draft_tokens))
            counts |= {
                "vllm:spec_decode_num_drafts": ("Verify steps of requests.", int(at_least[0])),
                "vllm:spec_decode_num_draft_tokens": ("Tokens drafted.", drafted),
                "vllm:spec_decode_num_accepted_tokens": ("Of them accepted.", int(at_least[1:].sum())),
            }
            accepted = [((*self._labels, str(at)), count) for at, count in enumerate(at_least[1:].tolist())]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            yield _family(Counter, name, "Accepted tokens by draft position.", (*LABELS, "position"), accepted)
        for name, (help_text, value) in counts.items():
            yield _family(Counter, name, help_text, LABELS, [(self._labels, value)])
        ended = [((*self._labels, finish), count) for finish, count in self.finished.items()]
        labels = (*LABELS, "finished_reason")
        yield _family(Counter, "vllm:request_success", "Requests that have ended.", labels, ended)

    def _histograms(self) -> Iterator[Any]:
        from prometheus_client.core import HistogramMetricFamily

        for what, (name, _) in metric_tables()["served"].items():
            histogram = self._seen[what]
            family = HistogramMetricFamily(name, name.partition(":")[2].replace("_", " "), labels=LABELS)
            family.add_metric(self._labels, histogram.buckets(), histogram.sum)
            yield family


def _family(kind: Any, name: str, help_text: str, labels: Sequence[str], rows: Sequence[tuple[Any, float]]) -> Any:
    """A metric family with a value for each of the label values."""
    family = kind(name, help_text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
