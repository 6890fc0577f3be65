"""Measured data: canonical tables for request traces, readers for other formats, and small samples.

>>> from traces import read_requests
>>> len(read_requests("azure-conv-2023"))
1000
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
