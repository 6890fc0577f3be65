"""The ``router``, ``pools``, ``kv_transfer`` and ``faults`` sections of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from forerun.document import Json
from forerun.types import LONGEST_S, PositiveFloat, PositiveInt, PositiveSeconds, Replicas, Section, Share
from simulator.serving.rules import AdmissionName, RoutingName

Role = Literal["both", "prefill", "decode"]
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


MOST_KEPT = 100_000
"""Maximum number of autoscaler samples within one of its windows."""


class FilterConfig(Section):
    """Filter of the routing ``scored``: passes some of the replicas on to the scorers, or all if none qualifies."""

    filter: Literal["prefix-affinity", "session-affinity"]
    """``prefix-affinity`` keeps replicas that cache the prompt, ``session-affinity`` the one of the turn before."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """prefix-affinity: minimum cached share of the prompt (llm-d's ``affinityThreshold``)."""
    exploration: Share = 0.0
    """prefix-affinity: probability that the filter keeps all replicas (``explorationProbability``)."""
    max_ttft_penalty_s: NonNegativeFloat = 18.0
    """prefix-affinity: seconds of prompts in flight by which the replicas kept may exceed the others before all are
    kept; 0: no limit (``maxTTFTPenaltyMs``)."""
    peak_prefill_tokens_per_s: PositiveFloat | None = None
    """prefix-affinity: prompt tokens that a replica computes per second (``peakPrefillThroughput``). Default: predicted
    for a step of ``max_num_batched_tokens``, 8,192 at most."""

    @model_validator(mode="after")
    def _fields_fit(self) -> FilterConfig:
        _refuse_others(self, "filter", self.filter, set(type(self).model_fields), {"prefix-affinity"})
        return self


class ScorerConfig(Section):
    """Scorer of the routing ``scored``: gives each replica 0 to 1, times ``weight``."""

    scorer: Literal[
        "prefix", "token-load", "requests", "queue", "running", "kv-use", "load-aware", "no-hit-lru", "session"
    ]
    """Measure of a replica. ``prefix``: cached share of the prompt; ``token-load``: prompt tokens in flight;
    ``requests``: requests in flight; ``queue``, ``running``, ``kv-use``: waiting and running requests and KV blocks at
    the last scrape; ``load-aware``: waiting requests against a threshold; ``no-hit-lru``: for new prefixes, the time
    since the last one; ``session``: the turn before."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of the score in the sum over the scorers."""
    threshold_tokens: PositiveInt = 4_194_304
    """token-load: prompt tokens in flight at which the score is 0 (``queueThresholdTokens``)."""
    length_weight: Share = 0.0
    """prefix: weight of the cached length against the cached share (``matchLengthWeight``)."""
    length_tokens: PositiveInt = 8192
    """prefix: cached length that scores 1 (``matchLengthScaleTokens``)."""
    idle: Annotated[int, Field(ge=0)] = 0
    """requests: number up to which a replica counts as idle (``idleThreshold``)."""
    max_busy_score: Share = 1.0
    """requests: largest score of a replica that is not idle (``maxBusyScore``)."""
    threshold: PositiveInt = 128
    """load-aware: waiting requests at which the score is 0."""

    @model_validator(mode="after")
    def _fields_fit(self) -> ScorerConfig:
        for scorer, names in SCORER_FIELDS.items():
            _refuse_others(self, "scorer", self.scorer, names, {scorer})
        return self


SCORER_FIELDS = {
    "token-load": {"threshold_tokens"},
    "prefix": {"length_weight", "length_tokens"},
    "requests": {"idle", "max_busy_score"},
    "load-aware": {"threshold"},
}
"""Fields that only one scorer has a use for."""
SCRAPED = {"queue", "running", "kv-use", "load-aware"}
"""Scorers that look at scraped metrics."""


def _refuse_others(section: Section, kind: str, chosen: str, names: set[str], users: set[str]) -> None:
    """Refuse a field that differs from its default and that the chosen filter or scorer has no use for."""
    for name in sorted(names - {kind}):
        if chosen not in users and getattr(section, name) != type(section).model_fields[name].default:
            raise ValueError(f"{name}: {kind} {chosen} has no use for it; remove it")


class RouterConfig(Section):
    """Parameters of the routing policies, and how much the router lets in."""

    endpoint_picker: str | Json | None = None
    """scored: EndpointPickerConfig of llm-d, or its file. Its filters, scorers and picker replace those below; other
    fields below go before its own."""
    overlap_weight: NonNegativeFloat = 1.0
    """kv-aware: weight of the blocks to prefill against the blocks in use (Dynamo's ``overlap_score_weight``)."""
    cache_threshold: Share = 0.3
    """prefix-aware: minimum share of the prompt for a match to decide (SGLang router's ``cache-threshold``)."""
    balance_abs_threshold: PositiveInt = 64
    """prefix-aware: outstanding requests between the busiest and the idlest replica beyond which load decides."""
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """prefix-aware: and the factor between the two beyond which load decides."""
    table_tokens: PositiveInt | None = None
    """prefix-aware, scored: tokens of prompts sent to one replica that the router remembers. Default: what the KV cache
    of the replica and its host memory for evicted blocks hold."""
    filters: tuple[FilterConfig, ...] = Field(default=(), strict=False)
    """scored: filters in order, such as ``[{filter: prefix-affinity, threshold: 0.8}]``."""
    scorers: tuple[ScorerConfig, ...] = Field(default=(), strict=False)
    """scored: scorers with their weights, such as ``[{scorer: prefix, weight: 3}, {scorer: queue}]``."""
    picker: Literal["max-score", "first", "weighted-random", "random"] = "max-score"
    """scored: choice by scores. ``max-score`` takes the highest and decides between equals at random, ``first`` takes
    the first of equals, ``weighted-random`` draws in proportion to scores, ``random`` draws whatever the scores."""
    prefixes: Literal["sent", "held", "held-by-all-layers"] = "sent"
    """scored: source of cached prefixes. ``sent`` is the router's own record of what it sent where; ``held`` are KV
    events, by which replicas report what they cache. ``held-by-all-layers``: events of layers with a window count too,
    so that a prefix is forgotten once those drop it (vLLM behind llm-d's router before llm-d-router#2363)."""
    scrape_interval_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 0.0
    """scored: seconds between two looks at the metrics of the replicas (llm-d: 0.05); 0: always the present ones."""
    latency_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 0.0
    """Seconds that gateway and router take before a request reaches a replica (llm-d's picker: 0.0003, and 0.0076 where
    it has the prompt tokenised, by its tracing post of August 2026)."""
    max_outstanding: PositiveInt | None = None
    """Maximum requests on a replica, waiting and running; default: no limit."""
    when_full: AdmissionName = "queue"
    """Rule for a request if every replica has ``max_outstanding`` requests: it waits at the router, or it fails."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Maximum requests that wait at the router; further requests fail. Default: no limit."""

    @model_validator(mode="after")
    def _queue_has_a_use(self) -> RouterConfig:
        if self.max_outstanding is None:
            for name in ("when_full", "max_queue"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs max_outstanding")
        if self.scrape_interval_s and not SCRAPED & {scorer.scorer for scorer in self.scorers}:
            raise ValueError(f"scrape_interval_s: only scorers {', '.join(sorted(SCRAPED))} look at metrics; remove it")
        if self.when_full == "refuse" and self.max_queue is not None:
            raise ValueError("max_queue is about when_full: queue; remove one of the two")
        return self


class PoolConfig(Section):
    """Replicas that differ from the scenario's own ``hardware`` and ``engine`` in the fields given here."""

    role: Role = "both"
    """``prefill`` computes prompts and hands their KV over to ``decode``; ``both`` does all of it. Default: by a name
    that begins with prefill, context or ctx, or with decode, generation or gen; several other pools must state it."""
    hardware: Json = Field(default_factory=dict)
    """Fields of ``hardware`` that this pool overrides."""
    engine: Json = Field(default_factory=dict)
    """Fields of ``engine`` that this pool overrides."""
    usd_per_chip_hour: PositiveFloat | None = None
    """Price of this pool's chips; default: ``prices.usd_per_chip_hour``."""


class KvTransferConfig(Section):
    """Transfer of a prompt's KV from a prefill replica to a decode replica."""

    link: str | None = None
    """Catalogue name or path of the link; default: the prefill chip's scale-out link."""
    links: PositiveInt | None = None
    """Links that carry one transfer together; default: one per chip, of the smaller of the two replicas."""
    first_token: Literal["prefill", "decode"] | None = None
    """Role that samples the first token. ``prefill`` sends it with the KV and the decode replica streams it with its
    first step (SGLang, TensorRT-LLM); under ``decode`` the decode replica computes the last prompt token again (vLLM).
    Default: as ``engine.framework`` does."""
    routing: RoutingName = "least-outstanding"
    """Routing of finished prompts over the decode replicas."""
    draft_kv: Literal["send", "recompute", "skip"] = "send"
    """KV of a drafter on the same chips: ``send`` it with the target's (SGLang; vLLM where the drafter's KV groups are
    transferable), ``recompute`` it in the prompt's first step at the decode replica (vLLM with NIXL and a separate MTP
    drafter: vllm-project/vllm#54926), or ``skip`` it: the drafter there never sees the prompt, and acceptance
    recovers over the policy's ``recovery_tokens``."""


class AutoscalerConfig(Section):
    """Replicas that are started and stopped with the load; ``hardware.replicas`` of them are on at first.

    ``hpa`` is Kubernetes' HorizontalPodAutoscaler (a KEDA ScaledObject is one too) on ``metric`` per replica; ``llm-d``
    the saturation analyzer of its workload-variant-autoscaler.
    """

    rule: Literal["hpa", "llm-d"] = "hpa"
    """Name of the autoscaler."""
    metric: Literal["outstanding", "running", "waiting", "kv_cache"] = "outstanding"
    """hpa: requests running or waiting, one of the two, or the share of KV blocks in use (0 to 1)."""
    target: PositiveFloat | None = None
    """hpa: target value of the metric per replica."""
    min_replicas: Replicas = 1
    """Minimum number of replicas."""
    max_replicas: Replicas
    """Maximum number of replicas."""
    interval_s: Annotated[float, Field(ge=0.01, le=LONGEST_S)] = 15.0
    """Seconds between two evaluations (the HPA's 15 s; KEDA's ``pollingInterval`` is 30 s by default)."""
    window_s: NonNegativeFloat = 0.0
    """hpa: time over which the metric is averaged, as its query does."""
    tolerance: NonNegativeFloat = 0.1
    """hpa: relative distance from the target within which nothing changes."""
    scale_up_window_s: NonNegativeFloat = 0.0
    """hpa: time that a wish for more replicas has to last."""
    scale_down_window_s: NonNegativeFloat = 300.0
    """hpa: time that a wish for fewer replicas has to last (``stabilizationWindowSeconds``)."""
    start_up_s: PositiveSeconds
    """Seconds from the decision to the first request: machine, image, weights, warm-up."""
    kv_threshold: Share = 0.8
    """llm-d: minimum share of KV blocks in use at which a replica is saturated."""
    queue_threshold: PositiveInt = 5
    """llm-d: minimum number of waiting requests at which a replica is saturated."""
    kv_spare: Share = 0.1
    """llm-d: mean share below the threshold under which another replica is started."""
    queue_spare: PositiveInt = 3
    """llm-d: the same in waiting requests."""

    @model_validator(mode="after")
    def _fits_together(self) -> AutoscalerConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is larger than max_replicas {self.max_replicas}")
        for name in ("window_s", "scale_up_window_s", "scale_down_window_s"):
            if getattr(self, name) > MOST_KEPT * self.interval_s:
                raise ValueError(f"{name}: {getattr(self, name):g} s is more than {MOST_KEPT:,} times interval_s")
        if (self.target is None) != (self.rule != "hpa"):
            raise ValueError("target: rule hpa needs it, and no other has a use for it")
        if self.rule == "llm-d" and (self.kv_spare >= self.kv_threshold or self.queue_spare >= self.queue_threshold):
            raise ValueError("kv_spare and queue_spare: must be below kv_threshold and queue_threshold")
        return self


class FaultEvent(Section):
    """A replica is down for a while."""

    replica: Annotated[int, Field(ge=0)]
    """Number of the replica, from 0, counted through the pools in their order."""
    at_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    """When it fails, in simulated time."""
    down_s: PositiveSeconds
    """Seconds that the replica is down."""


class FaultsConfig(Section):
    """Replica failures; requests of a failed replica restart on another replica, without losing delivered tokens."""

    events: tuple[FaultEvent, ...] = Field(default=(), strict=False)
    """Scheduled failures; random failures may be added."""
    mtbf_s: PositiveSeconds | None = None
    """Mean time between failures of one replica, exponentially distributed; default: none but ``events``."""
    mttr_s: PositiveSeconds | None = None
    """Mean time to repair, exponentially distributed."""

    @model_validator(mode="after")
    def _both_means(self) -> FaultsConfig:
        if (self.mtbf_s is None) != (self.mttr_s is None):
            raise ValueError("mtbf_s and mttr_s go together")
        if not self.events and self.mtbf_s is None:
            raise ValueError("give events, or mtbf_s and mttr_s")
        ends: dict[int, float] = {}
        for event in sorted(self.events, key=lambda event: event.at_s):
            if event.at_s < ends.get(event.replica, 0.0):
                raise ValueError(f"events: replica {event.replica} fails at {event.at_s} s while it is down")
            ends[event.replica] = event.at_s + event.down_s
        return self
