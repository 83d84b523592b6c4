"""The sheet of a model card: laid out without distortion, drawn by the model that is served."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from training.u2netp.cutouts import PICTURES, SIDE, main

ROOT = Path(__file__).parents[2]


def test_every_picture_names_its_source() -> None:
    """Nothing is shown whose licence is not told."""
    told = (PICTURES / "SOURCES.md").read_text("utf-8")
    assert [path.name for path in PICTURES.glob("*.jpg") if f"| `{path.name}` |" not in told] == []


@pytest.mark.paddle
def test_the_served_model_draws_the_sheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Picture, mask and cut-out beside one another; the mask is neither empty nor full."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    picture = np.full((160, 240, 3), 230, np.uint8)
    cv2.circle(picture, (120, 80), 45, (20, 20, 160), -1)
    cv2.imwrite(str(pictures / "disc.jpg"), picture)
    sheet = tmp_path / "docs" / "sheet.png"
    repository = str(ROOT / "model_repo")
    main(["--repository", repository, "--pictures", str(pictures), "--out", str(sheet)])
    assert "1 pictures" in capsys.readouterr().out
    whole = cv2.imread(str(sheet))
    assert whole is not None
    drawn = whole[-SIDE - 2 : -2, 2 : 2 + 3 * SIDE]
    mask = drawn[:, SIDE : 2 * SIDE, 0]
    assert mask[SIDE // 2, SIDE // 2] > 128
    assert mask[40, 5] < 128
