"""The sizes and the number of the frames in AV1 data, read before any decoder runs.

https://aomediacodec.github.io/av1-spec/ (5.3 OBUs, 5.5 sequence header, 5.9 frame header)
"""

from __future__ import annotations

from dataclasses import dataclass

from app.codecs.bits import Bits
from app.codecs.limits import too_many
from app.contracts.errors import ImageUnreadable

OBUS = 65_536
"""Of all items of a file: a grid of 50 megapixels in tiles of 64 x 64 has three for each."""

_SEQUENCE_HEADER = 1
_FRAMES = frozenset({3, 6, 7})
"""Frame header, frame, and redundant frame header, which decoders take for one where none was."""
_HEADER_BYTES = 512
"""A sequence header with all 32 operating points."""
_EITHER = 2
"""What a sequence leaves to its frames."""
_KEY, _SWITCH = 0, 3


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What of a sequence header sizes and frame headers depend on."""

    width: int
    height: int
    reduced: bool
    time_bits: int
    """Of a frame's time of presentation; 0 where frames have none."""
    id_bits: int
    screen_content: int
    whole_motion: int


class Av1Frames:
    """Goes through the AV1 data of a file's items, one after the other."""

    def __init__(self) -> None:
        self._obus = 0

    def of(self, data: bytes) -> list[tuple[int, int]]:
        """Width and height of every frame, hidden ones included.

        Raises ImageUnreadable for what is not counted, and IndexError where the data ends.
        """
        frames = []
        sequence: _Sequence | None = None
        at = 0
        while at < len(data):
            self._obus += 1
            if self._obus > OBUS:
                raise too_many("AVIF", "AV1 units", OBUS)
            head = data[at]
            kind = head >> 3 & 15
            at += 2 if head & 4 else 1
            size = len(data) - at
            if head & 2:
                size, at = _number(data, at)
            payload = Bits(data[at : at + min(size, _HEADER_BYTES)])
            if kind == _SEQUENCE_HEADER:
                sequence = _sequence(payload)
            elif kind in _FRAMES:
                if sequence is None:
                    raise ImageUnreadable("the AVIF has a frame before its sequence header")
                if not sequence.reduced:
                    _check_size_kept(payload, sequence)
                frames.append((sequence.width, sequence.height))
            at += size
        return frames


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for place in range(8):
        value |= (data[at] & 0x7F) << 7 * place
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at


def _sequence(bits: Bits) -> _Sequence:
    bits.read(4)  # profile, still picture
    reduced = bool(bits.read(1))
    time_bits = 0
    if reduced:
        bits.read(5)
    else:
        time_bits = _operating_points(bits)
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    width, height = bits.read(width_bits) + 1, bits.read(height_bits) + 1
    if reduced:
        return _Sequence(width, height, True, 0, 0, _EITHER, _EITHER)
    id_bits = bits.read(4) + 2 + bits.read(3) + 1 if bits.read(1) else 0
    bits.read(7)  # block size, filters, compound modes, warped motion, dual filter
    if bits.read(1):
        bits.read(2)  # what depends on the order of frames
    screen_content = _EITHER if bits.read(1) else bits.read(1)
    whole_motion = _EITHER
    if screen_content and not bits.read(1):
        whole_motion = bits.read(1)
    return _Sequence(width, height, False, time_bits, id_bits, screen_content, whole_motion)


def _operating_points(bits: Bits) -> int:
    """Skips them, and what is said of time; returns the bits of a frame's time of presentation."""
    time_bits = delay_bits = 0
    if bits.read(1):
        bits.read(64)
        equal = bits.read(1)
        if equal:
            bits.variable()
        if bits.read(1):
            delay_bits = bits.read(5) + 1
            bits.read(37)
            time_bits = bits.read(5) + 1
            if equal:
                time_bits = 0
    display_delay = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)  # tier
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if display_delay and bits.read(1):
            bits.read(4)
    return time_bits


def _check_size_kept(bits: Bits, sequence: _Sequence) -> None:
    """Raises ImageUnreadable for a frame header with a size of its own, which may be larger than
    the sequence says."""
    if bits.read(1):
        return  # shows a frame that is there already
    kind = bits.read(2)
    shown = bits.read(1)
    bits.read(sequence.time_bits if shown else 1)
    if kind != _SWITCH and not (kind == _KEY and shown):
        bits.read(1)
    bits.read(1)
    screen_content = sequence.screen_content
    if screen_content == _EITHER:
        screen_content = bits.read(1)
    if screen_content and sequence.whole_motion == _EITHER:
        bits.read(1)
    bits.read(sequence.id_bits)
    if kind == _SWITCH or bits.read(1):
        raise ImageUnreadable("the AVIF has a frame of another size than its sequence")
