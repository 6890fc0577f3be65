"""How an answer moves when each assumed parameter moves within its range: the data of a tornado."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from simulator.studies.assumed import AssumedParameter, assumed_parameters
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import Need, RunPool, SeededRun, needed_for, with_seeds
from simulator.studies.study_file import Variant


@dataclass(frozen=True, slots=True)
class Swing:
    """The speedups of a comparison at both ends of one assumed parameter."""

    parameter: AssumedParameter
    at_low: dict[str, float]
    """Ratio of each variant over the baseline."""
    at_high: dict[str, float]
    flips: tuple[str, ...]
    """Variants whose verdict turns over at one of the ends."""

    def width(self, variant: str) -> float:
        """Distance of the ends for a variant, in logarithms of its ratio."""
        if variant not in self.at_low or variant not in self.at_high:
            return 0.0
        return abs(log(self.at_high[variant]) - log(self.at_low[variant]))

    def document(self) -> dict[str, Any]:
        names = dict.fromkeys([*self.at_low, *self.at_high])
        return {
            "parameter": self.parameter.name,
            **{key: getattr(self.parameter, key) for key in ("says", "unit", "low", "high", "source")},
            "ratios": {name: {"at_low": self.at_low.get(name), "at_high": self.at_high.get(name)} for name in names},
            "flips": list(self.flips),
        }


def swings(
    variants: Sequence[Variant],
    bases: Mapping[str, str],
    metric: str,
    seeds: Sequence[int],
    answers: dict[str, Ratio | None],
    pool: RunPool,
) -> list[Swing]:
    """The comparison with ``bases`` at both ends of every assumed parameter in play in any variant, widest first.

    A parameter that appears in several variants moves in all of them at once. An end at which a run fails (the model no
    longer fits, say) has no ratio.
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
        flipped = (
            name
            for name, answer in answers.items()
            if answer is not None and any((end.get(name, 1.0) - 1.0) * answer.side < 0 for end in ends)
        )
        all_swings.append(Swing(parameter, ends[0], ends[1], tuple(flipped)))
    return sorted(all_swings, key=lambda swing: -max(map(swing.width, answers), default=0.0))


def _moved(
    variant: Variant, parameter: AssumedParameter | None, value: float, seeds: Sequence[int], need: Need
) -> list[SeededRun]:
    """The runs of a variant with a parameter at ``value``; as they were where it does not rest on that parameter."""
    if parameter is None:
        return with_seeds(variant.scenario, seeds, need)
    scenario, factors = parameter.applied(variant.scenario, value)
    return with_seeds(scenario, seeds, need, factors)
