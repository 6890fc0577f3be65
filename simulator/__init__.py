"""Forerun's simulator: one scenario in, predicted requests, engine steps and summary out.

>>> import simulator as fr
>>> result = fr.simulate(fr.load_scenario("examples/chat-h100-draft.yaml"))
>>> result.summary["completed"]
1000
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {"LawBrokenError": "InvariantError"}, installed="simulator.studies.installed"
)
