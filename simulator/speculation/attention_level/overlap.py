"""Attention-level speculation on two groups of chips, priced for the engine: the layer's closed form at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError
from forerun.recent import RecentResults
from hwprofiles import AttentionShape
from hwprofiles.formulas import Num
from simulator.llm.layers import Attention, Layer
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig
from simulator.speculation.attention_level.hit_rates import (
    TOLERANCE,
    WINDOW_TOKENS,
    batch_hit_rate,
    error_model,
    failing_chance,
    rate_range,
)
from simulator.speculation.attention_level.layer import LayerTimes, Outcome, expected_pass_seconds, pass_seconds
from simulator.speculation.attention_level.parameters import SYNC_PARTS, Parameter, mechanism_costs
from simulator.timing import Deployment, StepTimer
from simulator.timing.deployment import ACTIVATION_BYTES
from simulator.timing.kernels import sizes_key

GROUPS = 2
VERIFY_KERNELS = 2.0
"""The comparison reads both outputs once."""

INPUT_PROJECTIONS = ("qkv_proj", "q_proj", "qkv_a_proj", "q_b_proj", "kv_a_proj")
"""Weight matrices that run before attention (MLA's absorbed up-projection counts as after it)."""


class _Kind(NamedTuple):
    """Layers of one attention shape and window, averaged over their MLPs."""

    layers: int
    other_s: FloatArray
    """Seconds of a layer but attention, by tokens of the step."""
    pre_s: FloatArray
    """Seconds of the part before attention."""
    kv_bytes: float
    """KV of one token in one layer on one chip."""

    def rest(self, tokens: Num) -> tuple[Num, Num]:
        """``other_s`` and ``pre_s`` by tokens. Tables of like batches ask for more than a step may have."""
        held = np.minimum(tokens, len(self.other_s) - 1)
        return self.other_s[held], self.pre_s[held]


_RECENT_KINDS: RecentResults[tuple[StepTimer, dict[tuple[AttentionShape, int | None], _Kind]]] = RecentResults(32)
"""Each entry has a reference to its timer, so that the id in the key stays valid."""

_RECENT_DECODES: RecentResults[Any] = RecentResults(32)
"""Cached seconds of decode attention, which do not depend on hit rates or the mechanism's costs."""


class SpeculativeAttention:
    """Prices decode attention under attention-level speculation for one model on two groups of chips.

    Layers with a sliding window run one kernel after the other on both groups: there is little to hide. So do decodes
    in a step with prompt chunks. Both groups need the prompt's KV: each computes half of every chunk and exchanges keys
    and values layer by layer (``prefill: context-parallel``), or each computes all of it (``replicated``).
    """

    def __init__(self, config: AttentionSpeculationConfig, timer: StepTimer) -> None:
        deployment = timer.deployment
        if deployment.link is None:
            raise ForerunError(
                f"hardware.link: chip '{deployment.chip.name}' has no scale-up link of its own; name the one between "
                f"the two groups (forerun chips list)"
            )
        self._deployment = deployment
        self._link = deployment.link
        self._hidden = deployment.architecture.hidden_size
        if not all(isinstance(shape, AttentionShape) for shape in timer.shapes):
            raise ForerunError(
                f"attention_speculation: {deployment.architecture.name} has layers that are no softmax attention over "
                "cached keys, and nobody has described how two groups would speculate on those; leave it out"
            )
        key = (id(timer.origin), timer.max_tokens)
        _, self._kinds = _RECENT_KINDS.get(key, lambda: (timer.origin, self._collect(timer)))
        layers = sum(kind.layers for (_, window), kind in self._kinds.items() if window is None)
        if not layers:
            raise ForerunError(
                f"attention_speculation: every layer of {deployment.architecture.name} has a sliding window; there is "
                f"no full attention to speculate on"
            )
        self.layers = layers
        """Layers that speculate."""
        self._set(config)

    def under(self, *configs: AttentionSpeculationConfig) -> SpeculativeAttention:
        """The same layers with other hit rates, lambda, S or costs. With several sets of values, priced steps are
        divided into as many equal parts, one per set.
        """
        other = copy(self)
        other._set(*configs)
        return other

    def _set(self, *configs: AttentionSpeculationConfig) -> None:
        kind = self._deployment.chip.kind
        try:
            for config in configs:
                config.layer_hit_rates(self.layers, 1.0)
        except ValueError as error:
            raise ForerunError(f"attention_speculation.hit_rate: {error}") from None
        self._config, self._configs = configs[0], configs
        self._costs = [{name: cost.value for name, cost in chosen_costs(one, kind).items()} for one in configs]

    def _each(self, values: Sequence[Num], like: Num) -> Num:
        return values[0] if len(values) == 1 else np.repeat(values, len(like) // len(values))

    def _cost(self, name: str, like: Num) -> Num:
        return self._each([costs[name] for costs in self._costs], like)

    def _sent_s(self, name: str, sent_bytes: Num, like: Num, messages: int = 1) -> Num:
        """Seconds of messages between the groups; a network between servers adds its latency to each."""
        link = self._link
        network_s = link.latency_s - (link.server.latency_s if link.server else 0.0) if link.network else 0.0
        return self._cost(name, like) + messages * network_s + sent_bytes / link.bandwidth_bytes_per_s

    def _layer_rates(self, contexts: Num) -> list[Num]:
        """Hit rate of one query in every layer; layers whose rates are the same object have the same."""
        if len(self._configs) == 1:
            return self._config.layer_hit_rates(self.layers, contexts)
        parts = np.split(contexts, len(self._configs))
        by_section = [one.layer_hit_rates(self.layers, own) for one, own in zip(self._configs, parts, strict=True)]
        known: dict[tuple[int, ...], FloatArray] = {}
        for rates in zip(*by_section, strict=True):
            key = tuple(map(id, rates))
            if key not in known:
                known[key] = np.concatenate([np.broadcast_to(rate, len(parts[0])) for rate in rates])
        return [known[tuple(map(id, rates))] for rates in zip(*by_section, strict=True)]

    @property
    def prompt_groups(self) -> int:
        return GROUPS if self._config.prefill == "context-parallel" else 1

    def exchange_s(self, shape: AttentionShape, tokens: Num) -> Num:
        """Seconds of one layer in which each group sends the other the KV of its prompt tokens. One message each way,
        not hidden behind attention."""
        sent = self._sent_s("send_s", tokens * shape.kv_bytes_per_token, tokens)
        return np.where(tokens > 0, sent, 0.0) if isinstance(tokens, np.ndarray) else sent if tokens else 0.0

    @property
    def full_attention(self) -> tuple[AttentionShape, ...]:
        return tuple(shape for shape, window in self._kinds if window is None)

    def exposed(self, shape: AttentionShape, window: int | None) -> Callable[[Num, Num, Num], Num]:
        """Seconds that all layers of that kind add to a step, as a function of (sequences, queries, keys)."""
        return lambda seqs, query_len, keys: sum(self.exposed_parts(shape, window, seqs, query_len, keys))

    def exposed_parts(
        self, shape: AttentionShape, window: int | None, seqs: Num, query_len: Num, keys: Num
    ) -> tuple[Num, Num]:
        """Exposed seconds in two parts: in attention, on the link."""
        if window is not None:
            return self._kinds[shape, window].layers * self._decode(shape, seqs, query_len, keys), 0.0 * keys
        kind, times = self._kinds[shape, None], self.layer_times(shape, seqs, query_len, keys)
        rates = self.rates(seqs, query_len, keys)
        mean = self._mean_pass(shape, times, rates, (seqs, query_len, keys)) / self.layers
        exposed = mean - times.other_s
        link = np.minimum(times.sync_s + sum(rates) / self.layers * times.send_s, exposed)
        return kind.layers * (exposed - link), kind.layers * link

    def _decode(self, shape: AttentionShape, seqs: Num, query_len: Num, keys: Num) -> Num:
        kernels = self._deployment.kernels
        priced = partial(kernels.attention_decode, shape, seqs=seqs, q_len=query_len, kv_tokens=keys)
        return _RECENT_DECODES.get((kernels, shape, *sizes_key(seqs, query_len, keys)), lambda: priced().seconds)

    def rates(self, seqs: Num, query_len: Num, keys: Num) -> list[Num]:
        """Probability that each layer passes verification with the whole batch."""
        config, queries = self._config, seqs * query_len

        def whole(rate: Num) -> Num:
            return batch_hit_rate(rate, queries, config.verification, config.batch_correlation)

        return _of_each(self._layer_rates(keys / seqs), whole)

    def outcome_change(self, seqs: int, query_len: int, keys: int, failing: IntArray) -> float:
        """Seconds by which a step with failing sequences in its layers differs from the mean step. Without individual
        rollback, either all sequences fail or none."""
        change = 0.0
        for shape in self.full_attention:
            times = self.layer_times(shape, seqs, query_len, keys)

            def outcome(count: int, shape: AttentionShape = shape, times: LayerTimes = times) -> Outcome:
                some = 0 < count < seqs
                return self._rolled_back(shape, times, count * query_len) if some else not count

            own = pass_seconds(times, [outcome(count) for count in failing.tolist()], self._config.reading)
            mean = self._mean_pass(shape, times, self.rates(seqs, query_len, keys), (seqs, query_len, keys))
            change += self._kinds[shape, None].layers / self.layers * float(own - mean)
        return change

    def _mean_pass(
        self, shape: AttentionShape, times: LayerTimes, rates: list[Num], batch: tuple[Num, Num, Num]
    ) -> Num:
        """Mean seconds of a pass through all layers, as if all were of that shape, at their ``rates``.

        ``batch``: sequences, queries of each, keys.
        """
        config, (seqs, query_len, keys) = self._config, batch
        if config.verification != "per-request":
            return expected_pass_seconds(times, rates, config.reading)
        one = self._layer_rates(keys / seqs)

        def partial(failing: int) -> tuple[LayerTimes, list[Num]]:
            chances = _of_each(
                one, lambda rate: failing_chance(failing, rate, seqs, query_len, config.batch_correlation)
            )
            return self._rolled_back(shape, times, np.minimum(failing, seqs) * query_len), chances

        some = (partial(failing) for failing in range(1, int(np.max(seqs, initial=1))))
        return expected_pass_seconds(times, rates, config.reading, some)

    def _rolled_back(self, shape: AttentionShape, times: LayerTimes, rows: Num) -> LayerTimes:
        other, pre = self._kinds[shape, None].rest(rows)
        return times.rolled_back(pre, other - pre)

    def layer_times(self, shape: AttentionShape, seqs: Num, query_len: Num, keys: Num) -> LayerTimes:
        """Times of one full-attention layer in a step of ``seqs`` sequences with ``keys`` keys in all."""
        kernels, kind = self._deployment.kernels, self._kinds[shape, None]
        rows = seqs * query_len
        exact = self._decode(shape, seqs, query_len, keys)
        window_tokens = self._each([config.window_tokens for config in self._configs], keys)
        window = self._decode(shape, seqs, query_len, np.minimum(2.0 * window_tokens * seqs, keys))
        output_bytes = rows * shape.num_heads * shape.v_dim * ACTIVATION_BYTES
        handed_over = rows * (self._hidden * ACTIVATION_BYTES + kind.kv_bytes)
        other, pre = kind.rest(rows)
        launched = self._deployment.framework.kernels_per_layer
        skipped = np.minimum(self._cost("skip_launch_s", keys) * launched, other)
        return LayerTimes(
            pre_s=pre,
            post_s=other - pre,
            exact_s=exact,
            window_s=np.minimum(window, exact),
            send_s=self._sent_s("send_s", output_bytes, keys),
            verify_s=self._cost("verify_s", keys) + kernels.elementwise(VERIFY_KERNELS * output_bytes).memory_s,
            sync_s=self._sent_s("sync_s", handed_over, keys, len(SYNC_PARTS)),
            skip_pre_s=skipped * pre / other,
            skip_post_s=skipped * (other - pre) / other,
        )

    def _collect(self, timer: StepTimer) -> dict[tuple[AttentionShape, int | None], _Kind]:
        deployment = self._deployment
        tokens = np.arange(timer.max_tokens + 1, dtype=np.int64)
        padded = deployment.framework.padded_tokens(tokens, deployment.cuda_graphs)
        distinct, inverse = np.unique(padded, return_inverse=True)
        gathered: dict[tuple[AttentionShape, int | None], list[tuple[int, FloatArray, FloatArray]]] = {}
        for group in deployment.architecture.layer_groups:
            attention = group.layer.attention
            other = timer.layer_costs(group.layer, distinct).device_s
            pre = np.minimum(self._pre_seconds(group.layer, distinct), other)
            key = (deployment.attention_shape(attention), attention.window)
            gathered.setdefault(key, []).append((group.count, other[inverse], pre[inverse]))
        kinds = {}
        for (shape, window), rows in gathered.items():
            count = sum(row[0] for row in rows)
            other_s = sum((row[0] / count * row[1] for row in rows), np.zeros(len(tokens)))
            pre_s = sum((row[0] / count * row[2] for row in rows), np.zeros(len(tokens)))
            kinds[shape, window] = _Kind(count, other_s, pre_s, shape.kv_bytes_per_token)
        return kinds

    def _pre_seconds(self, layer: Layer, tokens: IntArray) -> FloatArray:
        """Kernels before attention: one norm, the projections into queries, keys and values, rotary embedding."""
        deployment = self._deployment
        kernels, attention = deployment.kernels, layer.attention
        total = np.zeros(len(tokens))
        for gemm in deployment.gemms(layer):
            if gemm.name in INPUT_PROJECTIONS:
                total += np.asarray(kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype).seconds)
        moved = tokens * (4 * self._hidden + 2 * rotated_width(attention, deployment.tensor_parallel))
        total += np.asarray(kernels.elementwise(moved * ACTIVATION_BYTES, launches=2 * np.minimum(tokens, 1)).seconds)
        return total


def _of_each(rates: Sequence[Num], chance: Callable[[Num], Num]) -> list[Num]:
    """``chance`` of every layer's rate, computed once per distinct object."""
    known = {key: chance(rate) for key, rate in {id(rate): rate for rate in rates}.items()}
    return [known[id(rate)] for rate in rates]


@dataclass(frozen=True, slots=True)
class DeviceGroups:
    """A scenario's attention-level speculation before the kernels around it are priced."""

    config: AttentionSpeculationConfig
    deployment: Deployment
    """The model on one of the two groups."""

    def timer(self, plain: StepTimer) -> StepTimer:
        """Timer of one group whose decode attention overlaps the other group's."""
        return plain.beside(SpeculativeAttention(self.config, plain))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of results before anything has run."""
        notes = [cost_note(self.config, chosen_costs(self.config, self.deployment.chip.kind))]
        if self.config.task is not None:
            notes.append(
                f"attention speculation: the hit rate of {self.config.task} was published for Llama-3.1-8B; other "
                f"models and contexts have their own"
            )
        return (*notes, *lever_notes(self.config))

    def range_note(
        self, timer: StepTimer, seqs: IntArray, query_len: IntArray, keys: IntArray, seconds: FloatArray
    ) -> str:
        """Change of decode time with every assumed cost at the ends of its range."""
        low, high = (seconds_change(self.config, end, timer, seqs, query_len, keys) for end in ("low", "high"))
        total = float(seconds.sum())
        return (
            f"attention speculation: over those ranges decode steps take {1 + low / total:.2f} to "
            f"{1 + high / total:.2f} of the time given"
        )


def costs_at(config: AttentionSpeculationConfig, chip_kind: str, end: str) -> AttentionSpeculationConfig:
    """The section with every assumed cost at the ``low`` or the ``high`` end; set costs are unchanged."""
    costs = chosen_costs(config, chip_kind)
    return config.model_copy(update={name: getattr(cost, end) for name, cost in costs.items()})


def seconds_change(
    config: AttentionSpeculationConfig,
    end: Literal["low", "high"],
    timer: StepTimer,
    seqs: IntArray,
    query_len: IntArray,
    keys: IntArray,
) -> float:
    """Seconds by which decode steps change, summed, with every assumed cost at one end of its range."""
    total = 0.0
    own = SpeculativeAttention(config, timer)
    other = own.under(costs_at(config, timer.deployment.chip.kind, end))
    for shape in own.full_attention:
        parts = [model.exposed_parts(shape, None, seqs, query_len, keys) for model in (own, other)]
        total += float(np.sum(parts[1]) - np.sum(parts[0]))
    return total


def rotated_width(attention: Attention, tensor_parallel: int) -> float:
    return (attention.num_heads + attention.num_kv_heads) * attention.head_dim / tensor_parallel


def chosen_costs(config: AttentionSpeculationConfig, chip_kind: str) -> dict[str, Parameter]:
    """Fixed costs of the mechanism: from the scenario, else assumed for the class of chip, with their ranges."""
    costs = mechanism_costs(chip_kind)
    for name in costs:
        given = getattr(config, name)
        if given is not None:
            costs[name] = Parameter(name, given, given, given, costs[name].what, "given in the scenario")
    return costs


def lever_notes(config: AttentionSpeculationConfig) -> tuple[str, ...]:
    """Note on the hit rate and error under other lambda or S; empty if both have their defaults."""
    rate, tolerance, window = config.one_rate, config.tolerance, config.window_tokens
    if (tolerance, window) == (TOLERANCE, WINDOW_TOKENS):
        return ()
    model, before = error_model(), f"lambda {TOLERANCE:g} and S = {WINDOW_TOKENS}"
    words = "attention speculation: an error model, measured on a small model up to 8K tokens, moves hit rates"
    if rate is None or not 0.0 < rate < 1.0:
        return (f"{words} from {before} to lambda {tolerance:g} and S = {window}",)
    low, high = rate_range(rate, tolerance, window)
    return (
        f"{words} from {rate:.1%} at {before} to {model.moved(rate, tolerance, window):.1%} "
        f"({low:.1%} to {high:.1%}) at lambda {tolerance:g} and S = {window}; what passes carries a relative error of "
        f"{model.error_let_through(rate, tolerance, window):.1%} on average over layers, where accepting everything "
        f"would carry {model.static_error(rate, window):.1%}",
    )


def cost_note(config: AttentionSpeculationConfig, costs: Mapping[str, Parameter]) -> str:
    """Note for a reader of results: the costs used and their ranges, in microseconds."""
    parts = [
        f"{parameter.what} {parameter.value * 1e6:g} us"
        + (f" ({parameter.low * 1e6:g} to {parameter.high * 1e6:g})" if parameter.low < parameter.high else "")
        for parameter in costs.values()
    ]
    hits = "the mean of hits and misses" if config.hits == "mean" else "what drawn hits and misses make of them"
    prompts = "are shared by" if config.prefill == "context-parallel" else "run on"
    return (
        f"attention speculation: decode steps take {hits}, prompts {prompts} both groups; "
        f"per layer {', '.join(parts)}; no measurement of this mechanism was fitted"
    )
