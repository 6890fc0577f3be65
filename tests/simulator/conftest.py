"""The command called in-process."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from simulator.cli import main


class Outcome(NamedTuple):
    """What a command ended with and wrote."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The only line on stderr of a command that was refused."""
        assert self.code == 2, self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]

    @property
    def document(self) -> Any:
        """The JSON that a command which ended well wrote to stdout."""
        assert self.code == 0, self.err
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


@pytest.fixture
def forerun(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command of some words in one text, and of further words that are each a text or a path."""

    def call(words: str = "", *more: object) -> Outcome:
        capsys.readouterr()
        code = main([*words.split(), *map(str, more)])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
