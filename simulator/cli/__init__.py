"""The ``forerun`` command: parses, calls one function, prints."""

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, as ``simulator.cli.command.run_command`` says."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words == ["--version"]:
        from forerun.version import VERSION

        print(f"forerun {VERSION}")
        return 0
    # Its threads wait busily for the next of many small products, and are started with NumPy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from simulator.cli.command import run_command

    return run_command(words)
