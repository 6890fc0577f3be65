"""Names that people and benchmarks give to figures: field, statistic and unit, by the words in ``formats.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any, NamedTuple

from forerun.yaml_files import packaged
from traces.errors import TraceError, comma_hint, shown
from traces.fields import TIME_WORDS, UNITS_PER_SECOND, squash

TABLES: dict[str, dict[str, Any]] = packaged("traces.benchmark_results", "formats.yaml")
"""Fields of each client's results."""
_WORDS = TABLES["table"]
_TEXTS = frozenset(_WORDS["texts"])
_FRACTIONS = ("request_rate", "burstiness", "accept_length")
_SERVER_FIELDS = {
    name for names in TABLES["vllm-bench"]["fields"].values() for name in ([names] if isinstance(names, str) else names)
}
_PERCENTILE = re.compile(r"(?<![\d.])(\d+)(?:\.0+)?\s*(?:th|st)?[ _-]*(?:percentile|pctl|pct|%-?ile|%)", re.IGNORECASE)
_RATE = re.compile(
    r"(?:^| )(k )?(?:(?:(?P<a>t|tok|tokens?|r|reqs?|requests?|quer(?:y|ies)|samples?) )?per (?P<x>s\w*|min\w*)"
    r"|(?P<b>tok|tokens?|t|reqs?|requests?) (?P<y>s|sec)|(?P<c>[trq])p(?P<z>s|m))$"
)
_TIME = {**TIME_WORDS, "second": "s", "secs": "s", "msec": "ms"}
_NUMBER = re.compile(
    r"[~≈]?\s*([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)\s*(?:±[\s\d.,%]*)?([^\d,.]*)", re.I
)
_NOTHING = ("", "-", "--", "—", "–", "n/a", "na", "nan", "none", "null", "not set", "?", "tbd")
WEAKER = "weaker"
"""Mark of a column that yields to another one of its field: a measured mean, a batch or a dtype."""
_PLAUSIBLE = {"ttft": (1.0, 100.0), "tpot": (0.5, 1.0), "itl": (0.5, 1.0), "e2el": (2.0, 1000.0)}
"""Values without a unit are seconds below the first, milliseconds from the second on, and either between them."""


class Name(NamedTuple):
    """Reading of a name."""

    key: str
    """Key of ``vllm_run``'s results, or a latency."""
    unit: str | None = None
    statistic: str = "mean"
    guess: str = ""
    """Part of the reading that the name does not state."""

    @property
    def is_latency(self) -> bool:
        return self.key in _WORDS["latencies"]

    @property
    def is_figure(self) -> bool:
        return self.is_latency or "throughput" in self.key

    @property
    def result_key(self) -> str:
        """Key in a result of vLLM's benchmark."""
        return f"{self.statistic}_{self.key}_ms" if self.is_latency else self.key


@cache
def _phrases(part: str) -> Mapping[str, tuple[str, ...]]:
    phrases: dict[str, tuple[str, ...]] = {}
    for key, listed in _WORDS[part].items():
        for phrase in map(squash, listed):
            phrases[phrase] = (*phrases.get(phrase, ()), key)
    return phrases


@cache
def name_of(label: str) -> Name | None:
    """Reading of the name of a column or line; None if it names nothing that is read.

    >>> name_of("P99 TTFT (ms)").result_key, name_of("itl_mean_ms").result_key, name_of("Req Tput (RPS)").key
    ('p99_ttft_ms', 'mean_itl_ms', 'request_throughput')
    """
    words = _split(re.sub(r"[(\[][^)\]]*[)\]]", " ", label))
    fields, latencies, rates = _phrases("fields"), _phrases("latencies"), _phrases("throughputs")
    beside = {
        "tokens",
        "requests",
        "count",
        "inferred",
        *latencies,
    }  # "Request Count (count)", "... first token [TTFT]"
    notes = [_split(one) for one in re.findall(r"[(\[]([^)\]]*)[)\]]", label) if squash(one) not in beside]
    inside = [word for one in notes for word in one]
    if not inside and squash("".join(words)) in fields and "/" not in (_unit(words)[0] or ""):
        plain = squash("".join(words))
        return Name(fields[plain][0], statistic=WEAKER if plain in _WORDS["weaker"] else "mean")
    if label in _SERVER_FIELDS:
        return Name(label)
    statistics = [_phrases("statistics")[word][0] for word in [*words, *inside] if word in _phrases("statistics")]
    dropped = {"successful", *_phrases("statistics")}
    words, inside = ([word for word in one if word not in dropped] for one in (words, inside))
    unit, rest = _unit(inside)
    unit, words = (unit, [*words, *rest]) if unit else _unit([*words, *rest])
    plain = squash("".join(words))
    kind = unit.partition("/")[0] if unit and "/" in unit else None
    stated = Name("", unit, statistics[0] if statistics else "mean", "" if statistics else "the mean")
    if len(statistics) > 1:
        return None
    if kind is None:
        if plain in latencies or (plain == "latency" and unit):
            return stated._replace(key=latencies.get(plain, ("e2el",))[0])
        if unit is None and not plain.endswith(("throughput", "tput")):
            return Name(fields[plain][0], statistic=WEAKER) if plain in fields and statistics else None
    if statistics not in ([], ["mean"]):
        return None
    if kind != "token" and "request_rate" in fields.get(plain, ()):
        return Name("request_rate", unit)
    wanted = [key for key in rates.get(plain, ()) if kind in (None, "", "request" if "request" in key else "token")]
    if wanted:
        return Name(wanted[0], unit)
    if kind and plain in ("", "throughput", "tput"):
        key = "output_throughput" if kind == "token" else "request_throughput"
        bare = key == "request_throughput" and not plain and not statistics
        return Name("request_rate_or_throughput" if bare else key, unit, guess="of output tokens" * (kind == "token"))
    return None


def _split(text: str) -> list[str]:
    text = _PERCENTILE.sub(r" p\1 ", text.replace("µ", "u").replace("/", " per ").replace("1st", "first"))
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return re.findall(r"[a-z0-9]+", text.lower())


def _unit(words: list[str]) -> tuple[str | None, list[str]]:
    """Unit at the end of some words (``ms``, ``token/s``), and the words before it."""
    if rate := _RATE.search(" ".join(words)):
        noun, time = (next(filter(None, map(rate.group, groups)), "") for groups in ("abc", "xyz"))
        kind = "token" if noun.startswith("t") else "request" if noun else ""
        return f"{kind}/{'k' * bool(rate[1])}{time[0]}", " ".join(words)[: rate.start()].split()
    if words[-2:-1] == ["per"] and words[-1] in ("token", "tok") and words[-3:-2] and words[-3] in _TIME:
        return _TIME[words[-3]], [*words[:-3], *(["per", "token"] if words[:-3] in ([], ["latency"]) else ())]
    return (_TIME[words[-1]], words[:-1]) if words and words[-1] in _TIME else (None, words)


def amount(cell: object, place: str) -> tuple[float, str | None] | None:
    """Number in a cell and the unit beside it; None for an empty cell, a factor or a percentage.

    >>> amount("**1,087.88 s** ", "a:1"), amount("95.3 ± 0.2", "a:1"), amount("N/A", "a:1")
    ((1087.88, 's'), (95.3, None), None)

    Raises:
        TraceError: no number.
    """
    word = re.sub(r"[*`$\\]|<[^>]*>", "", "" if cell is None else str(cell)).strip()
    if word.lower() in _NOTHING or word.endswith(("x", "×", "%")):
        return None
    match = _NUMBER.fullmatch(word)
    if match is None or abs(float(match[1].replace(",", ""))) == inf:
        raise TraceError(f"{place}: {shown(word)} is no number{comma_hint(word)}")
    unit, rest = _unit(_split(match[2]))
    return float(match[1].replace(",", "")), unit if not rest else match[2].strip()


Row = tuple[str, Mapping[str, object]]
"""Place of a row, and its cells by name."""


def results_of(rows: Sequence[Row], printed: bool) -> Iterator[tuple[str, dict[str, object], list[str]]]:
    """Rows as results with the keys of vLLM's benchmark: place, result, and notes on what was guessed.

    Args:
        rows: of one table.
        printed: True if a benchmark printed the names; else a note says how each is read.

    Raises:
        TraceError: no latency or throughput in them, two columns of one figure, a unit that is not stated and cannot be
            inferred, or a cell that is no number.
    """
    labels = list(dict.fromkeys(label for _, cells in rows for label in cells))
    numeric = {
        label for _, cells in rows for label, cell in cells.items() if re.match(r"\W*(\d|inf)", str(cell).lower())
    }
    names = {label: name for label in labels if (name := name_of(label))
             and (name.is_figure or name.key in _TEXTS or label in numeric or label in _SERVER_FIELDS)}  # fmt: skip
    if not any(name.is_figure for name in names.values()):
        raise TraceError(f"{rows[0][0]}: no latency or throughput in it (names seen: {', '.join(labels[:8])})")
    read = [f"'{label}' as {name.result_key}" for label, name in names.items() if label != name.result_key]
    unread = [label for label in labels if label not in names and not _is_known(label)]
    notes = [f"read {', '.join(read)}"] if read and not printed else []
    notes += [f"not read: {', '.join(unread[:8])}{' ...' if len(unread) > 8 else ''}"] if unread and not printed else []
    units = {label: _assumed_unit(label, name, rows, notes) for label, name in names.items() if name.is_latency}
    for place, cells in rows:
        result: dict[str, object] = {}
        for label, name in sorted(names.items(), key=lambda item: item[1].statistic == WEAKER):
            value = _value(name, cells.get(label), f"{place}: {label}", units.get(label))
            if "tokens" in name.key and re.search(r"\dk\b", str(cells.get(label)), re.IGNORECASE):
                notes.append("lengths in k are multiples of 1,024 tokens")
            beside = {name.key, "request_rate"} if name.key == "max_concurrency" else {name.key}
            if value is None or (name.statistic == WEAKER and beside & set(result)):
                continue
            before = result.get(name.result_key, value)
            if isinstance(before, str) and isinstance(value, str) and (before in value or value in before):
                value = max(before, value, key=len)  # "awq" beside "awq_marlin"
            elif before != value:
                raise TraceError(f"{place}: {label}: a second {name.result_key}; remove one of the two columns")
            result[name.result_key] = value
        either = result.pop("request_rate_or_throughput", None)
        if either is not None:
            loaded = printed or {"max_concurrency", "request_rate"} & set(result)
            result["request_throughput" if loaded else "request_rate"] = either
            notes += [] if loaded else ["requests per second without another load are taken as the rate that was sent"]
        yield place, result, list(dict.fromkeys(notes))


def _is_known(label: str) -> bool:
    known = set(map(squash, _WORDS["known"]))
    return squash(label) in known or any(word in _WORDS["others"] for word in _split(label))


def _assumed_unit(label: str, name: Name, rows: Sequence[Row], notes: list[str]) -> str | None:
    """Unit of a latency's column: the stated one, or the one that all its values allow, with a note."""
    amounts = [amount(cells.get(label), f"{place}: {label}") for place, cells in rows]
    bare = [value for value, unit in filter(None, amounts) if unit is None and value > 0]
    if name.unit is not None or not bare:
        return name.unit
    least, most = _PLAUSIBLE[name.key]
    units = [unit for unit, fits in (("s", min(bare) < least), ("ms", max(bare) >= most)) if fits]
    if len(units) != 1:
        raise TraceError(f"{rows[0][0]}: {label}: {bare[0]:g} states no unit; write it into the name: '{label} (ms)'")
    notes.append(f"'{label}' states no unit; its values of {min(bare):g} to {max(bare):g} are taken as {units[0]}")
    return units[0]


def _value(name: Name, cell: object, place: str, assumed: str | None) -> object:
    """Value of a cell under its result key; latencies in milliseconds, rates per second."""
    word = re.sub(r"[*`]", "", "" if cell is None else str(cell)).strip()
    unlimited = name.key == "request_rate" and word.lower() in ("inf", "infinity", "unlimited")
    if unlimited or name.key in _TEXTS or (name.key in _SERVER_FIELDS and name.key not in _WORDS["fields"]):
        return None if word.lower() in _NOTHING else word.lower() if name.key == "request_rate" else word
    number = amount(cell, place)
    if number is None:
        return None
    value, unit = number[0], number[1] or assumed or name.unit
    if name.is_latency:
        if unit not in UNITS_PER_SECOND:
            raise TraceError(f"{place}: unit '{unit}' is no unit of time")
        return value * UNITS_PER_SECOND["ms"] / UNITS_PER_SECOND[unit]
    per = (unit or "").partition("/")[2]
    if unit and not per and squash(unit) not in ("k", "tokens", "token", "tok", "requests", "req", "users", "streams"):
        raise TraceError(f"{place}: unit '{unit}' is not known here")
    value *= (
        1 if unit is None or squash(unit) != "k" else 1024 if name.key in ("input_tokens", "output_tokens") else 1000
    )
    value *= (1000 if per.startswith("k") else 1) / (60 if per.endswith("m") else 1)
    return value if name.is_figure or name.key in _FRACTIONS else round(value)
