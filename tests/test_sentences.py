"""First sentences of docstrings: short, and with a subject of their own."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("forerun", "hwprofiles", "traces", "dashboards", "simulator", "validation", "research")
MOST_WORDS = 20
OPENINGS = (
    "Whether",
    "What",
    "Those",
    "Of",
    "All of",
    "None of",
    "As always",
    "So many",
    "How",
    "Where",
    "Which",
    "Who",
)
INNER = ("of which", "so many")
SUBJECTLESS = re.compile(rf"^(?:{'|'.join(OPENINGS)})\b|\b(?:{'|'.join(INNER)})\b")
EXCEPTIONS: frozenset[str] = frozenset()
"""Names whose first sentence may be longer or begin otherwise."""


def first_sentence(docstring: str) -> str:
    """The text up to a mark that a capital letter or a name in code follows."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.:;!?])\s+(?=[A-Z`0-9])", paragraph, maxsplit=1)[0]


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Docstrings of a module, of what it defines, and of its constants and fields, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.body:
                if (
                    isinstance(one, ast.Expr)
                    and isinstance(one.value, ast.Constant)
                    and isinstance(one.value.value, str)
                ):
                    yield f"{path.relative_to(ROOT)}:{one.lineno}", one.value.value


def wanting(sentence: str) -> bool:
    return bool(SUBJECTLESS.search(sentence)) or len(sentence.split()) > MOST_WORDS


def test_first_sentences_are_short_and_name_their_subject():
    short_of = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tests" in path.parts or "build" in path.parts:
                continue
            for place, docstring in docstrings(path):
                sentence = first_sentence(docstring)
                if wanting(sentence) and sentence not in EXCEPTIONS:
                    short_of[place] = sentence
    assert short_of == {}


SECTIONS = re.compile(r"^( *)(?:Args|Raises):\n((?:\1    .+\n?)+)", re.MULTILINE)
ITEM = re.compile(r"[\w*., \"()]+: ")


def merged_items(docstring: str) -> list[str]:
    """Lines of Args and Raises that neither begin an item nor continue one, or that begin a second one."""
    wrong = []
    for section in SECTIONS.finditer(inspect.cleandoc(docstring)):
        lines = section[2].splitlines()
        names = {name for line in lines for name in re.findall(r"(?:^|\. )(\w+): ", line.strip())}
        own = len(section[1]) + 4
        wrong += [line for line in lines if line[own] != " " and not ITEM.match(line.strip())]
        wrong += [line for line in lines for name in names if f". {name}: " in line]
    return wrong


def test_every_argument_has_a_line_of_its_own():
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "build" not in path.parts)
    wrong = {place: lines for path in paths for place, text in docstrings(path) if (lines := merged_items(text))}
    assert wrong == {}
    assert merged_items("Do it.\n\nArgs:\n    a: one. b: two.\n    c: three,\n    four.\n") == [
        "    four.",
        "    a: one. b: two.",
    ]


BOOLEANS = re.compile(r"\b(?:bool|BoolArray|TypeGuard|bint)\b|^(?:True|False)$")
"""Types, or first values, of what is true or false; of arrays of them too."""
TRUTH = re.compile(r"\b(?:True|False|true|false)\b")


def typed_docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, type and first paragraph of functions and attributes; an attribute without a type has its value for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns and ast.get_docstring(node):
            yield node.lineno, ast.unparse(node.returns), (ast.get_docstring(node) or "").split("\n\n")[0]
        for one, text in pairwise(node.body if isinstance(node, ast.ClassDef | ast.Module) else ()):
            if isinstance(one, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
                kind = one.annotation if isinstance(one, ast.AnnAssign) else one.value
                yield one.lineno, ast.unparse(kind), str(ast.literal_eval(text.value)).split("\n\n")[0]


def misnamed(kind: str, sentence: str) -> bool:
    """True if a sentence promises a boolean that the type is not, or hides one that it is."""
    promised = sentence.startswith("True if")
    return promised if not BOOLEANS.search(kind) else kind == "bool" and not TRUTH.search(sentence)


def test_docstrings_of_booleans_and_of_nothing_else_say_when_they_are_true():
    misnamed_at = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tests" not in path.parts and "build" not in path.parts:
                for line, kind, sentence in typed_docstrings(ast.parse(path.read_text("utf-8"))):
                    if misnamed(kind, sentence):
                        misnamed_at[f"{path.relative_to(ROOT)}:{line}"] = sentence
    assert misnamed_at == {}
    assert misnamed("float", "True if prompts overlap.")
    assert misnamed("bool", "Overlap of prompts.")
    assert not misnamed("bool", "False after an interruption.")


def test_the_rule_sees_what_it_is_for():
    assert wanting("Whether enough is spare, also where those that are not saturated were fewer")
    assert wanting("Requests of which all have ended.")
    assert wanting(" ".join(["word"] * 21))
    assert not wanting("True if spare capacity suffices with `fewer` replicas less.")
    assert first_sentence("Price a step. Whether it drafts is\nleft open.") == "Price a step."
