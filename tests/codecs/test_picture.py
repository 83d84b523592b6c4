"""The memory of decoded pictures: shared, bounded and given back."""

from __future__ import annotations

import os

import numpy as np
import pytest

from app.codecs.picture import PictureStore, read_pixels, write_pixels
from app.contracts.errors import Overloaded, ResolutionTooHigh

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_what_was_written_is_read_through_the_same_descriptor() -> None:
    """Pixels survive the way through the memory, also from a view with gaps."""
    picture = PictureStore(budget=1000).open()
    write_pixels(picture.descriptor, PIXELS[:, ::2])
    assert np.array_equal(PIXELS[:, ::2], read_pixels(picture.descriptor, (4, 3, 3)))
    picture.release()


def test_a_shape_that_does_not_fit_the_memory_is_a_bug() -> None:
    """A wrong shape raises instead of reading beyond the memory's end."""
    picture = PictureStore(budget=1000).open()
    write_pixels(picture.descriptor, PIXELS)
    with pytest.raises(ValueError, match="this is a bug"):
        read_pixels(picture.descriptor, (4, 6, 3))
    picture.release()


def test_the_budget_is_a_sum_and_holds_at_the_very_byte() -> None:
    """Two pictures of 60 bytes fit 120, the third is refused until one is released."""
    store = PictureStore(budget=120)
    pictures = [store.open() for _ in range(3)]
    for picture in pictures:
        write_pixels(picture.descriptor, PIXELS)
    pictures[0].charge()
    pictures[1].charge()
    assert store.held == 120
    with pytest.raises(Overloaded):
        pictures[2].charge()
    pictures[0].release()
    pictures[2].charge()
    assert store.held == 120
    for picture in pictures:
        picture.release()
    assert store.held == 0


def test_a_picture_above_the_budget_is_the_pictures_fault() -> None:
    """It would be refused for ever: nobody is told to come back."""
    store = PictureStore(budget=59)
    picture = store.open()
    write_pixels(picture.descriptor, PIXELS)
    with pytest.raises(ResolutionTooHigh) as refused:
        picture.charge()
    assert (refused.value.limit, refused.value.received) == (59, 60)
    picture.release()
    assert store.held == 0


def test_releasing_twice_closes_once() -> None:
    """A second release must not close a descriptor that somebody else has got meanwhile."""
    store = PictureStore(budget=120)
    picture = store.open()
    number = picture.descriptor
    picture.release()
    other = os.open("/dev/null", os.O_RDONLY)
    try:
        assert other == number
        picture.release()
        os.fstat(other)
    finally:
        os.close(other)


@pytest.mark.parametrize("size", [1, 240])
def test_what_is_charged_keeps_its_size(size: int) -> None:
    """Whoever kept the descriptor, and whoever reads the pixels meanwhile."""
    store = PictureStore(budget=120)
    picture = store.open()
    write_pixels(picture.descriptor, np.zeros((10, 4, 3), np.uint8))
    picture.charge()
    with pytest.raises(PermissionError):
        os.ftruncate(picture.descriptor, size)
    assert os.fstat(picture.descriptor).st_size == store.held == 120
    picture.release()


def test_a_released_picture_is_not_charged() -> None:
    """The reply that comes after the client has gone counts for nothing."""
    store = PictureStore(budget=120)
    picture = store.open()
    picture.release()
    picture.charge()
    assert store.held == 0
