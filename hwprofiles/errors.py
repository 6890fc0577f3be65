"""The package's one exception and the wording of its suggestions."""

from collections.abc import Iterable
from difflib import get_close_matches


class ProfileError(ValueError):
    """A chip, a link or a kernel description that cannot be used; one line that names the place, the value and the
    way out."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to ``name``, else an empty string."""
    close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
