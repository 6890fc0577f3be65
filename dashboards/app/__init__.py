"""The dashboard: a Dash app whose pages draw the package's figures. ``forerun dash`` serves it."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
