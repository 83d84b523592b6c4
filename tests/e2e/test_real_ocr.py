"""`/ocr` with the official models, which are not committed and not downloaded by a test.

PADDLEPOOL_TEST_OCR_REPOSITORY names a model repository that `paddlepool pull ocr` has filled.
"""

import json
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENT
from tests.e2e.process import ROOT, Server, running

DATA = ROOT.parent / "shared" / "data" / "ocr"
VARIABLE = "PADDLEPOOL_TEST_OCR_REPOSITORY"
RECEIPTS = 3
LEAST_SHARE = 0.95
"""Of all 29 receipts, 97.7 % of the characters are found, and 97.9 % of those read are right."""

pytestmark = [pytest.mark.paddle, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not (repository := os.environ.get(VARIABLE)):
        pytest.skip(f"{VARIABLE} names no repository: /ocr NOT checked with the official models")
    if not DATA.is_dir():
        pytest.skip(f"no pictures at {DATA}: /ocr NOT checked with the official models")
    directory = tmp_path_factory.mktemp("server")
    with running(Path(repository), directory, settings=PATIENT) as server:
        yield server


def characters(texts: Sequence[str]) -> Counter[str]:
    return Counter("".join("".join(texts).split()).lower())


def test_receipts_are_read_as_a_person_read_them(server: Server) -> None:
    truth = json.loads((DATA / "receipts_truth.json").read_text("utf-8"))
    wanted = read = right = 0
    with server.client() as client:
        for name in sorted(truth)[:RECEIPTS]:
            picture = (DATA / "images" / name).read_bytes()
            reply = client.post("/ocr", content=picture, headers={"content-type": "image/jpeg"})
            [page] = reply.raise_for_status().json()["pages"]
            got = characters([line["text"] for line in page["lines"]])
            true = characters([line["text"] for line in truth[name]])
            wanted, read = wanted + true.total(), read + got.total()
            right += (true & got).total()
    assert right >= LEAST_SHARE * wanted
    assert right >= LEAST_SHARE * read


def test_boxes_are_those_of_paddlex(server: Server) -> None:
    """At PaddleX's own limit; texts differ a little with the padding of the lines."""
    reference = json.loads((DATA / "reference.json").read_text("utf-8"))
    name = next(name for name in sorted(reference) if len(reference[name]) > 5)
    body = {"textDetLimitSideLen": 64, "textDetLimitType": "min", "fileType": 1}
    with server.client() as client:
        picture = b64encode((DATA / "images" / name).read_bytes()).decode()
        reply = client.post("/ocr", json=body | {"file": picture})
    [page] = reply.raise_for_status().json()["result"]["ocrResults"]
    boxes = [line["box"] for line in reference[name]]
    assert page["prunedResult"]["rec_polys"] == boxes
