"""Comparison of a live engine with a simulated twin under the same traffic: gaps, causes, and effects of changes.

The traffic is rebuilt from measurements (rate, lengths, cache hits, acceptance) and simulated with the scenario;
several seeds give the random spread. Larger gaps are attributed to one of five causes: the load, the drafter, the
prefix cache, host work between steps, or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.document import Json, plain_json
from forerun.errors import ForerunError
from forerun.result import StudyResult, Summary
from forerun.tables import Cell, Table, Value, number
from forerun.version import VERSION
from simulator.running.metrics.document import scenario_document
from simulator.running.run import RunResult, simulate
from simulator.running.scenario import Scenario
from simulator.serve.observed import Observed
from simulator.speculation import draft_survival
from simulator.workload import RequestStream, generate_requests
from simulator.workload.generate import conversation
from traces import PrefixHashes

Document = Json
LONGEST_TOKENS = 10**8
"""Maximum plausible tokens of a request; a file with longer requests is damaged."""
SEEDS = 8
FALSE_ALARM = 0.01
"""Probability that a healthy engine raises any alarm."""
REQUESTS = (200, 1500)
"""Minimum and maximum requests of a simulated run."""
FLOOR = 0.005
"""Relative error of the rebuilt traffic, because lengths are known only by bucket."""
HOST_FIELDS = ("step_s", "per_sequence_s", "eager_launch_s", "uncompiled_launch_s")
"""Host costs of an engine that the factor ``host`` multiplies."""
LATENCIES = ("tpot", "prefill", "ttft")
"""Checked latencies; ``tpot`` is the total time of all tokens after the first, divided by their number."""
SLOWER_PERCENT = 10.0
"""Gap of a latency from which the conclusion says how many times slower the engine is."""
CHECKED = ("metric", "cause", "measured", "expected", "spread", "alarm", "gap_percent")
OBSERVED = ("duration_s", "requests", "prompt_tokens", "output_tokens", "acceptance_length")
METRICS = {
    "request_rate": "request rate (req/s)",
    "prompt_tokens": "prompt tokens of a request",
    "output_tokens": "output tokens of a request",
    "acceptance_length": "acceptance length",
    "prefix_hit_rate": "share of prompt tokens cached",
    "tpot": "time per output token (ms)",
    "prefill": "prefill time (ms)",
    "ttft": "time to first token (ms)",
}
"""Labels of checked metrics."""
LATENCY_FLOOR = 0.001
"""Relative error of mean latencies due to the rebuilt traffic (small: mean lengths nearly determine latencies)."""
FACTOR_LIMITS = (0.1, 10.0)
PROBE, CLOSE, DISTINCT = 0.3, 2e-3, 0.02
"""Logarithms of the first factor tried, the tolerance of a factor, and the minimum distance for a slope."""
CAUSES = {
    "load": "the traffic is not what the scenario expects",
    "drafter": "draft tokens are accepted more or less often than the scenario says",
    "cache": "prompts are found in the prefix cache more or less often than this traffic allows",
    "host": "work of the host between steps takes longer or less long",
    "kernels": "kernels take longer or less long",
}


class Check(NamedTuple):
    """A measured value compared with its expectation."""

    metric: str
    cause: str | None
    """Cause reported if the check raises an alarm; None if several causes are possible."""
    measured: float
    expected: float
    spread: float
    """Random standard deviation of ``log(measured / expected)``."""
    scores: float
    """Gap in standard deviations."""
    alarm: bool

    @property
    def gap_percent(self) -> float:
        return 100.0 * (self.measured / self.expected - 1.0) if self.expected else float("nan")


@dataclass(frozen=True, slots=True)
class Twin:
    """A scenario under the measured traffic."""

    scenario: Scenario
    seen: Observed
    seed: int

    def run(self, seed: int, host: float = 1.0, kernels: float = 1.0, **changes: Any) -> RunResult:
        """Simulate the rebuilt traffic once.

        Kernels that take ``kernels`` times as long are simulated as slower time: arrivals and host work are sped up by
        that factor, and resulting times are multiplied by it.
        """
        scenario = self.scenario.with_values(changes) if changes else self.scenario
        name = scenario.engine.framework
        factors = {f"{name}.{part}": host / kernels for part in HOST_FIELDS}
        return simulate(scenario, seed, stream=self.stream(seed, kernels), factors=factors, full_step_rows=0)

    def means(self, seeds: Sequence[int], host: float = 1.0, kernels: float = 1.0, **changes: Any) -> FloatArray:
        """Mean latencies of each seed's run in seconds, as an array [seed, latency of ``LATENCIES``]."""
        rows = []
        for seed in seeds:
            result = self.run(seed, host, kernels, **changes)
            requests, summary = result.requests, result.data.summary
            prefill = float(np.nanmean(requests.first_token_s - requests.scheduled_s))
            took_s = float(np.nansum(requests.finished_s - requests.first_token_s))
            later = int((requests.output_tokens[np.isfinite(requests.finished_s)] - 1).sum())
            per_token = 1e3 * took_s / later if later else None
            values = {"tpot": per_token, "ttft": summary["mean_ttft_ms"], "prefill": prefill * 1e3}
            rows.append([float(values[name] or np.nan) * kernels / 1e3 for name in LATENCIES])
        return np.array(rows)

    @property
    def count(self) -> int:
        seen = self.seen.arrivals
        return len(seen) if seen else int(min(max(self.seen.requests or 0.0, REQUESTS[0]), REQUESTS[1]))

    def stream(self, seed: int, kernels: float) -> RequestStream:
        """Requests of the measured traffic: recorded arrivals if known, else a Poisson process of the same rate."""
        seen, rng, count = self.seen, np.random.default_rng([seed, 0x7317]), self.count
        if seen.arrivals:
            at_s, prompts, answers = (np.array(column) for column in zip(*seen.arrivals, strict=True))
        else:
            assert seen.requests is not None
            assert seen.duration_s is not None
            at_s = np.sort(rng.uniform(0.0, count * seen.duration_s / seen.requests, count))
            prompts, answers = (_drawn(lengths, count, rng) for lengths in (seen.prompt_lengths, seen.output_lengths))
        at_s = (at_s - at_s[0]) / kernels
        prompts, answers = prompts.astype(np.int64), answers.astype(np.int64)
        hashes = _shared_starts(prompts, seen.hit_rate, self.scenario.engine.block_size)
        return RequestStream(at_s, prompts, answers, None, prefix_hashes=hashes)


def _drawn(lengths: Sequence[tuple[int, float]], count: int, rng: np.random.Generator) -> IntArray:
    """Draw lengths in the given shares, as exactly as ``count`` allows, in random order."""
    tokens, weights = (np.array(column) for column in zip(*lengths, strict=True))
    places = (rng.permutation(count) + 0.5) / count
    drawn: IntArray = tokens[np.searchsorted(np.cumsum(weights) / np.sum(weights), places)]
    return drawn


def _shared_starts(prompts: IntArray, share: float | None, block: int) -> PrefixHashes | None:
    """Prefix hashes that give a hit rate of ``share``: every prompt starts with this share of common tokens."""
    if not share:
        return None
    blocks = prompts // block
    alike = np.minimum(np.rint(share * prompts / block).astype(np.int64), blocks)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    block_ids = int(blocks.max(initial=0)) + np.arange(offsets[-1])
    return PrefixHashes(offsets, np.where(position < np.repeat(alike, blocks), position, block_ids), block)


def twin(
    scenario: Scenario,
    seen: Observed,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
    what_ifs: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> TwinResult:
    """Compare the metrics of a live engine with the expected metrics of a scenario.

    Args:
        scenario: expected state: model, hardware, engine, speculation and traffic.
        seen: metrics of the live engine.
        seed: the first of ``SEEDS`` seeds.
        tolerance: relative gap attributed to model error; on a real engine, the error of ``replay requests``.
        what_ifs: whether to search for changes that pay on this traffic.
        progress: called with (parts done, parts in total).

    Raises:
        ForerunError: the metrics do not determine the traffic, or the scenario cannot serve it.
    """
    seen = with_lengths(seen)
    _require(seen)
    seen = _per_token(scenario, seen)
    tell = progress or (lambda done, total: None)
    checks = [*_load_checks(scenario, seen), *_drafter_check(scenario, seen), *_cache_check(scenario, seen, seed)]
    as_seen = Twin(_with_acceptance(scenario, seen), seen, seed)
    seeds = range(seed, seed + SEEDS)
    tell(1, 4)
    plain = as_seen.means(seeds)
    latencies = _latency_checks(plain, seen, as_seen.count, tolerance)
    tell(2, 4)
    fits = {cause: _fit(as_seen, cause, plain, latencies, seeds[:2]) for cause in ("host", "kernels")}
    tell(3, 4)
    culprits = [check.cause for check in sorted(checks, key=lambda c: -abs(c.scores)) if check.alarm and check.cause]
    if any(check.alarm for check in latencies):
        culprits.append(min(fits, key=lambda cause: fits[cause]["misfit"]))
    changed = what_if_rows(as_seen, fits, culprits, seeds[:4]) if what_ifs else []
    tell(4, 4)
    return TwinResult(_document(scenario, seen, [*checks, *latencies], fits, culprits, changed, seed))


def _require(seen: Observed) -> None:
    missing = [
        what
        for what, known in (
            ("how long it was watched (--seconds)", seen.duration_s),
            ("requests", seen.requests),
            ("prompt lengths", seen.prompt_lengths or seen.arrivals or seen.prompt_tokens),
            ("output lengths", seen.output_lengths or seen.arrivals or seen.output_tokens),
        )
        if not known
    ]
    if missing:
        raise ForerunError(f"{seen.source}: lacks {', '.join(missing)}, needed to rebuild the traffic")
    lengths = [tokens for tokens, _ in (*seen.prompt_lengths, *seen.output_lengths)]
    if (seen.requests or 0) < 1 or max(lengths, default=0) > LONGEST_TOKENS:
        raise ForerunError(
            f"{seen.source}: {seen.requests:g} requests of up to {max(lengths, default=0):,} tokens are no traffic"
        )


def _per_token(scenario: Scenario, seen: Observed) -> Observed:
    """Metrics with ``itl`` as the time per token if it is unknown and each delivery is one token."""
    if seen.tpot is not None or seen.itl is None:
        return seen
    if scenario.speculation is None or scenario.speculation.method == "none":
        return replace(seen, tpot=seen.itl)
    note = "gaps between deliveries are not compared: a verify step delivers several tokens, how many is not stated"
    return replace(seen, notes=(*seen.notes, note))


def with_lengths(seen: Observed) -> Observed:
    """Set lengths to their mean if the source has no histogram."""
    if not seen.requests or seen.arrivals:
        return seen
    changes = {
        f"{what}_lengths": ((max(1, round(total / seen.requests)), 1.0),)
        for what, total in (("prompt", seen.prompt_tokens), ("output", seen.output_tokens))
        if total and not getattr(seen, f"{what}_lengths")
    }
    return replace(seen, **changes)  # type: ignore[arg-type]


def _bound() -> float:
    """Minimum gap of an alarm in standard deviations; five checks and two fits share ``FALSE_ALARM``."""
    from scipy.special import stdtrit

    return float(stdtrit(SEEDS - 1, 1.0 - FALSE_ALARM / 2 / 7))


def _check(metric: str, cause: str | None, measured: float, expected: float, spread: float, tolerance: float) -> Check:
    gap = log(measured / expected) if measured > 0 and expected > 0 else (0.0 if measured == expected else float("inf"))
    beyond = max(0.0, abs(gap) - log(1.0 + tolerance))
    score = beyond / max(spread, 1e-12)
    return Check(metric, cause, measured, expected, spread, score, score > _bound())


def _load_checks(scenario: Scenario, seen: Observed) -> list[Check]:
    """Compare request rate and mean lengths with the scenario's workload."""
    stream = generate_requests(scenario.workload, 0)
    arrivals = scenario.workload.arrivals
    checks = []
    assert seen.requests is not None
    if arrivals is not None and arrivals.request_rate is not None and arrivals.profile is None and seen.duration_s:
        turns, _ = conversation(scenario.workload)
        shape = arrivals.burstiness or 1.0
        rate = seen.requests / seen.duration_s
        spread = _sd(1.0 / shape + (turns > 1), seen.requests / turns)  # turns of a conversation scatter like gaps
        checks.append(_check("request_rate", "load", rate, arrivals.request_rate * turns, spread, 0.05))
    for metric, total, assumed in (
        ("prompt_tokens", seen.prompt_tokens, stream.input_tokens),
        ("output_tokens", seen.output_tokens, stream.output_tokens),
    ):
        if total:
            variance = float(assumed.var()) / float(assumed.mean()) ** 2
            spread = _sd(variance, seen.requests) + _sd(variance, len(assumed))
            checks.append(_check(metric, "load", total / seen.requests, float(assumed.mean()), spread, 0.05))
    return checks


def _sd(relative_variance: float, count: float) -> float:
    return sqrt(relative_variance / max(count, 1.0)) + FLOOR


def _drafter_check(scenario: Scenario, seen: Observed) -> list[Check]:
    """Compare tokens per verify step with the scenario's acceptance."""
    length = seen.acceptance_length
    if length is None or scenario.speculation is None or scenario.speculation.method == "none":
        return []
    assert seen.drafts is not None
    survival = draft_survival(scenario.speculation)
    expected = 1.0 + float(survival.sum())
    second = 1.0 + float(np.sum((2 * np.arange(1, len(survival) + 1) + 1) * survival))  # E[(1 + A)^2], tail sums
    variance = max(0.0, second - expected**2) / expected**2
    return [_check("acceptance_length", "drafter", length, expected, _sd(variance, seen.drafts), 0.0)]


def _cache_check(scenario: Scenario, seen: Observed, seed: int) -> list[Check]:
    """Compare the prefix-cache hit rate with the simulated hit rate of the scenario's own workload."""
    if seen.hit_rate is None or not scenario.engine.enable_prefix_caching:
        return []
    rates = []
    for one in range(seed, seed + 2):
        hit_rate = simulate(scenario, one, full_step_rows=0).kv.prefix_hit_rate
        if not hit_rate:
            return []
        rates.append(hit_rate)
    expected = sum(rates) / len(rates)
    spread = abs(rates[0] - rates[1]) / expected + 10 * FLOOR
    return [_check("prefix_hit_rate", "cache", seen.hit_rate, expected, spread, 0.05)]


def _latency_checks(plain: FloatArray, seen: Observed, count: int, tolerance: float) -> list[Check]:
    checks = []
    logs = np.log(plain)
    for at, name in enumerate(LATENCIES):
        mean = getattr(seen, name)
        if mean is None or mean.mean <= 0 or not np.isfinite(logs[:, at]).all():  # never happens in the simulation
            continue
        assert seen.requests is not None
        by_chance = float(logs[:, at].var(ddof=1)) * (count / seen.requests + 1.0 / len(plain))
        checks.append(
            _check(name, None, mean.mean, exp(float(logs[:, at].mean())), sqrt(by_chance) + LATENCY_FLOOR, tolerance)
        )
    return checks


def _with_acceptance(scenario: Scenario, seen: Observed) -> Scenario:
    if scenario.speculation is None or seen.acceptance_length is None or not seen.drafts:
        return scenario
    if seen.accepted_per_position:
        rates = np.minimum.accumulate([accepted / seen.drafts for accepted in seen.accepted_per_position])
        return scenario.with_values({"speculation.acceptance": {"per_position": [float(rate) for rate in rates]}})
    return scenario.with_values({"speculation.acceptance": {"acceptance_length": seen.acceptance_length}})


def _fit(twin: Twin, cause: str, plain: FloatArray, checks: Sequence[Check], seeds: Sequence[int]) -> Document:
    """Fit the factor on host work or kernels that explains the time per token, and its misfit of further latencies.

    Returns:
        ``value`` with ``low`` and ``high`` (95 %), and ``misfit``: the sum of squared remaining gaps, in standard
        deviations. Without a time per token, value and interval are None.
    """
    known = {check.metric: check for check in checks}
    if "tpot" not in known:
        return {"value": None, "low": None, "high": None, "misfit": float("inf")}
    target, at = log(known["tpot"].measured), LATENCIES.index("tpot")
    # The few seeds of the search lie off the mean of all by this much, whatever the factor.
    offset = np.log(plain).mean(axis=0) - np.log(plain[: len(seeds)]).mean(axis=0)

    def logs(factor: float) -> FloatArray:
        log_means: FloatArray = np.log(twin.means(seeds, **{cause: exp(factor)})).mean(axis=0) + offset
        return log_means

    factor, here, slope = _where(target, np.log(plain).mean(axis=0), logs, at)
    left = [(log(check.measured) - here[LATENCIES.index(name)]) / check.spread for name, check in known.items()]
    spread = 1.96 * known["tpot"].spread / slope
    bounds = {"low": exp(factor - spread), "high": exp(factor + spread)}
    return {"value": exp(factor), **bounds, "misfit": float(np.sum(np.square(left)))}


def _where(
    target: float, plain: FloatArray, logs: Callable[[float], FloatArray], at: int
) -> tuple[float, FloatArray, float]:
    """Logarithm of the factor that yields the time per token, log latencies at this factor, and their slope.

    Host work is hidden until it takes longer than the device: times have a kink, so Newton steps may not converge.
    """
    from scipy.optimize import brentq

    known = {0.0: plain}

    def off(factor: float) -> float:
        if factor not in known:
            known[factor] = logs(factor)
        return float(known[factor][at]) - target

    end, most = (PROBE, log(FACTOR_LIMITS[1])) if off(0.0) < 0 else (-PROBE, log(FACTOR_LIMITS[0]))
    while off(0.0) * off(end) > 0 and end != most:
        end = min(max(2.0 * end, min(most, 0.0)), max(most, 0.0))
    factor = end if off(0.0) * off(end) > 0 else float(brentq(off, 0.0, end, xtol=CLOSE))
    rise = off(factor)
    near = min((one for one in known if abs(one - factor) >= DISTINCT), key=lambda one: abs(one - factor))
    return factor, known[factor], max(1e-3, (rise - off(near)) / (factor - near))


def what_if_rows(
    twin: Twin, fits: Mapping[str, Document], culprits: Sequence[str], seeds: Sequence[int]
) -> list[Document]:
    """Effects of changes on this traffic: mean time per token and to the first token, compared seed by seed."""
    from scipy.special import stdtrit

    factors = {cause: fits[cause]["value"] for cause in culprits if cause in fits and fits[cause]["value"]}
    base = twin.means(seeds, **factors)
    rows = []
    for name, changes in _what_ifs(twin.scenario).items():
        try:
            ratios = np.log(twin.means(seeds, **factors, **changes) / base)
        except ForerunError:
            continue
        half = float(stdtrit(len(seeds) - 1, 0.975)) * ratios.std(axis=0, ddof=1) / sqrt(len(seeds))
        row: Document = {"name": name, "set": changes}
        for at, latency in enumerate(LATENCIES):
            if latency != "prefill":
                centre, spread = float(ratios[:, at].mean()), float(half[at])
                ends = {"change_percent": centre, "low": centre - spread, "high": centre + spread}
                row[latency] = {key: 100 * (exp(value) - 1) for key, value in ends.items()}
        rows.append(row)
    return rows


def _what_ifs(scenario: Scenario) -> dict[str, Document]:
    changes: dict[str, Document] = {}
    speculation, engine = scenario.speculation, scenario.engine
    if speculation is not None and speculation.num_speculative_tokens:
        changes["no speculation"] = {"speculation": None}
        for tokens in range(1, speculation.num_speculative_tokens):
            changes[f"K={tokens}"] = {"speculation.num_speculative_tokens": tokens}
    budget = engine.max_num_batched_tokens
    changes[f"{budget // 4:,} tokens a step"] = {"engine.max_num_batched_tokens": max(budget // 4, engine.max_num_seqs)}
    changes["one replica more"] = {"hardware.replicas": scenario.hardware.replicas + 1}
    return changes


class TwinResult(StudyResult):
    """Result of ``twin``: metrics of a live engine, expected metrics, causes of gaps, and effects of changes."""

    kind = "twin"

    @property
    def culprit(self) -> str | None:
        """The most likely cause; None if no check is out of bounds."""
        culprit: str | None = self.document["culprit"]
        return culprit

    @property
    def title(self) -> str:
        return f"Twin of {self.model}"

    @property
    def summary(self) -> Summary:
        return Summary({check["metric"]: check["gap_percent"] for check in self.document["checks"]})

    def gap(self, metric: str) -> float:
        """Absolute gap of a metric, or of the factor ``host`` or ``kernels``, in percent.

        Raises:
            ForerunError: no metric of this name was measured.
        """
        known = {check["metric"]: check["gap_percent"] for check in self.document["checks"]}
        known |= {
            cause: 100 * (fit["value"] - 1) for cause, fit in self.document["fits"].items() if fit["value"] is not None
        }
        if known.get(metric) is None:
            raise ForerunError(f"fail_above: {metric}: was not seen here ({', '.join(known)})")
        return abs(float(known[metric]))

    def records(self) -> list[Json]:
        rows: list[Json] = self.document["checks"]
        return rows

    def tables(self) -> list[Table]:
        checks = []
        for row in self.document["checks"]:
            verdict = Cell("off", tone="bad") if row["alarm"] else Cell("as expected", tone="good")
            gap = f"{row['gap_percent']:+.1f} %" if row["gap_percent"] is not None else None
            unit = 1e3 if row["metric"] in LATENCIES else 1.0
            checks.append((METRICS[row["metric"]], row["measured"] * unit, row["expected"] * unit, gap, verdict))
        fits = [
            (cause, Cell(f"{fit['value']:.3f}", aside=f"{fit['low']:.3f}..{fit['high']:.3f}"))
            for cause, fit in self.document["fits"].items()
            if fit["value"] is not None
        ]
        changes: list[tuple[Value, ...]] = [
            (row["name"], *(_change(row[name]) for name in ("tpot", "ttft"))) for row in self.document["what_ifs"]
        ]
        return [
            Table("Measured beside its twin", ("", "measured", "expected", "gap", ""), checks),
            Table("Factor that would explain the time per token", ("", "factor"), fits),
            Table("What if, on this traffic", ("", "time per output token", "time to first token"), changes),
        ]


def _change(row: Mapping[str, float]) -> Cell:
    return Cell(f"{row['change_percent']:+.1f} %", aside=f"{row['low']:+.1f}..{row['high']:+.1f}")


def _document(
    scenario: Scenario,
    seen: Observed,
    checks: Sequence[Check],
    fits: Mapping[str, Document],
    culprits: Sequence[str],
    changed: Sequence[Document],
    seed: int,
) -> Document:
    blamed = list(dict.fromkeys(culprits))
    gap = max((check.gap_percent for check in checks if check.metric in LATENCIES), key=abs, default=0.0)
    text = f"The engine does what it should; its latencies lie within {abs(gap):.1f} % of its twin's."
    if blamed:
        text = f"The engine's latencies lie up to {abs(gap):.1f} % from its twin's"
        if gap > SLOWER_PERCENT:
            text = f"The engine is {number(1 + gap / 100, 2)} times slower than it should be"
        text += f"; the likeliest cause is {blamed[0]}: "
        text += CAUSES[blamed[0]]
        text += f"; then {', '.join(blamed[1:])}." if blamed[1:] else "."
    document = {
        "source": seen.source,
        "observed": {
            **{name: getattr(seen, name) for name in OBSERVED},
            "prefix_hit_rate": seen.hit_rate,
            "preemptions": seen.preemptions,
        },
        "checks": [{name: getattr(check, name) for name in CHECKED} for check in checks],
        "fits": {cause: {key: fit[key] for key in ("value", "low", "high")} for cause, fit in fits.items()},
        "culprit": blamed[0] if blamed else None,
        "blame": blamed,
        "what_ifs": list(changed),
        "conclusion": text,
        "scenario": scenario_document(scenario),
        "seed": seed,
        "version": VERSION,
        "basis": None,
        "notes": [f"a healthy engine raises an alarm in {FALSE_ALARM:.0%} of such looks", *seen.notes],
    }
    plain: Document = plain_json(document)
    return plain
