"""What a call into a codec process holds while it is under way."""

from __future__ import annotations

import asyncio
import os

import pytest

from app.tasks.codecs.pool import CodecPool
from tests.descriptors import open_descriptors


def test_descriptors_that_cannot_all_be_had_are_all_given_back() -> None:
    """The first is not lost when the second fails; the caller's own stay its own."""

    async def submitted(own: int) -> None:
        pool = CodecPool(count=1)
        before = open_descriptors()
        with pytest.raises(OSError, match="Bad file descriptor"):
            pool.submit("module:name", {}, descriptors=(own, -1), deadline=1e9)
        assert open_descriptors() == before

    own = os.open("/dev/null", os.O_RDONLY)
    try:
        asyncio.run(submitted(own))
        os.fstat(own)
    finally:
        os.close(own)
