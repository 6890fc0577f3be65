"""Records to numbers: vLLM-style summary, SLO goodput, intervals, bottleneck, and the files of a run."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
