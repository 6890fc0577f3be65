"""What the package raises, and the wording of its suggestions."""

from forerun.errors import ForerunError
from forerun.errors import did_you_mean as did_you_mean


class ProfileError(ForerunError):
    """A chip, a link or a kernel description that cannot be used."""
