"""Measured engine steps: batch composition and seconds; canonical table and readers."""

from traces.steps.read import FORMATS, read_steps
from traces.steps.table import COLUMNS, StepTable

__all__ = ["COLUMNS", "FORMATS", "StepTable", "read_steps"]
