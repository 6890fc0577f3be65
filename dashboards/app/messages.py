"""Errors as one sentence for the user of the page."""

from __future__ import annotations

import logging
import re

from forerun.errors import ForerunError

LOG = logging.getLogger("forerun.dash")
FAULT = "Something went wrong inside; the terminal that serves this page has the details."
FOLDERS = re.compile(r"(?:/[^\s/'\":,]+)+/")


def sentence(error: BaseException) -> str:
    """``error`` in one line: a user's error is described without folders of the server; an internal error is logged."""
    if isinstance(error, ForerunError):
        return FOLDERS.sub("", " ".join(str(error).split()))
    if isinstance(error, OSError) and error.strerror:
        return f"A file cannot be read or written: {error.strerror}."
    LOG.error("fault in a callback", exc_info=error)
    return FAULT
