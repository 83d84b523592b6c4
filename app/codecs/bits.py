"""Numbers of so many bits, as the headers of video coders have them."""

from __future__ import annotations


class Bits:
    """The most significant bit of each byte first. Raises IndexError at the end."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data)
        self._left = 8 * len(data)

    def read(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError("the data ends")
        return self._value >> self._left & (1 << count) - 1

    def variable(self) -> int:
        """A number in Exp-Golomb code: as many bits as there are zeros before its first."""
        zeros = 0
        while not self.read(1):
            zeros += 1
        return (1 << zeros) - 1 + self.read(zeros)
