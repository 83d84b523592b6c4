"""Clients of other servers against a real server, unchanged but for the address and the key."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import KEY
from tests.e2e.process import ROOT, Server
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

PHOTO = ROOT / "docs" / "images" / "astronaut.jpg"
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
HEADERS = {"X-Api-Key": KEY}
HAPPY = "今天收到了大学的录取通知书，太开心了！"


@pytest.fixture
def client(keyed_server: Server) -> Iterator[httpx.Client]:
    with keyed_server.client() as client:
        client.headers.update(HEADERS)
        yield client


def opened(encoded: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)))


def mask_of(client: httpx.Client, **query: str) -> np.ndarray:
    """What the task itself gives for the photo."""
    kind = {"Content-Type": "image/jpeg"}
    query = {"output": "mask"} | query
    response = client.post("/segment", content=PHOTO.read_bytes(), headers=kind, params=query)
    assert response.status_code == 200, response.text
    return opened(response.content)


def test_the_hub_client_classifies_a_text(keyed_server: Server) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(model=keyed_server.url, token=KEY)
    labels = client.text_classification(HAPPY)
    assert labels[0].label == "happy"
    assert len(labels) == 6
    assert sum(label.score for label in labels) == pytest.approx(1, abs=1e-5)
    assert len(client.text_classification(HAPPY, top_k=2)) == 2
    with pytest.raises(hub.errors.HfHubHTTPError, match="candidate_labels"):
        client.zero_shot_classification(HAPPY, ["开心", "难过"])
    with pytest.raises(hub.errors.HfHubHTTPError, match="visible"):
        client.text_classification(" ")
    with pytest.raises(hub.errors.HfHubHTTPError, match="API key"):
        hub.InferenceClient(
            model=f"{keyed_server.url}/sentiment", token="wrong"
        ).text_classification("a")


def test_the_hub_client_segments_a_picture(keyed_server: Server, client: httpx.Client) -> None:
    hub = pytest.importorskip("huggingface_hub")
    hugging = hub.InferenceClient(model=f"{keyed_server.url}/segment", token=KEY)
    soft, hard = mask_of(client), mask_of(client, threshold="0.5")
    at_address = hub.InferenceClient(model=keyed_server.url, token=KEY)
    sources = (hugging, PHOTO), (hugging, str(PHOTO)), (at_address, PHOTO.read_bytes())
    for hub_client, photo in sources:
        [segment] = hub_client.image_segmentation(photo)
        assert segment.label == "foreground"
        assert 0.5 < segment.score <= 1
        assert np.array_equal(np.asarray(segment.mask), soft)
    [segment] = at_address.image_segmentation(PHOTO, mask_threshold=0.5)
    assert np.array_equal(np.asarray(segment.mask), hard)
    with pytest.raises(hub.errors.HfHubHTTPError, match="in no picture format"):
        hugging.image_segmentation(b"no picture")


REMOVEBG = """
import base64, sys
import removebg.removebg as module

address, key, photo, directory = sys.argv[1:]
module.API_ENDPOINT = address
client = module.RemoveBg(key, f"{directory}/errors.log")
client.remove_background_from_img_file(photo, size="full")
client.remove_background_from_img_file(photo, size="regular", bg_color="81d4fa")
encoded = base64.b64encode(open(photo, "rb").read()).decode()
client.remove_background_from_base64_img(encoded, size="full", new_file_name=f"{directory}/64.png")
stranger = module.RemoveBg("wrong", f"{directory}/errors.log")
for give in (
    lambda: client.remove_background_from_img_url("http://a.example/x.jpg"),
    lambda: stranger.remove_background_from_img_file(photo),
):
    try:
        give()
    except Exception as error:
        print(error.response.status_code, error.response.json()["errors"][0]["code"])
"""


def test_the_removebg_client(keyed_server: Server, client: httpx.Client, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("SKIPPED THE CLIENT OF REMOVE.BG: `make .venv-clients/.installed` installs it")
    photo = shutil.copy(PHOTO, tmp_path / "photo.jpg")
    command = [PYTHON, "-c", REMOVEBG, f"{keyed_server.url}/v1.0/removebg", KEY, photo, tmp_path]
    done = ran([str(word) for word in command])
    assert done.stdout.split("\n")[:2] == ["400 invalid_image_url", "403 auth_failed"]
    expected = mask_of(client, output="cutout")
    assert np.array_equal(opened((tmp_path / "64.png").read_bytes()), expected)
    with Image.open(f"{photo}_no_bg.png") as picture:  # the second of the name
        assert (picture.mode, picture.width) == ("RGB", 500)
        corner = np.asarray(picture)[8, 490].astype(int)
    assert np.abs(corner - (0x81, 0xD4, 0xFA)).max() <= 12
