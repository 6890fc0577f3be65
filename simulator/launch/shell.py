"""Launch commands in the text of a shell: a pasted line, a script, or the arguments of a container."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from forerun.document import Json
from forerun.errors import ForerunError

PROGRAMS = {
    "vllm": r"vllm serve|vllm\.entrypoints\.(openai\.)?api_server|dynamo\.vllm|vllm\.entrypoints\.cli\.main serve",
    "sglang": r"sglang\.launch_server|sglang serve|dynamo\.sglang(\.worker)?",
    "trtllm": r"trtllm-serve( serve)?|dynamo\.trtllm",
    "llama.cpp": r"llama-server(\.exe)?",
}
"""Words that start a server of each engine, modules of Python included."""
IMAGES = {
    "vllm": r"vllm-openai|/vllm(-|:|$)|vllm-runtime|llm-d-(cuda|rocm|xpu|cpu)|vllm-dev|rocm/vllm|\bvllm\b",
    "sglang": "sglang",
    "trtllm": "tensorrt-?llm",
    "llama.cpp": r"llama\.?cpp|llama-server",
}
"""Images that hold an engine."""
READ = (
    "vllm serve, python -m vllm.entrypoints.openai.api_server, python -m sglang.launch_server, trtllm-serve, "
    "llama-server, docker run of such an image, or a manifest that holds one"
)
DOCKER_SWITCHES = (
    "-d",
    "-i",
    "-t",
    "-it",
    "-ti",
    "-dit",
    "-itd",
    "-id",
    "--detach",
    "--rm",
    "--init",
    "--privileged",
    "--tty",
    "--interactive",
    "-P",
)
SUBSTITUTED = "$UNKNOWN"


@dataclass(frozen=True)
class Command:
    """The start of one kind of server."""

    engine: str
    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    name: str = ""
    role: str = "both"
    replicas: int = 1
    nodes: int = 1
    chips: int | None = None
    """Chips that the manifest gives to one replica on one node."""
    chip: str = ""
    """Chip as the manifest names it."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the script writes before the command, by name."""
    container: Sequence[str] = ()
    """Options of the container that runs the command."""
    workload: Json = field(default_factory=dict)
    """Load that the file states."""
    notes: Sequence[str] = ()


def is_line(text: str) -> bool:
    """True if a text holds a command that starts an engine."""
    return any(re.search(rf"(^|[\s/=\"'])({pattern})($|[\s\"'\\])", text) for pattern in PROGRAMS.values()) or bool(
        re.search(r"(^|\s)(docker|podman|nerdctl)(\s+container)?\s+run\s", text) and engine_of_image(text)
    )


def engine_of_image(image: str) -> str:
    """The engine that an image holds; empty if none is known."""
    return next((name for name, pattern in IMAGES.items() if re.search(pattern, image.lower())), "")


def commands_in(text: str, env: Mapping[str, str] | None = None) -> list[Command]:
    """Every command of a text that starts an engine, in order.

    Raises:
        ForerunError: a quote is not closed.
    """
    text, files = _without_heredocs(_plain(text))
    known, lists = dict(env or {}), dict[str, list[str]]()
    matched: list[Command] = []
    for name, words in _simple_commands(text):
        if len(words) > 1 and words[0].endswith("=") and words[1] == "(":
            lists[words[0].rstrip("+=")] = [*lists.get(words[0].rstrip("+="), []), *words[2:-1]]
            continue
        words = [one for word in words for one in with_variables(word, known, lists)]
        own = dict[str, str]()
        while words and (set_ := re.fullmatch(r"(\w+)=(.*)", words[0], re.DOTALL)):
            kept = "$" in set_[2] and known.get(set_[1])  # a branch that sets it to what is not there
            own[set_[1]], words = kept or set_[2], words[1:]
        if not words or words[0] in ("export", "set", "local", "readonly", "declare"):
            known |= own | dict(word.split("=", 1) for word in words[1:] if re.match(r"\w+=", word))
            continue
        matched += [
            replace(one, name=one.name or name, files=_named(files, known), env=known | own | dict(one.env))
            for one in _started(words)
        ]
    if re.search(r"^\s*(if|case|for|while)\b", text, re.MULTILINE):
        matched = [
            replace(one, notes=(*one.notes, "the script has branches, which are read one after the other"))
            for one in matched
        ]
    return matched


def _as_variable(placeholder: re.Match[str]) -> str:
    """A placeholder such as ``<your model>`` as a variable without a value."""
    return "$" + re.sub(r"\W", "_", placeholder[1])


def _plain(text: str) -> str:
    """Text with the quotes, dashes and spaces that word processors and web pages put in set back."""
    for typed, pasted in {"'": "‘’‚", '"': "“”„", "--": "–—", " ": "\u00a0\u2009\u202f", "": "\ufeff\u200b\r"}.items():
        text = re.sub(f"[{pasted}]", typed, text)
    text = re.sub(r"(?<=\s)-{3,}(?=[a-z])", "--", text)
    text = re.sub(r"(?<=[\s\"'=])<([A-Za-z]\w*(?:[ -]\w+)*)>(?=[\s\"']|$)", _as_variable, text)
    text = re.sub(r"```\w*", "", text).strip().strip("`")
    text = re.sub(r"^[ \t]*(\(\w+\) )?(\w+@[\w.-]+:\S*)?[$%>] +(?=\S)", "", text, flags=re.MULTILINE)
    while (substituted := re.sub(r"\$\(\([^()]*\)\)|\$\([^()]*\)|(?<==)`[^`\n]*`", SUBSTITUTED, text)) != text:
        text = substituted
    return text


def _without_heredocs(text: str) -> tuple[str, dict[str, str]]:
    """The text without here-documents, and their content by the file that they are written to."""
    files: dict[str, str] = {}
    pattern = re.compile(r"^(.*)<<-?\s*[\"']?(\w+)[\"']?(.*)\n((?:.*\n)*?)\s*\2[ \t]*$", re.MULTILINE)
    for before, _, after, body in pattern.findall(text):
        if written := re.search(r"(>>?)\s*[\"']?([^\s\"'>]+)", before + after):
            files[written[2]] = (files.get(written[2], "") if written[1] == ">>" else "") + body
    return pattern.sub("", text), files


def _named(files: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Files by the last part of their names, with variables in place."""
    return {PurePosixPath("".join(with_variables(name, env, {}))).name: text for name, text in files.items()}


def _simple_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each simple command as words, and the comment of one word in front of it."""
    name, lines = "", list[str]()
    blocks: list[tuple[str, str]] = []
    for line in text.splitlines():
        comment = re.match(r"\s*#\s*(.*)", line)
        if comment:
            if not lines:
                name = comment[1] if re.fullmatch(r"[\w.-]+", comment[1]) else name
            continue
        line = _without_comment(line)
        continued = re.search(r"[\\^`]\s*$", line)
        if not line.strip() and lines:
            continued = None
        lines.append(line[: continued.start()] if continued else line)
        if continued is None and _closed("\n".join(lines)):
            blocks.append((name, " ".join(lines)))
            name, lines = ("" if "".join(lines).strip() else name), []
    blocks.append((name, " ".join(lines)))
    for label, block in blocks:
        for words in _split(block):
            while words and words[0] in (
                "then",
                "else",
                "do",
                "if",
                "exec",
                "sudo",
                "nohup",
                "time",
                "env",
                "!",
                "{",
                "elif",
            ):
                words = words[1:]
            yield label, words


def _closed(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return text.count("(") <= text.count(")")


def _without_comment(line: str) -> str:
    for mark in re.finditer(r"(?:^|\s)#", line):
        try:
            shlex.split(line[: mark.start()])
        except ValueError:
            continue
        return line[: mark.start()]
    return line


def _split(line: str) -> Iterator[list[str]]:
    """A line's commands between ``;``, ``&&``, ``|`` and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, redirected = list[str](), False
    try:
        for token in lexer:
            if re.fullmatch("[;&|<>]+", token):
                if token[0] in "<>" or token == "&>":
                    words = words[:-1] if words and words[-1] in ("1", "2") else words
                    redirected = True
                else:
                    yield _opened(words)
                    words, redirected = [], False
            elif redirected:
                redirected = False
            else:
                words.append(token)
    except ValueError:
        quote = "double" if line.count('"') % 2 else "single"
        raise ForerunError(
            f"launch line: a {quote} quote is opened and not closed; close it, or paste the line again"
        ) from None
    yield _opened(words)


def _opened(words: list[str]) -> list[str]:
    """Words with ``(`` of a list as a word of its own, and JSON that lost its quotes put together."""
    out: list[str] = []
    for word in words:
        if re.match(r"\w+\+?=\(", word):
            name, _, first = word.partition("(")
            out += [name, "(", *([first] if first else [])]
        elif out and out[-1].startswith(("{", "[")) and _depth(out[-1]) > 0:
            out[-1] += f" {word}"
        else:
            out.append(word)
    if "(" in out and out[-1].endswith(")"):
        out = [*out[:-1], *([out[-1][:-1]] if out[-1][:-1] else []), ")"]
    return out


def _depth(text: str) -> int:
    return text.count("{") + text.count("[") - text.count("}") - text.count("]")


def with_variables(word: str, env: Mapping[str, str], lists: Mapping[str, list[str]]) -> list[str]:
    """A word with its variables in place; one without a value stays as it is written."""
    if (whole := re.fullmatch(r"\$\{(\w+)\[[@*]\](:-)?\}", word)) and (whole[1] in lists or whole[2]):
        return [one for part in lists.get(whole[1], []) for one in with_variables(part, env, lists)]

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        return env.get(name) or (match[0] if default is None else with_variables(default, env, {})[0])

    text = re.sub(r"\$(?:(\w+)|\{(\w+)(?::?-((?:[^{}]|\$\{[^{}]*\})*))?\})", value, word)
    if text != word and re.fullmatch(r"\$\{?\w+[^{}]*\}?", word) and text.lstrip().startswith("-") and " " in text:
        return shlex.split(text)
    return [text] if text or not word.startswith("$") else []


def _started(words: Sequence[str]) -> Iterator[Command]:
    """The engine that a command starts, in a container or a shell of its own too."""
    line = " ".join(words)
    for place, word in enumerate(words):
        if PurePosixPath(word).name in ("docker", "podman", "nerdctl") and "run" in words[place + 1 : place + 3]:
            yield from _in_container(words[words.index("run", place) + 1 :])
            return
        if PurePosixPath(word).name in ("bash", "sh", "zsh") and any(
            re.fullmatch("-[a-z]*c", one) for one in words[place + 1 : place + 4]
        ):
            script = next(i for i in range(place + 1, len(words)) if re.fullmatch("-[a-z]*c", words[i])) + 1
            yield from commands_in(" ".join(words[script : script + 1]))
            return
        for engine, pattern in PROGRAMS.items():
            for length in (2, 1):
                text = " ".join([PurePosixPath(word.replace("\\", "/")).name, *words[place + 1 : place + length]])
                if re.fullmatch(pattern, text):
                    yield Command(engine, words[place + length :])
                    return
    if re.search(r"vllm/entrypoints/\S*api_server\.py", line):
        place = next(i for i, word in enumerate(words) if word.endswith("api_server.py"))
        yield Command("vllm", words[place + 1 :])


def _in_container(words: Sequence[str]) -> Iterator[Command]:
    """The engine that ``docker run`` starts: by the words behind the image, or by the image."""
    env: dict[str, str] = {}
    place, entrypoint, gpus, own = 0, list[str](), "", list[str]()
    while place < len(words) and words[place].startswith("-"):
        word, equals, value = words[place].partition("=")
        single = word in DOCKER_SWITCHES or bool(equals) or word.startswith("--no-")
        if not single and place + 1 < len(words):
            value = words[place + 1]
        if word in ("-e", "--env") and "=" in value:
            env |= dict([value.split("=", 1)])
        elif word == "--entrypoint":
            entrypoint = value.split()
        elif word == "--gpus":
            gpus = value
        own.append(" ".join(words[place : place + (1 if single else 2)]))
        place += 1 if single else 2
    if place >= len(words):
        return
    image = words[place]
    named = re.search(r"device=([\d,]+)", gpus)
    chips = named[1].count(",") + 1 if named else int(gpus) if gpus.isdecimal() else None
    for one in in_image(image, [*entrypoint, *words[place + 1 :]] if entrypoint else words[place + 1 :]):
        yield replace(one, image=image, env=env | dict(one.env), chips=one.chips or chips, container=own)


def in_image(image: str, words: Sequence[str]) -> list[Command]:
    """The engine that a container starts from its image and arguments."""
    matched = list(_started(words))
    engine = engine_of_image(image)
    program = words and re.search(r"python|(^|/)(ba|z|da)?sh$|sleep|^ray|tail|torchrun|mpirun", words[0])
    if not matched and engine and not program:
        matched = [Command(engine, [word for word in words if word != "serve"])]
    return matched
