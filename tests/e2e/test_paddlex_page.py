"""docs/paddlex.md, typed: from folders in PaddleX's form to answers, with tiny networks."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import PATIENT
from tests.e2e.process import running
from tests.e2e.test_documents import Desk, runnable
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow, pytest.mark.nightly]

NAMES = {
    "Tiny_x1.0_cls": "PP-LCNet_x1_0_doc_ori",
    "Tiny_seg": "PP-LiteSeg-T",
    "Tiny_det": "PP-OCRv5_mobile_det",
    "Tiny_rec": "PP-OCRv5_mobile_rec",
}


def make_downloads(root: Path) -> None:
    """Write the tiny models of tests.making under the names of the page."""
    ran([sys.executable, "-W", "ignore", "-m", "tests.making.export.paddlex_models", str(root)])
    for own, name in NAMES.items():
        (root / own).rename(root / name)
        file = root / name / "inference.yml"
        described = yaml.safe_load(file.read_text("utf-8"))
        described["Global"]["model_name"] = name
        file.write_text(yaml.safe_dump(described), "utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT TESTED: no curl on this machine")
def test_the_page_leads_from_a_folder_to_answers(tmp_path: Path) -> None:
    make_downloads(tmp_path / "downloads")
    desk = Desk(tmp_path)
    texts = [text for _, text in runnable("docs/paddlex.md")]
    imports = [text for text in texts if text.startswith("paddlepool import")]
    output = "".join(desk.run("sh", text) for text in imports)
    assert "pp-lcnet-x1-0-doc-ori: published" in output
    assert "pp-lcnet-x1-0-doc-ori/1 has these weights already" in output
    assert "ocr: published" in output
    with running(tmp_path / "models", tmp_path, settings=PATIENT) as server:
        desk.at(server.url)
        replies = "".join(desk.run("sh", text) for text in texts if text not in imports)
        unserved = [line for line in server.log() if "no model serves" in line["event"]]
    assert "/docs/errors#" not in replies
    assert '"model":"pp-lcnet-x1-0-doc-ori"' in replies
    assert '"pages":' in replies
    assert '"labelMap":' in replies
    for name in ("labels.png", "mask.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG", name
    assert [line["event"] for line in unserved] == ["no model serves the task sentiment"]
