"""Decoded pictures in shared memory, which codec processes write and read."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

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
LARGE_BYTES = 12_000_000
"""From this size on, a thread frees the memory of a picture."""


class PictureStore:
    """Opens shared memory for pictures, and limits the bytes of all charged pictures to `budget`.

    `held` is the number of bytes charged now. A picture is charged only after it has been decoded,
    and a codec process may keep it open after the block of open(). So all pictures together can
    take `budget` bytes plus one picture for each process. Memory of large ones is freed a few
    milliseconds later.
    """

    def __init__(self, *, budget: int) -> None:
        self.budget = budget
        self.held = 0

    @contextmanager
    def open(self, size: int) -> Iterator[Picture]:
        """Yield a new picture of up to `size` bytes; the block's end closes and uncharges it.

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
            self.held -= picture.charged
            _close(picture)


@dataclass(slots=True, eq=False)
class Picture:
    """A picture in shared memory.

    `descriptor` is its file. `charged` are the bytes that charge() has added to `store.held`.
    """

    store: PictureStore
    descriptor: int
    charged: int = 0

    @property
    def size(self) -> int:
        """Bytes of memory that the picture takes now."""
        return os.fstat(self.descriptor).st_blocks * BLOCK_BYTES

    def charge(self) -> None:
        """Add the memory that the picture takes to `store.held`. Call it once, after decoding.

        Raises Overloaded if the sum would exceed the store's budget, and ResolutionTooHigh if the
        picture alone exceeds it.
        """
        size = self.size
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


def _close(picture: Picture) -> None:
    """Close the file; in a thread if it is large, because freeing 36 MB takes 4 ms.

    A picture that is damaged or over the budget is not charged, but may be as large.
    """
    if picture.size >= LARGE_BYTES:
        with suppress(RuntimeError):  # the system lacks threads
            Thread(target=os.close, args=(picture.descriptor,), name="picture closing").start()
            return
    os.close(picture.descriptor)


def reserve(descriptor: int, size: int) -> None:
    """Allocate memory for the first `size` bytes, so that write_pixels() only has to copy them.

    For codec processes. Allocates less, without an error, if there is less memory.
    """
    with suppress(OSError):
        os.posix_fallocate(descriptor, 0, size)


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
    """Return slices that divide `height` rows into bands of at most BAND_PIXELS, or of one row."""
    rows = max(1, BAND_PIXELS // width)
    return (slice(top, min(height, top + rows)) for top in range(0, height, rows))


def opaque(pixels: Pixels, ground: int = 255) -> Pixels:
    """Return the picture as RGB, on grey of the level `ground` (0 to 255) where it is transparent.

    A picture without alpha is returned as it is, not copied.
    """
    height, width, channels = pixels.shape
    if channels == 3:
        return pixels
    result = np.empty((height, width, 3), np.uint8)
    for rows in bands(height, width):  # two bytes for each value of the whole would be too many
        alpha = pixels[rows, :, 3:].astype(np.uint16)
        mixed = pixels[rows, :, :3] * alpha + ground * (255 - alpha) + 127
        result[rows] = mixed // 255
    return result
