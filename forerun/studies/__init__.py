"""Names for writing a study: declaration, source, result with its tables, figures, worker processes.

A function declared with :func:`study` has a command, its options, help and reports once an installed distribution names
it under the entry points ``forerun.studies`` (see "Your own study" in the documentation).
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
