"""The ``router``, ``pools``, ``kv_transfer`` and ``faults`` sections of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.types import LONGEST_S, PositiveFloat, PositiveInt, PositiveSeconds, Replicas, Section, Share
from simulator.serving.rules import AdmissionName, RoutingName

Role = Literal["both", "prefill", "decode"]
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


MOST_KEPT = 100_000
"""Maximum number of autoscaler samples within one of its windows."""


class RouterConfig(Section):
    """Parameters of the routing policies, and how much the router lets in."""

    overlap_weight: NonNegativeFloat = 1.0
    """kv-aware: weight of the blocks to prefill against the blocks in use (Dynamo's ``overlap_score_weight``)."""
    cache_threshold: Share = 0.3
    """prefix-aware: minimum share of the prompt for a match to decide (SGLang router's ``cache-threshold``)."""
    balance_abs_threshold: PositiveInt = 64
    """prefix-aware: outstanding requests between the busiest and the idlest replica beyond which load decides."""
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """prefix-aware: and the factor between the two beyond which load decides."""
    table_tokens: PositiveInt | None = None
    """prefix-aware: tokens of prompts sent to one replica that the router remembers. Default: what the KV cache of the
    replica and its host memory for evicted blocks hold."""
    latency_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 0.0
    """Seconds that gateway and router take before a request reaches a replica."""
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
        if self.when_full == "refuse" and self.max_queue is not None:
            raise ValueError("max_queue is about when_full: queue; remove one of the two")
        return self


class PoolConfig(Section):
    """Replicas that differ from the scenario's own ``hardware`` and ``engine`` in the fields given here."""

    role: Role = "both"
    """``prefill`` computes prompts and hands their KV over to ``decode``; ``both`` does all of it. Default: by a name
    that begins with prefill, context or ctx, or with decode, generation or gen; several other pools must state it."""
    hardware: dict[str, Any] = Field(default_factory=dict)
    """Fields of ``hardware`` that this pool overrides."""
    engine: dict[str, Any] = Field(default_factory=dict)
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
    """Role that delivers the first token. ``prefill`` samples it and hands it on (SGLang, TensorRT-LLM); under
    ``decode`` the decode replica computes the last prompt token again and samples (vLLM). Default: as
    ``engine.framework`` does."""
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
