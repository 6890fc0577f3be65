"""What a chip and a link can do: limits with sources, kernel efficiencies, and the time one kernel takes."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
