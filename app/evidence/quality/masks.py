"""MAE, max-F and IoU of predicted masks, and three baselines that any weights must clearly beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float32]
Pixels = NDArray[np.uint8]

BETA_SQUARED = 0.3
"""Weight of recall in F, the field's convention since Achanta et al. 2009."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over pictures; `max_f` is the maximum of the mean F curve over 256 thresholds."""

    mae: float
    max_f: float
    iou: float
    pictures: int

    def __str__(self) -> str:
        return (
            f"MAE {self.mae:.4f}  max-F {self.max_f:.4f}  IoU@0.5 {self.iou:.4f}"
            f"  ({self.pictures} pictures)"
        )


def measure(predictions: Iterable[Map], truths: Iterable[Pixels]) -> Quality:
    """Compare H×W maps in 0…1 with graded uint8 masks.

    MAE compares with the graded mask, F and IoU with the mask thresholded at half. A picture with
    neither a true nor a predicted pixel at half has IoU 1.
    """
    errors, overlaps, precisions, recalls = [], [], [], []
    for prediction, truth in zip(predictions, truths, strict=True):
        errors.append(float(np.abs(prediction - truth.astype(np.float32) / 255).mean()))
        solid = truth > 127
        guess = prediction > 0.5
        union = int((guess | solid).sum())
        overlaps.append(int((guess & solid).sum()) / union if union else 1.0)
        level = np.clip(np.rint(prediction * 255), 0, 255).astype(np.int64)
        hits = np.bincount(level[solid], minlength=256)[::-1].cumsum()
        marked = np.bincount(level.ravel(), minlength=256)[::-1].cumsum()
        precisions.append(hits / np.maximum(marked, 1))
        recalls.append(hits / max(int(solid.sum()), 1))
    precision, recall = np.mean(precisions, axis=0), np.mean(recalls, axis=0)
    f = (1 + BETA_SQUARED) * precision * recall
    f = f / np.maximum(BETA_SQUARED * precision + recall, 1e-12)
    return Quality(float(np.mean(errors)), float(f.max()), float(np.mean(overlaps)), len(overlaps))


def nothing(picture: Pixels) -> Map:
    """Return an H×W mask of zeros."""
    return np.zeros(picture.shape[:2], np.float32)


def centred_ellipse(picture: Pixels) -> Map:
    """Return a centred ellipse whose axes are 0.6 of the sides."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    across = (x - (width - 1) / 2) / (0.3 * width)
    down = (y - (height - 1) / 2) / (0.3 * height)
    inside: Map = (across**2 + down**2 <= 1).astype(np.float32)
    return inside


def grabcut(picture: Pixels) -> Map:
    """Run five rounds of OpenCV's GrabCut from a centred box with a margin of 15 % on each side."""
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
