"""Converts decoded pictures of any mode to 8-bit RGB. Runs only in a codec process."""

import numpy as np
from PIL import Image

from app.tasks.codecs.picture import Pixels, bands

CLEAR_WHITE = 0x00FFFFFF
"""White with alpha 0, the highest value with alpha 0: red, green, blue and alpha as one number."""


def to_rgb(image: Image.Image, cover: Pixels | None = None) -> Pixels:
    """Convert to RGBA if any pixel is transparent, else to RGB.

    `cover` (H, W) is an alpha that the image itself lacks.
    """
    if image.mode.startswith("I"):
        # Pillow's own conversion of 16 bits clips everything above 255 to white.
        values = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode == "La":  # grey premultiplied by alpha
        image = image.convert("LA")
    transparent = cover is not None or image.has_transparency_data
    mode = "RGBA" if transparent else "RGB"
    height, width = image.height, image.width
    pixels = np.empty((height, width, 4 if transparent else 3), np.uint8)
    # In bands, because of a whole picture Pillow would make one or two more copies.
    for rows in bands(height, width):
        part = image.crop((0, rows.start, width, rows.stop))
        pixels[rows] = np.asarray(part if part.mode == mode else part.convert(mode))
    if not transparent:
        return pixels
    if cover is not None:
        np.minimum(pixels[..., 3], cover, out=pixels[..., 3])
    if pixels[..., 3].min() == 255:
        return np.ascontiguousarray(pixels[..., :3])
    for rows in bands(height, width):
        whole = pixels[rows].view("<u4")  # a pixel is one number; alpha is its highest byte
        np.putmask(whole, whole <= CLEAR_WHITE, CLEAR_WHITE)
    return pixels
