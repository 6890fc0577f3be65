"""Many damaged files through every reader; what breaks is printed once for each place in the code.

python tests/fuzzing/long_run.py --inputs 20000 --seed 1 [--only requests] [--findings FOLDER]
"""

import argparse
import os
import random
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent.parent)]

from fuzzing.mutate import mutated
from fuzzing.targets import TARGETS, Target, attempt, quick_folder

MEMORY_BYTES = 6 << 30


def place_of(error: BaseException) -> str:
    """Kind of the error and the innermost line of the project that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    custom = [
        f
        for f in frames
        if any(f"/{capacity}/" in f.filename for capacity in ("traces", "simulator", "hwprofiles", "dashboards"))
    ]
    last = (custom or frames)[-1]
    return f"{type(error).__name__} at {'/'.join(Path(last.filename).parts[-3:])}:{last.lineno} {str(error)[:150]!r}"


def fuzz(target: Target, inputs: int, seed: int, keep: Path | None) -> tuple[Counter[str], Counter[str]]:
    """Outcomes and findings of ``inputs`` damaged files."""
    rng = random.Random(f"{seed} {target.name}")
    outcomes: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    known: set[str] = set()
    with quick_folder() as folder:
        for _ in range(inputs):
            data = mutated(rng.choice(target.seeds), rng, target.seeds)
            try:
                outcomes["read" if attempt(target, data, folder) is None else "refused"] += 1
            except Exception as error:
                place = place_of(error)
                outcomes["broke"] += 1
                findings[place] += 1
                key = place.split(" '")[0]
                if key not in known:
                    known.add(key)
                    print(f"FINDING {target.name}: {place}", flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{target.name}-{len(known)}{target.suffix}").write_bytes(data)
    return outcomes, findings


def main() -> None:
    """Run the named targets, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(TARGETS))
    parser.add_argument("--findings", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("error")
    os.environ.setdefault("COLUMNS", "120")
    broke = 0
    for name in options.only:
        begin = time.process_time()
        outcomes, _ = fuzz(TARGETS[name], options.inputs, options.seed, options.findings)
        broke += outcomes["broke"]
        print(
            f"{name}: {options.inputs} inputs in {time.process_time() - begin:.0f} CPU s: {dict(outcomes)}", flush=True
        )
    sys.exit(1 if broke else 0)


if __name__ == "__main__":
    main()
