"""Errors of measured runs of one evidence class: interval ends as factors on each figure, and their description. Runs
are divided into classes that a user can see. Each part of a class (a mixture, an older release) has factors on the
interval ends (``served.yaml``), which widen the interval of kernels, host work and chance as far as the interval score
asks for on measured runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log, prod
from typing import Any, NamedTuple

import numpy as np

from forerun.document import Json
from forerun.yaml_files import packaged
from hwprofiles import Chip, chip_names, load_chip
from simulator.llm import load_architecture
from simulator.llm.architecture import Architecture
from simulator.llm.mixers import Recurrent, SelectiveAttention
from simulator.running.build import Build
from simulator.running.records import Axis, ModelError
from simulator.running.scenario import Scenario
from simulator.serving import RequestRecords
from simulator.timing import load_framework, resolve_weight_dtypes
from simulator.timing.releases import build_age

ALL = "all"
"""Name of the factor that the ends of every run have, and of the class that holds all measured runs."""
SERVED = "served"
"""Prefix of the error axis for measured runs."""
KINDS = {"ttft": r"_ttft_ms$", "tpot": r"_(tpot|itl)_ms$", "e2el": r"_e2el_ms$", "throughput": r"(throughput|goodput)$"}
"""Kind of figure by the end of its name."""
PART_WORDS = {
    "fp4": "with four-bit floats",
    "not fp4": "",
    "short": "with short answers",
    "not short": "",
    "dense": "of dense models",
    "mixture": "of mixtures of experts",
    "hybrid": "of hybrid models",
    "hybrid mixture": "of hybrid mixtures of experts",
    "fitted": "on known releases",
    "older": "on older releases",
    "newer": "on newer releases",
    "young model": "released soon after the model",
    "unknown": "on unknown releases",
    "below": "below capacity",
    "near": "near capacity",
    "measured": "on measured chips",
    "unmeasured": "on chips without measurements",
}
"""Parts of a class in words."""
BEST_KNOWN = ("dense", "fitted", "below", "measured", "not fp4", "not short")
"""Parts of the best-known class; each other part moves the ends outward."""
ALSO = {
    "hybrid mixture": ("mixture", "hybrid"),
    "newer": ("unknown", "newer"),
    "young model": ("unknown", "young model"),
}
"""Parts that count as several: a class is at least as wide as the classes that contain it."""
ENDS_OF = {"throughput": "tpot", "e2el": "tpot"}
"""Kind whose ends a kind takes: E2E latency is mostly TPOT, and in a closed loop throughput is the concurrency over E2E
latency (Little's law), so that the three are fitted together."""
SHORT_TOKENS = 200
"""Mean output tokens below which answers are short."""
FULL = 0.95
"""Share of the KV tokens from which requests that all have grown to their ends count as near capacity."""


Factors = tuple[float, float, float, float]
"""Factors on a prediction: lower end, both ends of the middle half, upper end."""
UNMOVED: Factors = (1.0, 1.0, 1.0, 1.0)


def served_facts() -> Json:
    """Content of ``served.yaml``."""
    known: Json = packaged("simulator.running.metrics", "served.yaml")
    return known


class Stratum(NamedTuple):
    """Evidence class of a run."""

    layers: str
    """``dense``, ``mixture`` (of experts), ``hybrid`` (linear or sparse attention) or ``hybrid mixture``."""
    build: str
    """Relation of the fits to the engine's release (``simulator.timing.releases.BuildAge``)."""
    load: str
    """``below`` or ``near`` capacity."""
    chip: str
    """``measured`` if kernels of this chip and engine were fitted on measurements of the chip, else ``unmeasured``. A
    chip outside the catalogue counts as its ``like`` chip: the same software with other limits."""
    weights: str = "not fp4"
    """``fp4`` or ``not fp4``: formats of the weight matrices, the experts' included."""
    answers: str = "not short"
    """``short`` (below ``SHORT_TOKENS``) or ``not short``."""

    @property
    def parts(self) -> list[str]:
        """Names of the factors on its ends."""
        return [ALL, *(part for name in self for part in ALSO.get(name, (name,)) if part not in BEST_KNOWN)]

    @property
    def classes(self) -> tuple[float, ...]:
        """The classes of ``posterior.Rows``."""
        unknown, young = self.build != "fitted", self.build == "young model"
        flags = (unknown, young, self.chip == "unmeasured", "mixture" in self.layers, self.load == "near")
        return tuple(map(float, flags))

    @property
    def words(self) -> str:
        """The class in words, with places for the numbers of ``runs`` and ``deployments`` behind its ends."""
        parts = " ".join(filter(None, (PART_WORDS[part] for part in self)))
        return f"intervals rest on {{runs:,}} measured runs of {{deployments:,}} deployments; a class of runs {parts}"

    @property
    def known(self) -> bool:
        """True if release, chip and kind of layers are among those that were fitted."""
        return self.build == "fitted" and self.chip == "measured" and self.layers in ("dense", "mixture")


def stratum_of(scenario: Scenario, build: Build, requests: RequestRecords) -> Stratum:
    """The evidence class of a run that has served some requests."""
    architecture = load_architecture(scenario.model)
    library = load_framework(scenario.engine.framework).kernel_library
    formats = resolve_weight_dtypes(architecture, scenario.weights_dtype)
    return Stratum(
        layer_class(architecture),
        build_age(library, scenario.engine.release, architecture.name),
        "near" if near_capacity(scenario, build, requests) else "below",
        "measured" if all(_stands_for(pool.chip).kernels.get(library) for pool in build.pools) else "unmeasured",
        "fp4" if any("fp4" in dtype for dtype in formats.values()) else "not fp4",
        "short" if float(np.mean(requests.output_tokens)) < SHORT_TOKENS else "not short",
    )


def _stands_for(chip: Chip) -> Chip:
    return chip if chip.like is None or chip.name in chip_names() else load_chip(chip.like)


def most_at_once(build: Build, requests: RequestRecords) -> float:
    """Largest number of requests at once, for each replica."""
    ended = np.where(np.isfinite(requests.finished_s), requests.finished_s, requests.arrival_s)
    ended.sort()
    fewer = np.searchsorted(ended, np.sort(requests.arrival_s), side="right")
    fewer -= np.arange(1, len(ended) + 1)
    return -float(fewer.min(initial=0)) / build.main.replicas


def near_capacity(scenario: Scenario, build: Build, requests: RequestRecords) -> bool:
    """True if requests wait for one another: more at once than places, or than the KV cache holds."""
    present = most_at_once(build, requests)
    places = scenario.engine.max_num_seqs * scenario.hardware.attention_data_parallel
    tokens = float(np.mean(requests.input_tokens + requests.output_tokens))
    held = FULL * build.memory.num_blocks * build.memory.block_size
    return present > places or present * tokens > held or bool(requests.preemptions.any())


def layer_class(architecture: Architecture) -> str:
    """``hybrid`` where layers mix tokens linearly or through an index, ``mixture`` of experts, both, or ``dense``."""
    hybrid = any(isinstance(group.layer.mixer, Recurrent | SelectiveAttention) for group in architecture.layer_groups)
    words = ("hybrid" if hybrid else "", "mixture" if architecture.parameters().expert else "")
    return " ".join(filter(None, words)) or "dense"


class ServedAs(NamedTuple):
    """Errors of the measured runs of a class."""

    factors: dict[str, Factors]
    """Factors by kind of figure."""
    words: str


def served_as(stratum: Stratum) -> ServedAs:
    """Errors of measured runs like those of a class."""
    known = served_facts()
    factors = {kind: factors_of(stratum, known["ends"][ENDS_OF.get(kind, kind)]) for kind in KINDS}
    return ServedAs(factors, stratum.words.format(**known["runs"]))


def factors_of(stratum: Stratum, ends: Mapping[str, Mapping[str, float]]) -> Factors:
    """Products of the factors of a class's parts at the four ends.

    >>> ends = {"low": {"all": 0.8, "mixture": 0.5}, "middle_low": {}, "middle_high": {}, "high": {"all": 2.0}}
    >>> factors_of(Stratum("mixture", "older", "below", "measured"), ends)
    (0.4, 1.0, 1.0, 2.0)
    """
    low, middle_low, middle_high, high = (
        prod(ends[end].get(part, 1.0) for part in stratum.parts) for end in ("low", "middle_low", "middle_high", "high")
    )
    return low, middle_low, middle_high, high


def is_served(axis: Axis) -> bool:
    """True if an error axis comes from measured runs."""
    return axis["name"].startswith(SERVED)


def without_served(error: ModelError) -> ModelError:
    """The error of kernels, host work and acceptance alone."""
    return {**error, "axes": [axis for axis in error["axes"] if not is_served(axis)]}


def figure_kind(metric: str) -> str | None:
    """Kind of a figure, one of ``KINDS``; None for others."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, metric)), None)


def serves_arrivals(scenario: Scenario, stratum: Stratum) -> bool:
    """True if throughput is that of the arrivals, however fast the engine is: an open loop below capacity."""
    return stratum.load == "below" and not closed_loop(scenario)


def closed_loop(scenario: Scenario) -> bool:
    """True if the requests at once are limited, so that throughput hangs on latency."""
    arrivals = scenario.workload.arrivals
    return arrivals is not None and arrivals.max_concurrency is not None


def served_response(figures: Mapping[str, Any], factors: Mapping[str, Factors]) -> dict[str, list[float]]:
    """Logarithms of the factors on figures, those of a slower engine last; 0 if no kind is known. Factors of
    throughput are those of a latency."""
    response = {}
    for name, value in figures.items():
        if isinstance(value, float) and value > 0:
            kind = figure_kind(name)
            logs = [log(factor) for factor in (UNMOVED if kind is None else factors[kind])]
            response[name] = [-end for end in logs] if kind == "throughput" else logs
    return response
