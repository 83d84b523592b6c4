"""A growable block of shared memory that carries arrays between two processes without pickling."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np

from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.engine.process.start import memory_file

ALIGNMENT = 64
KEEP_BYTES = 32 << 20
MAX_BYTES = 512 << 20
"""Maximum bytes of one call's arrays in one direction."""
MAX_AXES = 32

Layout = list[tuple[str, str, list[int], int]]
"""Name, dtype, shape and offset of each array in a block; sent as JSON in the call's header."""

NUMBERS = {(dtype := np.dtype(code)).str: dtype.itemsize for code in "?bhilqBHILQefd"}
"""The dtypes that are read, and their sizes; an array of objects would contain addresses."""


class SharedArrays:
    """One process's view of a memfd that it shares with another process.

    The two take turns to use it, and either may grow it; the other then maps it again. The file is
    sealed against shrinking: otherwise one process could remove a page that the other reads, and
    cause SIGBUS.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0  # last known size

    @classmethod
    def create(cls, name: str) -> SharedArrays:
        return cls(memory_file(name))

    def write(self, arrays: Tensors) -> Layout:
        """Copy the arrays into the block and return their layout; grow the file if needed.

        Overwrites what the block contains. Raises ValueError for more than MAX_BYTES, and OSError
        if the file cannot grow.
        """
        layout: Layout = []
        offset = 0
        for name, array in arrays.items():
            layout.append((name, array.dtype.str, list(array.shape), offset))
            offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if offset > MAX_BYTES:
            raise ValueError(f"arrays of {offset} bytes, limit {MAX_BYTES}")
        if offset > self._size and offset > self._update_size():
            os.ftruncate(self.descriptor, -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._update_size()
        for name, dtype, shape, start in layout:
            np.copyto(self._view(dtype, shape, start), arrays[name], casting="no")
        return layout

    def read(self, layout: Sequence[object]) -> Mapping[str, Array]:
        """Return views into the block, by name, which are valid until either process writes again.

        The layout is not trusted. Raises ValueError if it is malformed, has a dtype that is not in
        NUMBERS, or exceeds the block.
        """
        views: dict[str, Array] = {}
        for entry in layout:
            name, dtype, shape, offset, end = checked_entry(entry)
            if end > self._size and end > self._update_size():
                raise ValueError(f"an array ends at byte {end} of {self._size}")
            views[name] = self._view(dtype, shape, offset)
        return views

    def _update_size(self) -> int:
        """Update and return the block's size, up to MAX_BYTES; the other side may have grown it."""
        self._size = min(os.fstat(self.descriptor).st_size, MAX_BYTES)
        return self._size

    def _view(self, dtype: str, shape: Sequence[int], offset: int) -> Array:
        if not math.prod(shape):
            return np.empty(shape, dtype)
        if self._map is None or len(self._map) < self._size:
            # Views into the old map keep it alive.
            self._map = mmap.mmap(self.descriptor, self._size)
        return np.ndarray(shape, dtype, self._map, offset)

    def trim(self) -> None:
        """Return all memory of the block to the system if it has more than KEEP_BYTES.

        No process may use the block during the call. Its content is then lost.
        """
        status = os.fstat(self.descriptor)
        if status.st_blocks * 512 > KEEP_BYTES:
            with mmap.mmap(self.descriptor, min(status.st_size, MAX_BYTES)) as whole:
                whole.madvise(mmap.MADV_REMOVE)
            self._map = None

    def close(self) -> None:
        self._map = None
        os.close(self.descriptor)


def checked_entry(entry: object) -> tuple[str, str, list[int], int, int]:
    """Return name, dtype, shape, offset and end of an array, from one entry of a layout.

    The end is 0 for an array without elements. Raises ValueError if the entry is malformed.
    """
    if not isinstance(entry, list | tuple) or len(entry) != 4:
        raise ValueError("an array's layout must have four parts")
    name, dtype, shape, offset = entry
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in NUMBERS:
        raise ValueError("an array must have a name and a numeric dtype")
    if not isinstance(shape, list) or len(shape) > MAX_AXES:
        raise ValueError(f"an array has up to {MAX_AXES} axes")
    for axis in (*shape, offset):
        if type(axis) is not int or not 0 <= axis <= MAX_BYTES:
            raise ValueError("an array's axes and offset must not be negative")
    count = math.prod(shape)
    return name, dtype, shape, offset, offset + count * NUMBERS[dtype] if count else 0
