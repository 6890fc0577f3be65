"""Parts of a simulated service, for studies that ask more than :func:`forerun.simulate` answers.

Replicas as they are built, requests to serve, prices of steps, drafts and their acceptance, policies.
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
