"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("repeatable")

ROOT = Path(__file__).resolve().parent.parent


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
