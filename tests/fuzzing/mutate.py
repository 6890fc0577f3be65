"""Seeded damage to files: bytes, words, lines, columns and JSON values, and what people's tools do to text."""

import json
import random
import re
from collections.abc import Sequence

WORDS = [
    "", " ", "0", "-0", "-1", "1", "2", "0.5", "1e3", "1e18", "1e308", "1e999", "-1e999", "nan", "inf", "-inf", "NaN",
    "Infinity", "-Infinity", "1000000000000000000", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "9" * 40, "9" * 400, "1" + "0" * 5000, "0x10", "1_000", "1,5", "٣", "½", "null", "None", "true", "False", "yes", "~",
    "[]", "{}", "[[]]", '""', '"', "'", "''", "a", "é", "\ud7ff", "\U0001f600", "\x00", "\x1b[31m", "\u2028", "\ufeff",
    "2023-11-16 18:15:46", "2023-11-16T18:15:46+14:00", "2023-11-16T18:15:46-12:00", "0000-00-00", "9999-12-31T23:59:60Z",
    "2024-02-30", "1970-01-01T00:00:00Z", "+275760-09-13T00:00:00Z", "-1e-320", "4.9e-324", "1e-999", "*a", "&a x", "!!python/x",
    "<<: *x", "? ", "|", ">", "%", "@", "`", "#", "- -", "a: b", "://", "..", "../..", "/", "/dev/null", "llama-3.1-8b",
]  # fmt: skip
VALUES = [
    None, True, False, 0, 1, -1, 2, 10**12, 10**18, 2**63, 10**400, -(10**30), 0.5, -0.0, 1e308, 1e-308, float("nan"), float("inf"),
    "", "a", "nan", "1", "x" * 300, [], {}, [[]], [None], [0], [1, 2, 3], [-1], {"a": 1}, {"": None}, [1e308] * 3, ["a", 1, None],
    {"distribution": "uniform"}, {"min": 3, "max": 1}, [0.5, 0.9], "\n", "\x00", "é\u2028", "fp8", "none", "auto",
]  # fmt: skip
TOKEN = re.compile(r"[^\s,:;\[\]{}()\"'=]+")


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """``data`` damaged one to four times; the same ``rng`` state gives the same damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        data = _once(data, rng, others)
        if len(data) > 200_000:
            data = data[:200_000]
    return data


def _once(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    kind = rng.random()
    if kind < 0.12:
        return _bytes(data, rng)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return _bytes(data, rng)
    if kind < 0.35 and text.lstrip()[:1] in ("{", "["):
        return _json(text, rng)
    if kind < 0.65:
        return _encode(_word(text, rng))
    if kind < 0.9:
        return _encode(_lines(text, rng))
    if kind < 0.96 or not others:
        return _whole(text, rng)
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5))) + data[at:]
    if kind == 2:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if at < len(data) else data
    if kind == 3:
        return data[:at] + data[at + rng.randrange(1, 9) :]
    return data[:at] + data[max(0, at - 20) : at] * rng.randrange(1, 30) + data[at:]


def _word(text: str, rng: random.Random) -> str:
    """One word replaced by a nasty one, by another word of the file, or removed."""
    result = list(TOKEN.finditer(text))
    if not result:
        return text + rng.choice(WORDS)
    spot = rng.choice(result)
    new = rng.choice(WORDS) if rng.random() < 0.8 else rng.choice(result)[0]
    return text[: spot.start()] + new + text[spot.end() :]


def _lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(8)
    if kind == 0:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        rng.shuffle(lines)
    elif kind == 3:
        lines[at] = lines[at] * rng.randrange(2, 5)
    elif kind == 4:
        lines[at] = rng.choice(WORDS)
    elif kind == 5:
        lines[at] = rng.choice(("  ", "\t", "- ", "# ", ",", ";", '"')) + lines[at]
    elif kind == 6:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    else:
        cells = lines[at].split(",")
        cells[rng.randrange(len(cells))] = rng.choice(WORDS)
        lines[at] = ",".join(cells)
    return "\n".join(lines)


def _whole(text: str, rng: random.Random) -> bytes:
    """What editors and exports do: line ends, byte order marks, other encodings, quoting, depth."""
    kind = rng.randrange(9)
    if kind == 0:
        return _encode(text.replace("\n", "\r\n"))
    if kind == 1:
        return _encode(text.replace("\n", "\r"))
    if kind == 2:
        return b"\xef\xbb\xbf" + _encode(text)
    if kind == 3:
        return text.encode("utf-16", errors="replace")
    if kind == 4:
        return text.encode("latin-1", errors="replace") + b"\xe9\xff"
    if kind == 5:
        return _encode(text.replace(",", rng.choice(";\t|")))
    if kind == 6:
        return _encode(rng.choice("[{(") * rng.choice((3, 200, 3000)) + text)
    if kind == 7:
        return _encode(text * rng.randrange(2, 6))
    return _encode(text.replace(rng.choice("0123456789"), rng.choice(WORDS)))


def _json(text: str, rng: random.Random) -> bytes:
    """One value, key or entry of a JSON document (or of one JSON line) changed."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    try:
        document = json.loads(text)
        whole = True
    except (ValueError, RecursionError):
        try:
            document, whole = json.loads(lines[at]), False
        except (ValueError, RecursionError):
            return _encode(_word(text, rng))
    holder, key = None, None
    here = document
    for _ in range(rng.randrange(1, 8)):
        if isinstance(here, dict) and here:
            holder, key = here, rng.choice(list(here))
        elif isinstance(here, list) and here:
            holder, key = here, rng.randrange(len(here))
        else:
            break
        here = holder[key]
    if holder is None:
        document = rng.choice(VALUES)
    elif rng.random() < 0.15:
        del holder[key]
    elif rng.random() < 0.15 and isinstance(holder, dict):
        holder[rng.choice(["", "x", str(key) + "s", str(key).upper()])] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)
    try:
        dumped = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    except (ValueError, RecursionError):
        return _encode(text)
    if not whole:
        lines[at] = dumped
        dumped = "\n".join(lines)
    return _encode(dumped)
