"""Parts of a simulated service, for studies beyond :func:`forerun.simulate`.

They are: built replicas, requests, step prices, drafters and acceptance, policies.
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
