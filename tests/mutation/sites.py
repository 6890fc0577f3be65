"""Places of a module that can be changed, and the changed sources, by cosmic-ray's operators."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow")
BITWISE = ("BitOr", "BitAnd", "BitXor", "LShift", "RShift")
COMPARISONS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "Is", "IsNot")
UNARY = ("UAdd_USub", "USub_UAdd", "Delete_USub", "Delete_Not", "Delete_Invert")
OTHERS = (
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)
BINARY_PARENTS = {"arith_expr", "term", "power", "expr", "xor_expr", "and_expr", "shift_expr"}


@dataclass(frozen=True)
class Mutant:
    """One change: which operator, at its how-manieth place in the source, on which lines (counted from 1)."""

    operator: str
    occurrence: int
    first_line: int
    last_line: int

    def source(self, code: str) -> str:
        """The module's source with this change alone."""
        changed = mutate_code(code, get_operator(f"core/{self.operator}")(), self.occurrence)
        assert changed is not None
        return str(changed)


def families() -> dict[str, list[str]]:
    """Operators by what they replace: arithmetic by arithmetic, bits by bits, a comparison by a comparison."""
    binary = [f"ReplaceBinaryOperator_{a}_{b}" for kind in (ARITHMETIC, BITWISE) for a, b in permutations(kind, 2)]
    return {
        "binary": binary,
        "comparison": [f"ReplaceComparisonOperator_{a}_{b}" for a, b in permutations(COMPARISONS, 2)],
        "unary": [f"ReplaceUnaryOperator_{name}" for name in UNARY],
        **{name: [name] for name in OTHERS},
    }


@cache
def operators() -> list[tuple[str, str, Any]]:
    """Family, name and instance of every operator in use."""
    return [(family, name, get_operator(f"core/{name}")()) for family, names in families().items() for name in names]


def annotation_spans(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where types are written: a mutant there breaks the import or nothing."""
    rows = []
    for node in ast.walk(ast.parse(code)):
        here = [node.returns] if isinstance(node, ast.FunctionDef) else []
        here += [node.annotation] if isinstance(node, ast.arg | ast.AnnAssign) else []
        for item in here:
            # Conditions on a value stand inside Annotated: they are no mere type.
            if item is not None and "Annotated" not in ast.unparse(item):
                rows.append(
                    ((item.lineno, item.col_offset), (item.end_lineno or item.lineno, item.end_col_offset or 0))
                )
    return rows


def mutants_by_site(code: str) -> list[list[Mutant]]:
    """All mutants of a source, grouped by the place that they change, in the order of the source."""
    types = annotation_spans(code)
    sites: dict[tuple[Any, ...], list[Mutant]] = {}
    counts: dict[str, int] = {}
    for node in ast_nodes(parso.parse(code)):
        for family, name, operator in operators():
            for start, end in operator.mutation_positions(node):
                occurrence = counts.get(name, 0)
                counts[name] = occurrence + 1
                if family == "binary" and node.parent.type not in BINARY_PARENTS:
                    continue
                if any(first <= start and end <= last for first, last in types):
                    continue
                last_line = end[0] - (end[1] == 0 and end[0] > start[0])
                sites.setdefault((start, end, family), []).append(Mutant(name, occurrence, start[0], last_line))
    return [sites[key] for key in sorted(sites)]


def statement_lines(code: str, mutant: Mutant) -> tuple[range, range]:
    """Lines of the innermost statement (or header of a block) around a mutant, and of the function around it.

    The second range is empty where the mutant stands in no function body: constants, declarations, default values.
    """
    statement, function = range(mutant.first_line, mutant.last_line + 1), range(0)
    for node, lines in blocks(ast.parse(code)):
        if lines.start <= mutant.first_line and mutant.last_line < lines.stop:
            if isinstance(node, ast.FunctionDef):
                function = lines
            elif len(lines) >= len(statement):
                statement = lines
    return statement, function


def blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, range]]:
    """Bodies of functions, then statements and headers of compound statements, with their lines; outer before inner."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.FunctionDef):
                yield node, range(node.body[0].lineno, last + 1)
            elif isinstance(node, ast.ClassDef):
                continue
            else:
                yield node, range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else last + 1)
