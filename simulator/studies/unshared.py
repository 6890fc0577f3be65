"""Unshared error of a ratio: what two variants do not have in common, from published ratios (``unshared.yaml``).

Common random numbers cancel what two runs share. What is left was measured: ratios that others published, beside the
predicted ones. They err by a factor whose logarithm is Student-t. Where one variant drafts on a serving engine, some
deployments gain nothing at all, whatever was predicted: no kernels for several rows, no graphs, a slow host, an engine
that waits between ranks. Scheduler and load are shared: ratios of variants that differ in nothing else stay as narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import Json
from forerun.yaml_files import packaged
from hwprofiles import load_chip
from simulator.running.metrics.served import figure_kind
from simulator.running.metrics.uncertainty import DRAWS, decoding_share, standard_draws

DRAFTING, DEPLOYMENT = "drafting", "deployment"
EVIDENCE = ("calibrated", "extrapolated", "datasheet")
LAYOUT = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "attention_data_parallel", "layers_on",
          "tensor_chips", "link", "pipeline_link")  # fmt: skip
"""Fields of ``hardware`` that say how chips work together."""
RESEARCH = ("transformers", "generic", "reference")
"""Frameworks that stand for authors' own code, which a published figure is of."""


def known_errors() -> dict[str, dict[str, float]]:
    """Content of ``unshared.yaml``."""
    return packaged("simulator.studies", "unshared.yaml")


class Unshared(NamedTuple):
    """Error of a ratio of token times beyond what both variants share."""

    scale: float
    """Scale of the logarithm, Student-t with 4 degrees of freedom."""
    of_prompts: float
    """Scale for prompts: that of chips, formats and engine, without that of drafting."""
    lost: float
    """Probability that drafting gains nothing."""
    loss: float
    """Mean of the logarithm by which such a deployment is slower than without drafting; exponentially distributed."""
    drafts: int
    """1 if the variant has the error, -1 if the baseline alone drafts."""

    def slower(self, gain: float) -> FloatArray:
        """Logarithm by which tokens take longer than predicted, in every draw; ``gain`` is that of the speed-up."""
        chance = ranks("gain is lost")
        lost = max(0.0, gain) - self.loss * np.log(chance / (self.lost or 1.0))
        return np.where(chance < self.lost, lost, self.scale * student(ranks("unshared")))

    def draws(self, base: Json, other: Json, metric: str, shared: FloatArray) -> FloatArray:
        """Logarithm of the factor on a speed-up in every draw, from two run documents.

        Args:
            shared: logarithm from errors that both runs share; they no longer count where the gain is lost.
        """
        kind = "throughput" if metric == "usd_per_million_output_tokens" else figure_kind(metric) or metric
        tpots = [one["summary"].get("mean_tpot_ms") for one in (base, other)]
        if not all(tpots) or (kind in ("throughput", "duration") and other["load"]["keeps_up"]):
            return shared
        if kind == "ttft":
            return shared - self.of_prompts * student(ranks("unshared"))
        slower = self.slower(self.drafts * log(tpots[0] / tpots[1]))
        if kind != "tpot":
            moved = (base if self.drafts < 0 else other)["summary"]
            share = decoding_share(moved, metric.partition("_")[0] if kind == "e2el" else "mean")
            slower = np.log1p(share * np.expm1(slower))
        return np.where(ranks("gain is lost") < self.lost, 0.0, shared) - self.drafts * slower


def unshared_of(base: Json, other: Json, *evidence: Mapping[str, float]) -> Unshared | None:
    """Unshared error of two scenarios (as JSON); None if they differ only in load and scheduling.

    ``evidence`` has each run's shares of device time by level: the scale is that of the least measured run.
    """
    known, (before, after) = known_errors(), (_drafter(base), _drafter(other))
    drafting, deployment = before != after, _deployment(base) != _deployment(other)
    if not drafting and not deployment:
        return None
    drafts = (after is not None) - (before is not None)
    serves = drafts and (base if drafts < 0 else other)["engine"]["framework"] not in RESEARCH
    own, moved = (
        differs and max(sqrt(sum(share * known[kind][level] ** 2 for level, share in of.items())) for of in evidence)
        for kind, differs in ((DRAFTING, drafting), (DEPLOYMENT, deployment))
    )
    lost = known[DRAFTING]["lost"] if serves else 0.0
    return Unshared(hypot(own, moved), float(moved), lost, known[DRAFTING]["loss"], drafts or 1)


def unshared_ends(base: Json, other: Json, basis: str, speedup: float, low: float, high: float) -> tuple[float, float]:
    """90 % ends of a speed-up per token of two scenarios, with their unshared error beside its other errors."""
    error = unshared_of(base, other, {basis: 1.0})
    if error is None:
        return low, high
    down, up = np.quantile(error.drafts * error.slower(error.drafts * log(speedup)), [0.95, 0.05])
    return speedup * exp(-hypot(log(speedup / low), down)), speedup * exp(hypot(log(high / speedup), up))


def ranks(name: str) -> FloatArray:
    """Evenly spaced probabilities in the order of the standard draws of a name."""
    return (np.argsort(np.argsort(standard_draws(name))) + 0.5) / DRAWS


def student(probability: FloatArray) -> FloatArray:
    """Quantiles of Student's t with 4 degrees of freedom.

    Source: W. T. Shaw, "Sampling Student's T distribution" (2006), doi:10.21314/JCF.2006.150, equation 38.

    >>> student(np.array([0.1, 0.5, 0.975])).round(3).tolist()
    [-1.533, 0.0, 2.776]
    """
    alpha = np.sqrt(4.0 * probability * (1.0 - probability))
    squared = 4.0 * (np.cos(np.arccos(alpha) / 3.0) / alpha - 1.0)
    return np.sign(probability - 0.5) * np.sqrt(np.maximum(0.0, squared))


def _drafter(scenario: Json) -> Json | None:
    """Drafter of a scenario, without its acceptance; None if there is none."""
    speculation = scenario.get("speculation") or {}
    if speculation.get("method", "none") == "none":
        return None
    return {key: value for key, value in speculation.items() if key != "acceptance"}


def _deployment(scenario: Json) -> list[Any]:
    """Deployment of a scenario: software and layout of its chips, engine and formats."""
    pools = [one["hardware"] for one in (scenario.get("pools") or {}).values() if one.get("hardware")]
    hardware = [(_software(one["chip"]), *map(one.get, LAYOUT)) for one in (scenario["hardware"], *pools)]
    return [*hardware, scenario["engine"]["framework"], *map(scenario.get, ("weights_dtype", "kv_cache_dtype"))]


def _software(name: str) -> Any:
    """Kernels fitted on a chip, or on the chip whose software it runs; its name if there are none."""
    chip = load_chip(name)
    return chip.kernels or (_software(chip.like) if chip.like is not None else chip.name)
