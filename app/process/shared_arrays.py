"""A growable block of shared memory that carries arrays between two processes without pickling."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping

import numpy as np

from app.contracts.tensors import Array, Tensors

ALIGNMENT = 64
KEEP_BYTES = 32 << 20

Layout = list[tuple[str, str, list[int], int]]
"""Name, dtype, shape and offset of each array in a block; travels beside it as JSON."""


class SharedArrays:
    """One side's view of a memfd. Writer and reader take turns; whoever holds the turn may resize.

    The file is the truth: each side maps it again when its size has changed, so that neither
    touches a page the other has cut off (that would be SIGBUS).
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls, name: str) -> SharedArrays:
        return cls(os.memfd_create(name, os.MFD_CLOEXEC))

    def write(self, arrays: Tensors) -> Layout:
        """Copy the arrays in, growing the file as needed; returns where each one lies."""
        layout: Layout = []
        offset = 0
        for name, array in arrays.items():
            layout.append((name, array.dtype.str, list(array.shape), offset))
            offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if offset > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE)
        for name, view in self.read(layout).items():
            np.copyto(view, arrays[name], casting="no")
        return layout

    def read(self, layout: Layout) -> Mapping[str, Array]:
        """Views into the block, valid until the next write by either side."""
        if not layout:
            return {}
        size = os.fstat(self.descriptor).st_size
        if size and (self._map is None or len(self._map) != size):
            # The old map lives on as long as a view into it does; nobody reads through those.
            self._map = mmap.mmap(self.descriptor, size)
        return {
            name: np.ndarray(shape, dtype, self._map, offset)
            if math.prod(shape)
            else np.empty(shape, dtype)
            for name, dtype, shape, offset in layout
        }

    def trim(self) -> None:
        """Give an unusually large block back to the system. Call only while holding the turn."""
        if os.fstat(self.descriptor).st_size > KEEP_BYTES:
            self._map = None
            os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        self._map = None
        os.close(self.descriptor)
