"""Errors of measured runs of one evidence class: interval ends as factors on each figure, and their description. Runs
are divided into classes that a user can see. Each part of a class (a mixture, an older release) has factors on the
interval ends (``served.yaml``), which widen the interval of kernels, host work and chance until nine of ten measured
runs lie inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import log, prod
from typing import Any, NamedTuple

import numpy as np

from forerun.yaml_files import packaged
from hwprofiles import Chip, chip_names, load_chip
from simulator.llm import load_architecture
from simulator.llm.architecture import Architecture
from simulator.llm.mixers import Recurrent, SelectiveAttention
from simulator.running.build import Build
from simulator.running.records import Axis, ModelError
from simulator.running.scenario import Scenario
from simulator.serving import RequestRecords
from simulator.timing import load_framework
from simulator.timing.releases import build_age

ALL = "all"
"""Name of the factor that the ends of every run have, and of the class that holds all measured runs."""
SERVED = "served"
"""Prefix of the error axis for measured runs."""
KINDS = {"ttft": r"_ttft_ms$", "tpot": r"_(tpot|itl)_ms$", "e2el": r"_e2el_ms$", "throughput": r"(throughput|goodput)$"}
"""Kind of figure by the end of its name."""
PART_WORDS = {
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
BEST_KNOWN = ("dense", "fitted", "below", "measured")
"""Parts of the best-known class; each other part moves the ends outward."""
ALSO = {
    "hybrid mixture": ("mixture", "hybrid"),
    "newer": ("unknown", "newer"),
    "young model": ("unknown", "young model"),
}
"""Parts that count as several: a class is at least as wide as the classes that contain it."""
ENDS_OF = {"throughput": "e2el"}
"""Kind whose ends a kind takes: in a closed loop throughput is the concurrency over E2E latency (Little's law)."""
CROWD = 256
"""Requests at once on one replica above which its API server may be what limits it (runs of gpustack, ML.ENERGY)."""
WIDE = 2.5
"""Factor on the mean TTFT, at either end, from which a run reports the errors of its class."""
FULL = 0.95
"""Share of the KV tokens from which requests that all have grown to their ends count as near capacity."""


Factors = tuple[float, float, float, float]
"""Factors on a prediction: lower end, both ends of the middle half, upper end."""
UNMOVED: Factors = (1.0, 1.0, 1.0, 1.0)


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

    @property
    def parts(self) -> list[str]:
        """Names of the factors on its ends."""
        return [ALL, *(part for name in self for part in ALSO.get(name, (name,)) if part not in BEST_KNOWN)]

    @property
    def wider(self) -> list[str]:
        """Names of the classes that a sentence may describe, the narrowest first."""
        return [f"{self.layers} / {self.build}", self.layers, ALL]


def stratum_of(scenario: Scenario, build: Build, requests: RequestRecords) -> Stratum:
    """The evidence class of a run that has served some requests."""
    architecture = load_architecture(scenario.model)
    library = load_framework(scenario.engine.framework).kernel_library
    return Stratum(
        layer_class(architecture),
        build_age(library, scenario.engine.release, architecture.name),
        "near" if near_capacity(scenario, build, requests) else "below",
        "measured" if all(_stands_for(pool.chip).kernels.get(library) for pool in build.pools) else "unmeasured",
    )


def _stands_for(chip: Chip) -> Chip:
    return chip if chip.like is None or chip.name in chip_names() else load_chip(chip.like)


def near_capacity(scenario: Scenario, build: Build, requests: RequestRecords) -> bool:
    """True if requests wait for one another: more at once than places or ``CROWD``, or than the KV cache holds."""
    ended = np.where(np.isfinite(requests.finished_s), requests.finished_s, requests.arrival_s)
    ended.sort()
    fewer = np.searchsorted(ended, np.sort(requests.arrival_s), side="right")
    fewer -= np.arange(1, len(ended) + 1)
    present = -float(fewer.min(initial=0)) / build.main.replicas
    places = min(CROWD, scenario.engine.max_num_seqs * scenario.hardware.attention_data_parallel)
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
    known: dict[str, Any] = packaged("simulator.running.metrics", "served.yaml")
    factors = {kind: factors_of(stratum, known["ends"][ENDS_OF.get(kind, kind)]) for kind in KINDS}
    return ServedAs(factors, served_words(stratum.wider, known["half"]))


def factors_of(stratum: Stratum, ends: Mapping[str, Mapping[str, float]]) -> Factors:
    """Products of the factors of a class's parts at the four ends; the middle half lies inside the full interval.

    >>> ends = {"low": {"all": 0.8, "mixture": 0.5}, "middle_low": {}, "middle_high": {}, "high": {"all": 2.0}}
    >>> factors_of(Stratum("mixture", "older", "below", "measured"), ends)
    (0.4, 1.0, 1.0, 2.0)
    """
    low, middle_low, middle_high, high = (
        prod(ends[end].get(part, 1.0) for part in stratum.parts) for end in ("low", "middle_low", "middle_high", "high")
    )
    return low, max(low, middle_low), min(high, middle_high), high


def served_words(names: Sequence[str], halves: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A sentence on measured runs: how far latencies of the narrowest classes lay from predictions."""
    sentences = []
    for kind, words in (("ttft", "time to the first token"), ("tpot", "time per token")):
        name = next(name for name in names if kind in halves.get(name, {}))
        count, low, high = halves[name][kind]
        runs = f"the middle half of {count} measured runs{_class_words(name)}"
        sentences.append(f"{runs} took {low:.2f} to {high:.2f} times the predicted {words}")
    return "; ".join(sentences)


def _class_words(name: str) -> str:
    """A class in words.

    >>> _class_words("dense / fitted")
    ' of dense models on known releases'
    """
    return "".join(f" {PART_WORDS[part]}" for part in name.split(" / ") if part != ALL)


def is_served(axis: Axis) -> bool:
    """True if an error axis comes from measured runs."""
    return axis["name"].startswith(SERVED)


def without_served(error: ModelError) -> ModelError:
    """The error of kernels, host work and acceptance alone."""
    return {**error, "axes": [axis for axis in error["axes"] if not is_served(axis)]}


def widely_served(error: ModelError) -> bool:
    """True if the band of measured runs reaches further than a factor ``WIDE`` in the mean TTFT."""
    ends = (axis["response"].get("mean_ttft_ms", [0.0]) for axis in error["axes"] if is_served(axis))
    return any(max(map(abs, one)) > log(WIDE) for one in ends)


def figure_kind(metric: str) -> str | None:
    """Kind of a figure, one of ``KINDS``; None for others."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, metric)), None)


def serves_arrivals(scenario: Scenario, stratum: Stratum) -> bool:
    """True if throughput is that of the arrivals, however fast the engine is: an open loop below capacity."""
    arrivals = scenario.workload.arrivals
    return stratum.load == "below" and (arrivals is None or arrivals.max_concurrency is None)


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
