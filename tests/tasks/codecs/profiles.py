"""ICC profiles made from their definitions, and what their colours are in sRGB."""

import struct
from collections.abc import Sequence

import numpy as np

D50 = (0.9642, 1.0, 0.8249)
SRGB = np.array(
    [[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.7141]]
)
"""Red, green and blue of sRGB as XYZ (columns), adapted to D50."""
P3 = np.array(
    [[0.51512, 0.29198, 0.1571], [0.2412, 0.69225, 0.06657], [-0.00105, 0.04189, 0.78407]]
)
ADOBE = np.array(
    [[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]]
)
GAMMA = 2.2


def _fixed(values: Sequence[float]) -> bytes:
    return struct.pack(f">{len(values)}l", *(round(65536 * value) for value in values))


def _curve(gamma: float) -> bytes:
    return b"curv" + struct.pack(">4xLHxx", 1, round(256 * gamma))


def profile(space: bytes, tags: dict[bytes, bytes], *, kind: bytes, connection: bytes) -> bytes:
    """A profile of version 2.4: a header, a table of tags and the tags' data."""
    place, table, data = 132 + 12 * len(tags), struct.pack(">L", len(tags)), b""
    for name, content in tags.items():
        table += name + struct.pack(">LL", place + len(data), len(content))
        data += content
    header = struct.pack(">L4xL4s4s4s", place + len(data), 0x02400000, kind, space, connection)
    header += struct.pack(">12x4s28x12s48x", b"acsp", _fixed(D50))
    return header + table + data


def rgb(colorants: np.ndarray, gamma: float = GAMMA) -> bytes:
    """A display's profile: the XYZ of its red, green and blue (columns) and one curve."""
    xyz = {
        name: b"XYZ \0\0\0\0" + _fixed(column.tolist())
        for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), colorants.T, strict=True)
    }
    curves = dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(gamma))
    white = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(D50)}
    return profile(b"RGB ", white | xyz | curves, kind=b"mntr", connection=b"XYZ ")


def grey(gamma: float) -> bytes:
    white = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(D50)}
    return profile(b"GRAY", white | {b"kTRC": _curve(gamma)}, kind=b"mntr", connection=b"XYZ ")


def cmyk(inks: Sequence[tuple[float, float, float]]) -> bytes:
    """A press whose 16 combinations of full inks have these colours in Lab, key changing first."""
    straight = bytes(range(256))
    levels = (value for lab in inks for value in (lab[0] * 2.55, lab[1] + 128, lab[2] + 128))
    table = struct.pack(">4s4xBBBx", b"mft1", 4, 3, 2) + _fixed(np.eye(3).ravel().tolist())
    table += straight * 4 + bytes(round(level) for level in levels) + straight * 3
    white = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(D50)}
    return profile(b"CMYK", white | {b"A2B0": table}, kind=b"prtr", connection=b"Lab ")


def in_srgb(colour: Sequence[int], colorants: np.ndarray, gamma: float = GAMMA) -> np.ndarray:
    """A colour of `rgb(colorants, gamma)` in sRGB, 0 to 255, by the definitions of both."""
    return _encoded(colorants @ (np.array(colour) / 255) ** gamma)


def lab_in_srgb(lab: Sequence[float]) -> np.ndarray:
    middle = (lab[0] + 16) / 116
    roots = np.array([middle + lab[1] / 500, middle, middle - lab[2] / 200])
    return _encoded(np.where(roots > 6 / 29, roots**3, (roots - 4 / 29) * 108 / 841) * D50)


def _encoded(xyz: np.ndarray) -> np.ndarray:
    linear = np.clip(np.linalg.inv(SRGB) @ xyz, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
