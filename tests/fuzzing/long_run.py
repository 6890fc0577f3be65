"""Many damaged files through every reader; what breaks is printed once for each place in the code.

python tests/fuzzing/long_run.py --inputs 20000 --seed 1 [--only requests] [--findings FOLDER]
"""

import argparse
import os
import random
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent.parent)]

from fuzzing.mutate import mutated
from fuzzing.targets import TARGETS, Round, Target, quick_folder

MEMORY_BYTES = 6 << 30


def fuzz(target: Target, inputs: int, seed: int, keep: Path | None) -> Counter[str]:
    """Outcomes of ``inputs`` damaged files."""
    rng = random.Random(f"{seed} {target.name}")
    with quick_folder() as folder:
        damaged = Round(target, folder, keep)
        for _ in range(inputs):
            damaged.add(mutated(rng.choice(target.seeds), rng, target.seeds))
    return damaged.outcomes


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
        outcomes = fuzz(TARGETS[name], options.inputs, options.seed, options.findings)
        broke += outcomes["broke"]
        print(
            f"{name}: {options.inputs} inputs in {time.process_time() - begin:.0f} CPU s: {dict(outcomes)}", flush=True
        )
    sys.exit(1 if broke else 0)


if __name__ == "__main__":
    main()
