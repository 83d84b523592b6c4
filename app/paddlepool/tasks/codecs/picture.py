"""A decoded picture in shared memory: made by the parent, written and read by codec processes."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import Overloaded, ResolutionTooHigh

Pixels = NDArray[np.uint8]
"""Height x width x 3 (RGB) or 4 (RGBA, colours not multiplied by alpha, white where it is 0)."""

Floats = NDArray[np.float32]

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NAME = "picture"
PICTURE_LINK = f"/memfd:{NAME} (deleted)"
"""The target of a picture's descriptor in /proc/PID/fd."""
BLOCK_BYTES = 512  # the unit of st_blocks


class PictureStore:
    """Limits the total bytes of the pictures held at one time, from decoding to the request's end.

    Codec processes may keep a picture open longer, so the pictures in memory can take up to
    `budget` bytes plus one picture for each process. `held` is the number of bytes held now.
    """

    def __init__(self, *, budget: int) -> None:
        self.budget = budget
        self.held = 0

    @contextmanager
    def open(self, size: int) -> Iterator[Picture]:
        """Yield a new picture of up to `size` bytes; the block's end closes it.

        The limit of this process on the size of files applies, too. Only written pages take memory.
        The file is sealed: a compromised process can neither truncate it nor make it grow. Raises
        OSError if the file cannot be made.
        """
        picture = Picture(self, os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        try:
            most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            size = size if most == resource.RLIM_INFINITY else min(size, most)
            os.ftruncate(picture.descriptor, size)
            fcntl.fcntl(picture.descriptor, fcntl.F_ADD_SEALS, SEALS)
            yield picture
        finally:
            os.close(picture.descriptor)
            self.held -= picture.charged


@dataclass(slots=True, eq=False)
class Picture:
    """A picture in shared memory.

    `descriptor` is its file, `charged` the bytes counted against the budget of `store`.
    """

    store: PictureStore
    descriptor: int
    charged: int = 0

    def charge(self) -> None:
        """Count the written memory against the store's budget.

        Raises Overloaded if the picture does not fit beside those held now, and ResolutionTooHigh
        if it is larger than the whole budget.
        """
        size = os.fstat(self.descriptor).st_blocks * BLOCK_BYTES
        held, budget = self.store.held, self.store.budget
        if size > budget:  # does not fit even into an empty store
            raise ResolutionTooHigh(
                f"the decoded picture needs {-(-size >> 20)} MiB of memory; the limit, for all "
                f"pictures together, is {budget >> 20} MiB",
                limit=budget,
                received=size,
            )
        if held + size > budget:
            raise Overloaded(
                f"decoded pictures hold {held >> 20} MiB of memory, the limit is "
                f"{budget >> 20} MiB; this one needs {-(-size >> 20)} MiB more",
                limit=budget,
                received=held + size,
            )
        self.store.held += size
        self.charged = size


def write_pixels(descriptor: int, pixels: Pixels) -> None:
    """Write the pixels to the memory behind the descriptor. For codec processes."""
    # Writing takes half the time of a mapping, because no page has to be mapped first.
    # The offset is explicit: a killed process may have moved the offset of the shared file.
    left = np.ascontiguousarray(pixels).data.cast("B")
    written = 0
    while written < len(left):
        written += os.pwrite(descriptor, left[written:], written)


def read_pixels(descriptor: int, shape: tuple[int, int, int]) -> Pixels:
    """Return a read-only view of the pixels behind the descriptor. For codec processes.

    Raises ValueError if there are fewer than `shape` needs.
    """
    size = shape[0] * shape[1] * shape[2]
    if os.fstat(descriptor).st_size < size:
        raise ValueError(f"this is a bug: no picture has {size} bytes, for shape {shape}")
    return np.ndarray(shape, np.uint8, mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))


BAND_PIXELS = 1 << 16
"""Small enough for a band and its floats to stay in the processor's cache."""


def bands(height: int, width: int) -> Iterator[slice]:
    """Return slices that divide `height` rows into bands of about BAND_PIXELS pixels."""
    rows = max(1, BAND_PIXELS // width)
    return (slice(top, min(height, top + rows)) for top in range(0, height, rows))


def opaque(pixels: Pixels, ground: int = 255) -> Pixels:
    """Return the picture as RGB, on grey of the level `ground` where it is transparent."""
    height, width, channels = pixels.shape
    if channels == 3:
        return pixels
    result = np.empty((height, width, 3), np.uint8)
    for rows in bands(height, width):  # two bytes for each value of the whole would be too many
        alpha = pixels[rows, :, 3:].astype(np.uint16)
        mixed = pixels[rows, :, :3] * alpha + ground * (255 - alpha) + 127
        result[rows] = mixed // 255
    return result
