"""Engines' names of speculation methods, with the release that each is known from."""

import pytest

from simulator.speculation.methods import METHODS

NAMES = [(method, engine) for method, facts in METHODS.items() for engine in facts.names]


@pytest.mark.parametrize(("method", "engine"), NAMES)
def test_every_name_says_since_when_and_where_it_is_written(method, engine):
    known = METHODS[method].names[engine]
    assert known.name
    assert known.since
    assert known.date[:4] in ("2025", "2026")
    assert any(place in known.source for place in ("docs", "#", "llm_args", "_posts"))
