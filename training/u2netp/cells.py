"""Strips of pictures side by side, a line of text above each, put together to one sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from paddlepool.tasks.codecs.picture import Pixels

TEXT_HEIGHT = 18
FRAME = (0, 60, 90)


def text_line(text: str, width: int) -> Pixels:
    """White on black, `width` pixels wide; ASCII, which is all that OpenCV's fonts have."""
    line = np.zeros((TEXT_HEIGHT, width, 3), np.uint8)
    place = (3, TEXT_HEIGHT - 5)
    return cast(
        Pixels, cv2.putText(line, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1)
    )


def cell(parts: Sequence[Pixels], label: str, *, side: int) -> Pixels:
    """RGB or grey parts beside one another, each in a square of `side` pixels, unstretched."""
    fitted = np.hstack([_fit(part, side) for part in parts])
    strip = np.vstack([text_line(label, fitted.shape[1]), fitted])
    return cast(Pixels, cv2.copyMakeBorder(strip, 2, 2, 2, 2, cv2.BORDER_CONSTANT, value=FRAME))


def write_sheet(
    path: Path, cells: Sequence[Pixels], *, columns: int, title: str = "", quality: int = 82
) -> None:
    """Cells of one size, line by line; the last line may be short.

    Raises ValueError when the file cannot be written under this name.
    """
    blank = np.zeros_like(cells[0])
    lines = []
    for start in range(0, len(cells), columns):
        members = list(cells[start : start + columns])
        lines.append(np.hstack(members + [blank] * (columns - len(members))))
    if title:
        lines.insert(0, text_line(title, lines[0].shape[1]))
    sheet = cv2.cvtColor(np.vstack(lines), cv2.COLOR_RGB2BGR)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if path.suffix == ".jpg" else []
    # OpenCV raises for a suffix that it does not know and returns False for a failed write.
    if path.suffix not in (".jpg", ".png") or not cv2.imwrite(str(path), sheet, options):
        raise ValueError(f"{path}: cannot be written; the name must end in .jpg or .png")


def _fit(part: Pixels, side: int) -> Pixels:
    if part.ndim == 2:
        part = cast(Pixels, cv2.cvtColor(part, cv2.COLOR_GRAY2RGB))
    scale = side / max(part.shape[:2])
    height, width = (max(1, round(size * scale)) for size in part.shape[:2])
    square = np.zeros((side, side, 3), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = cv2.resize(
        part, (width, height), interpolation=cv2.INTER_AREA
    )
    return square
