"""KV transfer from prefill to decode replicas: choice of the decode replica, start and duration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.serving.clock import ROUTE, on_grid
from simulator.serving.compiled import engine_module
from simulator.serving.fleet.routing import Policy
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint

if TYPE_CHECKING:
    from simulator.serving.engine import Engine, Lane, Sequence
    from simulator.serving.fleet.replica import ServingReplica
    from simulator.serving.timeline import Timeline


@dataclass(frozen=True, slots=True)
class KvLink:
    """Link that carries KV out of one prefill replica."""

    latency_s: float
    bandwidth_bytes_per_s: float
    """Bandwidth of all links of the replica together."""
    bytes_per_token: float
    """KV of one token, all layers, all chips of a replica."""
    samples_first: bool
    """True if the prefill replica samples the first token, which travels with the KV."""
    setup_s: float = 0.0
    """Seconds beside the link until the decode replica has the prompt: answers of router and workers, polls."""
    draft_kv: str = "send"
    """Handling of the drafter's KV, as ``KvTransferConfig.draft_kv``."""

    def seconds(self, tokens: int) -> float:
        """Seconds to move the KV of ``tokens`` tokens: ``latency + tokens * bytes_per_token / bandwidth``."""
        return self.latency_s + tokens * self.bytes_per_token / self.bandwidth_bytes_per_s


@dataclass(slots=True, eq=False)
class _Journey:
    """One prompt on its way from a prefill replica to a decode replica."""

    source: Engine
    sequence: Sequence
    """The sequence in the prefill replica."""
    ready_s: float
    endpoint: ReplicaEndpoint | None = None
    """The decode replica of the transfer, once chosen."""
    seen_s: float = 0.0
    """When the engine there sees it."""
    incoming: Sequence | None = None
    """The sequence in the decode replica, once that replica has reserved blocks."""
    spared: int = 0
    """Tokens that are already in the decode replica's prefix cache."""
    cancelled: bool = field(default=False)


class Transfers:
    """Prompts wait in their prefill replica until a decode replica has reserved blocks for them.

    Decode replicas are chosen and contacted when the prompt is done: the request passes their API server as any other
    (vLLM's and TensorRT-LLM's proxies work so). Blocks are reserved in that order; a prefill replica sends one prompt
    after the other and frees its blocks when the KV has arrived, so a full decode pool holds back the prefill pool.

    Args:
        env: simulated time.
        log: log of the run.
        link_of: the link of each prefill replica, by its number, to a decode replica.
        policy: routing policy of the decode replicas.
        mixed: whether decode replicas differ in what they can hold.
    """

    def __init__(
        self,
        env: Timeline,
        log: RunLog,
        link_of: Callable[[int, int], KvLink],
        samples_first: bool,
        policy: Policy,
        mixed: bool = False,
    ) -> None:
        self._mixed = mixed
        self.samples_first = samples_first
        self._env = env
        self._log = log
        self._link_of = link_of
        self.policy = policy
        self._endpoints: list[ReplicaEndpoint] = []
        self._replicas: Seq[ServingReplica] = ()
        self._sources: Seq[ReplicaEndpoint] = ()
        self._waiting: list[_Journey] = []
        """Prompts without reserved blocks, in order of completion."""
        self._moving: list[_Journey] = []
        self._lanes: dict[int, Lane] = {}
        """Lane out of each prefill replica."""
        self._called = False
        self.full = False

    def start(
        self, sources: Seq[ReplicaEndpoint], decode: Iterable[ReplicaEndpoint], replicas: Seq[ServingReplica]
    ) -> None:
        """Serve these replicas."""
        self._sources = sources
        self._endpoints = list(decode)
        self._replicas = replicas

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Record that a request no longer occupies a decode replica."""
        self.policy.left(request, endpoint)

    def prompt_done(self, source: Engine, sequence: Sequence) -> None:
        """Queue a prompt whose KV is complete in ``source``."""
        self._sources[source.index].left(sequence.index)
        self._waiting.append(_Journey(source, sequence, self._env.now))
        self.call()

    def failed(self, index: int) -> None:
        """Handle a replica that is about to lose its caches. Transfers from it are dropped; transfers to it go to
        another replica.

        A prompt on its way is whole in its source until it has arrived, so the loss of its receiver costs no more than
        another transfer.
        """
        for journey in [*self._waiting, *self._moving]:
            if journey.source.index == index:
                self._take_back(journey)
            elif journey.endpoint is not None and journey.endpoint.index == index:
                self._take_back(journey)
                self._waiting.append(_Journey(journey.source, journey.sequence, journey.ready_s))
        self._waiting.sort(key=lambda journey: (journey.ready_s, journey.sequence.index))
        self._lanes.pop(index, None)
        self.call()

    def _take_back(self, journey: _Journey) -> None:
        """Cancel a transfer and free its reserved blocks."""
        journey.cancelled = True
        (self._waiting if journey in self._waiting else self._moving).remove(journey)
        if journey.endpoint is not None:
            if journey.incoming is not None:
                self._replicas[journey.endpoint.index].scheduler.cancel(journey.incoming)
            journey.endpoint.left(journey.sequence.index)
            journey.endpoint.wake(self._env.now)

    def call(self, _: object = None) -> None:
        """Look again in this instant: a replica has room or is back, or a prompt has passed the API server."""
        if not self._called:
            self._called = True
            self._env.call(self._match, priority=ROUTE)

    def _match(self, _: object) -> None:
        """Choose decode replicas, and reserve blocks at each replica with free blocks, first come first served."""
        self._called = False
        up = [endpoint for endpoint in self._endpoints if not endpoint.down]
        if not up:
            return
        full: set[int] = set()
        left = []
        for journey in self._waiting:
            if journey.endpoint is None:
                request = journey.sequence.index
                able = [endpoint for endpoint in up if endpoint.can_hold(request)] if self._mixed else up
                if not able:
                    left.append(journey)
                    continue
                journey.endpoint = self.policy.choose(request, able)
                journey.endpoint.outstanding += 1
                self._announce(journey, journey.endpoint)
            if journey.seen_s > self._env.now:
                left.append(journey)
            elif journey.endpoint.index in full or not self._reserve(journey):
                full.add(journey.endpoint.index)
                left.append(journey)
        self._waiting, self.full = left, bool(full)

    def _announce(self, journey: _Journey, endpoint: ReplicaEndpoint) -> None:
        """Send the request to the decode replica's API server; match again when it has passed."""
        now = self._env.now
        journey.seen_s = endpoint.announce(journey.sequence.index)
        if journey.seen_s > now:
            self._env.call(self._match, delay=journey.seen_s - now, priority=ROUTE)
            # The time by this clock, which may differ in the last bit.
            journey.seen_s = now + (journey.seen_s - now)

    def _reserve(self, journey: _Journey) -> bool:
        """Reserve blocks at the decode replica and a time on the link; False if there is no room."""
        assert journey.endpoint is not None
        replica = self._replicas[journey.endpoint.index]
        incoming = replica.engine.again(journey.sequence)
        spared = replica.scheduler.reserve(incoming)
        if spared is None:
            return False
        journey.incoming, journey.spared = incoming, spared
        source, now = journey.source.index, self._env.now
        tokens = incoming.known_tokens - 1 - spared
        if source not in self._lanes:
            self._lanes[source] = engine_module().Lane()
            self._log.lanes.append(("kv transfer", self._lanes[source]))
        link = self._link_of(source, journey.endpoint.index)
        end = self._lanes[source].occupy(now, on_grid(link.seconds(tokens)), tokens * link.bytes_per_token)
        self._moving.append(journey)
        self._env.call(self._arrived, journey, end - now + on_grid(link.setup_s))
        self._log.transferred_tokens += tokens
        return True

    def _arrived(self, journey: _Journey) -> None:
        """Complete a transfer: free the source's blocks and let the decode replica continue."""
        if journey.cancelled:
            return
        assert journey.endpoint is not None
        assert journey.incoming is not None
        self._moving.remove(journey)
        journey.source.scheduler.let_go(journey.sequence)
        self._sources[journey.source.index].wake(self._env.now)
        self._replicas[journey.endpoint.index].scheduler.arrive(journey.incoming, self._env.now)
        draft_kv = self._link_of(journey.source.index, journey.endpoint.index).draft_kv
        if draft_kv == "recompute":
            journey.incoming.drafter_tokens = journey.spared
        elif draft_kv == "skip":
            journey.incoming.starved = 1.0
        self._log.replica[journey.sequence.index] = journey.endpoint.index
        self._log.transfers += 1
        self._log.transfer_s += self._env.now - journey.ready_s
        self._log.span("KV transfer", journey.endpoint.index, journey.ready_s, self._env.now)
        journey.endpoint.wake(self._env.now)
