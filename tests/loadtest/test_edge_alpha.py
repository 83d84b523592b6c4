"""The solver that matting is measured with, where its answer is known."""

from __future__ import annotations

import numpy as np
from edge_alpha import Laplacian, solved

from app.pipelines.segment.matte import Floats


def test_an_alpha_that_colours_explain_is_found_between_what_is_held_fixed() -> None:
    """Two colours mixed by a ramp: what starts at a half comes out as the ramp."""
    row = np.clip((np.arange(60) - 15) / 30, 0, 1).astype(np.float32)
    ramp: Floats = np.tile(row, (40, 1))
    front, back = np.array([0.9, 0.3, 0.2]), np.array([0.1, 0.4, 0.8])
    picture = (ramp[..., None] * front + (1 - ramp[..., None]) * back).astype(np.float32)
    band = ((ramp > 0) & (ramp < 1)).astype(np.uint8)
    start = np.where(band > 0, np.float32(0.5), ramp)
    laplacian = Laplacian(picture, radius=1, epsilon=1e-5)
    assert np.abs(laplacian @ ramp).max() < 1e-3
    alpha = solved(laplacian, start, band, start, prior=0.0)
    assert np.abs(alpha - ramp).mean() < 0.1 * np.abs(start - ramp).mean()
