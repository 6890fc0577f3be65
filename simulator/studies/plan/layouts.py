"""Search space of a capacity plan: chips, parallelism, batching, dtypes, speculation; then numbers of replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from forerun.document import DocumentPart
from forerun.errors import ArgumentError, ForerunError, NothingServedError
from hwprofiles import Chip, load_chip
from simulator.running.metrics.usage import stores_usd_per_hour
from simulator.running.scenario import Scenario
from simulator.studies.steady_state.averages import SteadyReplica
from simulator.studies.steady_state.estimate import kept_build, steady_parts
from simulator.studies.study_file import Range, Settings, StudyFile, Values, settings_name
from simulator.timing import HardwareConfig

REPLICAS = "hardware.replicas"
CHIP = "hardware.chip"
PRICE = "prices.usd_per_chip_hour"
TENSOR_PARALLEL = "hardware.tensor_parallel"
EXPERT_PARALLEL = "hardware.expert_parallel"
BATCHED_TOKENS = "engine.max_num_batched_tokens"
METHOD = "speculation.method"
DEFAULT_TENSOR_PARALLEL = (1, 2, 4, 8)
DEFAULT_BATCHED_TOKENS = (2048, 8192)
POOL_REPLICAS = (1, 2, 3, 4, 6, 8)
NAMED_BY_LAYOUT = (CHIP, TENSOR_PARALLEL, "hardware.pipeline_parallel", PRICE, REPLICAS)
"""Fields that a layout's name already contains."""
MOST_LAYOUTS = 2000


@dataclass(frozen=True)
class ChipPrice(DocumentPart):
    """US dollars per chip-hour, and the source of the price."""

    usd_per_hour: float
    source: str


GIVEN = "given with the plan"


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to run the scenario; a plan may use any number of its replicas."""

    settings: Settings
    scenario: Scenario
    """The scenario of this layout with one replica."""
    name: str
    chips: int
    usd_per_hour: float | None
    """Price of one replica, US dollars per hour; None if neither scenario nor chip profile has one."""
    refused: str | None = None
    """Reason why the layout cannot be simulated; None if it can."""
    steady: SteadyReplica | None = None
    """Analytic averages of one replica; None without a closed form."""
    prices: Mapping[str, ChipPrice] = field(default_factory=dict)
    """Price of each of the layout's chips, by name."""
    scalable: bool = True
    """True if ``hardware.replicas`` sets the number of copies; pools set their own numbers."""
    spare: int = 0
    """Number of redundant replicas beyond those that meet the objective, for failures."""
    shared_usd_per_hour: float = 0.0
    """Rent of a KV store that all replicas share."""

    @property
    def chip_names(self) -> str:
        """Chips of the layout: one name, or those of its pools joined."""
        return " + ".join(dict.fromkeys(hardware.chip for _, hardware in _parts(self.scenario)))

    @property
    def board_w(self) -> float:
        """Maximum total watts of the boards of one replica: their power limits, else their TDP."""
        total = 0.0
        for pool, hardware in _parts(self.scenario):
            limit = hardware.power_limit_w
            chips = hardware.chips_per_replica * hardware.speculative_parallel * (hardware.replicas if pool else 1)
            total += chips * (load_chip(hardware.chip).power.tdp_w if limit is None else limit)
        return total

    def rented(self, replicas: int) -> int:
        """Number of paid replicas if ``replicas`` meet the objective: spares included."""
        return replicas + (self.spare if self.scalable else 0)

    def named(self, replicas: int) -> str:
        """Name of the layout with a number of replicas, e.g. ``2 x h100-sxm TP4``, or ``2+1 x ...`` with one spare."""
        spare = f"+{self.spare}" if self.spare else ""
        return f"{replicas}{spare} x {self.name}" if self.scalable else self.name

    def with_replicas(self, scenario: Scenario, replicas: int) -> Scenario:
        return scenario.with_values({REPLICAS: replicas}) if self.scalable else scenario


def _parts(scenario: Scenario) -> list[tuple[str, HardwareConfig]]:
    """Name and hardware of every pool; without pools, the scenario's hardware with an empty name."""
    if scenario.pools is None:
        return [("", scenario.hardware)]
    return [(name, scenario.pool_section(name, "hardware")) for name in scenario.pools]


def search_axes(study: StudyFile) -> dict[str, tuple[Any, ...]]:
    """Values of every field that a plan searches, except replicas.

    They are the fields that the study varies, and by default: tensor parallelism 1, 2, 4, 8; a token budget of 2,048
    and 8,192; and the scenario's speculation, on and off. With pools, only the number of replicas of each pool;
    those of prefill and decode are compared with equal replicas.
    """
    axes = {path: listed(path, values) for path, values in study.vary.items() if path != REPLICAS}
    scenario = study.scenario
    defaults: dict[str, tuple[int, Sequence[int]]] = {
        TENSOR_PARALLEL: (scenario.hardware.tensor_parallel, DEFAULT_TENSOR_PARALLEL),
        BATCHED_TOKENS: (scenario.engine.max_num_batched_tokens, DEFAULT_BATCHED_TOKENS),
    }
    if scenario.pools is not None:
        defaults = {
            f"pools.{name}.{REPLICAS}": (hardware.replicas, POOL_REPLICAS) for name, hardware in _parts(scenario)
        }
    for path, (value, others) in defaults.items():
        axes.setdefault(path, tuple(sorted({value, *others})))
    speculation = scenario.speculation
    if speculation is not None and speculation.method != "none" and not any(p.startswith("speculation") for p in axes):
        axes[METHOD] = (speculation.method, "none")
    return axes


def replica_counts(study: StudyFile, most: int) -> tuple[int, ...]:
    """Numbers of replicas to try, ascending: the study's values, else 1 to ``most``."""
    if REPLICAS not in study.vary:
        return tuple(range(1, most + 1))
    counts = listed(REPLICAS, study.vary[REPLICAS])
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ForerunError(f"{study.place}: {REPLICAS}: whole numbers from 1 (got {count!r})")
    return tuple(sorted(counts))


def listed(path: str, values: Values) -> tuple[Any, ...]:
    """Values of an axis as a tuple; a continuous range is refused."""
    if isinstance(values, Range):
        raise ArgumentError("vary", f"{path}: a plan tries single values; list them, for example {path}=1,2,4")
    return values


def layouts(study: StudyFile, axes: Mapping[str, Sequence[Any]], spare: int = 0) -> list[Layout]:
    """All combinations of the axes (for each named variant, if any), including refused combinations."""
    bases = [(variant.name, variant.set) for variant in study.variants] or [("", {})]
    total = len(bases) * prod(map(len, axes.values()))
    if total > MOST_LAYOUTS:
        raise ForerunError(f"{study.place}: {total:,} layouts are too many to plan over (at most {MOST_LAYOUTS:,})")
    several = [path for path, values in axes.items() if len(values) > 1]
    all_layouts = []
    for variant, base in bases:
        for values in product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            settings = {path: value for path, value in chosen.items() if not path.endswith(NAMED_BY_LAYOUT)}
            if BATCHED_TOKENS not in several:
                settings.pop(BATCHED_TOKENS, None)
            all_layouts.append(_layout(study, {**base, **chosen}, variant, settings, spare))
        own = [path for path in axes if not path.startswith("pools.")]
        for hardware, values in product(_unsplit(study.scenario), product(*(axes[path] for path in own))):
            chosen = dict(zip(own, values, strict=True))
            name = ", ".join(filter(None, (variant, "not split")))
            all_layouts.append(_layout(study, {**base, **hardware, **chosen}, name, chosen, spare))
    return all_layouts


def _unsplit(scenario: Scenario) -> list[Settings]:
    """Settings that replace prefill and decode pools by equal replicas, on the hardware of either."""
    if scenario.pools is None or not any(pool.role == "prefill" for pool in scenario.pools.values()):
        return []
    unsplit: dict[tuple[str, int], Settings] = {}
    for name, hardware in _parts(scenario):
        usd = scenario.pools[name].usd_per_chip_hour
        settings = {"pools": None, "kv_transfer": None, CHIP: hardware.chip, TENSOR_PARALLEL: hardware.tensor_parallel}
        priced = {} if usd is None else {PRICE: usd}
        unsplit.setdefault((hardware.chip, hardware.tensor_parallel), {**settings, **priced})
    return list(unsplit.values())


def _layout(study: StudyFile, settings: dict[str, Any], variant: str, named: Settings, spare: int) -> Layout:
    settings = _spread_experts(study.scenario.hardware, settings)
    scenario = study.with_settings({**settings, REPLICAS: 1})
    name = _name(scenario, variant, named)
    refused, steady = None, None
    try:
        rents = _rents(study, scenario, settings)
    except ForerunError as error:
        return Layout(settings, scenario, name, 0, None, str(error), spare=spare)
    try:
        steady = steady_parts(scenario)[2]
    except NothingServedError as error:
        refused = str(error)
    except ForerunError:
        pass  # no steady state in closed form: only the event simulation can tell
    bills = [count * price.usd_per_hour for count, _, price in rents if price is not None]
    own, shared = stores_usd_per_hour(scenario)
    usd = sum(bills) + own if len(bills) == len(rents) else None
    prices = {chip: price for _, chip, price in rents if price is not None}
    chips = sum(count for count, *_ in rents)
    return Layout(settings, scenario, name, chips, usd, refused, steady, prices, not scenario.pools, spare, shared)


def _spread_experts(hardware: HardwareConfig, settings: Settings) -> dict[str, Any]:
    """Settings with experts spread over all chips of a stage, like the engines' flag, if the scenario spreads them."""
    spread = hardware.expert_parallel == hardware.chips_per_stage > 1
    if not spread or TENSOR_PARALLEL not in settings or EXPERT_PARALLEL in settings:
        return dict(settings)
    return {**settings, EXPERT_PARALLEL: settings[TENSOR_PARALLEL] * hardware.attention_data_parallel}


def _rents(study: StudyFile, scenario: Scenario, settings: Settings) -> list[tuple[int, str, ChipPrice | None]]:
    """Chips of a scenario with one replica, a drafter's separate chips included: number, name and price."""
    build = kept_build(scenario)
    rents = [(build.chips, scenario.hardware.chip, _price(study, scenario, settings))]
    if scenario.pools is not None:
        rents = [
            (
                pool.replicas * pool.chips,
                pool.chip.name,
                _catalogue_price(pool.chip)
                if pool.usd_per_chip_hour is None
                else ChipPrice(pool.usd_per_chip_hour, GIVEN),
            )
            for pool in build.pools
        ]
    speculation = scenario.speculation
    draft = None if speculation is None or speculation.method == "none" else speculation.draft
    if draft is not None and draft.chip is not None:
        drafting = scenario.hardware.replicas * (draft.tensor_parallel or 1)
        rents.append((drafting, draft.chip, _catalogue_price(load_chip(draft.chip))))
    return rents


def _name(scenario: Scenario, variant: str, settings: Settings) -> str:
    pools = []
    for pool, hardware in _parts(scenario):
        pipeline = f", PP{hardware.pipeline_parallel}" if hardware.pipeline_parallel > 1 else ""
        count = f"{pool} {hardware.replicas} x " if pool else ""
        pools.append(f"{count}{hardware.chip} TP{hardware.tensor_parallel}{pipeline}")
    parts = [" + ".join(pools)]
    if BATCHED_TOKENS in settings:
        parts.append(f"{settings[BATCHED_TOKENS]}-token steps")
    if variant:
        parts.append(variant)
    others = {path: value for path, value in settings.items() if path != BATCHED_TOKENS}
    if others:
        parts.append(settings_name(others))
    return ", ".join(parts)


def _price(study: StudyFile, scenario: Scenario, settings: Settings) -> ChipPrice | None:
    """Price per chip-hour: from the scenario (for its own chip, or by name), else from the chip profile."""
    chip, prices = scenario.hardware.chip, scenario.prices
    if prices is not None and (
        PRICE in settings or isinstance(prices.usd_per_chip_hour, dict) or chip == study.scenario.hardware.chip
    ):
        usd = prices.of(load_chip(chip).name)
        if usd is not None:
            return ChipPrice(usd, GIVEN)
    return _catalogue_price(load_chip(chip))


def _catalogue_price(chip: Chip) -> ChipPrice | None:
    if chip.price is None or chip.price.usd_per_hour is None:
        return None
    source = chip.price.field_sources.get("usd_per_hour", chip.price.source)
    return ChipPrice(chip.price.usd_per_hour, f"{source.kind}: {source.reference}, {source.date}")
