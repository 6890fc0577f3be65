"""The ``forerun`` command: parses, calls one function, prints."""

from simulator.cli.app import main

__all__ = ["main"]
