"""What a call into a codec process holds while it is under way."""

from __future__ import annotations

import os

import pytest

from app.tasks.codecs.call import Descriptors
from tests.descriptors import open_descriptors


def test_descriptors_that_cannot_all_be_had_are_all_given_back() -> None:
    """The first is not lost when the second fails; the caller's own stay its own."""
    own = os.open("/dev/null", os.O_RDONLY)
    try:
        before = open_descriptors()
        with pytest.raises(OSError, match="Bad file descriptor"):
            Descriptors((own, -1))
        assert open_descriptors() == before
        os.fstat(own)
    finally:
        os.close(own)
