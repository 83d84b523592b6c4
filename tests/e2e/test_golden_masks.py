"""The reference weights, imported, served and asked over HTTP, against the official masks."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.e2e.process import ROOT, running

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

SHARED = ROOT / ".." / "shared"
GOLDEN = SHARED / "data" / "u2net_golden"
WEIGHTS = SHARED / "weights" / "u2netp_reference.npz"


def test_served_masks_are_the_official_ones(tmp_path: Path) -> None:
    """Export, server, codecs and oneDNN: mean MAE ≤ 0.002 over 12 pictures, worst ≤ 0.006."""
    if not (GOLDEN.is_dir() and WEIGHTS.exists()):
        pytest.skip("NOT TESTED: the golden pictures are not beside the project")
    repository = tmp_path / "model_repo"
    export = ["export", "u2netp", "--weights", str(WEIGHTS), "--repository", str(repository)]
    provenance = ["--origin", "reference reconstruction", "--licence", "Apache-2.0"]
    subprocess.run(
        [sys.executable, "-m", "app.cli", *export, *provenance, "--source", "reference"],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    errors = {}
    with running(repository, tmp_path) as server, server.client() as client:
        server.wait_loaded()
        for picture in sorted((GOLDEN / "images").iterdir()):
            response = client.post(
                "/segment?output=mask&refine=none",
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
    assert len(errors) == 12
    assert np.mean(list(errors.values())) <= 0.002
    assert max(errors.values()) <= 0.006
