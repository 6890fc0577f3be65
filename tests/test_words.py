"""Words that were replaced by the field's own and may not return; the right-hand side is what to write."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "forerun",
    "simulator",
    "hwprofiles",
    "traces",
    "dashboards",
    "docs",
    "tests",
    "examples",
    "benchmarks",
    "research",
)
WRITTEN = (".py", ".pyi", ".md", ".yaml", ".js")
GENERATED = ROOT / "docs" / "validation"
REPLACED = {
    r"strain": "SLO ratio",
    r"hopeless|bearable": "infeasible, wait budget",
    r"beyond_kv\w*|longest_asked|all_over_own": "long-context tail, DP imbalance",
    r"hand[-_ ]?overs?": "KV transfer between pools, P2P send between stages",
    r"intakes?": "API server",
    r"patience": "wait limit",
    r"fullest": "slowest rank",
    r"servings|served[-_ ]runs?": "benchmark results",
    r"light_s": "sol_s",
    r"outlooks?": "sensitivity",
    r"ground floor|house": "package, module, layer",
    r"whoever|what there is": "the noun that is meant",
    r"asked|told|untold|said": "the noun that is meant; requested, unknown, by default",
    r"found(?= *(?:=|\+=|: [A-Za-z]|\.append))": "the noun that is meant",
    r"elsewhere|apart": "on another device, separate, disaggregated, distinguished",
    r"ramps?(?!_up)": "hinge function",  # vLLM's ramp_up_strategy is a key of its results
    r"_unit_tokens|prefix units": "hash blocks",
    r"laws": "invariants",
}
WORD_LIST = Path("simulator/serve/tokens.py")
"""Filler text of answers: the most common English words."""


def lines():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            unread = GENERATED in path.parents or path in (Path(__file__).resolve(), ROOT / WORD_LIST)
            if path.suffix in WRITTEN and not unread:
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    yield path.relative_to(ROOT), number, line
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            yield Path(name), number, line


@pytest.fixture(scope="module")
def text():
    return list(lines())


@pytest.mark.parametrize(("word", "instead"), REPLACED.items(), ids=list(REPLACED))
def test_a_replaced_word_does_not_return(text, word, instead):
    pattern = re.compile(rf"(?<![a-z0-9])(?:{word})(?![a-z0-9])", re.IGNORECASE)
    places = [f"{path}:{number}: {line.strip()}" for path, number, line in text if pattern.search(line)]
    assert places == [], f"write: {instead}"
