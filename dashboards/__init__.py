"""What people look at: figures and reports, made from results or from the files that runs leave behind."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
