"""The mechanism in simulated time: two device groups, a link between them, one process for each role of a layer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from forerun.errors import ForerunError
from simulator.speculation.attention_level.layer import LayerTimes, Outcome, Reading

Process = Generator[simpy.Event, Any, None]


class Bar(NamedTuple):
    """Something a group or the link did, from ``start_s`` to ``end_s``."""

    layer: int
    lane: str
    """``group 0``, ``group 1`` or ``link``."""
    work: str
    """pre, first and last chunk, rest of attention, verify, post, next pre, skipped launches, send, synchronise ..."""
    start_s: float
    end_s: float
    kept: bool
    """False for work that a miss throws away."""


class SyncParts(NamedTuple):
    """Shares of the synchronisation at the end of a layer, one message after the other; they sum to 1.

    As the assumed costs on Tensix chips divide (``parameters.yaml``): 5, 13 and 7 us.
    """

    priority_swap: float = 0.20
    residual_swap: float = 0.52
    kv_rows: float = 0.28


@dataclass(frozen=True, slots=True)
class PassTrace:
    """What happened in one pass."""

    seconds: float
    bars: tuple[Bar, ...]
    senders: tuple[int, ...]
    """Group that ran exact attention, per layer."""


def simulate_pass(
    times: LayerTimes, hits: Sequence[Outcome], reading: Reading, sync_parts: SyncParts | None = None
) -> PassTrace:
    """Run one pass through ``len(hits)`` layers, event by event; ``pass_seconds`` is its closed form.

    Args:
        times: plain floats.
        hits: whether each layer's speculative output passes, as ``pass_seconds`` takes them.
        reading: when the receiver waits.
        sync_parts: how the synchronisation divides over its messages.

    Raises:
        ForerunError: no layer.
    """
    if not len(hits):
        raise ForerunError("a pass has at least one layer")
    model = _Groups(simpy.Environment(), times, list(hits), reading, sync_parts or SyncParts())
    model.env.run(until=model.env.process(model.pipeline() if reading == "pipelined" else model.layers()))
    return PassTrace(float(model.env.now), tuple(model.bars), tuple(model.senders))


class _Groups:
    """Two device groups that hold the same layers, and the link between them."""

    def __init__(
        self, env: simpy.Environment, times: LayerTimes, hits: list[Outcome], reading: Reading, parts: SyncParts
    ) -> None:
        self.env = env
        self.times = times
        self.hits = hits
        self.ahead = reading == "next-attention"
        """Whether a receiver goes on with the next layer's kernels before the verdict."""
        self.parts = parts
        self.bars: list[Bar] = []
        self.senders: list[int] = []
        self.link = simpy.Resource(env)
        self.groups = (simpy.Resource(env), simpy.Resource(env))

    def layers(self) -> Process:
        """Layer after layer, both groups meeting at each synchronisation; a hit swaps their roles."""
        env, sender = self.env, 0
        for layer, hit in enumerate(self.hits):
            if layer == 0 or not self.ahead:
                yield env.process(self.both(layer, "pre", self.times.pre_s))
            self.senders.append(sender)
            output, refused = env.event(), env.event()
            passed = bool(hit)
            yield env.process(self.send_side(layer, sender, passed, output, refused)) & env.process(
                self.receive_side(layer, 1 - sender, passed, output, refused)
            )
            yield env.process(self.synchronise(layer))
            sender = 1 - sender if hit else sender

    def send_side(self, layer: int, group: int, hit: bool, output: simpy.Event, refused: simpy.Event) -> Process:
        """First and last chunk, off with them; the rest of attention, the verdict; then skip, or run, what follows."""
        times = self.times
        yield from self.work(layer, group, "first and last chunk", times.window_s)
        self.env.process(self.offer(layer, hit, output, refused))
        yield from self.work(layer, group, "rest of attention", times.exact_s - times.window_s)
        yield from self.work(layer, group, "verify", times.verify_s)
        if not hit:
            refused.succeed()
        skips = "again" if isinstance(self.hits[layer], LayerTimes) else "skip"
        for name, seconds, skip_s in self.following(layer):
            if hit:
                yield from self.work(layer, group, f"{skips} {name}", skip_s)
            else:
                yield from self.work(layer, group, name, seconds)

    def receive_side(self, layer: int, group: int, hit: bool, output: simpy.Event, refused: simpy.Event) -> Process:
        """Go on with the speculative output until done, or until the verdict says that it was for nothing."""
        yield output | refused
        for name, seconds, skip_s in self.following(layer):
            if not refused.triggered:
                start = self.env.now
                yield self.env.timeout(seconds) | refused
                self.bars.append(Bar(layer, f"group {group}", name, start, self.env.now, hit))
            else:
                yield from self.work(layer, group, f"skip {name}", skip_s, kept=False)

    def synchronise(self, layer: int) -> Process:
        """Who has priority, the residual stream, the new KV rows: one message after the other."""
        for name, share in zip(SyncParts._fields, self.parts, strict=True):
            yield self.env.process(self.send(layer, name.replace("_", " "), share * self.times.sync_s))

    def offer(self, layer: int, hit: bool, output: simpy.Event, refused: simpy.Event) -> Process:
        """The speculative output over the link; what is still under way when it is refused is dropped."""
        with self.link.request() as turn:
            yield turn
            start = self.env.now
            yield self.env.timeout(self.times.send_s) | refused
        self.bars.append(Bar(layer, "link", "speculative output", start, self.env.now, hit))
        if not refused.triggered:
            output.succeed()

    def send(self, layer: int, what: str, seconds: float) -> Process:
        """One message over the link, after those before it."""
        with self.link.request() as turn:
            yield turn
            yield from self.spend(layer, "link", what, seconds)

    def both(self, layer: int, what: str, seconds: float) -> Process:
        """The same work on both groups."""
        yield self.env.process(self.work(layer, 0, what, seconds)) & self.env.process(
            self.work(layer, 1, what, seconds)
        )

    def following(self, layer: int) -> list[tuple[str, float, float]]:
        """What follows attention before the groups meet: name, seconds, seconds where skipped for those that passed."""
        outcome = self.hits[layer]
        times = outcome if isinstance(outcome, LayerTimes) else self.times
        after = [("post", times.post_s, times.skip_post_s)]
        if self.ahead and layer + 1 < len(self.hits):
            after.append(("next pre", times.pre_s, times.skip_pre_s))
        return after

    def work(self, layer: int, group: int, what: str, seconds: float, kept: bool = True) -> Process:
        """Kernels on one group."""
        yield from self.spend(layer, f"group {group}", what, seconds, kept)

    def spend(self, layer: int, lane: str, what: str, seconds: float, kept: bool = True) -> Process:
        """Let ``seconds`` pass and note what for."""
        start = self.env.now
        yield self.env.timeout(seconds)
        if seconds:
            self.bars.append(Bar(layer, lane, what, start, self.env.now, kept))

    def pipeline(self) -> Process:
        """The ideal: a receiver starts the next attention at once, while its sender is still busy with the last."""
        env, times, sender = self.env, self.times, 0
        busy: list[simpy.Event] = []
        yield env.process(self.both(0, "pre", times.pre_s))
        for layer, hit in enumerate(self.hits):
            self.senders.append(sender)
            last = layer + 1 == len(self.hits)
            after_s = times.post_s if last else times.other_s
            if not hit:
                yield from self.work(layer, sender, "attention", times.exact_s)
                yield from self.work(layer, sender, "verify", times.verify_s)
                yield from self.work(layer, sender, "post" if last else "post, next pre", after_s)
                yield from self.work(layer, sender, "synchronise", times.sync_s)
                continue
            busy.append(env.process(self.occupy(layer, sender, "attention", times.exact_s)))
            yield env.timeout(times.window_s + times.send_s)
            sender = 1 - sender
            yield env.process(self.occupy(layer, sender, "post" if last else "post, next pre", after_s))
        yield env.all_of(busy)

    def occupy(self, layer: int, group: int, what: str, seconds: float) -> Process:
        """Work on a group that may still be busy with the layer before, and its part in the synchronisation."""
        with self.groups[group].request() as turn:
            yield turn
            yield from self.work(layer, group, what, seconds)
            yield from self.work(layer, group, "synchronise", self.times.sync_s)
