"""Coverage-guided fuzzing of the readers with atheris; what breaks is printed once for each place in the code.

python tests/fuzzing/coverage_guided.py requests [scenario ...] [--seconds 90] [--findings FOLDER] [--corpus FOLDER]

Each target gets its share of processor time in a process of its own; inputs that reach new code are kept and damaged
further. Atheris comes with the ``dev`` extra on Linux.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent.parent)]

import atheris

with atheris.instrument_imports(include=["traces", "simulator", "hwprofiles"]):
    from fuzzing.mutate import mutated
    from fuzzing.targets import TARGETS, Round, quick_folder

MEMORY_MB = 6144


def fuzz(name: str, seconds: float, corpus: Path, findings: Path | None) -> None:
    """Fuzz one target for so many seconds of processor time, report, and end the process."""
    target = TARGETS[name]
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def damage(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        start = data if len(data) > 1 and rng.random() < 0.6 else rng.choice(target.seeds)
        return mutated(start, rng, target.seeds)[:most]

    def one(data: bytes) -> None:
        damaged.add(data)
        if time.process_time() > seconds:
            kept = sum(1 for _ in corpus.iterdir()) - len(target.seeds)
            print(f"{name}: {damaged.outcomes.total()} inputs in {seconds:.0f} CPU s, {dict(damaged.outcomes)}, "
                  f"kept {kept}, places that broke {len(damaged.places)}", flush=True)  # fmt: skip
            (folder / f"fuzzed{target.suffix}").unlink()
            folder.rmdir()
            os._exit(0)

    with quick_folder() as folder:
        damaged = Round(target, folder, findings)
        arguments = [sys.argv[0], str(corpus), "-max_len=100000", f"-rss_limit_mb={MEMORY_MB}", "-verbosity=0"]
        atheris.Setup(arguments, one, custom_mutator=damage)
        atheris.Fuzz()


def main() -> None:
    """Fuzz the named targets one after the other, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=90.0, help="of processor time for each target")
    parser.add_argument("--findings", type=Path, help="folder for inputs that broke something")
    parser.add_argument("--corpus", type=Path, help="folder to keep inputs that reach new code in")
    options = parser.parse_args()
    if unknown := [name for name in options.targets if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)} (there are {', '.join(TARGETS)})")
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.targets:
            corpus = (options.corpus or Path(temporary)) / name
            corpus.mkdir(parents=True, exist_ok=True)
            if len(options.targets) == 1:
                fuzz(name, options.seconds, corpus, options.findings)
            command = [
                sys.executable,
                __file__,
                name,
                "--seconds",
                str(options.seconds),
                "--corpus",
                str(corpus.parent),
            ]
            findings = ["--findings", str(options.findings)] if options.findings else []
            subprocess.run([*command, *findings], check=False)


if __name__ == "__main__":
    main()
