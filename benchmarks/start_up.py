"""How long commands take to start, beside ``python -c "import numpy, pydantic, yaml"`` for machines of another speed.

``python benchmarks/start_up.py`` runs each command in turn, several times, and prints the median CPU time (user +
system) of its whole processes. The first round fills the caches and does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROUNDS = 10
BARE = ["-c", "import numpy, pydantic, yaml"]
FORERUN = ["-c", "import sys; from simulator.cli import main; sys.exit(main(sys.argv[1:]))"]
SCENARIO = """\
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload:
  arrivals: {process: poisson, request_rate: 8.0}
  input_tokens: {distribution: lognormal, mean: 512, cv: 0.8, max: 4096}
  output_tokens: 256
  num_requests: 100
"""


def cpu_s(words: list[str]) -> float:
    """User and system time of a Python process."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=compiled)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    with TemporaryDirectory() as folder:
        scenario = Path(folder) / "chat.yaml"
        scenario.write_text(SCENARIO, encoding="utf-8")
        run = [*FORERUN, "run", str(scenario)]
        commands = {
            "bare imports": BARE,
            "forerun --version": [*FORERUN, "--version"],
            "forerun run --help": [*FORERUN, "run", "--help"],
            "forerun run, 100 requests": run,
            "forerun run --no-interval": [*run, "--no-interval"],
        }
        rounds = [[cpu_s(words) for words in commands.values()] for _ in range(ROUNDS + 1)]
    for name, seconds in zip(commands, zip(*rounds[1:], strict=True), strict=True):
        print(f"{name:28} {median(seconds):6.3f} s")


if __name__ == "__main__":
    main()
