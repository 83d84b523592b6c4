"""Pages of many sizes for the measurement of memory."""

from pathlib import Path

import cv2
import numpy as np
from ocr_memory import SIDES, pages


def test_no_two_pages_have_the_same_size(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture", "utf-8")
    for name, (height, width) in {"a.png": (90, 60), "b.png": (40, 200)}.items():
        cv2.imwrite(str(tmp_path / name), np.zeros((height, width), np.uint8))
    sizes = [
        cv2.imdecode(np.frombuffer(page, np.uint8), cv2.IMREAD_COLOR).shape[:2]  # type: ignore[union-attr]
        for page in pages(tmp_path, 40)
    ]
    assert len(sizes) == len(set(sizes)) == 40
    assert all(SIDES[0] <= max(size) <= SIDES[1] for size in sizes)
