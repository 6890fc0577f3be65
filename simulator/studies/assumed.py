"""Assumed parameters behind a scenario's prediction, and the range of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip, load_link
from hwprofiles.parameters import FAMILIES
from simulator.llm import MoeMlp, load_architecture
from simulator.llm.mixers import Recurrent
from simulator.running.assumptions import KERNEL_FIELDS
from simulator.running.drafting import method_overhead
from simulator.running.scenario import Scenario
from simulator.speculation import AcceptanceConfig, scaled_survival
from simulator.speculation.acceptance import widest_spread
from simulator.speculation.attention_level.parameters import mechanism_costs
from simulator.speculation.engine_logs import rate_factors, read_acceptance
from simulator.speculation.methods import METHODS
from simulator.speculation.proposal import drafter_survival
from simulator.studies.study_file import apply_settings
from simulator.timing import VLLM_2025, load_draft_overhead, load_framework, resolve_weight_dtypes

ACCEPTANCE = "acceptance"
HIT_RATE = "attention.hit_rate"
ACCEPTANCE_FACTORS = (0.9, 1.1)
"""Range of the acceptance factor: published curves of one drafter differ by about 10 % between tasks."""
TIME_FACTORS = (0.5, 2.0)
"""Range of unmeasured host, launch and link times: a factor of two up or down."""
EFFICIENCY_FACTORS = (0.85, 1.15)
"""Range of efficiencies of kernels not fitted on the chip: about the spread between fitted chips of one class."""
ON_CHIP_FACTORS = (0.7, 1.4)
FRAMEWORK_PARAMETERS = {
    "step_s": "host time per engine step",
    "per_sequence_s": "host time per running sequence and step",
    "eager_launch_s": "host time per kernel outside captured graphs",
    "reserved_bytes": "memory that the engine sets aside",
}
KERNEL_WORDS = {
    "launch_s": "fixed time of a kernel",
    "compute_efficiency": "share of peak FLOP/s that kernels reach",
    "memory_efficiency": "share of memory bandwidth that kernels reach",
    "bandwidth_efficiency": "share of link bandwidth that collectives reach",
}


@dataclass(frozen=True, slots=True)
class AssumedParameter:
    """An unmeasured parameter and the range over which it is varied."""

    name: str
    says: str
    low: float
    high: float
    unit: str
    """``factor`` on the assumed value, or the unit of an absolute value."""
    source: str
    change: Callable[[Scenario, float], Scenario] | None = None
    """Function that sets the value in a scenario; None if the parameter is not a scenario field."""

    def applied(self, scenario: Scenario, value: float) -> tuple[Scenario, dict[str, float]]:
        """Scenario and factors for a run in which the parameter has ``value``."""
        if self.change is not None:
            return self.change(scenario, value), {}
        return scenario, {self.name: value}


def assumed_parameters(scenario: Scenario) -> dict[str, AssumedParameter]:
    """All assumed parameters that affect the scenario, by name."""
    parameters = [*_framework(scenario), *_kernels(scenario), *_link(scenario), *_speculation(scenario)]
    parameters += _attention_speculation(scenario)
    return {parameter.name: parameter for parameter in parameters}


FITTED_HOST_COSTS = ("step_s", "per_sequence_s")
"""Host costs that a framework's fit to benchmark results determines."""


def _framework(scenario: Scenario) -> list[AssumedParameter]:
    """Assumed host costs; of a fitted engine only launches outside graphs and reserved memory."""
    framework = load_framework(scenario.engine.framework)
    fitted = () if framework.source.kind == "assumed" else FITTED_HOST_COSTS
    return [
        AssumedParameter(
            f"{framework.name}.{name}",
            f"{says} ({framework.name})",
            *TIME_FACTORS,
            "factor",
            framework.source.reference,
        )
        for name, says in FRAMEWORK_PARAMETERS.items()
        if getattr(framework, name) > 0 and name not in fitted
    ]


def _kernels(scenario: Scenario) -> list[AssumedParameter]:
    chip = load_chip(scenario.hardware.chip)
    kernels = KernelLibrary(chip, load_framework(scenario.engine.framework).kernel_library)
    uncalibrated = [f for f, dtype in _kernel_kinds(scenario) if kernels.basis(f, dtype) != "calibrated"]
    parameters = []
    for name, fields in KERNEL_FIELDS.items():
        touched = [f for f in dict.fromkeys(uncalibrated) if set(fields) & set(FAMILIES[f].model_fields)]
        if touched:
            factors = TIME_FACTORS if name.endswith("_s") else EFFICIENCY_FACTORS
            source = f"not fitted on {chip.name}: {', '.join(touched)}"
            says = f"{KERNEL_WORDS[name]} ({chip.name})"
            parameters.append(AssumedParameter(f"{chip.name}.kernels.{name}", says, *factors, "factor", source))
    on_chip = chip.sources.get("on_chip.bandwidth_bytes_per_s", chip.on_chip.source)
    if on_chip.kind == "assumed":
        name = f"{chip.name}.on_chip.bandwidth_bytes_per_s"
        says = f"bandwidth of the on-chip store ({chip.name})"
        parameters.append(AssumedParameter(name, says, *ON_CHIP_FACTORS, "factor", on_chip.reference))
    return parameters


def _kernel_kinds(scenario: Scenario) -> list[tuple[str, str]]:
    """Kernel families that the target runs, each with the dtype of its stored operand."""
    architecture = load_architecture(scenario.model)
    dtypes = resolve_weight_dtypes(architecture, scenario.weights_dtype)
    moe = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
    kinds = [("gemm", dtypes[part]) for part in ("attention", "mlp", "lm_head")]
    kinds += [("moe", dtypes["expert"])] if moe else []
    kinds += [(f"attention_{phase}", scenario.kv_cache_dtype) for phase in ("prefill", "decode")]
    if any(isinstance(group.layer.mixer, Recurrent) for group in architecture.layer_groups):
        kinds += [("recurrent_prefill", "bf16"), ("recurrent_decode", "bf16")]
    kinds.append(("elementwise", "any"))
    return [*kinds, ("collective", "any")] if _chips_of_replica(scenario) > 1 else kinds


def _chips_of_replica(scenario: Scenario) -> int:
    hardware = scenario.hardware
    layouts = (hardware.tensor_parallel, hardware.pipeline_parallel, hardware.expert_parallel)
    return prod(layouts) * hardware.speculative_parallel


def _link(scenario: Scenario) -> list[AssumedParameter]:
    hardware = scenario.hardware
    name = hardware.link or hardware.default_link(load_chip(hardware.chip))
    if name is None or _chips_of_replica(scenario) == 1:
        return []
    link = load_link(name)
    source = link.field_sources.get("latency_s", link.source)
    if source.kind != "assumed":
        return []
    says = f"latency of the link ({link.name})"
    return [AssumedParameter(f"{link.name}.latency_s", says, *TIME_FACTORS, "factor", source.reference)]


def _speculation(scenario: Scenario) -> list[AssumedParameter]:
    """Acceptance and host costs of drafting, as assumed parameters. The range of costs that are 0 by default extends up
    to EAGLE's costs in vLLM before its passes were captured."""
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        return []
    parameters = []
    acceptance, factors, says = speculation.acceptance, ACCEPTANCE_FACTORS, "conditional acceptance rates"
    if acceptance is not None:
        source = "published curve, other traffic" if acceptance.curve else "the scenario's figure"
        if acceptance.log is not None:
            factors, source = rate_factors(read_acceptance(acceptance.log)), "the log's number of drafts"
        if factors[0] < factors[1]:
            parameters.append(
                AssumedParameter(ACCEPTANCE, says, *factors, "factor", source, change=with_acceptance_scaled)
            )
    known = method_overhead(scenario.engine.framework, speculation.method)
    if known.source.kind != "assumed":
        return parameters
    draft, method, uncaptured = speculation.draft, speculation.method, load_draft_overhead(VLLM_2025, "eagle")

    for name, says, most in (
        ("step_s", "host time per step that drafts", uncaptured.step_s),
        ("pass_s", "host time per draft pass", uncaptured.pass_s),
        ("per_sequence_s", "host look-up time per sequence", 0.0),
        ("per_context_token_s", "host look-up time per context token", 0.0),
    ):
        if name not in METHODS[speculation.method].fields:
            continue
        set_value = getattr(draft, name) if draft is not None else None
        value = getattr(known, name)
        if set_value is not None or (value == 0.0 and most == 0.0) or (name == "pass_s" and known.per_sequence_s > 0):
            continue
        low, high = (value / 2, value * 2) if value else (0.0, most)
        change = _field(f"speculation.draft.{name}", method)
        reference = known.source.reference
        parameters.append(
            AssumedParameter(f"{method}.{name}", f"{says} ({method})", low, high, "s", reference, change=change)
        )
    return parameters


def _attention_speculation(scenario: Scenario) -> list[AssumedParameter]:
    config = scenario.attention_speculation
    if config is None:
        return []
    rate = AssumedParameter(
        HIT_RATE,
        "share of layers that pass verification",
        *ACCEPTANCE_FACTORS,
        "factor",
        "the scenario's figure",
        with_hits_scaled,
    )
    costs = mechanism_costs(load_chip(scenario.hardware.chip).kind)
    return [rate] + [
        AssumedParameter(
            f"attention.{name}",
            f"{cost.what} (attention speculation)",
            cost.low,
            cost.high,
            "s",
            cost.source,
            _field(f"attention_speculation.{name}"),
        )
        for name, cost in costs.items()
        if getattr(config, name) is None
    ]


def _field(path: str, method: str | None = None) -> Callable[[Scenario, float], Scenario]:
    """Function that sets a field in scenarios that have its section and draft by ``method``; others are unchanged."""

    def change(scenario: Scenario, value: float) -> Scenario:
        section = getattr(scenario, path.partition(".")[0])
        if section is None or (method is not None and section.method != method):
            return scenario
        return apply_settings(scenario, {path: value}, "sensitivity")

    return change


def with_hits_scaled(scenario: Scenario, factor: float) -> Scenario:
    """Copy of the scenario with every hit rate of attention-level speculation multiplied by ``factor``, at most 1."""
    config = scenario.attention_speculation
    if config is None:
        return scenario
    changes: dict[str, object]
    if config.hit_rate_by_context is not None:
        points = [[context, min(1.0, rate * factor)] for context, rate in config.hit_rate_by_context]
        changes = {"hit_rate_by_context": points}
    elif isinstance(config.hit_rate, list):
        changes = {"hit_rate": [min(1.0, rate * factor) for rate in config.hit_rate]}
    else:
        assert config.one_rate is not None
        changes = {"hit_rate": min(1.0, config.one_rate * factor), "task": None}
    settings = {f"attention_speculation.{name}": value for name, value in changes.items()}
    return apply_settings(scenario, settings, "sensitivity")


def with_acceptance_scaled(scenario: Scenario, factor: float) -> Scenario:
    """Copy of the scenario with every conditional acceptance rate multiplied by ``factor``, at most 1."""
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none" or speculation.acceptance is None:
        return scenario
    base = speculation.acceptance
    acceptance = base.model_dump(exclude_unset=True)
    if base.alpha is not None:
        acceptance["alpha"] = first = min(1.0, base.alpha * factor)
    elif base.conditional is not None:
        acceptance["conditional"] = [min(1.0, rate * factor) for rate in base.conditional]
        first = acceptance["conditional"][0]
    else:
        rates = base.per_position
        survival = [float(s) for s in drafter_survival(speculation)] if rates is None else rates
        acceptance = {
            "per_position": scaled_survival(survival, factor),
            "extrapolate": base.extrapolate and len(survival) > 1,
        }
        first = acceptance["per_position"][0]
    if base.spread:
        acceptance["spread"] = min(base.spread, widest_spread(first))
    try:
        AcceptanceConfig.model_validate(acceptance)
    except ValueError as error:
        raise ForerunError(f"sensitivity: acceptance: {error}") from None
    return apply_settings(scenario, {"speculation.acceptance": acceptance}, "sensitivity")
