"""Closed forms of attention-level speculation: one layer, a whole pass with known outcomes, a pass in expectation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from forerun.errors import ForerunError
from hwprofiles.formulas import Num

Reading = Literal["next-attention", "same-layer", "pipelined"]
"""When the receiver of a speculative output has to wait.

``next-attention``: before the attention kernel of the next layer, so it also runs the next layer's first kernels
meanwhile; ``same-layer``: at the end of the layer; ``pipelined``: never, both groups work on different layers until a
miss (an ideal: verification and skipped launches are hidden).
"""
READINGS: tuple[Reading, ...] = get_args(Reading)

Seconds = Num
"""Seconds: a float, or an array with one entry per case."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of the parts of one transformer layer on one device group; floats or arrays over the same cases.

    Raises:
        ForerunError: a negative time; a first and last chunk that take longer than the whole attention they belong to;
            or skipped kernels that take longer than when they run.
    """

    pre_s: Seconds
    """Kernels before attention: norm, QKV projection, rotary embedding, KV write."""
    post_s: Seconds
    """Kernels after it: output projection, norm, MLP, all-reduces."""
    exact_s: Seconds
    """Exact attention, its first and last chunk included."""
    window_s: Seconds
    """Seconds from the start of attention until its first and last chunk are done."""
    send_s: Seconds
    """One-hop send of the speculative output."""
    verify_s: Seconds
    """Comparison of the speculative with the exact output, fused into the end of attention."""
    sync_s: Seconds
    """Synchronisation at the end of a layer: priority swap, residual swap, KV rows."""
    skip_pre_s: Seconds = 0.0
    """Launch seconds of the kernels before attention if these are skipped."""
    skip_post_s: Seconds = 0.0
    """Launch seconds of the kernels after attention if these are skipped."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if np.any(np.asarray(getattr(self, name)) < 0):
                raise ForerunError(f"{name}: seconds of a part of a layer cannot be negative")
        for part, whole in (("window_s", "exact_s"), ("skip_pre_s", "pre_s"), ("skip_post_s", "post_s")):
            if np.any(np.asarray(getattr(self, part)) > np.asarray(getattr(self, whole)) * (1 + 1e-12)):
                raise ForerunError(f"{part}: cannot exceed {whole}, of which it is a part")

    @property
    def other_s(self) -> Seconds:
        """Everything but attention."""
        return self.pre_s + self.post_s

    @property
    def serial_s(self) -> Seconds:
        """The layer on the same group without speculation."""
        return self.pre_s + self.exact_s + self.post_s

    def rolled_back(self, pre_s: Seconds, post_s: Seconds) -> LayerTimes:
        """Layer in which some requests of the batch fail and others pass. The sender runs the skipped work for the
        failed ones in ``seconds``; the receiver's work stays valid for the others. It is priced like a hit."""
        pre, post = np.minimum(pre_s, self.pre_s), np.minimum(post_s, self.post_s)
        return replace(self, skip_pre_s=pre, skip_post_s=post)


Outcome = bool | LayerTimes
"""Result of a layer: True if it passes with the whole batch; ``LayerTimes.rolled_back`` if only some requests do."""


def hit_seconds(times: LayerTimes, reading: Reading) -> Seconds:
    """Seconds of a layer whose speculative output passes verification, far from the ends of the pass.

    With n = pre + post, exact attention a, first and last chunk s, send x, verify v, synchronisation d and skipped
    launches l: ``max(a + v + l, s + x + n) + d`` waiting at the next attention, ``pre + max(a + v + l_post,
    s + x + post) + d`` at the end of the same layer, ``max((a + n) / 2, s + x + n) + d`` in the ideal pipeline.

    Source: readings of the mechanism of Cai et al., "Attention-Level Speculation" (ICML 2025, PMLR 267); skipped
    kernels still launch and return at once.
    """
    arrives = times.window_s + times.send_s
    if reading == "same-layer":
        sender = times.exact_s + times.verify_s + times.skip_post_s
        return times.pre_s + np.maximum(sender, arrives + times.post_s) + times.sync_s
    if reading == "next-attention":
        sender = times.exact_s + times.verify_s + times.skip_pre_s + times.skip_post_s
        return np.maximum(sender, arrives + times.other_s) + times.sync_s
    return np.maximum(times.serial_s / 2, arrives + times.other_s) + times.sync_s


def miss_seconds(times: LayerTimes) -> Seconds:
    """Seconds of a layer whose speculative output fails: ``n + a + v + d`` in every reading.

    The receiver drops its work at the kernel boundary after the verdict and skips its remaining kernels, which ends
    before the sender's own kernels do.
    """
    return times.serial_s + times.verify_s + times.sync_s


def pass_seconds(times: LayerTimes, hits: Sequence[Outcome], reading: Reading) -> Seconds:
    """Seconds of a pass through ``len(hits)`` equal layers whose outcomes are known.

    Individual rollback of requests is modelled in the readings that wait, not in the pipeline.

    The first layer's pre-kernels have nothing to hide behind, and the last layer has no next one whose kernels could
    run ahead: a pass of L layers in the ``next-attention`` reading holds L - 1 overlaps across layers and one within.
    In the pipeline a hit that starts from idle groups takes ``c = s + x + n + d``; the one after it waits for the group
    that is still busy with exact attention, ``max(c, b - c)`` with ``b = a + n + 2 d``; and so on.

    Raises:
        ForerunError: no layer.
    """
    if not len(hits):
        raise ForerunError("a pass has at least one layer")
    if reading == "same-layer":
        return sum(hit_seconds(_own(times, hit), reading) if hit else miss_seconds(times) for hit in hits)
    total = times.pre_s + _last_layer(_own(times, hits[-1]), float(bool(hits[-1])), reading)
    miss = miss_seconds(times)
    waits = False
    for hit in hits[:-1]:
        first, second = _hit_pair(_own(times, hit), reading)
        total = total + ((second if waits else first) if hit else miss)
        waits = bool(hit) and not waits
    return total


def expected_pass_seconds(
    times: LayerTimes,
    hit_rates: Sequence[Num],
    reading: Reading,
    rolled_back: Iterable[tuple[LayerTimes, Sequence[Num]]] = (),
) -> Seconds:
    """Mean seconds of a pass whose layers pass verification independently, layer i with ``hit_rates[i]``.

    A rate may be an array over the cases. In the pipeline the chance that a hit has to wait follows
    ``p[i+1] = h[i] (1 - p[i])``.

    Args:
        times: times of a layer.
        hit_rates: probability that each layer passes with the whole batch.
        reading: when a receiver waits.
        rolled_back: ``LayerTimes.rolled_back`` for every number of requests that may fail while others pass, with its
            probability in each layer; in the remaining cases all fail. Not in the pipeline.

    Raises:
        ForerunError: no layer.
    """
    if not len(hit_rates):
        raise ForerunError("a pass has at least one layer")
    partial: Num = 0.0
    for own, chances in rolled_back:  # a miss is the same in both, so this is what these outcomes save over one
        none = [0.0] * len(chances)
        partial = partial + expected_pass_seconds(own, chances, reading) - expected_pass_seconds(own, none, reading)
    first, second = _hit_pair(times, reading)
    miss = miss_seconds(times)
    if reading == "same-layer":
        hits = sum(hit_rates)
        return hits * first + (len(hit_rates) - hits) * miss + partial
    total = times.pre_s + _last_layer(times, hit_rates[-1], reading)
    if reading == "next-attention":
        hits = sum(hit_rates[:-1])
        return total + hits * first + (len(hit_rates) - 1 - hits) * miss + partial
    waits: Num = 0.0
    for rate in hit_rates[:-1]:
        total = total + rate * ((1 - waits) * first + waits * second) + (1 - rate) * miss
        waits = rate * (1 - waits)
    return total


def layer_seconds(times: LayerTimes, hit_rate: Num, reading: Reading) -> Seconds:
    """Mean seconds of a layer far from the ends of the pass: ``h hit + (1 - h) miss``; in the pipeline long runs."""
    if reading != "pipelined":
        return hit_rate * hit_seconds(times, reading) + (1 - hit_rate) * miss_seconds(times)
    first, second = _hit_pair(times, reading)
    waits = hit_rate / (1 + hit_rate)
    return hit_rate * ((1 - waits) * first + waits * second) + (1 - hit_rate) * miss_seconds(times)


def _own(times: LayerTimes, outcome: Outcome) -> LayerTimes:
    return outcome if isinstance(outcome, LayerTimes) else times


def _hit_pair(times: LayerTimes, reading: Reading) -> tuple[Seconds, Seconds]:
    """Seconds of a hit whose receiver is idle, and of one whose receiver still works on the layer before."""
    if reading != "pipelined":
        hit = hit_seconds(times, reading)
        return hit, hit
    alone = times.window_s + times.send_s + times.other_s + times.sync_s
    return alone, np.maximum(alone, times.serial_s + 2 * times.sync_s - alone)


def _last_layer(times: LayerTimes, hit_rate: Num, reading: Reading) -> Seconds:
    """Mean seconds of the last layer from its attention on."""
    sender = times.exact_s
    if reading == "next-attention":
        sender = sender + times.verify_s + times.skip_post_s
    hit = np.maximum(sender, times.window_s + times.send_s + times.post_s) + times.sync_s
    miss = times.exact_s + times.verify_s + times.post_s + times.sync_s
    return hit_rate * hit + (1 - hit_rate) * miss
