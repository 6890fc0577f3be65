"""What every refusal is: an error of Forerun in one line that holds what is wrong."""

from contextlib import contextmanager

import pytest

from forerun.errors import ForerunError


@contextmanager
def refused(*words):
    with pytest.raises(ForerunError) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in words), message
