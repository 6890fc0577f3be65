"""Hit rates: published by task, custom by layer or context, moved by lambda and S through an error model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged
from hwprofiles.formulas import Num
from simulator.speculation.attention_level.parameters import Parameter, source_words

TOLERANCE = 0.10
"""The tolerance lambda that the paper recommends, and the default of a hit rate."""
WINDOW_TOKENS = 128
"""S of the published kernel, likewise."""


def published_hit_rates(task: str) -> dict[float, float | None]:
    """Hit rate of ``task`` by tolerance; None if none was published.

    Raises:
        ForerunError: no such task.
    """
    tasks = packaged("simulator.speculation.attention_level", "hit_rates.yaml")["tasks"]
    if task not in tasks:
        raise ForerunError(f"task: no hit rates of '{task}'{did_you_mean(task, tasks)} (one of {', '.join(tasks)})")
    return {float(tolerance): rate for tolerance, rate in tasks[task].items()}


def published_hit_rate(task: str) -> float:
    """Share of layers that pass verification in ``task`` at ``TOLERANCE``, the one lambda with published rates.

    Raises:
        ForerunError: no such task.
    """
    rate = published_hit_rates(task)[TOLERANCE]
    assert rate is not None
    return rate


def rate_at_context(points: list[list[float]], context_tokens: Num) -> Num:
    """Hit rate at a context, linear in its logarithm between measured points and constant outside them.

    Args:
        points: [context in tokens, hit rate], contexts rising.
        context_tokens: a number or an array, >= 1.
    """
    contexts, rates = zip(*points, strict=True)
    return np.interp(np.log(np.maximum(context_tokens, 1.0)), np.log(contexts), rates)


def batch_hit_rate(rate: Num, queries: Num, verification: str, correlation: float = 0.0) -> Num:
    """Hit rate of a layer over a whole batch.

    Args:
        rate: hit rate of one query.
        queries: tokens verified together, sequences times tokens per sequence.
        verification: ``joint``: one norm over the batch, as in the published kernel, assumed to pass as often as one
            query does; otherwise all queries must pass: ``rate ** queries`` if they are independent.
        correlation: correlation of the normal scores of the queries' errors, 0 to 1; all share one factor, and given it
            they are independent (Vasicek, "Loan portfolio value", Risk 15(12), 2002). Integrated by Gauss and Hermite.
    """
    if verification == "joint" or correlation == 1.0:
        return rate
    if correlation == 0.0:
        return rate**queries
    given, weights = given_factor(rate, correlation)
    rates = given ** np.asarray(queries)[..., None] @ weights
    return rates if np.ndim(rates) else float(rates)


def failing_chance(failing: int, rate: Num, requests: Num, queries: Num, correlation: float) -> Num:
    """Probability that ``failing`` requests fail while others of the batch pass; 0 if the batch has no others.

    Args:
        failing: number of requests with a failing query, >= 1.
        rate: hit rate of one query.
        requests: number of requests of the batch.
        queries: number of queries per request.
        correlation: correlation of errors, as in ``batch_hit_rate``.
    """
    if correlation == 1.0:
        return 0.0 * (rate * requests)
    from scipy.special import gammaln, xlog1py, xlogy

    given, weights = given_factor(rate, correlation)
    passed = given ** np.asarray(queries)[..., None]
    others = np.maximum(np.asarray(requests)[..., None] - failing, 0)
    ways = gammaln(others + failing + 1.0) - gammaln(others + 1.0) - gammaln(failing + 1.0)
    chance = np.exp(ways + xlog1py(failing, -passed) + xlogy(others, passed)) @ weights
    return np.where(np.asarray(requests) > failing, chance, 0.0)


def given_factor(rate: Num, correlation: float) -> tuple[Num, FloatArray]:
    """Hit rate of a query at values of the batch's shared factor (last axis), and the values' weights."""
    if correlation == 0.0:
        return np.asarray(rate, dtype=np.float64)[..., None], np.ones(1)
    nodes, weights = _normal_nodes()
    return rate_at_factor(rate, correlation, nodes), weights


@cache
def _normal_nodes() -> tuple[FloatArray, FloatArray]:
    """Nodes and weights for integration over a standard normal number; cached, as this takes milliseconds."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
    return nodes, weights / weights.sum()


def rate_at_factor(rate: Num, correlation: float, factor: Num) -> Num:
    """Hit rate of a query whose batch shares ``factor``, a standard normal number; along the last axis."""
    from scipy.special import ndtr, ndtri  # slow to import, and most runs do without

    score = ndtri(np.asarray(rate, dtype=np.float64))[..., None] - np.sqrt(correlation) * factor
    return ndtr(score / np.sqrt(1.0 - correlation)) if correlation < 1.0 else (score > 0.0).astype(np.float64)


HERMITE_NODES = 64


LAYER_CORRELATION = 0.5
TOKEN_CORRELATION = 0.38
"""Correlations of logarithmic errors of neighbouring layers, and of a layer from token to token. Each is about the
layer's own mean. Measured on SmolLM2-135M-Instruct, 160 tokens in a row at 4K, S = 128: 0.57 and 0.52 over this
project's docs (0.45 five layers on, 0.30 five tokens on, 0.03 after forty), 0.42 and 0.25 over its sources; here the
means."""


class ErrorModel(NamedTuple):
    """Relative error of a layer's first-and-last-chunk output over layers and tokens: log-normal.

    ``ln e ~ N(m - window_exponent ln(S / 128), spread^2)``: a power of S moves the median, and the spread over layers
    and tokens says what a larger lambda lets pass.
    """

    spread: float
    """Standard deviation of ln e."""
    window_exponent: float
    """Power by which the error falls with S."""

    def moved(self, rate: Num, tolerance: float, window_tokens: int) -> Num:
        """Hit rate at another lambda and S than the ``TOLERANCE`` and ``WINDOW_TOKENS`` that ``rate`` belongs to."""
        if tolerance == TOLERANCE and window_tokens == WINDOW_TOKENS:
            return rate
        from scipy.special import ndtr, ndtri  # slow to import, and most runs do without

        return ndtr(ndtri(rate) + self._shift(tolerance, window_tokens))

    def error_let_through(self, rate: float, tolerance: float, window_tokens: int) -> float:
        """Mean relative error over all layers; only passing layers have an error, failing ones are exact."""
        from scipy.special import ndtr, ndtri

        middle = np.log(tolerance) - self.spread * (ndtri(rate) + self._shift(tolerance, window_tokens))
        return float(self._mean(middle) * ndtr((np.log(tolerance) - middle) / self.spread - self.spread))

    def static_error(self, rate: float, window_tokens: int) -> float:
        """Mean relative error without verification: attention over the first and last chunk only."""
        from scipy.special import ndtri

        middle = np.log(TOLERANCE) - self.spread * (ndtri(rate) + self._shift(TOLERANCE, window_tokens))
        return float(self._mean(middle))

    def _shift(self, tolerance: float, window_tokens: int) -> float:
        moved = np.log(tolerance / TOLERANCE) + self.window_exponent * np.log(window_tokens / WINDOW_TOKENS)
        return float(moved) / self.spread

    def _mean(self, middle: float) -> float:
        return float(np.exp(middle + self.spread**2 / 2))


@cache
def error_model_parameters() -> dict[str, Parameter]:
    """The two parameters of ``ErrorModel`` with their ranges and fit data."""
    entry = packaged("simulator.speculation.attention_level", "hit_rates.yaml")["error_model"]
    source = source_words(entry["source"])
    return {name: Parameter(name, source=source, **entry[name]) for name in ErrorModel._fields}


def error_model(ends: Sequence[str] = ("value", "value")) -> ErrorModel:
    """The error model at its values, or with each number at an end (``low`` or ``high``) of its range."""
    return ErrorModel(
        *(getattr(error_model_parameters()[name], end) for name, end in zip(ErrorModel._fields, ends, strict=True))
    )


def rate_range(rate: float, tolerance: float, window_tokens: int) -> tuple[float, float]:
    """Lowest and highest moved rate over the corners of the error model's ranges."""
    models = [error_model((spread, exponent)) for spread in ("low", "high") for exponent in ("low", "high")]
    rates = [float(model.moved(rate, tolerance, window_tokens)) for model in models]
    return min(rates), max(rates)
