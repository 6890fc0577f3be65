"""Timeline of a pass of attention-level speculation: work of two device groups and their link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.errors import ForerunError
from simulator.speculation.attention_level.layer import LayerTimes, Outcome, Reading


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

    Defaults follow the assumed costs on Tensix chips (``parameters.yaml``): 5, 13 and 7 us.
    """

    priority_swap: float = 0.20
    residual_swap: float = 0.52
    kv_rows: float = 0.28


@dataclass(frozen=True, slots=True)
class PassTrace:
    """Events of one pass."""

    seconds: float
    bars: tuple[Bar, ...]
    senders: tuple[int, ...]
    """Group that ran exact attention, per layer."""


def simulate_pass(
    times: LayerTimes, hits: Sequence[Outcome], reading: Reading, sync_parts: SyncParts | None = None
) -> PassTrace:
    """Run one pass through ``len(hits)`` layers, kernel by kernel; ``pass_seconds`` is its closed form.

    Args:
        times: times of a layer, as plain floats.
        hits: for each layer, whether its speculative output passes, as in ``pass_seconds``.
        reading: interpretation of the paper: the point at which the receiver waits.
        sync_parts: shares of the synchronisation by message.

    Raises:
        ForerunError: no layer.
    """
    if not len(hits):
        raise ForerunError("a pass has at least one layer")
    groups = _Groups(times, list(hits), reading == "next-attention", sync_parts or SyncParts())
    seconds = groups.pipeline() if reading == "pipelined" else groups.layers()
    return PassTrace(float(seconds), tuple(groups.bars), tuple(groups.senders))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Two device groups with the same layers, and the link between the groups. Methods return when their work ends."""

    times: LayerTimes
    hits: list[Outcome]
    ahead: bool
    """True if a receiver continues with the next layer's kernels before the verdict."""
    sync_parts: SyncParts
    bars: list[Bar] = field(default_factory=list)
    senders: list[int] = field(default_factory=list)

    def layers(self) -> float:
        """Layer after layer, both groups meeting at each synchronisation; a hit swaps their roles."""
        now, sender = 0.0, 0
        for layer, hit in enumerate(self.hits):
            if layer == 0 or not self.ahead:
                now = self.both(layer, now)
            self.senders.append(sender)
            output_s, verdict_s, sent_s = self.send(layer, sender, now)
            now = max(sent_s, self.receive(layer, 1 - sender, output_s, verdict_s))
            for name, share in zip(SyncParts._fields, self.sync_parts, strict=True):
                now = self.spend(layer, "link", name.replace("_", " "), now, share * self.times.sync_s)
            sender = 1 - sender if hit else sender
        return now

    def send(self, layer: int, group: int, start_s: float) -> tuple[float, float, float]:
        """Run attention and verification, then run or skip the next kernels; times of output arrival, verdict, end."""
        times, lane, hit = self.times, f"group {group}", bool(self.hits[layer])
        window_s = self.spend(layer, lane, "first and last chunk", start_s, times.window_s)
        rest_s = self.spend(layer, lane, "rest of attention", window_s, times.exact_s - times.window_s)
        now = verdict_s = self.spend(layer, lane, "verify", rest_s, times.verify_s)
        output_s = window_s + times.send_s
        arrived_s = output_s if hit else min(output_s, verdict_s)
        self.bars.append(Bar(layer, "link", "speculative output", window_s, arrived_s, hit))
        skips = "again" if isinstance(self.hits[layer], LayerTimes) else "skip"
        for name, seconds, skip_s in self.following(layer):
            now = (
                self.spend(layer, lane, f"{skips} {name}", now, skip_s)
                if hit
                else self.spend(layer, lane, name, now, seconds)
            )
        return output_s, verdict_s, now

    def receive(self, layer: int, group: int, output_s: float, verdict_s: float) -> float:
        """Continue with the speculative output until done, or until the verdict rejects it."""
        hit, lane = bool(self.hits[layer]), f"group {group}"
        now = output_s if hit else min(output_s, verdict_s)
        for name, seconds, skip_s in self.following(layer):
            if hit or now < verdict_s:
                end_s = now + seconds if hit else min(now + seconds, verdict_s)
                self.bars.append(Bar(layer, lane, name, now, end_s, hit))
                now = end_s
            else:
                now = self.spend(layer, lane, f"skip {name}", now, skip_s, kept=False)
        return now

    def following(self, layer: int) -> list[tuple[str, float, float]]:
        """Work between attention and synchronisation: name, seconds, seconds if skipped because the output passed."""
        outcome = self.hits[layer]
        times = outcome if isinstance(outcome, LayerTimes) else self.times
        after = [("post", times.post_s, times.skip_post_s)]
        if self.ahead and layer + 1 < len(self.hits):
            after.append(("next pre", times.pre_s, times.skip_pre_s))
        return after

    def pipeline(self) -> float:
        """The ideal: a receiver starts the next attention at once, while its sender is still busy with the last."""
        times, now, sender = self.times, self.both(0, 0.0), 0
        free_s = [now, now]

        def occupy(layer: int, group: int, what: str, start_s: float, seconds: float) -> float:
            end_s = self.spend(layer, f"group {group}", what, max(start_s, free_s[group]), seconds)
            free_s[group] = self.spend(layer, f"group {group}", "synchronise", end_s, times.sync_s)
            return free_s[group]

        for layer, hit in enumerate(self.hits):
            self.senders.append(sender)
            after, after_s = "post, next pre", times.other_s
            if layer + 1 == len(self.hits):
                after, after_s = "post", times.post_s
            if hit:
                occupy(layer, sender, "attention", now, times.exact_s)
                sender = 1 - sender
                now = occupy(layer, sender, after, now + (times.window_s + times.send_s), after_s)
            else:
                lane = f"group {sender}"
                now = self.spend(layer, lane, "attention", now, times.exact_s)
                now = self.spend(layer, lane, "verify", now, times.verify_s)
                now = self.spend(layer, lane, after, now, after_s)
                now = self.spend(layer, lane, "synchronise", now, times.sync_s)
        return max(now, *free_s)

    def both(self, layer: int, start_s: float) -> float:
        return max(self.spend(layer, f"group {group}", "pre", start_s, self.times.pre_s) for group in (0, 1))

    def spend(self, layer: int, lane: str, what: str, start_s: float, seconds: float, kept: bool = True) -> float:
        if seconds:
            self.bars.append(Bar(layer, lane, what, start_s, start_s + seconds, kept))
        return start_s + seconds
