"""The memory of decoded pictures: shared, bounded and given back."""

import mmap
import os
import resource
import threading
from contextlib import ExitStack

import numpy as np
import pytest

from paddlepool.contracts.errors import Overloaded, ResolutionTooHigh
from paddlepool.tasks.codecs.picture import (
    LARGE_BYTES,
    PictureStore,
    read_pixels,
    reserve,
    write_pixels,
)

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
PAGE = mmap.PAGESIZE


def test_what_was_written_is_read_through_the_same_descriptor() -> None:
    """Pixels survive the way through the memory, also from a view with gaps; a shape that does not
    fit raises instead of reading beyond the memory's end."""
    with PictureStore(budget=1000).open(60) as picture:
        write_pixels(picture.descriptor, PIXELS[:, ::2])
        assert np.array_equal(PIXELS[:, ::2], read_pixels(picture.descriptor, (4, 3, 3)))
        with pytest.raises(ValueError, match="this is a bug"):
            read_pixels(picture.descriptor, (4, 6, 3))


def test_the_budget_is_a_sum_and_holds_at_the_very_page() -> None:
    """Two pictures of a page fit two pages, the third is refused until one is released."""
    store = PictureStore(budget=2 * PAGE)
    with ExitStack() as first, ExitStack() as others:
        pictures = [stack.enter_context(store.open(PAGE)) for stack in (first, others, others)]
        for picture in pictures:
            write_pixels(picture.descriptor, PIXELS)
        pictures[0].charge()
        pictures[1].charge()
        assert store.held == 2 * PAGE
        with pytest.raises(Overloaded):
            pictures[2].charge()
        first.close()
        pictures[2].charge()
        assert store.held == 2 * PAGE
    assert store.held == 0


def test_a_picture_above_the_budget_is_the_pictures_fault() -> None:
    """It would be refused for ever: nobody is told to come back."""
    store = PictureStore(budget=PAGE - 1)
    with store.open(PAGE) as picture:
        write_pixels(picture.descriptor, PIXELS)
        with pytest.raises(ResolutionTooHigh) as refused:
            picture.charge()
    assert (refused.value.limit, refused.value.received) == (PAGE - 1, PAGE)
    assert store.held == 0


def test_releasing_twice_closes_once() -> None:
    """A second release must not close a descriptor that somebody else has got meanwhile."""
    held = ExitStack()
    number = held.enter_context(PictureStore(budget=PAGE).open(60)).descriptor
    held.close()
    other = os.open("/dev/null", os.O_RDONLY)
    try:
        assert other == number
        held.close()
        os.fstat(other)
    finally:
        os.close(other)


@pytest.mark.parametrize("charged", [True, False])
def test_a_large_picture_is_closed_in_a_thread(charged: bool) -> None:
    """The event loop would stop for milliseconds, also for a picture that turned out damaged."""
    threads: set[str] = set()
    threading.setprofile(lambda *_: threads.add(threading.current_thread().name))
    try:
        with PictureStore(budget=2 * LARGE_BYTES).open(LARGE_BYTES) as picture:
            reserve(picture.descriptor, LARGE_BYTES)
            if charged:
                picture.charge()
        for thread in threading.enumerate():
            if thread.name == "picture closing":
                thread.join()
    finally:
        threading.setprofile(None)
    assert "picture closing" in threads
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(picture.descriptor)


def test_a_limit_of_file_sizes_is_kept() -> None:
    """Under `ulimit -f` smaller pictures are still opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * PAGE, hard))
    try:
        with PictureStore(budget=PAGE).open(5 * PAGE) as picture:
            assert os.fstat(picture.descriptor).st_size == 4 * PAGE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
