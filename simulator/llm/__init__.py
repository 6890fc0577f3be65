"""Transformer architectures: a catalogue, any Hugging Face config.json, and the tensors that an engine runs."""

from forerun.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
