"""Files that the system refuses to read, also where the tests run as root."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION_3 = 0x20080522
OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root pass over modes."""


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Give `path` these permissions, and have them hold for this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    assert libc.capget(header, held) == 0, ctypes.get_errno()
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~OVERRIDE
    before = path.stat().st_mode
    path.chmod(bits)
    assert libc.capset(header, fewer) == 0, ctypes.get_errno()
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0, ctypes.get_errno()
        path.chmod(before)
