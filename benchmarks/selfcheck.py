"""The reference engine (``validation/selfcheck``) predicted and run several times over: how far the errors spread.

Run: python benchmarks/selfcheck.py [--seeds N] [--threads N] [--dtype NAME] [--json FILE]

The engine itself ships with the package, so that ``forerun selfcheck`` works from an installed wheel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def check(seed: int, options: list[str]) -> dict[str, Any]:
    """One ``forerun selfcheck`` in a process of its own."""
    command = [sys.executable, "-m", "forerun", "selfcheck", "--seed", str(seed), "--json", "-", *options]
    values: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return values


def main() -> None:
    """Print the errors of every seed, and all documents as JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bf16", "fp32"))
    parser.add_argument("--json", type=Path, help="also write the documents here")
    arguments = parser.parse_args()
    options = ["--threads", str(arguments.threads), *(["--dtype", arguments.dtype] if arguments.dtype else [])]
    documents = []
    for seed in range(arguments.seeds):
        documents.append(check(seed, options))
        machine = documents[-1]["machine"]
        drift, wall = machine["drift_percent"], machine["wall_over_clock"]
        for one in documents[-1]["comparisons"]:
            errors = "  ".join(f"{name} {figure['error_percent']:+.1f} %" for name, figure in one["figures"].items())
            print(f"seed {seed}  drift {drift:.0f} %  wall {wall:.2f}  {one['speculation']:12} {errors}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(documents, indent=2) + "\n")


if __name__ == "__main__":
    main()
