"""Changes the simulator's sources at random places, one at a time, and asks the tests whether they notice.

pip install cosmic-ray coverage
python tests/mutation/sample.py --count 400 --seed 1    # a fresh sample, over all modules by their number of places
python tests/mutation/sample.py --again --seed 1        # what survived it, after tests were added

Results lie in out/mutation/seed-N.jsonl, a line per mutant; a stopped run goes on where it stopped. Sources are changed
in memory alone. The score is killed / (killed + survived) of those that can be imported; `equivalent.yaml` names
survivors that compute the same as the original, with the reason, and they are counted separately.
"""

import argparse
import difflib
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from math import floor, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from mutation.suites import PACKAGES, ROOT, Suites, measure_suites, prepare, test_files, try_source

if TYPE_CHECKING:
    from mutation.sites import Mutant

OUT = ROOT / "out" / "mutation"
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")


def allotted(sizes: dict[str, int], count: int) -> dict[str, int]:
    """``count`` shared out in proportion to ``sizes``, whole numbers by the largest remainder, none above its size."""
    total = sum(sizes.values())
    count = min(count, total)
    exact = {name: count * size / max(total, 1) for name, size in sizes.items()}
    shares = {name: floor(value) for name, value in exact.items()}
    rest = sorted(sizes, key=lambda name: (shares[name] - exact[name], name))[: count - sum(shares.values())]
    return {name: share + (name in rest) for name, share in shares.items()}


def wilson_interval(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share seen as ``hits`` of ``trials``.

    Source: E. B. Wilson, JASA 22 (1927), 209, https://doi.org/10.1080/01621459.1927.10502953.
    """
    if trials == 0:
        return 0.0, 1.0
    share, shrink = hits / trials, 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / shrink
    half = z / shrink * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def modules(only: Sequence[str] = ()) -> list[str]:
    """Files that are mutated, relative to the root."""
    result = [
        path.relative_to(ROOT).as_posix() for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]
    return [name for name in result if not only or any(part in name for part in only)]


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """What a mutant took away and what it put there, without indentation."""
    delta = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    old = " / ".join(line[1:].strip() for line in delta if line.startswith("-"))
    return old, " / ".join(line[1:].strip() for line in delta if line.startswith("+"))


def draw(count: int, seed: int, only: Sequence[str]) -> Iterable[dict[str, Any]]:
    """A seeded sample: places in proportion over the modules, at each place one of its mutants."""
    from mutation.sites import mutants_by_site

    codes = {module: (ROOT / module).read_text(encoding="utf-8") for module in modules(only)}
    sites = {module: mutants_by_site(code) for module, code in codes.items()}
    shares = allotted({module: len(result) for module, result in sites.items()}, count)
    print(f"{sum(map(len, sites.values()))} places in {len(sites)} modules, {sum(shares.values())} drawn", flush=True)
    for module, code in codes.items():
        rng = random.Random(f"{seed} {module}")
        for number in sorted(rng.sample(range(len(sites[module])), shares[module])):
            yield described(module, code, rng.choice(sites[module][number]))


def described(module: str, code: str, mutant: "Mutant") -> dict[str, Any]:
    """A mutant with its source, what it changes, and the lines that tell which tests may notice."""
    from mutation.sites import statement_lines

    source = mutant.source(code)
    before, after = changed_lines(code, source)
    lines = statement_lines(code, mutant)
    known = {"module": module, "line": mutant.first_line, "operator": mutant.operator, "before": before, "after": after}
    return {**known, "source": source, "lines": lines}


def reread(results: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The same changes in today's sources, wherever their lines have moved to; what is gone is left out and named."""
    from mutation.sites import mutants_by_site

    parsed = {}
    for result in results:
        if result["module"] not in parsed:
            code = (ROOT / result["module"]).read_text(encoding="utf-8")
            parsed[result["module"]] = code, [mutant for site in mutants_by_site(code) for mutant in site]
        code, mutants = parsed[result["module"]]
        lines = [line.strip() for line in code.splitlines()]
        same = [
            mutant
            for mutant in mutants
            if mutant.operator == result["operator"] and lines[mutant.first_line - 1] in result["before"]
        ]
        for mutant in sorted(same, key=lambda mutant: abs(mutant.first_line - result["line"])):
            drawn = described(result["module"], code, mutant)
            if (drawn["before"], drawn["after"]) == (result["before"], result["after"]):
                yield {**drawn, "line": result["line"]}
                break
        else:
            print(f"gone: {result['module']}: {result['before']}", flush=True)


def judge(drawn: dict[str, Any], suites: Suites, budget_s: float) -> dict[str, Any]:
    """Fate of one drawn mutant, with the time that it took."""
    tests = suites.for_lines(drawn["module"], *drawn["lines"], budget_s)
    begin = time.monotonic()
    limit = 3 * sum(suites.seconds[name] for name in tests) + 30
    fate = try_source(drawn["module"], drawn["source"], tests, limit) if tests else {"fate": "survived", "by": ""}
    kept = {key: drawn[key] for key in ("module", "line", "operator", "before", "after")}
    return {**kept, **fate, "tests": len(tests), "seconds": round(time.monotonic() - begin, 1)}


def key(result: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a mutant, wherever its line has moved to."""
    return tuple(result[name] for name in ("module", "line", "operator", "before", "after"))


def change(result: dict[str, Any]) -> tuple[str, str, str]:
    """What ``equivalent.yaml`` knows a mutant by."""
    return result["module"], result["before"], result["after"]


def known_equivalents() -> set[tuple[str, str, str]]:
    """Mutants of ``equivalent.yaml``."""
    import yaml

    entries = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or []
    return {(entry["module"], entry["before"], entry["after"]) for entry in entries}


def score_table(results: Sequence[dict[str, Any]], equivalents: set[tuple[str, str, str]]) -> str:
    """Results by package and in all, and the two scores with their intervals."""
    lines = [f"{'':<24}{'drawn':>7}{'invalid':>9}{'killed':>8}{'survived':>10}{'equivalent':>12}{'score':>8}"]
    for package in (*PACKAGES, ""):
        here = [result for result in results if result["module"].startswith(package)]
        fates = Counter(result["fate"] for result in here)
        same = sum(result["fate"] == "survived" and change(result) in equivalents for result in here)
        killed, survived = fates["killed"] + fates["timeout"], fates["survived"]
        share = killed / max(killed + survived, 1)
        lines.append(
            f"{package or 'all':<24}{len(here):>7}{fates['invalid']:>9}{killed:>8}{survived:>10}{same:>12}{share:>8.1%}"
        )
    for words, trials in (("all survivors", killed + survived), ("but for equivalents", killed + survived - same)):
        low, high = wilson_interval(killed, trials)
        share = killed / max(trials, 1)
        lines.append(f"score, {words}: {killed}/{trials} = {share:.1%} (95 %: {low:.1%} to {high:.1%})")
    return "\n".join(lines)


def digest() -> str:
    """Changes when a test or a source that the tests run changes."""
    result = hashlib.sha256()
    for folder in ("simulator", "hwprofiles", "traces", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in (".py", ".yaml", ".csv", ".json") and "mutation" not in path.parts:
                result.update(path.read_bytes())
    return result.hexdigest()


def suites_of_now() -> Suites:
    """The map of lines and tests, measured anew where anything changed."""
    store, now = OUT / "suites.json", digest()
    kept = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    if kept.get("digest") != now:
        print(f"which test runs which line, from {len(test_files())} files:", flush=True)
        suites = measure_suites(lambda line: print("  " + line, flush=True))
        plain = {module: {name: sorted(held) for name, held in tests.items()} for module, tests in suites.lines.items()}
        kept = {"digest": now, "seconds": suites.seconds, "lines": plain}
        store.write_text(json.dumps(kept), encoding="utf-8")
    lines = {module: {name: frozenset(held) for name, held in tests.items()} for module, tests in kept["lines"].items()}
    return Suites(kept["seconds"], lines)


def main() -> None:
    """Draw, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="parts of module paths")
    parser.add_argument("--budget", type=float, default=8.0, help="CPU seconds of tests for each mutant")
    parser.add_argument("--again", action="store_true", help="judge what survived before once more")
    options = parser.parse_args()
    missing = [name for name in ("cosmic_ray", "coverage") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"needs {' and '.join(missing)}: pip install cosmic-ray coverage, or make mutants")
    if not modules(options.only):
        raise SystemExit(f"--only {' '.join(options.only)}: names no file of {' or '.join(PACKAGES)}")
    prepare()
    OUT.mkdir(parents=True, exist_ok=True)
    store = OUT / f"seed-{options.seed}.jsonl"
    done = {}
    if options.again and not store.exists():
        raise SystemExit(f"{store.relative_to(ROOT)}: no such file; draw that sample first (without --again)")
    if store.exists():
        done = {key(result): result for result in map(json.loads, store.read_text(encoding="utf-8").splitlines())}
    suites = suites_of_now()
    equivalents = known_equivalents()
    if options.again:
        survived = (result for result in done.values() if result["fate"] == "survived")
        sample = [drawn for drawn in reread(survived) if change(drawn) not in equivalents]
    else:
        sample = [drawn for drawn in draw(options.count, options.seed, options.only) if key(drawn) not in done]
        random.Random(options.seed).shuffle(sample)  # so that a part of it is a sample too
    for drawn in sample:
        result = done[key(drawn)] = judge(drawn, suites, options.budget)
        with store.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        if result["fate"] == "survived" and change(result) not in equivalents:
            print(f"{result['module']}:{result['line']}: {result['before']}  ->  {result['after']}", flush=True)
    print(score_table(list(done.values()), equivalents))


if __name__ == "__main__":
    main()
