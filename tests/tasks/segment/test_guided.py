"""What the guided filter leaves out, because the mask is settled there, changes nothing."""

import numpy as np
import pytest

from paddlepool.tasks.codecs.picture import Floats, Pixels
from paddlepool.tasks.segment import refine


def picture(height: int, width: int) -> Pixels:
    random = np.random.default_rng(8)
    return random.integers(0, 255, (height, width, 3), dtype=np.uint8)


def discs() -> Floats:
    """A mask (160, 160): one disc with a soft edge, and one that is undecided throughout."""
    rows, columns = np.mgrid[:160, :160]
    solid = np.clip((30 - np.hypot(rows - 50, columns - 50)) / 5, 0, 1)
    unsure = 0.4 * (np.hypot(rows - 110, columns - 120) < 20)
    return np.maximum(solid, unsure).astype(np.float32)


@pytest.mark.parametrize(
    ("height", "width"),
    [(211, 307), (801, 1203), (300, 900)],
    ids=["every pixel", "blocks and a rest", "wide"],
)
def test_alpha_is_as_if_the_model_were_fitted_everywhere(
    height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, mask = picture(height, width), discs()
    alpha = refine.guided_alpha(pixels, mask)

    def nothing(stretched: Floats, _: int) -> tuple[Pixels, Pixels]:
        return np.zeros(stretched.shape, np.uint8), np.zeros(stretched.shape, np.uint8)

    monkeypatch.setattr(refine, "_certain_regions", nothing)
    everywhere = refine.guided_alpha(pixels, mask)
    assert np.abs(alpha.astype(int) - everywhere).max() <= 1
    assert {0, 255} <= set(alpha.ravel().tolist())


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (700, 500)])
def test_a_flat_mask_stays_flat(shape: tuple[int, int], value: float) -> None:
    alpha = refine.guided_alpha(picture(*shape), np.full((320, 320), value, np.float32))
    assert np.array_equal(np.full(shape, round(255 * value)), alpha)
