"""Comparison of an engine's release with the releases that constants were fitted on, and with the model's age."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, get_args

from forerun.yaml_files import packaged

BuildAge = Literal["fitted", "older", "newer", "young model", "unknown"]
"""Relation of an engine's build to the fitted releases. Among, before or after them, released less than ``TUNING``
months after its model, or unknown."""
BUILD_AGES: tuple[BuildAge, ...] = get_args(BuildAge)
DATED = r"(20\d\d)-?(0[1-9]|1[0-2])"
"""Regular expression for year and month in the name of a build."""
UNNUMBERED = r"nightly|dev|main|branch|commit|PR #"
"""Regular expression for words in the name of a build between releases."""
TUNING = 3
"""Months from a model's release to engine releases tuned for it (kernels, tiles, defaults). In InferenceX's results for
mixtures of experts, most gains of an engine fall into this time."""


@cache
def build_age(framework: str, release: str | None, model: str) -> BuildAge:
    """Relation of an engine's build that serves a model to the fitted releases.

    Args:
        framework: kernel library of the engine, such as ``vllm``.
        release: build, such as ``0.11.0``, ``lmsysorg/sglang:v0.5.12-cu130`` or ``nightly of 2026-02``; None = as
            fitted.
        model: catalogue name of the model.

    >>> build_age("vllm", "0.15.1", "llama-3.1-8b"), build_age("sglang", "0.5.9", "qwen3.5-397b-a17b")
    ('fitted', 'young model')
    >>> build_age("vllm", "nightly", "llama-3.1-8b"), build_age("vllm", None, "llama-3.1-8b")
    ('unknown', 'fitted')
    >>> build_age("vllm", "nightly of 2026-02", "glm-5"), build_age("vllm", "nightly-dev-20260901", "glm-5")
    ('young model', 'unknown')
    """
    if release is None:
        return "fitted"
    releases: dict[str, Any] = packaged("simulator.timing", "releases.yaml")
    engine, numbers = releases["engines"].get(framework), release_numbers(release)
    published = releases["models"].get(model)
    if engine is None or numbers is None:
        dated = re.search(DATED, release)
        return "young model" if dated and _is_young("-".join(dated.groups()), published) else "unknown"
    first, last = (release_numbers(text) or () for text in engine["fitted"])
    months = {release_numbers(text): month for text, month in engine["months"].items()}
    appeared = max((known for known in months if known is not None and known <= numbers), default=None)
    if numbers[: len(last)] > last:
        return "newer"
    if appeared and _is_young(months[appeared], published):
        return "young model"
    return "older" if numbers < first else "fitted"


def release_words(framework: str, release: str | None) -> str | None:
    """Releases that figures stand for where none is stated; None where one is, or where the engine has no fits.

    >>> release_words("vllm", None)
    'vllm 0.14 to 0.19, as engine.release is not set; one outside them has wider intervals'
    """
    engine = packaged("simulator.timing", "releases.yaml")["engines"].get(framework)
    if release is not None or engine is None:
        return None
    first, last = engine["fitted"]
    return f"{framework} {first} to {last}, as engine.release is not set; one outside them has wider intervals"


def is_build(text: str) -> bool:
    """True if a text names an engine's build: a version, a date, an image, a branch or a commit.

    >>> [is_build(text) for text in ("0.11.0", "V0 (2024)", "nightly", "main", "banana", "")]
    [True, True, True, True, False, False]
    """
    return re.search(rf"\d|{UNNUMBERED}|latest|image|unknown", text) is not None


def release_of_month(framework: str, text: str) -> tuple[int, ...] | None:
    """Newest release up to the month in a build's name; None if that month or the engine's releases are unknown.

    >>> release_of_month("sglang", "of 2026-02"), release_of_month("vllm", "nightly")
    ((0, 5, 9), None)
    """
    engine = packaged("simulator.timing", "releases.yaml")["engines"].get(framework)
    dated = re.search(DATED, text)
    if engine is None or dated is None:
        return None
    known = [
        release_numbers(name) for name, month in engine["months"].items() if str(month) <= "-".join(dated.groups())
    ]
    return max((numbers for numbers in known if numbers is not None), default=None)


def framework_of_version(framework: str, version: str | None) -> str:
    """The parameter set of an engine's version; ``framework`` is any of the engine's sets by release.

    TensorRT-LLM of 2024 (up to v0.16) ran another runtime; vLLM up to v0.13 schedules a step after the one before it,
    and its engine V0, where a version names it, did so in Python between all steps. SGLang up to v0.5.10 ran vLLM's
    all-reduces. tt-metal up to v0.56 sampled all places of its batch. A build that names its month alone is taken for
    the newest release of that month.

    >>> framework_of_version("vllm", "0.11.0"), framework_of_version("vllm-0.11", "v0.15.1")
    ('vllm-0.11', 'vllm')
    """
    known = packaged("simulator.timing", "releases.yaml")["older"]
    framework = next((engine for engine, older in known.items() if older["set"] == framework), framework)
    if framework == "vllm" and re.search(r"\bv0(?!\.\d)", version or "", re.IGNORECASE):
        return "vllm-2024"
    numbers = release_numbers(version or "") or release_of_month(framework, version or "")
    older = known.get(framework)
    if older is None or not numbers or numbers[0] > 0:
        return framework
    return str(older["set"]) if [*numbers[1:]][: len(older["last"])] <= older["last"] else framework


def reaches(framework: str, release: str | None, first: str) -> bool:
    """True if a build is ``first`` or newer. A framework without a release is that of its name, else the latest fitted
    one, as is a build without a number.

    >>> reaches("vllm", None, "0.19"), reaches("vllm-0.11", None, "0.12"), reaches("vllm", "nightly", "0.27")
    (True, False, False)
    """
    engine, _, own = framework.partition("-")
    fitted = packaged("simulator.timing", "releases.yaml")["engines"].get(engine, {"fitted": [own or "0"]})["fitted"]
    build = release or own
    numbers = release_numbers(build) or release_of_month(engine, build) or release_numbers(fitted[-1]) or ()
    return numbers >= (release_numbers(first) or ())


def _is_young(month: object, published: object) -> bool:
    """True if a build of this month appeared less than ``TUNING`` months after the model."""
    return published is not None and _month(str(month)) < _month(str(published)) + TUNING


def release_numbers(text: str) -> tuple[int, ...] | None:
    """Version numbers in an engine's version or image tag; None for a branch, a commit or a nightly build.

    >>> release_numbers("lmsysorg/sglang:v0.5.12.post1-cu130"), release_numbers("1.2.0rc6.post3")
    ((0, 5, 12), (1, 2, 0))
    >>> release_numbers("nightly-dev-20260216"), release_numbers("main @ 09ca4fc")
    (None, None)
    """
    if "ai-dynamo" in text:  # numbered as Dynamo is
        return None
    if re.search(UNNUMBERED, text) and not re.search(r"v\d+\.\d+", text):
        return None
    match = re.search(r"(?<![\d.a-z])v?(\d+)\.(\d+)(?:\.(\d+))?", text.rpartition(":")[2])
    return None if match is None else tuple(int(part) for part in match.groups() if part is not None)


def _month(text: str) -> int:
    year, month = text.split("-")
    return 12 * int(year) + int(month)
