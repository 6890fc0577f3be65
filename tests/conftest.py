"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# An example takes as long as the machine lets it: no limit per example, and none on making examples up.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "unhurried")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as in a pipe: pytest-xdist gives its workers the width of the terminal (``COLUMNS``)."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real measurements and traces that are not part of the project; skips where it is absent."""
    folder = Path(os.environ.get("FORERUN_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("real data folder not beside the checkout (set FORERUN_SHARED to the folder that holds data/)")
    return folder


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout."""
    return ROOT
