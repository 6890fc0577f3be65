"""A small real inference engine on this machine, and the check that the whole chain predicts what it does.

The engine ships with the package, not under ``benchmarks/``: ``forerun selfcheck`` must work from an installed wheel.
Only ``model``, ``sampling`` and ``engine`` and what builds on them import torch; nothing here is imported at start-up.
"""
