"""Three masks that need no training: what any weights must clearly beat."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from app.quality.masks import Map, Pixels


def nothing(picture: Pixels) -> Map:
    """All zero, H×W."""
    return np.zeros(picture.shape[:2], np.float32)


def centred_ellipse(picture: Pixels) -> Map:
    """An ellipse in the middle with axes 0.6 of the sides."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    across = (x - (width - 1) / 2) / (0.3 * width)
    down = (y - (height - 1) / 2) / (0.3 * height)
    inside: Map = (across**2 + down**2 <= 1).astype(np.float32)
    return inside


def grabcut(picture: Pixels) -> Map:
    """OpenCV's GrabCut, five rounds, from a centred box that leaves out 15 % on every side."""
    height, width = picture.shape[:2]
    left, top = round(0.15 * width), round(0.15 * height)
    labels = np.zeros((height, width), np.uint8)
    background, foreground = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(0)
    cv2.grabCut(
        np.ascontiguousarray(picture[..., ::-1]),
        labels,
        (left, top, width - 2 * left, height - 2 * top),
        background,
        foreground,
        5,
        cv2.GC_INIT_WITH_RECT,
    )
    return np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.float32)


BASELINES: dict[str, Callable[[Pixels], Map]] = {
    "all-zero mask": nothing,
    "centred ellipse": centred_ellipse,
    "GrabCut from a centred box": grabcut,
}
