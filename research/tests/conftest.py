"""Fixtures of the tests of the research studies."""

import pytest
from give_back import pytest_runtest_teardown as pytest_runtest_teardown


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print tables as wide as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
