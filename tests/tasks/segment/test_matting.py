"""Matting: what it finds in hair, what it leaves as it is, and that its cost has a bound."""

import cv2
import numpy as np
import pytest

from paddlepool.tasks.codecs.picture import Floats, Pixels
from paddlepool.tasks.segment import refine
from paddlepool.tasks.segment.refine import ColourModel, guided_alpha, matted_alpha, unexplained

FRONT, BACK = np.array([0.9, 0.3, 0.2]), np.array([0.1, 0.4, 0.8])


def mixed(alpha: Floats) -> Floats:
    share = alpha[..., None]
    return (share * FRONT + (1 - share) * BACK).astype(np.float32)


def seen(alpha: Floats) -> tuple[Pixels, Floats]:
    """The picture, with grain, and the mask of a network that sees it blurred and small."""
    grain = np.random.default_rng(3).integers(-6, 7, (*alpha.shape, 3))
    picture = np.clip(np.rint(mixed(alpha) * 255) + grain, 0, 255).astype(np.uint8)
    blurred = cv2.GaussianBlur(alpha, (0, 0), 3)
    return picture, cv2.resize(blurred, (320, 320), interpolation=cv2.INTER_AREA)


def disc(side: int, *, fur: float) -> Floats:
    """An alpha (side, side) that rises at once, or through rough translucent `fur` so many wide."""
    rows, columns = np.mgrid[:side, :side]
    depth = np.clip(side / 4 - np.hypot(rows - side / 2, columns - side / 2), 0, None)
    noise = np.random.default_rng(5).normal(0, 1, depth.shape).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 1.3)
    rough = 0.45 * noise / noise.std() * np.clip(1 - depth / fur, 0, 1) * np.clip(depth / 3, 0, 1)
    return np.clip(depth / fur + rough, 0, 1).astype(np.float32)


def off(alpha: Pixels, truth: Floats) -> float:
    return float(np.abs(alpha / 255.0 - truth).mean())


@pytest.mark.parametrize(("fur", "most"), [(16, 0.67), (1, 1.05)], ids=["hair", "a sharp edge"])
def test_hair_is_nearer_to_the_truth_than_guided(fur: float, most: float) -> None:
    """For translucent fur, which the mask shows only as a haze, matting removes a third of the
    error. A sharp edge stays as good."""
    truth = disc(480, fur=fur)
    picture, mask = seen(truth)
    guided = off(guided_alpha(picture, mask), truth)
    assert off(matted_alpha(picture, mask), truth) <= most * guided


def test_what_is_thinner_than_the_band_is_not_eaten() -> None:
    """A grey leg before grey grass, 6 pixels wide, which the network is sure of."""
    rows, columns = np.mgrid[:480, :480]
    across = np.abs(columns - 200 - 0.3 * rows)
    leg = np.clip(3.5 - across, 0, 1).astype(np.float32)
    grass = np.random.default_rng(4).normal(130, 25, (480, 480))
    grey = np.clip(np.where(across < 1.2, 225, np.where(leg > 0.5, 90, grass)), 0, 255)
    picture = np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)
    mask = cv2.resize(cv2.GaussianBlur(leg, (0, 0), 1), (320, 320), interpolation=cv2.INTER_AREA)
    mask = np.clip(1.4 * mask, 0, 1)
    guided, alpha = guided_alpha(picture, mask), matted_alpha(picture, mask)
    body = leg == 1
    assert alpha[body].mean() >= 0.95 * guided[body].mean()


@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (3, 5), (211, 307), (900, 40)])
def test_whatever_the_picture_and_mask_only_the_band_differs_from_guided(
    shape: tuple[int, int],
) -> None:
    """Noise in both: levels of the picture's size, and guided's where the network is sure."""
    random = np.random.default_rng(shape[1])
    pixels = random.integers(0, 255, (*shape, 3), dtype=np.uint8)
    noise = random.random((24, 32)).astype(np.float32)
    mask = np.clip(2 * cv2.resize(noise, (320, 320)) - 0.5, 0, 1).astype(np.float32)
    mask[:, :120] = 1
    alpha, guided = matted_alpha(pixels, mask), guided_alpha(pixels, mask)
    assert (alpha.shape, alpha.dtype) == (shape, np.uint8)
    level = cv2.resize(mask, shape[::-1], interpolation=cv2.INTER_LINEAR)
    band = cv2.dilate(refine.unsure(level), np.ones((5, 5), np.uint8))
    assert np.array_equal(alpha[band == 0], guided[band == 0])


@pytest.mark.parametrize("shape", [(2000, 3000), (100, 16_000)])
def test_the_work_is_bounded_whatever_the_picture(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reduced picture and the rounds have a limit, also where nothing is sure."""
    products: list[int] = []

    def counted(model: ColourModel, alpha: Floats) -> Floats:
        products.append(alpha.size)
        return unexplained(model, alpha)

    monkeypatch.setattr(refine, "unexplained", counted)
    monkeypatch.setattr(refine, "ROUNDS", 5)
    pixels = np.random.default_rng(2).integers(0, 255, (*shape, 3), dtype=np.uint8)
    mask = np.random.default_rng(2).random((320, 320)).astype(np.float32)
    matted_alpha(pixels, mask)
    assert 0 < max(products) <= refine.SOLVED_PIXELS
    assert len(products) <= 6
