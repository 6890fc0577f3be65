"""Runs cosmic-ray over a copy of the checkout: a seeded sample of places, each judged by the tests that run its lines.

    python tests/mutation/mutants.py --count 400 --seed 1        # make mutants MUTANTS=400 SEED=1

A stopped run goes on where it stopped; remove its folder, ``out/mutation/seed-N``, to draw anew. `equivalent.yaml`
names survivors that compute the same as the original, with the reason, and they are counted separately.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("simulator/timing", "simulator/speculation")
SUITES = ("tests/simulator/timing", "tests/simulator/speculation", "tests/simulator/running")
LEFT_OUT = ("out", ".*", "build", "dist", "__pycache__", "*.egg-info")
BUDGET_S = 8.0
"""Seconds of tests for each mutant."""
PYTEST = ("-m", "pytest", "-x", "-q", "-n", "0", "--dist", "no", "-p", "no:cacheprovider")


def changed_lines(diff: str) -> tuple[str, range]:
    """The file that a diff without context changes, and the lines of its first change as they were."""
    file = re.search(r"^--- (?:a/)?(\S+)", diff, re.MULTILINE)
    lines = re.search(r"^@@ -(\d+)(?:,(\d+))?", diff, re.MULTILINE)
    assert file is not None
    assert lines is not None
    first = int(lines[1])
    return file[1], range(first, first + max(1, int(lines[2] or 1)))


def before_and_after(diff: str) -> tuple[str, str]:
    """What a mutant took away and what it put there, without indentation."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    return tuple(" / ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")  # type: ignore[return-value]


def chosen_tests(
    module: str, lines: Iterable[int], contexts: dict[int, list[str]], seconds: dict[str, float], budget_s: float
) -> list[str]:
    """Tests that can kill a mutant, as many as fit into ``budget_s``, at least one.

    Those that run its lines, or the module where these run on import; the package's own suite and quick tests first.
    """
    names = {name for line in lines for name in contexts.get(line, ())} - {""}
    names = names or {name for line in contexts for name in contexts[line]} - {""}
    own = "tests/{}/{}/".format(*Path(module).parts)
    tests = {name.partition("|")[0] for name in names}
    chosen, spent = [], 0.0
    for name in sorted(tests, key=lambda name: (not name.startswith(own), seconds.get(name, 0.0), name)):
        spent += seconds.get(name, 0.0)
        if chosen and spent > budget_s:
            break
        chosen.append(name)
    return chosen


def judge() -> int:
    """Exit status of the tests for the mutant that stands in the copy, which is the current folder."""
    import coverage

    diff = subprocess.run(["git", "diff", "-U0"], capture_output=True, text=True, check=True).stdout
    module, lines = changed_lines(diff)
    data = coverage.CoverageData("../coverage")
    data.read()
    cases = ElementTree.parse("../times.xml").iter("testcase")
    seconds = {f"{case.get('file')}::{case.get('name')}": float(case.get("time") or 0.0) for case in cases}
    tests = chosen_tests(module, lines, data.contexts_by_lineno(str(Path(module).resolve())), seconds, BUDGET_S)
    return subprocess.run([sys.executable, *PYTEST, *tests], check=False).returncode if tests else 0


def prepare(folder: Path) -> None:
    """Copy the checkout, and find out which test runs which line and how long it takes."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for command in (["init", "-q"], ["add", *PACKAGES]):
        subprocess.run(["git", *command], cwd=tree, check=True)
    suites = [str(path.relative_to(ROOT)) for suite in SUITES for path in sorted(ROOT.glob(suite))]
    more = [*(f"--cov={name}" for name in PACKAGES), "--cov-context=test", "--cov-report="]
    more += ["--junitxml=../times.xml", "-o", "junit_family=xunit1"]
    done = subprocess.run([sys.executable, *PYTEST, *more, *suites], cwd=tree, env=environment(folder), check=False)
    if done.returncode:
        raise SystemExit("the tests do not pass without a mutant")


def environment(folder: Path) -> dict[str, str]:
    """Repeatable tests of the copy, without measured data."""
    here = {"CI": "1", "FORERUN_SHARED": str(folder / "none"), "COVERAGE_FILE": str(folder / "coverage")}
    return os.environ | here | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": "."}


def drawn(items: Iterable[Any], count: int, seed: int, only: Sequence[str] = ()) -> list[Any]:
    """One mutant of each of ``count`` places, by a seed."""
    rng = random.Random(seed)
    known = [item for item in items if not only or any(part in str(item.mutations[0].module_path) for part in only)]
    spots = [(item.mutations[0], item) for item in known]
    spots.sort(
        key=lambda spot: (str(spot[0].module_path), spot[0].start_pos, spot[0].operator_name, spot[0].occurrence)
    )
    rng.shuffle(spots)
    by_place = {(spot.module_path, spot.start_pos, spot.end_pos): item for spot, item in spots}
    return rng.sample(list(by_place.values()), min(count, len(by_place)))


def known_equivalents() -> set[tuple[str, str, str]]:
    """Mutants of ``equivalent.yaml``: module, and the line before and after."""
    import yaml

    entries = yaml.safe_load(Path(__file__).with_name("equivalent.yaml").read_text(encoding="utf-8"))
    return {(entry["module"], entry["before"], entry["after"]) for entry in entries}


def report(results: Iterable[tuple[Any, Any]]) -> None:
    """Print the survivors, and the two scores with their intervals."""
    from scipy.stats import binomtest

    same = survived = killed = 0
    for item, result in results:
        killed += result.is_killed
        if result.is_killed:
            continue
        spot = item.mutations[0]
        before, after = before_and_after(result.diff)
        if (spot.module_path.as_posix(), before, after) in known_equivalents():
            same += 1
            continue
        survived += 1
        print(f"{spot.module_path}:{spot.start_pos[0]}: {before}  ->  {after}")
    for words, trials in (("all survivors", killed + survived + same), ("but for equivalents", killed + survived)):
        ends = binomtest(killed, max(trials, 1)).proportion_ci(method="wilson")
        share = killed / max(trials, 1)
        print(f"score, {words}: {killed}/{trials} = {share:.1%} (95 %: {ends.low:.1%} to {ends.high:.1%})")


def main() -> int:
    """Draw, judge, report; or judge the mutant of the current folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="parts of module paths")
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        return judge()
    try:
        from cosmic_ray.work_db import WorkDB, use_db
    except ImportError:
        raise SystemExit("needs cosmic-ray: pip install cosmic-ray, or make mutants") from None
    folder = ROOT / "out" / "mutation" / f"seed-{options.seed}"
    session, config, tree = str(folder / "session.sqlite"), "tests/mutation/cosmic-ray.toml", folder / "tree"

    def run(*command: str) -> None:
        subprocess.run(command, cwd=tree, env=environment(folder), check=True)

    if not Path(session).exists():
        shutil.rmtree(folder, ignore_errors=True)
        prepare(folder)
        run("cosmic-ray", "init", config, session)
        run("cr-filter-operators", session, config)
        with use_db(session, WorkDB.Mode.open) as db:
            sample = drawn(db.pending_work_items, options.count, options.seed, options.only)
            db.clear()
            db.add_work_items(sample)
    run("cosmic-ray", "exec", config, session)
    with use_db(session, WorkDB.Mode.open) as db:
        report(db.completed_work_items)
    return 0


if __name__ == "__main__":
    sys.exit(main())
