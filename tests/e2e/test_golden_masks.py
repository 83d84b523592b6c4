"""The official weights, served and asked over HTTP: the official masks."""

import io

import numpy as np
import pytest
from PIL import Image

from app.making.export.publish import published_version
from app.making.export.release import U2NETP_RELEASE
from tests.e2e.process import ROOT, Server

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

SHARED = ROOT / ".." / "shared"
GOLDEN = SHARED / "data" / "u2net_golden"
MODEL = ROOT / "model_repo" / "u2netp"


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_official_weights_give_the_official_masks(full_server: Server, step: int) -> None:
    """As `paddlepool pull u2netp` has published them: mean MAE ≤ 0.001, worst ≤ 0.002. Every third
    of the twelve pictures, all of them each night."""
    version = published_version(MODEL, U2NETP_RELEASE.sha256)
    if version is None:
        pytest.skip("NOT TESTED: no official weights in model_repo: `paddlepool pull u2netp`")
    if not GOLDEN.is_dir():
        pytest.skip("NOT TESTED: the golden pictures are not beside the project")
    errors = {}
    with full_server.client() as client:
        for picture in sorted((GOLDEN / "images").iterdir())[::step]:
            response = client.post(
                f"/segment?output=mask&refine=none&model=u2netp@{version.name}",
                content=picture.read_bytes(),
                headers={"content-type": "image/*"},
            )
            assert response.status_code == 200, response.text
            ours = np.asarray(Image.open(io.BytesIO(response.content)), np.float64)
            mask = Image.open(GOLDEN / "masks" / f"{picture.stem}.png").convert("L")
            official = np.asarray(mask, np.float64)
            assert ours.shape == official.shape
            errors[picture.name] = float(np.abs(ours - official).mean() / 255)
    print({name: round(error, 5) for name, error in errors.items()})
    assert len(errors) * step == 12
    assert np.mean(list(errors.values())) <= 0.001
    assert max(errors.values()) <= 0.002
