"""The arithmetic of matting on arrays: network input, mask to alpha, alpha to picture.

Pictures are (H, W, 3 or 4) uint8, alphas (H, W) uint8, masks (h, w) float32 from 0 to 1.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from app.tasks.codecs.picture import Floats, Pixels, bands
from app.tasks.segment.backdrop import flat, stacked
from app.tasks.segment.framing import Area
from app.tasks.segment.masks import normalise as normalise

WHITE = (255, 255, 255, 255)
BOX_LEVEL = 16
"""Alpha (of 255) from which a pixel counts as foreground for the box."""


def network_input(pixels: Pixels, size: int, mean: Sequence[float], std: Sequence[float]) -> Floats:
    """The network's input (1, 3, size, size), made as in U2-Net's training.

    The picture is scaled bilinearly and divided by its own maximum, as in RescaleT and
    ToTensorLab(flag=0) of https://github.com/xuebinqin/U-2-Net/blob/master/data_loader.py.
    Anti-aliasing while scaling would change the masks by several percent.
    """
    small = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_LINEAR)
    largest = max(1.0, float(small.max()))
    tensor = np.empty((1, 3, size, size), np.float32)
    for channel, (middle, spread) in enumerate(zip(mean, std, strict=True)):
        # One multiplication and one subtraction per value, on contiguous planes.
        np.multiply(small[..., channel], np.float32(1 / (largest * spread)), out=tensor[0, channel])
        tensor[0, channel] -= np.float32(middle / spread)
    return tensor


def confidence(mask: Floats) -> float:
    """Mean of |2p - 1| over the network's own probabilities."""
    return float(np.abs(2.0 * np.clip(mask, 0.0, 1.0) - 1.0).mean())


def plain_alpha(mask: Floats, width: int, height: int) -> Pixels:
    """The mask resized to the picture; levels are truncated, not rounded, as in save_output() of
    https://github.com/xuebinqin/U-2-Net/blob/master/u2net_test.py"""
    levels = (mask * np.float32(255.0)).astype(np.uint8)
    if width < levels.shape[1] or height < levels.shape[0]:
        # OpenCV would skip pixels. Pillow, which made the official masks, weights all of them.
        return np.array(Image.fromarray(levels).resize((width, height), Image.Resampling.BILINEAR))
    return cv2.resize(levels, (width, height), interpolation=cv2.INTER_LINEAR)


def box_of(alpha: Pixels) -> Area:
    """The foreground's place; all zeros when there is none."""
    foreground = cv2.threshold(alpha, BOX_LEVEL - 1, 255, cv2.THRESH_BINARY)[1]
    left, top, width, height = cv2.boundingRect(foreground)
    return Area(top, left, height, width)


def cutout(pixels: Pixels, alpha: Pixels) -> Pixels:
    """The cut-out, RGBA. Colours are 0 where alpha is 0: the file must not hold the background."""
    height, width = alpha.shape
    result = np.zeros((height, width, 4), np.uint8)
    for rows in bands(height, width):
        colours = cv2.cvtColor(np.ascontiguousarray(pixels[rows][..., :3]), cv2.COLOR_RGB2RGBA)
        cv2.mixChannels([alpha[rows]], [colours], [0, 3])
        cv2.copyTo(colours, alpha[rows], result[rows])
    return result


def over_white(pixels: Pixels) -> Pixels:
    """The picture as the network sees it: RGB, over white where it is transparent."""
    if pixels.shape[2] == 3:
        return pixels
    return stacked(pixels, pixels[..., 3], ground=flat(WHITE, pixels.shape[1]))
