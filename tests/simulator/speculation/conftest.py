"""Property tests here fit and simulate: they are not held to a time limit per example."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
