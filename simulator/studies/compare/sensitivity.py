"""Sensitivity of an answer to each assumed parameter over its range: the data of a tornado."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from forerun.document import DocumentPart
from simulator.studies.assumed import AssumedParameter, assumed_parameters
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import Need, RunPool, SeededRun, needed_for, with_seeds
from simulator.studies.study_file import Variant


@dataclass(frozen=True)
class Ends(DocumentPart):
    """Ratio of a variant over the baseline at both ends of an assumed parameter; None if a run failed."""

    at_low: float | None
    at_high: float | None


@dataclass(frozen=True, kw_only=True)
class Swing(DocumentPart):
    """The speedups of a comparison at both ends of one assumed parameter."""

    parameter: str
    says: str
    unit: str
    low: float
    high: float
    source: str
    ratios: dict[str, Ends]
    """Ratios at both ends, by variant."""
    flips: list[str]
    """Variants whose verdict is reversed at one of the ends."""

    def change(self, variant: str, scale: Callable[[float], float] = float) -> float:
        """Change of a variant's speedup, or of a function of it, between the ends; 0 if an end has no speedup."""
        ends = self.ratios.get(variant)
        if ends is None or ends.at_low is None or ends.at_high is None:
            return 0.0
        return scale(ends.at_high) - scale(ends.at_low)


def swings(
    variants: Sequence[Variant],
    bases: Mapping[str, str],
    metric: str,
    seeds: Sequence[int],
    answers: dict[str, Ratio | None],
    pool: RunPool,
) -> list[Swing]:
    """Speedups over ``bases`` at both ends of every assumed parameter of any variant, widest change first.

    A parameter of several variants changes in all of them together. An end at which a run fails (for example, because
    the model no longer fits) has no ratio.
    """
    by_variant = {variant.name: assumed_parameters(variant.scenario) for variant in variants}
    parameters: dict[str, AssumedParameter] = {}
    for of_variant in by_variant.values():
        parameters = {**of_variant, **parameters}
    runs = [
        run
        for parameter in parameters.values()
        for value in (parameter.low, parameter.high)
        for variant in variants
        for run in _moved(variant, by_variant[variant.name].get(parameter.name), value, seeds, needed_for(metric))
    ]
    documents = iter(pool.documents_if_any(runs))
    all_swings = []
    for parameter in parameters.values():
        ends: list[dict[str, float]] = []
        for _ in (parameter.low, parameter.high):
            measured = {v.name: [metric_values(next(documents))[metric] for _ in seeds] for v in variants}
            pairs = {name: (measured[bases[name]], measured[name]) for name in answers}
            ratios = {name: paired_ratio(*pair, HIGHER_IS_BETTER[metric]) for name, pair in pairs.items()}
            ends.append({name: ratio.ratio for name, ratio in ratios.items() if ratio is not None})
        flips = [
            name
            for name, answer in answers.items()
            if answer is not None and any((end.get(name, 1.0) - 1.0) * answer.side < 0 for end in ends)
        ]
        moved = {name: Ends(*(end.get(name) for end in ends)) for name in dict.fromkeys([*ends[0], *ends[1]])}
        facts = {key: getattr(parameter, key) for key in ("says", "unit", "low", "high", "source")}
        all_swings.append(Swing(parameter=parameter.name, ratios=moved, flips=flips, **facts))
    return sorted(all_swings, key=lambda swing: -max((abs(swing.change(name, log)) for name in answers), default=0.0))


def _moved(
    variant: Variant, parameter: AssumedParameter | None, value: float, seeds: Sequence[int], need: Need
) -> list[SeededRun]:
    """Runs of a variant with a parameter at ``value``; unchanged if the variant does not depend on the parameter."""
    if parameter is None:
        return with_seeds(variant.scenario, seeds, need)
    scenario, factors = parameter.applied(variant.scenario, value)
    return with_seeds(scenario, seeds, need, factors)
