"""Runs with changed assumed parameters: factors on host costs, kernel parameters, chips and links, by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forerun.errors import at_field
from forerun.recent import RecentResults
from hwprofiles import Chip, KernelLibrary, Link, load_link
from hwprofiles.parameters import FamilyParameters
from simulator.timing.framework import Framework

T = TypeVar("T")
Factors = Mapping[str, float]
"""Factor by parameter name, e.g. ``{"vllm.step_s": 2.0, "n150.kernels.launch_s": 0.5}``; absent names are 1."""

KERNEL_FIELDS: Mapping[str, tuple[str, ...]] = {
    "launch_s": ("launch_s", "direct_launch_s"),
    "compute_efficiency": ("compute_efficiency",),
    "memory_efficiency": ("memory_efficiency",),
    "bandwidth_efficiency": ("bandwidth_efficiency", "in_network_efficiency", "direct_efficiency"),
}
"""Parameter of a sensitivity study -> fields of the kernel families that its factor multiplies."""
LARGEST_EFFICIENCY = 1.0


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Multiplies assumed numbers by factors; without factors, numbers are unchanged."""

    factors: Factors = field(default_factory=dict)

    def framework(self, framework: Framework) -> Framework:
        scaled = self._scaled(framework.name, {name: value for name, value in framework if isinstance(value, float)})
        return framework.model_copy(update=scaled) if scaled else framework

    def link(self, name: str, field: str) -> Link:
        """Link named by a scenario's ``field``, with the factor ``LINK.latency_s`` applied."""
        with at_field(field):
            link = load_link(name)
        scaled = self._scaled(link.name, {"latency_s": link.latency_s})
        return link.model_copy(update=scaled) if scaled else link

    def chip(self, chip: Chip) -> Chip:
        """Chip with the factor ``CHIP.on_chip.bandwidth_bytes_per_s``; its store is at least as fast as its memory."""
        scaled = self._scaled(f"{chip.name}.on_chip", {"bandwidth_bytes_per_s": chip.on_chip.bandwidth_bytes_per_s})
        return _once(_with_on_chip, chip, *scaled.values()) if scaled else chip

    def kernels(self, chip: Chip, library: str, *choices: Any) -> KernelLibrary:
        """Kernel library of a chip with the factors ``CHIP.kernels.PARAMETER`` applied, except to calibrated values."""
        factors = {name: self.factors.get(f"{chip.name}.kernels.{name}", 1.0) for name in KERNEL_FIELDS}
        moved = {name: factor for name, factor in factors.items() if factor != 1.0}
        if moved:
            return _once(_ScaledKernels, chip, library, tuple(moved.items()), *choices)
        return _once(KernelLibrary, chip, library, *choices)

    def _scaled(self, owner: str, values: Mapping[str, float]) -> dict[str, float]:
        factors = {name: self.factors.get(f"{owner}.{name}", 1.0) for name in values}
        return {name: values[name] * factor for name, factor in factors.items() if factor != 1.0}


def _with_on_chip(chip: Chip, bandwidth_bytes_per_s: float) -> Chip:
    bandwidth = max(bandwidth_bytes_per_s, chip.memory.bandwidth_bytes_per_s)
    on_chip = chip.on_chip.model_copy(update={"bandwidth_bytes_per_s": bandwidth})
    return chip.model_copy(update={"on_chip": on_chip})


def _once(make: Callable[..., T], chip: Chip, *how: Hashable) -> T:
    """Memoised ``make(chip, *how)``, keyed by the chip's identity, so that runs of one chip share prices."""
    _, made = _RECENT.get((make, id(chip), *how), lambda: (chip, make(chip, *how)))
    again: T = made
    return again


_RECENT: RecentResults[tuple[Chip, Any]] = RecentResults(64)
"""Each entry keeps a reference to its chip, so that the id in the key stays valid."""


class _ScaledKernels(KernelLibrary):
    """Kernel library that multiplies parameters not fitted on this chip's own measurements."""

    def __init__(self, chip: Chip, library: str, factors: Iterable[tuple[str, float]], *choices: Any) -> None:
        super().__init__(chip, library, *choices)
        self._factors = dict(factors)
        self._scaled: dict[tuple[str, str], FamilyParameters] = {}

    def parameters(self, family: str, dtype: str = "bf16") -> FamilyParameters:
        """Parameter set of the family, scaled; efficiencies are at most 1."""
        scaled = self._scaled.get((family, dtype))
        if scaled is None:
            scaled = super().parameters(family, dtype)
            update: dict[str, float] = {}
            for name, factor in self._factors.items() if self.basis(family, dtype) != "calibrated" else ():
                for part in KERNEL_FIELDS[name]:
                    if part in type(scaled).model_fields:
                        value = getattr(scaled, part) * factor
                        update[part] = value if part.endswith("_s") else min(value, LARGEST_EFFICIENCY)
            scaled = self._scaled[family, dtype] = scaled.model_copy(update=update) if update else scaled
        return scaled
