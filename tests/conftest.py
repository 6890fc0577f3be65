"""Fixtures shared by all tests."""

import inspect
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
from give_back import pytest_runtest_teardown as pytest_runtest_teardown
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# An example takes as long as the machine lets it: no limit per example, and none on making examples up.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "unhurried")

ROOT = Path(__file__).resolve().parent.parent


TOGETHER = {"test_calibrate.py", "test_dashboards_app_browser.py", "test_dashboards_browser.py", "test_packages.py"}
"""Files whose tests share what is dear to make, so that one process runs each of them."""


class TogetherScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests one by one, but for files in ``TOGETHER``. (pytest-xdist 3.8's own groups do nothing under pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return file if Path(file).name in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TogetherScheduling:
    """How tests are dealt out to processes."""
    return TogetherScheduling(config, log)


CONCURRENT = re.compile(r"subprocess|playwright|threading|multiprocessing|sleep|signal[.]|os[.]kill|jobs=[2-9]")
"""What a test names that has processes, threads, browsers or signals beside it."""


def concurrent(function: object, module: ModuleType, seen: set[object]) -> bool:
    """Whether a function, or one of its module that it calls, names what a busy machine could upset."""
    function = inspect.unwrap(getattr(getattr(function, "hypothesis", None), "inner_test", function))  # type: ignore[arg-type]
    if not inspect.isfunction(function) or function.__module__ != module.__name__ or function in seen:
        return False
    seen.add(function)
    called = (getattr(module, name, None) for name in function.__code__.co_names)
    return bool(CONCURRENT.search(inspect.getsource(function))) or any(concurrent(one, module, seen) for one in called)


def under_load(config: pytest.Config) -> bool:
    """Whether ``make test-load`` runs, or the like of it."""
    return "concurrent" in config.getoption("markexpr")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under load, files without a word of that kind are not read: a busy machine takes minutes over all."""
    tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if tests and under_load(config) and not CONCURRENT.search(collection_path.read_text("utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what ``make test-load`` runs: by what a test does, so that a new one is among them."""
    if not under_load(config):
        return
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = [one.func for result in item._fixtureinfo.name2fixturedefs.values() for one in result]
            if any(concurrent(one, item.module, set()) for one in (item.function, *fixtures)):
                item.add_marker("concurrent")


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
