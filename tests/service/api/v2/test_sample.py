"""GET /v2/models/{model}/sample: what it returns is answered when it is sent back."""

import json

import httpx
import numpy as np
import pytest

from paddlepool.service.api.v2.documents import write_request
from tests.service.api.fakes import product_client

HEADER = "Inference-Header-Content-Length"


@pytest.mark.parametrize("path", ["/v2/models/double", "/v2/models/double/versions/1"])
async def test_the_sample_is_a_request_that_is_answered(
    client: httpx.AsyncClient, path: str
) -> None:
    """The first input of the self-test, raw after the JSON; a group may be named in it."""
    reply = await client.get(f"{path}/sample")
    assert reply.headers["content-type"] == "application/octet-stream"
    length = int(reply.headers[HEADER])
    document, raw = json.loads(reply.content[:length]), reply.content[length:]
    [entry] = document["inputs"]
    assert (entry["name"], entry["datatype"]) == ("x", "FP32")
    assert entry["parameters"] == {"binary_data_size": len(raw)}
    values = np.frombuffer(raw, "<f4").reshape(entry["shape"])
    text = json.dumps(document | {"parameters": {"predictor": "main"}}).encode()
    inferred = await client.post(
        f"{path}/infer", content=text + raw, headers={HEADER: str(len(text))}
    )
    assert inferred.headers["x-predictor"] == "main"
    assert inferred.json()["outputs"][0]["data"] == pytest.approx((2 * values).ravel().tolist())


async def test_only_a_served_version_has_a_sample(client: httpx.AsyncClient) -> None:
    for path in ("nobody", "double/versions/7"):
        assert (await client.get(f"/v2/models/{path}/sample")).status_code == 404
    # A task takes pictures or texts, and the page has its own.
    async with product_client().session() as product:
        assert (await product.get("/v2/models/segment/sample")).status_code == 404


def test_every_type_is_written_little_endian_and_row_major() -> None:
    """Also from an array that lies otherwise in memory."""
    big = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    body, length = write_request({"flags": np.array([True, False]), "ids": big.astype("<i4")})
    document, raw = json.loads(body[:length]), body[length:]
    assert [(entry["datatype"], entry["shape"]) for entry in document["inputs"]] == [
        ("BOOL", [2]),
        ("INT32", [2, 3]),
    ]
    assert raw == b"\1\0" + np.arange(6, dtype="<i4").tobytes()
