"""Error class of the package, and spelling suggestions for error texts."""

from forerun.errors import ForerunError
from forerun.errors import did_you_mean as did_you_mean


class ProfileError(ForerunError):
    """Invalid chip, link or kernel description."""
