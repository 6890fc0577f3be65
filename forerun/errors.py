"""Exceptions for invalid input and broken invariants, wording of messages, deprecation warnings."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import wraps
from math import inf
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
LONGEST_MESSAGE = 1000
"""Maximum characters of an error message; longer messages probably contain a file's content."""


MOST_NEAR = 3


class ForerunError(ValueError):
    """Bad input: one line that names the file, field or argument, the value, and a valid one."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


_SIZES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES: dict[str, int | Fraction] = {f"{prefix}B": factor for prefix, factor in (_SIZES | _BINARY).items()}
_SECONDS = {
    unit: Fraction(factor)
    for factor, units in {
        "1": "s sec second seconds",
        "1/1000": "ms millisecond milliseconds",
        "1/1000000": "us µs microseconds",
        "1/1000000000": "ns nanoseconds",
        "60": "min minute minutes",
        "3600": "h hr hour hours",
    }.items()
    for unit in units.split()
}
_RATES = {unit: 1 / _SECONDS[unit] for unit in ("s", "sec", "second", "min", "minute", "h", "hr", "hour")}
_PER: dict[str, int | Fraction] = {
    f"{noun}/{unit}": value for unit, value in _RATES.items() for noun in ("", "req", "request", "requests")
}
_PER |= {"": 1, "rps": 1, "qps": 1, "rpm": Fraction(1, 60)}
_UNITS: dict[str, tuple[str, Mapping[str, int | Fraction]]] = {
    r"_gb_s$": (
        "in GB/s",
        {f"{unit}/s": Fraction(factor, 10**9) for unit, factor in _BYTES.items()}
        | {f"{prefix}bit/s": Fraction(factor, 8 * 10**9) for prefix, factor in _SIZES.items()},
    ),
    r"bytes$": (
        "in bytes",
        _BYTES | {unit.lower(): factor for unit, factor in _BYTES.items()} | _BINARY | {"byte": 1, "bytes": 1},
    ),
    r"_ms$": ("in milliseconds", {unit: 1000 * factor for unit, factor in _SECONDS.items()}),
    r"_s$": ("in seconds", _SECONDS),
    r"_w$": ("in watts", {"W": 1, "watt": 1, "watts": 1, "kW": 1000}),
    r"usd": (
        "in US dollars",
        dict.fromkeys(("$", "usd", "dollar", "dollars"), 1) | dict.fromkeys(("¢", "cent", "cents"), Fraction(1, 100)),
    ),
    r"(utilization|watermark|ratio|share|hit_rate|(cache|kv|confidence)_threshold|kv_spare|tolerance|correlation)$": (
        "as a share, such as 0.9",
        dict.fromkeys(("%", "percent", "pct"), Fraction(1, 100)),
    ),
    r"(^|[._])rate$": (
        "in requests per second",
        {f"{prefix}{unit}": _SIZES[prefix] * value for unit, value in _PER.items() for prefix in ("", "k", "K", "M")},
    ),
    r"tokens|_len$": ("in tokens", dict.fromkeys(("tok", "token", "tokens"), 1) | _BINARY),
    r"(requests|seed)$": ("", _SIZES | _BINARY | {"m": 10**6, "request": 1, "requests": 1}),
    r"": ("", _BINARY),
}
"""Units by the suffix of a field's name: text for messages, and sizes of other units of the same quantity. Ambiguous
units are excluded: ``k`` of tokens and ``G`` of bytes (1000 or 1024), ``m`` of a time, ``Gb``."""


def _units_of(name: str) -> tuple[str, Mapping[str, int | Fraction]]:
    """Text for the unit of a field, and factors of other accepted units."""
    return next(units for pattern, units in _UNITS.items() if re.search(pattern, name))


def plain_number(text: str, name: str = "") -> str:
    """Number that a text with a unit means in the unit of the field ``name``; empty if uncertain.

    Args:
        text: for example ``10k``, ``8rps``, ``1,000``, ``1s`` or ``90%``.
        name: the field or option, whose suffix states its unit: ``_bytes``, ``_ms``, ``_s``, ``_gb_s`` and so on.

    >>> plain_number("10k", "num_requests"), plain_number("480/min", "request_rate"), plain_number("1s", "p99_ttft_ms")
    ('10000', '8', '1000')
    >>> plain_number("4GiB", "swap_bytes"), plain_number("64g", "swap_bytes"), plain_number("8k", "window_tokens")
    ('4294967296', '', '')
    """
    known = re.fullmatch(r"(\$?) ?(\d+(?:\.\d+)?) ?(\D*)", without_commas(text.strip()))
    if known is None or (known[1] and known[3]):
        return ""
    unit, factors = re.sub(r" ?\bper\b ", "/", known[1] or known[3]).replace(" ", ""), _units_of(name)[1]
    wide = unit.lower() if unit.isupper() or len(unit) > 3 else unit
    factor = factors.get(unit, factors.get(wide)) if unit else 1
    if factor is None:
        return ""
    value = Fraction(known[2]) * Fraction(factor)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def without_commas(text: str) -> str:
    """Text of a number without thousands commas; any other comma is replaced by a decimal point.

    >>> without_commas("1,234"), without_commas("0,5"), without_commas("1,234,567.5"), without_commas("12,25")
    ('1234', '0.5', '1234567.5', '12.25')
    """
    if re.match(r"[1-9]\d{0,2}(,\d{3})+(?!\d)", text):
        return text.replace(",", "")
    return re.sub(r"^(-?\d+),(\d+)(?![\d,])", r"\1.\2", text)


def comma_hint(text: str) -> str:
    """Suggestion for a number that is written with a comma, or an empty string.

    >>> comma_hint("0,5"), comma_hint("many")
    ('; write 0.5, numbers have a decimal point', '')
    """
    plain = without_commas(text.strip())
    known = plain != text.strip() and re.fullmatch(r"-?\d+(\.\d+)?", plain)
    return f"; write {plain}, numbers have a decimal point" if known else ""


PLAIN = {
    "missing": "missing",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
    "string_type": "must be a text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
}
"""Messages that replace pydantic's, by error type."""


def in_words(problem: Mapping[str, Any]) -> str:
    """Message for a pydantic error, in the wording of other messages.

    >>> in_words({"type": "literal_error", "msg": "Input should be 'a' or 'b'"})
    "must be 'a' or 'b'"
    """
    message: str = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return PLAIN.get(problem["type"], message)


def got(value: object, message: str) -> str:
    """Suffix of a message that states the value, unless the message already contains it.

    >>> got(1.5, "must be a whole number"), got("x", "no chip 'x'")
    (' (got 1.5)', '')
    """
    plain = isinstance(value, int | float | str | None) and f"'{value}'" not in message
    return f" (got {value!r})" if plain else ""


def without_unit(text: str, name: str = "", kind: str = "number") -> str:
    """Error text for a text in place of a number: it suggests the number if certain, else the unit."""
    meant = plain_number(text, name)
    unit = _units_of(name)[0]
    hint = f"; write {meant}" if meant not in ("", text) else f"; write a plain number {unit}" if unit else ""
    return f"must be a {kind} without a unit{hint} (got '{text}')"


class StalledError(RuntimeError):
    """A simulation ran out of events before all requests had ended: an error in the simulator."""


class ArgumentError(ForerunError):
    """Invalid value of a function argument; the command line names its option instead.

    Args:
        argument: name of the argument, e.g. ``max_replicas``.
        message: description of the error, and a valid value.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument, self.message = argument, message

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str]]:
        return type(self), (self.argument, self.message)

    @property
    def as_option(self) -> str:
        """The message, prefixed with the command-line option of the argument."""
        return f"--{self.argument.replace('_', '-')}: {self.message}"


def call_refusal(name: str, error: TypeError, hint: str) -> ForerunError:
    """Refusal of a call of ``fr.NAME`` that does not fit its signature."""
    return ForerunError(f"fr.{name}: {error} ({hint})")


def named_arguments(function: Callable[Arguments, Returned], name: str = "") -> Callable[Arguments, Returned]:
    """Decorator: calls that do not fit the function's signature are refused in one line, under ``name`` if it is set.

    >>> named_arguments(check_number)("seed", valu=1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    forerun.errors.ForerunError: fr.check_number: missing a required argument: 'value' (takes argument, value, ...)
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except TypeError:
            from inspect import signature

            shape = signature(function)
            try:
                shape.bind(*args, **kwargs)
            except TypeError as error:
                takes = ", ".join(one for one in shape.parameters if one != "self")
                called = name or function.__qualname__.removesuffix(".__init__")
                raise call_refusal(called, error, f"takes {takes}") from None
            raise

    return call


def check_number(argument: str, value: object, low: float, high: float, whole: bool) -> None:
    """Refuse an argument that is not a number within the bounds.

    >>> check_number("seed", -1, 0, float("inf"), whole=True)
    Traceback (most recent call last):
    forerun.errors.ArgumentError: seed: must be a whole number from 0 (got -1)
    """
    known = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (known and low <= value <= high):  # type: ignore[operator]
        ends = f" from {low:g}" * (low > -inf) + f" up to {high:g}" * (high < inf)
        raise ArgumentError(argument, f"must be a {'whole ' * whole}number{ends} (got {value!r})")


class UnknownFieldError(ForerunError):
    """A scenario field that does not exist."""


class NothingServedError(ForerunError):
    """The engine cannot serve any request of the workload.

    Args:
        reasons: reasons for the refusal of requests, and how to fix them.
    """

    def __init__(self, reasons: str) -> None:
        super().__init__(f"workload: no request can be served here ({reasons})")
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[NothingServedError], tuple[str]]:
        return type(self), (self.reasons,)


class UsageError(ForerunError):
    """A command line that cannot be parsed; its message begins with the command."""


class WorkerDiedError(ForerunError):
    """A worker process crashed twice on the same run, probably because memory ran out."""


class InvariantError(RuntimeError):
    """A simulated result that breaks physics or conservation: an error in the simulator, not in its input.

    Args:
        invariant: description of the broken invariant, with the numbers.
        scenario: the scenario of the run, as JSON for ``forerun run``.
        seed: seed of the run.
        options: further arguments of the command that repeats the run.
        result: the run's result, if any; it is not passed between processes.
    """

    def __init__(self, invariant: str, scenario: str, seed: int, options: str = "", result: Any = None) -> None:
        super().__init__(invariant, scenario, seed, options)
        self.invariant, self.scenario, self.seed, self.options, self.result = invariant, scenario, seed, options, result

    def __reduce__(self) -> tuple[type[InvariantError], tuple[str, str, int, str]]:
        return type(self), (self.invariant, self.scenario, self.seed, self.options)

    @property
    def mark(self) -> str:
        """Short hash of scenario and seed, equal in every run."""
        return f"{zlib.crc32(f'{self.seed} {self.scenario}'.encode()):08x}"

    def __str__(self) -> str:
        return f"{self.invariant}; reproduce it with seed {self.seed} and the scenario {self.scenario}"


@contextmanager
def at_field(name: str) -> Iterator[None]:
    """Prefix errors raised in the body with the scenario field ``name``, unless it is empty."""
    try:
        yield
    except ForerunError as error:
        if not name:
            raise
        raise type(error)(f"{name}: {error}") from None


def one_line(message: str) -> str:
    """``message`` as one printable line: line ends become spaces, control characters and broken text are escaped.

    The middle of a message longer than ``LONGEST_MESSAGE`` characters is left out, as file and reason are at its ends.
    """
    text = " ".join(message.splitlines())
    if not text.isprintable():
        text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    half = LONGEST_MESSAGE // 2 - 3
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


LEAST_ALIKE, LEAST_ALIKE_NUMBERED = 0.6, 0.7
"""Minimum similarity (``difflib``) for a suggestion, and for a word with a number: ``gpt-4`` does not mean ``gpt2``
(0.67)."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Hint such as ``; did you mean 'h100-sxm'?`` with the known words nearest to ``word``, or an empty string.

    Words that contain ``word`` come first (``a100`` means ``a100-sxm-80gb``, ``rate`` means ``request_rate``), the
    shortest first, at most ``MOST_NEAR``; otherwise the word with the most similar spelling.
    """
    words = list(known)
    parts = _parts(word)
    whole = [other for other in words if parts and parts <= _parts(other)]
    near = [other for other in whole if _parts(other) == parts] or sorted(whole, key=lambda other: len(_parts(other)))
    if not near:
        from difflib import get_close_matches

        least = LEAST_ALIKE_NUMBERED if any(map(str.isdigit, word)) else LEAST_ALIKE
        alike = [other for other in words if _same_numbers(word, other)]
        near = get_close_matches(word, alike, n=1, cutoff=least) or get_close_matches(word.lower(), alike, 1, least)
    shown_ = [f"'{other}'" for other in near[:MOST_NEAR]]
    if not shown_:
        return ""
    more = " ..." if len(near) > MOST_NEAR else ""
    return f"; did you mean {' or '.join(filter(None, [', '.join(shown_[:-1]), shown_[-1]]))}{more}?"


def _same_numbers(word: str, other: str) -> bool:
    """True unless ``word`` has a number or a short word that ``other`` lacks (different size, version or kind).

    Digits may be in another order, or missing at the end of a whole number; one or two letters in front of a number
    must be the same.

    >>> [_same_numbers(*pair) for pair in (("h10-sxm", "h100-sxm"), ("a800", "h800"), ("gaudi2", "gaudi-3"))]
    [True, False, False]
    >>> _same_numbers("qwen2.5-vl-7b", "qwen2.5-7b"), _same_numbers("glm-5.3", "glm-5"), _same_numbers("l-1b", "l-13b")
    (False, False, False)
    """
    pattern = r"([a-z]*)(\d+(?:\.\d+)?)(b\b)?"
    numbers, known = (re.findall(pattern, text.lower()) for text in (word, other))
    if not numbers:
        return True
    short = [part for part in re.findall(r"[a-z]+", re.sub(pattern, " ", word.lower())) if 2 <= len(part) <= 4]
    near = all(
        any(
            (front == letters or len(letters) > 2 or len(front) > 2)
            and (
                number == digits
                or (not size and sorted(number) == sorted(digits))
                or (not size and "." not in number + digits and digits.startswith(number))
            )
            for front, digits, _ in known
        )
        for letters, number, size in numbers
    )
    if not near or any(part not in other.lower() for part in short):
        return False
    from difflib import get_close_matches

    long, others = re.findall(r"[a-z]{5,}", word.lower()), re.findall("[a-z]+", other.lower())
    return all(part in other.lower() or get_close_matches(part, others, 1, LEAST_ALIKE) for part in long)


def _parts(name: str) -> set[str]:
    """Parts of a name between dashes, underscores, dots and the like, in lower case."""
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def install_hint(extra: str) -> str:
    """Hint with the command that installs the optional dependencies ``extra``."""
    return f"pip install 'forerun[{extra}]'"


def shown(value: object, width: int = 40) -> str:
    """Text of ``value`` for a one-line message: its repr, cut to ``width`` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a structure nested too deep
        text = f"<{type(value).__name__}>"
    return text if len(text) <= width else f"{text[: width - 3]}..."


def warn_renamed(old: str, new: str) -> None:
    """Issue a deprecation warning that ``old`` is now ``new``, attributed to the caller's caller."""
    warnings.warn(f"{old} is now {new}; the old name goes in the next release", DeprecationWarning, stacklevel=3)


def with_new_names(data: Any, renamed: Mapping[str, str]) -> Any:
    """Replace old keys of ``data`` by new keys, if it is a mapping with such keys.

    >>> with_new_names({"a": 1}, {"old": "new"})
    {'a': 1}
    """
    if not isinstance(data, Mapping) or not renamed.keys() & data.keys():
        return data
    for old in renamed.keys() & data.keys():
        warn_renamed(old, renamed[old])
    return {renamed.get(key, key): value for key, value in data.items()}
