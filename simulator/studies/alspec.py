"""Attention-level speculation compared with other layouts: decode-step times of scenarios, with ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from forerun.document import Json
from forerun.errors import ForerunError
from hwprofiles import load_chip
from simulator.running.build import build_replica
from simulator.running.scenario import Scenario, scenario_from
from simulator.speculation import draft_survival
from simulator.speculation.attention_level import AttentionSpeculationConfig
from simulator.speculation.attention_level.overlap import SpeculativeAttention, costs_at
from simulator.timing import EngineTimer, ModelTimer, decode_work, keys_read

WORKLOAD = {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1}
"""Placeholder workload for scenarios whose steps alone are priced."""


ATLAS_CHIPS = ("n150", "n150-v0.55", "n300", "p150", "h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm")
ATLAS_MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b", "gpt-oss-120b", "llama-3.1-405b")
ATLAS_GROUPS = (2, 4, 8, 16, 32)
"""Total numbers of chips of the two device groups."""
ATLAS_CONTEXTS = tuple(2**power for power in range(10, 21))
ATLAS_BATCHES = (1, 8)
ATLAS_LEVERS = ((0.10, 128), (0.05, 128), (0.20, 128), (0.10, 1024), (0.05, 1024))
"""Pairs of lambda (tolerance) and S (window tokens); the first pair is the published rule."""
EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"per_position": [0.73, 0.52, 0.35]}}


class DecodeStep(NamedTuple):
    """One decode step of equal sequences."""

    seconds: float
    tokens: float
    """Tokens that a sequence gains in the step, bonus token included."""
    fits: bool
    """True if the KV of the batch fits in memory next to the weights."""

    @property
    def seconds_per_token(self) -> float:
        """TPOT, in seconds, of a run of such steps."""
        return self.seconds / self.tokens


class Gain(NamedTuple):
    """Speedup of one layout over another at one batch size and context."""

    batch: int
    context_tokens: int
    speedup: float
    """Ratio of the TPOTs of the two layouts; above 1 if speculation is faster."""
    low: float
    """Speedup with every assumed cost of attention-level speculation at the slow end of its range."""
    high: float
    fits: bool


class StepPricer:
    """Prices decode steps of a scenario that is built once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._known: dict[tuple[tuple[int, int], ...], list[DecodeStep]] = {}
        self._build = build_replica(scenario, seed=0)
        self._timer: EngineTimer = self._build.main.timer
        speculation = scenario.speculation
        self._accepted = 0.0
        if speculation is not None and speculation.method != "none":
            self._accepted = float(sum(draft_survival(speculation)))

    @cached_property
    def basis(self) -> str:
        """Evidence level of the kernels of the scenario's usual steps."""
        return self._build.basis

    def steps_under(
        self, configs: Sequence[AttentionSpeculationConfig], cases: Sequence[tuple[int, int]]
    ) -> list[list[DecodeStep]]:
        """Steps for the same cases under other settings of attention-level speculation: one list per config. The build
        is reused, and all steps are priced in one call."""
        timer = self._timer
        assert isinstance(timer, ModelTimer)
        assert isinstance(timer.target.overlap, SpeculativeAttention)
        overlap = timer.target.overlap.under(*configs)
        steps = self._priced([*cases] * len(configs), replace(timer, target=timer.target.beside(overlap)))
        return [steps[first : first + len(cases)] for first in range(0, len(steps), len(cases))]

    def step(self, batch: int, context_tokens: int) -> DecodeStep:
        """Price a step of ``batch`` sequences with ``context_tokens`` each in the cache at its end."""
        return self.steps([(batch, context_tokens)])[0]

    def steps(self, cases: Sequence[tuple[int, int]]) -> list[DecodeStep]:
        """Price steps for many pairs of batch and context at once; results are cached."""
        key = tuple(cases)
        if key not in self._known:
            self._known[key] = self._priced(key, self._timer)
        return self._known[key]

    def _priced(self, cases: Sequence[tuple[int, int]], timer: EngineTimer) -> list[DecodeStep]:
        limits, windows = self._build.main.limits, timer.windows
        query_len, batches = limits.query_len, np.array([batch for batch, _ in cases])
        read = [[batch * keys_read(context, query_len, window) for batch, context in cases] for window in windows]
        keys = tuple(np.array(row) for row in read)
        costs = timer.costs(decode_work(batches, query_len, keys))
        seconds = (costs.device_s + costs.host_s).tolist()
        blocks = [batch * limits.blocks(context + limits.lookahead_tokens) for batch, context in cases]
        return [
            DecodeStep(taken, 1.0 + self._accepted, needed <= limits.num_blocks)
            for taken, needed in zip(seconds, blocks, strict=True)
        ]


def layout(base: Mapping[str, Any], **sections: Any) -> Scenario:
    """Scenario from plain data without a workload, with whole sections replaced; None removes a section."""
    data = {"workload": WORKLOAD, **base, **sections}
    return scenario_from({name: value for name, value in data.items() if value is not None}, "layout")


def at_range_end(scenario: Scenario, end: str) -> Scenario:
    """Copy of the scenario with all assumed costs of the mechanism at the ``low`` or ``high`` end of their ranges.

    Values that the scenario sets explicitly are unchanged.
    """
    config = scenario.attention_speculation
    if config is None:
        return scenario
    return scenario.model_copy(
        update={"attention_speculation": costs_at(config, load_chip(scenario.hardware.chip).kind, end)}
    )


def gains(serial: Scenario, speculative: Scenario, batches: Sequence[int], contexts: Sequence[int]) -> list[Gain]:
    """Speed-ups of ``speculative`` over ``serial``, as in ``lever_gains`` without overrides."""
    return lever_gains([StepPricer(serial)], StepPricer(speculative), batches, contexts)[0]


def lever_gains(
    serial: Sequence[StepPricer],
    speculative: StepPricer,
    batches: Sequence[int],
    contexts: Sequence[int],
    levers: Sequence[Mapping[str, Any]] = ({},),
) -> list[list[Gain]]:
    """Speed-up of ``speculative`` over ``serial``, at each batch size and context.

    Args:
        serial: scenarios without attention-level speculation; the fastest one whose KV fits is the baseline.
        speculative: the scenario with attention-level speculation.
        batches: sequences of a step.
        contexts: tokens of each sequence in the cache.
        levers: overrides of ``attention_speculation``; the result has one list of gains per override.
    """
    cases = list(product(batches, contexts))
    serial_steps = zip(*(each.steps(cases) for each in serial), strict=True)
    before = [min(steps, key=lambda step: (not step.fits, step.seconds_per_token)) for steps in serial_steps]
    kind, settings = load_chip(speculative.scenario.hardware.chip).kind, speculative.scenario.attention_speculation
    assert settings is not None
    plain = settings.model_dump(exclude_none=True)
    chosen = [AttentionSpeculationConfig.model_validate({**plain, **lever}) for lever in levers]
    ends = [[config, *(costs_at(config, kind, end) for end in ("high", "low"))] for config in chosen]
    steps = speculative.steps_under([config for each in ends for config in each], cases)
    gains = []
    for place in range(0, len(steps), 3):
        rows = []
        for (batch, context), one, *after in zip(cases, before, *steps[place : place + 3], strict=True):
            ratios = [one.seconds_per_token / step.seconds_per_token for step in after]
            rows.append(Gain(batch, context, ratios[0], min(ratios), max(ratios), one.fits and after[0].fits))
        gains.append(rows)
    return gains


def atlas_layouts(chips: Iterable[str], models: Iterable[str], groups: Iterable[int]) -> Iterator[list[Json]]:
    """Layouts of the atlas, grouped by chips, model and drafter; levers vary only without a drafter."""
    for chip, model, count, drafter in product(chips, models, groups, (None, "eagle3")):
        case = {"chip": chip, "model": model, "chips": count}
        chosen = ATLAS_LEVERS if drafter is None else ATLAS_LEVERS[:1]
        yield [case | {"lambda": x, "window_tokens": s, "speculation": drafter} for x, s in chosen]


def atlas_gains(
    cases: Sequence[Mapping[str, Any]], batches: Sequence[int] = ATLAS_BATCHES, contexts: Sequence[int] = ATLAS_CONTEXTS
) -> list[Json]:
    """Cases that differ only in lambda and S, with ``gains`` by batch and context or the reason they are ``refused``.

    Hit rates are published values for gsm8k; the gain is relative to the fastest single group of at most as many chips.
    """
    case = cases[0]
    what = (case["chip"], case["model"], case["speculation"])
    levers = [{name: one[name] for name in ("lambda", "window_tokens")} for one in cases]
    sizes = [case["chips"] // 2**halvings for halvings in range(case["chips"].bit_length())]
    two = _groups(*what, case["chips"] // 2, 2)
    if isinstance(two, str):
        return [{**one, "refused": two} for one in cases]
    single_groups = [group for size in sizes if isinstance(group := _groups(*what, size, 1), StepPricer)]
    try:
        gains = lever_gains(single_groups, two, batches, contexts, levers)
    except ForerunError as error:
        return [{**one, "refused": str(error)} for one in cases]
    return [
        {**one, "basis": two.basis, "gains": [row._asdict() for row in rows]}
        for one, rows in zip(cases, gains, strict=True)
    ]


ENGINE = {"framework": "vllm", "max_num_seqs": 16, "max_num_batched_tokens": 256}
"""Engine of both layouts; not tt-metal, which computes 32 slots of a batch even if fewer are occupied."""


@lru_cache(maxsize=512)
def _groups(chip: str, model: str, speculation: str | None, chips: int, groups: int) -> StepPricer | str:
    """Build one group of chips, or two groups that speculate at gsm8k's hit rates; returns the reason if refused.
    Results are cached, so that maps for further lambda, S or batch need no build."""
    hardware = {"chip": chip, "tensor_parallel": chips} | ({"speculative_parallel": groups} if groups > 1 else {})
    attention = {"task": "gsm8k"} if groups > 1 else None
    try:
        base: Json = {"model": model, "engine": ENGINE}
        if load_chip(chip).kind == "tensix":  # their usual block format
            base |= {"weights_dtype": "bfp8", "kv_cache_dtype": "bfp8"}
        base |= {"hardware": hardware, "attention_speculation": attention}
        return StepPricer(layout(base, speculation=EAGLE3 if speculation else None))
    except ForerunError as error:
        return str(error)
