"""The measure of edge colours, on pairs that are drawn."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from edges import EDGES, SIDE, Pair, colour_error, composites_of, known_alpha


def pair(name: str, *, left: int) -> Pair:
    random = np.random.default_rng(left)
    mask = np.zeros((320, 320), np.uint8)
    cv2.circle(mask, (left, 160), 70, 255, -1)
    return Pair(name, random.integers(0, 255, (320, 320, 3), dtype=np.uint8), mask)


def test_true_colours_have_no_error_and_the_mixture_has_one() -> None:
    """The foreground is another pair's than the background."""
    made = composites_of([pair("a", left=80), pair("b", left=240)], 2)
    assert len(made) == 2
    for each in made:
        alpha = np.rint(each.alpha * 255).astype(np.uint8)
        assert colour_error(each, each.colours, alpha) == 0
        assert colour_error(each, each.picture, alpha) > 5


@pytest.mark.parametrize("edge", EDGES)
def test_below_the_known_alpha_is_foreground_alone(edge: str) -> None:
    """The alpha ends within the pair's own mask, so no old background is below it."""
    one = pair("a", left=160)
    own = cv2.resize(one.mask, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    alpha = known_alpha(one.solid(), edge, seed=1)
    assert own[alpha > 0].min() == 255
    assert ((alpha > 0.02) & (alpha < 0.98)).sum() > 1000
