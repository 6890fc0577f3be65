"""Exception class of the package, and helpers for its messages."""

from forerun.errors import ForerunError
from forerun.errors import comma_hint as comma_hint
from forerun.errors import did_you_mean as did_you_mean
from forerun.errors import install_hint as install_hint
from forerun.errors import shown as shown


class TraceError(ForerunError):
    """A trace that cannot be used: its message names the file and the line or field."""
