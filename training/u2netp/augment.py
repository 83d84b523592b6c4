"""Turns a sample number into one augmented training picture with its seven targets.

Every random choice comes from (seed, sample number), so a resumed run and one with another
number of loader processes see exactly the same pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from training.u2netp.data import Corpus, Pixels

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Strengths of the augmentation, and the share of ground truth, not reference, in a target."""

    crop: float = 0.7
    smallest_crop: float = 0.45
    paste: float = 0.25
    grey: float = 0.08
    blur: float = 0.1
    truth: float = 0.5


def _window(mask: Pixels, random: Generator, recipe: Recipe) -> tuple[float, float, float, float]:
    """Relative crop box (left, top, width, height) that keeps most of the object, or all of it."""
    if random.random() >= recipe.crop:
        return 0.0, 0.0, 1.0, 1.0
    total = int(mask.sum(dtype=np.int64))
    side = mask.shape[0]
    for _ in range(4):
        width = random.uniform(recipe.smallest_crop, 1.0)
        height = float(np.clip(width * np.exp(random.uniform(-0.25, 0.25)), 0.4, 1.0))
        left, top = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
        visible = mask[
            int(top * side) : int((top + height) * side),
            int(left * side) : int((left + width) * side),
        ].sum(dtype=np.int64)
        if visible >= 0.6 * total:
            return left, top, width, height
    return 0.0, 0.0, 1.0, 1.0


def _cut(image: Pixels, box: tuple[float, float, float, float], size: int, flip: bool) -> Pixels:
    """Crop by the relative box, resize to size×size, mirror."""
    height, width = image.shape[:2]
    x0, y0 = round(box[0] * width), round(box[1] * height)
    x1, y1 = round((box[0] + box[2]) * width), round((box[1] + box[3]) * height)
    shrinks = (x1 - x0) > size
    piece = cv2.resize(
        image[y0:y1, x0:x1],
        (size, size),
        interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
    )
    return np.asarray(piece[:, ::-1] if flip else piece, np.uint8)


def _colour(picture: Pixels, random: Generator, recipe: Recipe) -> Pixels:
    """Contrast, brightness, tint, saturation and gamma; now and then grey or blurred."""
    image = picture.astype(np.float32) / 255
    grey = image @ np.array([0.299, 0.587, 0.114], np.float32)
    saturation = 0.0 if random.random() < recipe.grey else random.uniform(0.5, 1.5)
    image = grey[..., None] + (image - grey[..., None]) * np.float32(saturation)
    image *= random.uniform(0.9, 1.1, 3).astype(np.float32)
    mean = float(image.mean())
    image = (image - mean) * np.float32(random.uniform(0.65, 1.35)) + mean
    image += np.float32(random.uniform(-0.12, 0.12))
    image = np.clip(image, 0, 1) ** np.float32(np.exp(random.uniform(-0.3, 0.3)))
    if random.random() < recipe.blur:
        image = cv2.GaussianBlur(image, (0, 0), random.uniform(0.4, 1.2))
    return np.rint(image * 255).astype(np.uint8)


class Samples:
    """An endless stream: number → (picture S×S×3 RGB, targets 7×S×S), both uint8."""

    def __init__(self, corpus: Corpus, *, size: int, seed: int, recipe: Recipe) -> None:
        self.corpus = corpus
        self.size = size
        self.seed = seed
        self.recipe = recipe
        self.rows = corpus.training

    def __getitem__(self, number: int) -> tuple[Pixels, Pixels]:
        epoch, place = divmod(number, len(self.rows))
        order = np.random.default_rng([self.seed, 1, epoch]).permutation(self.rows)
        random = np.random.default_rng([self.seed, 2, number])
        picture, target, _ = self._view(int(order[place]), random)
        if random.random() < self.recipe.paste:
            picture, target = self._paste(picture, target, random)
        return picture, np.rint(target * 255).astype(np.uint8)

    def _view(self, row: int, random: Generator) -> tuple[Pixels, Floats, Floats]:
        """One cropped, mirrored and recoloured pair: picture, seven targets, its plain mask."""
        corpus, size = self.corpus, self.size
        box = _window(corpus.masks[row], random, self.recipe)
        flip = bool(random.random() < 0.5)
        picture = _colour(_cut(corpus.pictures[row], box, size, flip), random, self.recipe)
        mask = _cut(corpus.masks[row], box, size, flip).astype(np.float32) / 255
        target = np.repeat(mask[None], 7, axis=0)
        if corpus.soft_fused is not None and corpus.soft_sides is not None:
            soft = np.empty_like(target)
            soft[0] = _cut(corpus.soft_fused[row], box, size, flip)
            # OpenCV resizes at most four channels at once.
            for first in (0, 3):
                three = corpus.soft_sides[row, first : first + 3].transpose(1, 2, 0)
                piece = _cut(np.ascontiguousarray(three), box, size, flip)
                soft[first + 1 : first + 4] = piece.transpose(2, 0, 1)
            share = np.float32(self.recipe.truth)
            target = share * target + (1 - share) * (soft / np.float32(255))
        return picture, target, mask

    def _paste(self, under: Pixels, target: Floats, random: Generator) -> tuple[Pixels, Floats]:
        """Lay another picture's object, shifted and scaled, over this one; both stay salient."""
        over, other, mask = self._view(int(random.choice(self.rows)), random)
        if not 0.03 < float(mask.mean()) < 0.5:
            return under, target
        scale = random.uniform(0.6, 1.1)
        shift = (random.uniform(-0.2, 0.2, 2) + (1 - scale) / 2) * self.size
        matrix = np.array([[scale, 0, shift[0]], [0, scale, shift[1]]], np.float32)
        extent = (self.size, self.size)
        alpha = cv2.warpAffine(mask, matrix, extent)
        moved = cv2.warpAffine(over, matrix, extent)
        salient = np.stack([cv2.warpAffine(plane, matrix, extent) for plane in other])
        mixed = under + (moved.astype(np.float32) - under) * alpha[..., None]
        # At the object's edge its map has already faded, so it is added, not blended once more.
        union = np.minimum(salient * (alpha > 0) + target * (1 - alpha), 1)
        return np.rint(mixed).astype(np.uint8), union.astype(np.float32)
