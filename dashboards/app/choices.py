"""What the controls of several pages offer: chips, models, dtypes, methods, loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from dashboards.app.served import SAMPLE_CHIP
from hwprofiles import chip_names
from simulator.errors import ForerunError
from simulator.llm import architecture_names

DTYPES = ("checkpoint", "bf16", "fp8", "int8", "int4", "fp4", "mxfp4")
"""Formats of weights; ``checkpoint`` is the model's own."""
TENSOR_PARALLEL = ("1", "2", "4", "8", "16")
METHODS = ("none", "draft-model", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp", "parallel-draft")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
DEFAULT_CHIP = "h100-sxm"
DEFAULT_MODEL = "llama-3.1-8b"


@lru_cache(maxsize=1)
def chips() -> list[str]:
    """Catalogue chips."""
    return list(chip_names())


def chips_and_sample() -> list[str]:
    """Catalogue chips and the machine on which the shipped kernel trace was measured."""
    return [*chips(), SAMPLE_CHIP]


@lru_cache(maxsize=1)
def models() -> list[str]:
    """Catalogue models."""
    return list(architecture_names())


def checked(values: Mapping[str, Any]) -> None:
    """See that values of the controls for chips and models are ones that those controls offer.

    The functions behind them also take files, which nobody may name from a browser.

    Raises:
        ForerunError: one is not in the catalogue.
    """
    for name, value in values.items():
        known = _OFFERED.get(name)
        if known is None:
            continue
        for one in value if isinstance(value, list) else [value]:
            if one is not None and one not in known():
                raise ForerunError(f"{name}: '{str(one)[:80]}' is not in the catalogue")


_OFFERED: dict[str, Callable[[], list[str]]] = {
    "chip": chips_and_sample,
    "runs-chip": chips,
    "chips": chips,
    "model": models,
    "draft": models,
}
