"""Coverage-guided fuzzing of one reader with atheris, which is no dependency of the project (pip install atheris).

python tests/fuzzing/coverage_guided.py requests -runs=100000 [CORPUS_FOLDER]
"""

import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent.parent)]

import atheris

with atheris.instrument_imports(include=["traces", "simulator", "hwprofiles"]):
    from fuzzing.mutate import mutated
    from fuzzing.targets import TARGETS, attempt, quick_folder


def main() -> None:
    """Fuzz the target named first; what follows are libFuzzer's own arguments."""
    target = TARGETS[sys.argv.pop(1)]

    def damage(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        start = data if len(data) > 1 and rng.random() < 0.8 else rng.choice(target.seeds)
        return mutated(start, rng, target.seeds)[:most]

    with quick_folder() as folder:
        atheris.Setup(
            [*sys.argv, "-max_len=100000"], lambda data: attempt(target, data, folder) and None, custom_mutator=damage
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
