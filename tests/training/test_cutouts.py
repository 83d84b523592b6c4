"""The sheet of a model card: laid out without distortion, drawn by the model that is served."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from training.u2netp.cells import FRAME, TEXT_HEIGHT, cell, write_sheet
from training.u2netp.cutouts import MAX_BYTES, PICTURES, SHEET, SIDE, main, over_checkerboard

ROOT = Path(__file__).parents[2]


def test_a_part_keeps_its_proportions() -> None:
    """A wide picture is centred in its square; what is left is black."""
    wide = np.full((50, 100, 3), 200, np.uint8)
    drawn = cell([wide, wide[..., 0]], "label", side=40)[2:-2, 2:-2]
    assert drawn.shape == (TEXT_HEIGHT + 40, 80, 3)
    squares = drawn[TEXT_HEIGHT:]
    assert (squares[10:30] == 200).all()
    assert not squares[:10].any()
    assert not squares[30:].any()


def test_a_short_last_line_is_filled_with_black(tmp_path: Path) -> None:
    """Three cells in two columns are two lines."""
    one = cell([np.full((8, 8), 255, np.uint8)], "", side=8)
    height, width = one.shape[:2]
    write_sheet(tmp_path / "sheet.png", [one] * 3, columns=2)
    sheet = cv2.cvtColor(cv2.imread(str(tmp_path / "sheet.png")), cv2.COLOR_BGR2RGB)
    assert sheet.shape == (2 * height, 2 * width, 3)
    assert tuple(sheet[height, 0]) == FRAME
    assert not sheet[height:, width:].any()


@pytest.mark.parametrize("name", ["sheet.gif", "sheet"])
def test_a_sheet_of_another_format_is_refused(tmp_path: Path, name: str) -> None:
    """The message names the two that there are."""
    with pytest.raises(ValueError, match=r"must end in \.jpg or \.png"):
        write_sheet(tmp_path / name, [np.zeros((8, 8, 3), np.uint8)], columns=1)


def test_the_background_shows_where_the_mask_is_empty() -> None:
    """Full alpha is the picture itself, none is the checkerboard, half of each between."""
    picture = np.full((24, 24, 3), 10, np.uint8)
    alpha = np.zeros((24, 24), np.uint8)
    alpha[:, 12:] = 255
    drawn = over_checkerboard(picture, alpha)
    assert (drawn[:12, :12] == 140).all()
    assert (drawn[12:, :12] == 200).all()
    assert (drawn[:, 12:] == 10).all()


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


def test_the_committed_sheet_is_small() -> None:
    """It is in every clone."""
    assert (ROOT / SHEET).stat().st_size <= MAX_BYTES


def test_without_pictures_the_command_says_so(tmp_path: Path) -> None:
    """Before a predictor is opened."""
    with pytest.raises(SystemExit, match="holds no"):
        main(["--pictures", str(tmp_path)])


def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With those that there are."""
    cv2.imwrite(str(tmp_path / "grey.jpg"), np.full((8, 8), 128, np.uint8))
    repository = ("--repository", str(ROOT / "model_repo"))
    with pytest.raises(SystemExit, match="no instance group 'fast', it has onednn, "):
        main([*repository, "--pictures", str(tmp_path), "--group", "fast"])
