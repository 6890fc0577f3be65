"""Fixtures of the tests of the research studies."""

import pytest


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print tables as wide as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
