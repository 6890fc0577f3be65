"""Forerun predicts how LLM inference runs before anyone rents the hardware.

``import forerun as fr`` is the public Python API:

* ask: :func:`simulate`, :func:`compare`, :func:`plan`, :func:`tune`, :func:`sweep`, :func:`estimate`, :func:`predict`.
  The scenario is a :class:`Scenario`, a path or a dict.
* check: :func:`replay_kernels`, :func:`replay_requests`, :func:`calibrate`.
* draw: :mod:`plot`, one function per figure.
* extend: :mod:`register`, one decorator per kind of plug-in, and :mod:`testing`, a check for each; :mod:`studies` and
  :mod:`parts`, names to write a study with. Studies of installed distributions are names of this module too.

Each name is imported when it is first used, so ``import forerun`` is fast.

>>> import forerun as fr
>>> chat = fr.Scenario(model="llama-3.1-8b", chip="h100-sxm", trace="azure-conv-2023", num_requests=200)
>>> fr.simulate(chat).completed
200
"""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, installed="simulator.studies.installed")
