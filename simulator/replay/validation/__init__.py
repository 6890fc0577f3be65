"""How far to trust the predictions: what ships compared with measurements, errors on record, and what was fitted."""

from simulator.replay.validation.errors import ErrorRow, errors_document, grown_errors, merged, read_errors
from simulator.replay.validation.facts import Fact, facts, fitted_words
from simulator.replay.validation.inputs import Cache, cache_folder, digest_of
from simulator.replay.validation.shipped import SPLIT, Outcome, Part, shipped_errors

__all__ = [
    "SPLIT",
    "Cache",
    "ErrorRow",
    "Fact",
    "Outcome",
    "Part",
    "cache_folder",
    "digest_of",
    "errors_document",
    "facts",
    "fitted_words",
    "grown_errors",
    "merged",
    "read_errors",
    "shipped_errors",
]
