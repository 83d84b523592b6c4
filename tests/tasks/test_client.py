"""The Python client against what the tasks declare."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from paddlepool.service.api.routes import ROUTING
from paddlepool.tasks.classify import router as classify
from paddlepool.tasks.ocr import router as ocr
from paddlepool.tasks.ocr.request import OPTIONS as OCR_OPTIONS
from paddlepool_client import ClassifyOptions, Client, OcrOptions

FORM = {"format"}
"""Options that change the form of the reply, which the client does not offer."""


@pytest.mark.parametrize(
    ("declared", "options"), [(ClassifyOptions, classify.OPTIONS), (OcrOptions, OCR_OPTIONS)]
)
def test_the_client_has_every_option(declared: type, options: dict[str, Any]) -> None:
    assert declared.__annotations__.keys() == ({*options} - FORM) | {*ROUTING}


@pytest.mark.parametrize(
    ("example", "call"),
    [
        (classify.EXAMPLE, lambda client: client.classify(b"").labels[0].label),
        (ocr.EXAMPLE, lambda client: client.ocr(b"").text),
    ],
)
def test_the_client_reads_the_documented_reply(
    example: dict[str, Any], call: Callable[[Client], str]
) -> None:
    reply = httpx.Response(200, json=example, headers={"X-Predictor": "onednn"})
    with Client("http://server", transport=httpx.MockTransport(lambda request: reply)) as client:
        assert call(client) in ("7", "TOTAL RM 9.00")
