"""One command: its exit code, and its errors as one line."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType

from forerun.errors import ArgumentError, ForerunError, InvariantError, UsageError

EXIT_BAD_INPUT = 2
EXIT_FAULT = 3
EXIT_INTERRUPTED = 130


def run_command(words: Sequence[str]) -> int:
    """Run the command and return its exit code.

    Returns:
        0 on success, 1 when a gate fails, 2 on bad input (one line on stderr), 3 on a fault of Forerun: a crash, or a
        result that breaks physics or conservation (its scenario is kept); 130 on Ctrl-C.
    """
    atexit.register(gc.freeze)  # else looking for cycles at the end takes a fifth of a short run
    ready_streams()
    warnings.filterwarnings("ignore", "the engine runs interpreted")  # run and serve have a note of their own
    try:
        from simulator.cli.app import call

        refuse_empty(words)
        with unwound_by_sigterm():
            code = call(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        silence_stdout()
        return 0
    except InvariantError as error:
        print(f"forerun: {broken_invariant_line(error)}", file=sys.stderr)
        return EXIT_FAULT
    except MemoryError:
        print("forerun: this run needs more memory than there is; fewer requests, or --no-steps", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (ForerunError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            silence_stdout()
        print(f"forerun: {error_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except Exception:  # exit code 1 is a verdict, a crash is none
        import traceback

        traceback.print_exc()
        print("forerun: this is a fault of Forerun, not of its input; please report it", file=sys.stderr)
        return EXIT_FAULT
    if code == EXIT_INTERRUPTED:
        print("forerun: interrupted", file=sys.stderr)
    return code


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the main thread, so that unfinished work is cleaned up; the exit code is 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse an argument without text: as a folder it would be the one that the command happens to run in."""
    for before, word in pairwise(["forerun", *words]):
        if not word.strip():
            raise ForerunError(f"{before}: an empty argument follows; give a value, or leave it out")
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            raise ForerunError(f"{word.removesuffix('=')}: no value follows the =; give one, or leave it out")


def broken_invariant_line(error: InvariantError) -> str:
    """One line on the broken invariant, with the scenario that reproduces it, in a file or within the line."""
    from simulator.running.metrics.files import write_text_atomically

    file = Path(f"forerun-broken-invariant-{error.mark}.json")
    try:
        write_text_atomically(file, error.scenario)
    except OSError:
        return f"this result cannot be, which is a fault of Forerun: {error}"
    return (
        f"this result cannot be, which is a fault of Forerun: {error.invariant}; please report {file}; to reproduce: "
        f"forerun run {file} --seed {error.seed}{error.options}"
    )


def error_line(error: Exception) -> str:
    """``error`` in one line; for files, first the name and then the system's message."""
    if isinstance(error, ArgumentError):
        return error.as_option
    if isinstance(error, OSError) and error.strerror:
        place = "standard output" if error.filename is None and error.errno == errno.ENOSPC else error.filename
        return error.strerror if place is None else f"{place}: {error.strerror}"
    return " ".join(str(error).split())


def ready_streams() -> None:
    """Let stdout and stderr accept any text: closed streams drop it, ASCII terminals get escaped characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def silence_stdout() -> None:
    """Discard pending output once stdout proved full or closed; otherwise Python complains at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
