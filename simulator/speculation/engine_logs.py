"""Acceptance statistics from an engine's output, and level and decay fitted to them.

vLLM's log lines, Prometheus counters and benchmark JSON are those of ``vllm/v1/spec_decode/metrics.py`` and of
``vllm bench serve --save-result``; SGLang's lines those of its scheduler's decode log, and the histograms those of its
answers; TensorRT-LLM's counts are of iterations. Lengths count the bonus token in all of them; rates per position are
shares of all drafts, not conditional ones. A line is read whole wherever a terminal or a page has wrapped it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from simulator.speculation.closed_form import expected_length
from simulator.speculation.level_decay import (
    AcceptanceFit,
    conditional_rates,
    extended,
    fit_acceptance_lengths,
    fit_survival,
)
from traces.files import head, open_bytes, unpacked_bytes

LARGEST_JSON_BYTES = 512 * 1024**2
LONGEST_LINE = 1 << 20
"""Maximum characters of a log that are read as one line."""
CLUSTER = 10.0
"""Draft tokens per independent observation: tokens of one answer are alike, code is accepted at 0.9, prose at 0.5."""
FORMATS = (
    "vllm-log",
    "vllm-prometheus",
    "vllm-bench",
    "sglang-histogram",
    "sglang-log",
    "llama-server",
    "trtllm-stats",
)
WANTED = (
    "vLLM 'SpecDecoding metrics:' lines, vLLM's Prometheus counters (vllm:spec_decode_...), vLLM benchmark JSON "
    "(spec_decode_... keys), SGLang 'accept len:' lines or spec_accept_histogram, llama-server 'draft acceptance' "
    "lines or TensorRT-LLM specDecodingStats"
)
_WHOLE = r"(\d{1,15})"
_NUMBER = r"(\d{1,15}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,2})?)"
_LIST = rf"({_NUMBER}(?:,{_NUMBER})*)"
# Lines without their blanks, so that they match wherever they were wrapped.
_VLLM_LENGTH = re.compile(rf"Meanacceptancelength:{_NUMBER}")
_VLLM_ACCEPTED = re.compile(rf"Accepted:{_WHOLE}tokens")
_VLLM_DRAFTED = re.compile(rf"Drafted:{_WHOLE}tokens")
_VLLM_RATES = re.compile(rf"Per-positionacceptancerate:{_LIST}")
_VLLM_V0 = re.compile(
    rf"Numberofspeculativetokens:{_WHOLE},Numberofacceptedtokens:{_WHOLE},Numberofdrafttokens:{_WHOLE},"
)
_SAMPLE = re.compile(rf"^vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{{(.*)\}})?\s+{_NUMBER}(?:\s+\d+)?\s*$")
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,6})"')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SGLANG = re.compile(rf"#running-req:{_WHOLE},.*?acceptlen:{_NUMBER}")
_SGLANG_ARGUMENT = re.compile(r"speculative_(num_steps|eagle_topk|num_draft_tokens)=(\d{1,6})\b")
_HISTOGRAM = re.compile(r"spec_(accept|correct_drafts)_histogram[\"']?:\[((?:\d{1,15},)*\d{1,15})\]")
_LLAMA = re.compile(
    rf"draftacceptance=[\d.]+\({_WHOLE}accepted/{_WHOLE}generated\),meanacceptancelength={_NUMBER},"
    rf"acceptancerateperposition=\({_LIST}\)"
)
_ANSWER = re.compile(rf"completion_tokens[\"']?:{_WHOLE},.*?spec_accept_length[\"']?:{_NUMBER}")
_LLAMA_STATISTICS = re.compile(rf"#gendrafts={_WHOLE},#accdrafts={_WHOLE},#gentokens={_WHOLE},#acctokens={_WHOLE}")
_TRTLLM = re.compile(
    rf"numDraftTokens[\"']?:{_WHOLE},[\"']?numAcceptedTokens[\"']?:{_WHOLE},"
    rf"[\"']?numRequestsWithDraftTokens[\"']?:{_WHOLE}"
)
_NEW_RECORD = re.compile(
    r"\s*(?:\(.{0,40}?\) ?)?(?:INFO|DEBUG|WARNING|ERROR)\b|\s*(?:\[|\d+\t)?\d{4}-\d\d-\d\d|\d+\.\d\d\.\d{3}"
    r"|\w+:\w+[{ ]|#|[\[{]|\s*$"
    r"|.*(?:SpecDecoding metrics|Speculative metrics|Decode batch|draft acceptance|speculative_num|meta_info)"
)
MOST_WRAPPED = 8
"""Maximum number of lines into which a terminal may have wrapped a line."""


@dataclass(frozen=True, slots=True)
class AcceptanceLog:
    """Acceptance of one engine, pooled over a file; None for values that the file does not contain."""

    source: str
    format: str
    records: int
    """Log lines, scrapes or runs pooled."""
    num_speculative_tokens: int | None
    acceptance_length: float
    """Mean tokens of a verify step, bonus token included."""
    per_position: tuple[float, ...] | None = None
    """Share of drafts in which position i is accepted."""
    num_drafts: float | None = None
    """Verify steps; from vLLM's log lines to the rounding of their rates."""
    draft_tokens: float | None = None
    accepted_tokens: float | None = None


def read_acceptance(path: str | Path) -> AcceptanceLog:
    """Acceptance from the file of an engine; the format is recognised by content.

    Raises:
        ForerunError: no such file, or no numbers of accepted draft tokens in it.
    """
    file = Path(path)
    if file.is_dir():
        raise ForerunError(f"{file}: is a folder, not an engine log")
    document = _as_json(file)
    text = "" if document is None else json.dumps(document)
    if isinstance(document, dict) and not _COUNTED.search(text):
        return _from_bench(document, str(file))
    if document is not None:
        return _from_lines([text], str(file))
    with open_bytes(file) as stream, TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") as lines:
        return _from_lines(iter(lambda: lines.readline(LONGEST_LINE), ""), str(file))


_COUNTED = re.compile("numRequestsWithDraftTokens|spec_(?:accept|correct_drafts)_histogram")
"""Counts in JSON documents that are read as a log's lines."""


def _as_json(file: Path) -> Any | None:
    """Document of a JSON file; None if the file is not JSON."""
    if not head(file, 4096).lstrip(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[{", b"[\n")):
        return None
    if file.stat().st_size > LARGEST_JSON_BYTES:
        raise ForerunError(
            f"{file}: larger than {LARGEST_JSON_BYTES >> 20} MiB; give the summary JSON of the benchmark"
        )
    try:
        return json.loads(unpacked_bytes(file).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _from_bench(document: Any, source: str) -> AcceptanceLog:
    if isinstance(document.get("summary"), dict):
        document = document["summary"]

    def number(key: str) -> float | None:
        value = document.get(f"spec_decode_{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise ForerunError(f"{source}: spec_decode_{key}: must be a number >= 0 (got {str(value)[:40]})")
        return float(value)

    length = number("acceptance_length")
    drafts, drafted, accepted = number("num_drafts"), number("draft_tokens"), number("accepted_tokens")
    if length is None and drafts and accepted is not None:
        length = 1.0 + accepted / drafts
    if length is None:
        raise ForerunError(f"{source}: has no spec_decode_acceptance_length; was speculation on? Wanted: {WANTED}")
    rates, per_position = document.get("spec_decode_per_position_acceptance_rates"), None
    if rates:
        if not isinstance(rates, list) or not all(isinstance(r, int | float) and abs(r) < 1e18 for r in rates):
            raise ForerunError(
                f"{source}: spec_decode_per_position_acceptance_rates: must be a list of shares of drafts"
            )
        per_position = _never_rising([float(rate) for rate in rates], source)
    positions = len(per_position) if per_position else None
    if positions is None and drafts and drafted and drafted % drafts == 0:
        positions = int(drafted // drafts)
    return _checked(AcceptanceLog(source, "vllm-bench", 1, positions, length, per_position, drafts, drafted, accepted))


def _records(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines of a log with their numbers, each with the lines into which it was wrapped."""
    first, record = 0, list[str]()
    for number, line in enumerate(lines, start=1):
        if record and (len(record) == MOST_WRAPPED or _NEW_RECORD.match(line)):
            yield first, "".join(record)
            record = []
        if not record:
            first = number
        record.append(line)
    if record:
        yield first, "".join(record)


def _from_lines(lines: Iterable[str], source: str) -> AcceptanceLog:
    vllm, sglang, samples = _VllmLines(source, "vllm-log"), _SglangLines(source), _Counters(source)
    old, histograms, answers, llama, totals, trtllm = (
        _Tally(source, name)
        for name in ("vllm-log", "sglang-histogram", "sglang-log", "llama-server", "llama-server", "trtllm-stats")
    )
    for number, record in _records(lines):
        text = "".join(record.split())
        if "SpecDecodingmetrics:" in text:
            vllm.read(text, number)
        elif match := _VLLM_V0.search(text):  # counts since the start of the engine
            tokens, accepted, drafted = map(int, match.groups())
            old = _Tally(source, "vllm-log", tokens=tokens)
            old.add(drafted / max(1, tokens), drafted, accepted, None, number)
        elif match := _LLAMA.search(text):
            shares = [float(rate) for rate in match[4].split(",")]
            accepted, length = int(match[1]), float(match[3])
            drafts = accepted / sum(shares) if sum(shares) > 0 else accepted / max(length - 1.0, 1e-9)
            llama.add(drafts or int(match[2]) / len(shares), int(match[2]), accepted, shares, number)
        elif match := _LLAMA_STATISTICS.search(text):  # counts since the start of the server
            drafts, _, drafted, accepted = map(int, match.groups())
            totals = _Tally(source, "llama-server")
            totals.add(drafts, drafted, accepted, None, number)
        elif (match := _ANSWER.search(text)) and float(match[2]) >= 1.0:
            cycles = int(match[1]) / float(match[2])
            answers.add(cycles, 0, int(match[1]) - cycles, None, number)
        elif "acceptlen:" in text or "speculative_num" in text:
            sglang.add(text)
        elif record.startswith("vllm:spec_decode_num_"):
            samples.add(record)
        for match in _TRTLLM.finditer(text):
            drafted, accepted, drafts = map(int, match.groups())
            trtllm.add(drafts, drafted, accepted, None, number)
        names = [match[1] for match in _HISTOGRAM.finditer(text)]
        for match in (one for one in _HISTOGRAM.finditer(text) if one[1] == names[0]):  # the other is its alias
            steps = [int(count) for count in match[2].split(",")]
            beyond = [sum(steps[depth:]) for depth in range(len(steps))]
            shares = [count / max(1, beyond[0]) for count in beyond[1:]]
            histograms.add(beyond[0], beyond[0] * len(shares), sum(beyond[1:]), shares, number)
    for reader in (vllm, vllm.uncounted, samples, histograms, sglang, answers, llama, totals, trtllm, old):
        if reader.records:
            log = _checked(reader.result())
            if reader is vllm.uncounted:
                return replace(log, num_drafts=None, draft_tokens=None, accepted_tokens=None)
            return log
    if vllm.incomplete is not None:
        raise ForerunError(
            f"{source}:{vllm.incomplete}: its SpecDecoding line lacks 'Accepted: N tokens' or 'Drafted: N tokens'"
        )
    raise ForerunError(f"{source}: has no counts of accepted draft tokens; expected: {WANTED}")


class _Tally:
    """Drafts and their accepted tokens, summed over the records of a log."""

    def __init__(self, source: str, format: str, tokens: int | None = None) -> None:
        self.source, self.format, self.tokens = source, format, tokens
        self.records = 0
        self.drafts = self.drafted = self.accepted = 0.0
        self.at_position: list[float] | None = None

    def add(self, drafts: float, drafted: float, accepted: float, shares: list[float] | None, number: int) -> None:
        """Add a record: its verify steps, tokens, and the share of drafts in which each position is accepted."""
        if shares is not None and self.records and (self.at_position is None or len(shares) != len(self.at_position)):
            if self.format == "vllm-log":
                raise ForerunError(
                    f"{self.source}:{number}: the number of positions changes to {len(shares)}; "
                    f"give the lines of one setting only"
                )
            deepest = max(len(shares), len(self.at_position or ()))
            shares = [*shares, *[0.0] * (deepest - len(shares))]
            self.at_position = [*(self.at_position or ()), *[0.0] * (deepest - len(self.at_position or ()))]
        self.records += 1
        self.drafts += drafts
        self.drafted += drafted
        self.accepted += accepted
        if shares is not None:
            before = self.at_position or [0.0] * len(shares)
            self.at_position = [total + share * drafts for total, share in zip(before, shares, strict=True)]

    def result(self) -> AcceptanceLog:
        if not self.drafts:
            raise ForerunError(f"{self.source}: its lines on speculation count no draft")
        rates = None
        if self.at_position is not None:
            rates = _never_rising([total / self.drafts for total in self.at_position], self.source)
        return AcceptanceLog(
            source=self.source,
            format=self.format,
            records=self.records,
            num_speculative_tokens=len(rates) if rates else self.tokens or round(self.drafted / self.drafts) or None,
            acceptance_length=1.0 + self.accepted / self.drafts,
            per_position=rates,
            num_drafts=float(round(self.drafts)),
            draft_tokens=self.drafted or None,
            accepted_tokens=self.accepted,
        )


class _VllmLines(_Tally):
    """vLLM's periodic log lines, each about the time since the line before it."""

    def __init__(self, source: str, format: str) -> None:
        super().__init__(source, format)
        self.incomplete: int | None = None
        """First line that counts no tokens."""
        self.uncounted = _Tally(source, format)
        """Lines with rates but without token counts; all have equal weight."""

    def read(self, line: str, number: int) -> None:
        """Add a line, without its blanks."""
        text = line.partition("SpecDecodingmetrics:")[2]
        accepted, drafted = _VLLM_ACCEPTED.search(text), _VLLM_DRAFTED.search(text)
        rates, length = _VLLM_RATES.search(text), _VLLM_LENGTH.search(text)
        shares = [float(rate) for rate in rates[1].split(",")] if rates else None
        if accepted is None or drafted is None:
            self.incomplete = self.incomplete or number
            if shares is not None:
                self.uncounted.add(1.0, len(shares), sum(shares), shares, number)
            return
        drafts = _drafts_of_line(float(accepted[1]), float(drafted[1]), shares, length)
        if drafts is not None:
            self.add(drafts, float(drafted[1]), float(accepted[1]), shares, number)


def _drafts_of_line(
    accepted: float, drafted: float, shares: list[float] | None, length: re.Match[str] | None
) -> float | None:
    """Verify steps of a log line, which vLLM does not print: the most precise of three estimates, or None."""
    if accepted and shares and sum(shares) > 0:
        return accepted / sum(shares)
    if accepted and length and float(length[1]) > 1.0:
        return accepted / (float(length[1]) - 1.0)
    return drafted / len(shares) if shares else None


class _Counters:
    """vLLM's Prometheus counters, summed over engines; for two scrapes, later minus earlier."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.series: dict[tuple[str, str], list[float]] = {}

    @property
    def records(self) -> int:
        return len(self.series)

    def add(self, line: str) -> None:
        match = _SAMPLE.match(line)
        if match and not match[1].endswith("_created"):
            self.series.setdefault((match[1], match[2] or ""), []).append(float(match[3]))

    def result(self) -> AcceptanceLog:
        models = {dict(_LABEL.findall(labels)).get("model_name", "") for _, labels in self.series}
        if len(models) > 1:
            raise ForerunError(
                f"{self.source}: counters of {len(models)} models ({', '.join(sorted(models))}); keep one"
            )
        totals: dict[str, float] = {}
        positions: dict[int, float] = {}
        for (name, labels), values in self.series.items():
            value = values[0] if len(values) == 1 else values[-1] - values[0]
            if value < 0:
                raise ForerunError(f"{self.source}: the counter {name} falls; did the engine restart between scrapes?")
            if name == "accepted_tokens_per_pos":
                label = _POSITION.search(labels)
                position = int(label[1]) if label else -1
                positions[position] = positions.get(position, 0.0) + value
            else:
                totals[name] = totals.get(name, 0.0) + value
        drafts = totals.get("drafts")
        if not drafts:
            raise ForerunError(f"{self.source}: vllm:spec_decode_num_drafts_total is missing or 0")
        accepted = totals.get("accepted_tokens", sum(positions.values()))
        rates = None
        if positions:
            if sorted(positions) != list(range(len(positions))):
                raise ForerunError(f"{self.source}: counters per position do not run from 0 without gaps")
            rates = _never_rising([positions[i] / drafts for i in range(len(positions))], self.source)
        drafted = totals.get("draft_tokens")
        return AcceptanceLog(
            source=self.source,
            format="vllm-prometheus",
            records=max(len(values) for values in self.series.values()),
            num_speculative_tokens=len(rates) if rates else round(drafted / drafts) if drafted else None,
            acceptance_length=1.0 + accepted / drafts,
            per_position=rates,
            num_drafts=drafts,
            draft_tokens=drafted,
            accepted_tokens=accepted,
        )


class _SglangLines:
    """SGLang's decode lines, each about the decode steps since the line before it, weighted by its running requests."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.records = 0
        self.weight = self.total = 0.0
        self.arguments: dict[str, int] = {}

    def add(self, line: str) -> None:
        for name, value in _SGLANG_ARGUMENT.findall(line):
            self.arguments[name] = int(value)
        match = _SGLANG.search(line)
        if match and float(match[2]) >= 1.0 and int(match[1]):
            self.records += 1
            self.weight += int(match[1])
            self.total += int(match[1]) * float(match[2])

    def result(self) -> AcceptanceLog:
        tree = self.arguments.get("eagle_topk", 1) > 1
        steps = self.arguments.get("num_steps", self.arguments.get("num_draft_tokens", 1) - 1)
        return AcceptanceLog(
            source=self.source,
            format="sglang-log",
            records=self.records,
            num_speculative_tokens=None if tree or not steps else steps,
            acceptance_length=self.total / self.weight,
        )


def _never_rising(rates: list[float], source: str) -> tuple[float, ...]:
    """Shares of drafts by position, checked; rises within print rounding are levelled."""
    kept: list[float] = []
    for position, rate in enumerate(rates, start=1):
        if not 0.0 <= rate <= 1.0 + 1e-9:
            raise ForerunError(f"{source}: position {position} is accepted in {rate:g} of drafts, outside 0 to 1")
        before = kept[-1] if kept else 1.0
        if rate > before + 0.002:
            raise ForerunError(
                f"{source}: acceptance rises at position {position} ({before:.3f} to {rate:.3f}), which shares of all "
                f"drafts cannot; give conditional rates in the scenario as acceptance.conditional"
            )
        kept.append(min(rate, before))
    return tuple(kept)


def _checked(log: AcceptanceLog) -> AcceptanceLog:
    positions, length = log.num_speculative_tokens, log.acceptance_length
    if not isfinite(length) or not 1.0 <= length <= (length if positions is None else positions + 1.01):
        raise ForerunError(
            f"{log.source}: acceptance length {length:.3f} is impossible with {positions} draft tokens (it counts the "
            f"bonus token)"
        )
    return log


def lengths_by_tokens(logs: Iterable[AcceptanceLog]) -> dict[int, float]:
    """Acceptance length of each log by its number of draft tokens, for ``fit_lengths``."""
    lengths: dict[int, float] = {}
    for log in logs:
        tokens = log.num_speculative_tokens
        if tokens is None:
            raise ForerunError(f"{log.source}: states no draft tokens per step; give it without other logs")
        if tokens in lengths:
            raise ForerunError(f"{log.source}: a second file with {tokens} draft tokens; give one file for each number")
        lengths[tokens] = log.acceptance_length
    return lengths


Document = dict[str, Any]

PREDICTED = 8
"""Maximum number of draft tokens for which acceptance lengths are predicted."""


def fit_acceptance(files: Sequence[str | Path]) -> Document:
    """Output of ``forerun workloads fit-acceptance`` as plain data.

    One file is fitted by its rates per position if it has them, else by its acceptance length alone, which gives a
    level but no decay. Several files, one for each number of draft tokens, are fitted together by acceptance length.
    """
    if not files:
        raise ForerunError("give the file of an engine: a log, its Prometheus counters or its benchmark JSON")
    logs = [read_acceptance(file) for file in files]
    fit = _fit(logs)
    measured: Document | None = None
    if len(logs) == 1:
        measured = {"acceptance_length": round(logs[0].acceptance_length, 4)}
        if logs[0].per_position is not None:
            measured = {"per_position": [round(rate, 4) for rate in logs[0].per_position]}
    by_decay, predicted = None, None
    factors = rate_factors(logs[0]) if len(logs) == 1 else (1.0, 1.0)
    if fit is not None and fit.decay_identified:
        by_decay = {"alpha": round(fit.model.level, 4), "decay": round(fit.model.decay, 4)}
        rates = fit.model.conditional(PREDICTED)
        if len(logs) == 1 and logs[0].per_position is not None:
            rates = extended(conditional_rates(logs[0].per_position), PREDICTED, logs[0].num_drafts)
        predicted = [_predicted(rates[:tokens], factors) for tokens in range(1, PREDICTED + 1)]
    return {
        "logs": [_log(log) for log in logs],
        "fit": None if fit is None else _goodness(fit),
        "acceptance": measured,
        "acceptance_by_decay": by_decay,
        "predicted_lengths": predicted,
        "rate_factors": list(factors),
    }


def _predicted(rates: FloatArray, factors: tuple[float, float]) -> Document:
    """Acceptance length of a chain with these conditional rates, and with the rates at both ends of their interval."""
    low, length, high = (expected_length(np.minimum(rates * factor, 1.0)) for factor in (factors[0], 1.0, factors[1]))
    ends = {} if factors == (1.0, 1.0) else {"low": low, "high": high}
    return {"num_speculative_tokens": len(rates), "acceptance_length": length, **ends}


def rate_factors(log: AcceptanceLog) -> tuple[float, float]:
    """Ends of the 90 % interval of a log's acceptance rate over the rate itself; 1 and 1 without counts.

    The rate is that of all draft tokens whose predecessors were accepted; its posterior is a beta distribution after
    Jeffreys' prior, with ``CLUSTER`` tokens as one observation.
    """
    if not log.num_drafts or log.accepted_tokens is None or log.per_position is None:
        return 1.0, 1.0
    from scipy.special import betaincinv  # slow to import, and most runs do without

    reached = log.num_drafts * (1.0 + sum(log.per_position[:-1]))
    accepted = log.num_drafts * sum(log.per_position)
    rate = accepted / reached
    a, b = accepted / CLUSTER + 0.5, max(0.0, reached - accepted) / CLUSTER + 0.5
    low, high = (float(betaincinv(a, b, share)) for share in (0.05, 0.95))
    return (min(1.0, low / rate), max(1.0, min(high, 1.0) / rate)) if rate > 0 else (1.0, 1.0)


def _fit(logs: Sequence[AcceptanceLog]) -> AcceptanceFit | None:
    if len(logs) > 1:
        return fit_acceptance_lengths(lengths_by_tokens(logs))
    log = logs[0]
    if log.per_position is not None:
        return fit_survival(log.per_position, log.num_drafts)
    if log.num_speculative_tokens is not None:
        return fit_acceptance_lengths({log.num_speculative_tokens: log.acceptance_length})
    return None


def _log(log: AcceptanceLog) -> Document:
    rates = None if log.per_position is None else list(log.per_position)
    return asdict(log) | {"per_position": rates, "conditional": None if rates is None else conditional_rates(rates)}


def _goodness(fit: AcceptanceFit) -> Document:
    return {
        "level": fit.model.level,
        "decay": fit.model.decay if fit.decay_identified else None,
        "level_error": fit.level_error,
        "decay_error": fit.decay_error,
        "quantity": fit.quantity,
        **{name: list(getattr(fit, name)) for name in ("at", "observed", "predicted")},
        "length_error_percent": 100.0 * fit.length_error,
        **{name: getattr(fit, name) for name in ("rate_error", "deviance", "degrees")},
    }
