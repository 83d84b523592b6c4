"""The requests that benchmarks send: pictures, texts and tensors."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
from harness import HOST, Server, json_request, request, send, wait_until
from inputs import draw_picture
from numpy.typing import NDArray

TEXT = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。今天天气真好"
CHOOSING_SECONDS = 600.0
HEAD_LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"float32": "FP32", "int64": "INT64"}


def picture() -> bytes:
    """The same JPEG of 1,152 × 868 = 1.0 MP on every call."""
    return draw_picture(1152, 868, seed=7).data


def mask_request(body: bytes, *, model: str = "", predictor: str = "") -> bytes:
    """A request for the mask of a JPEG."""
    named = {"model": model, "predictor": predictor}
    query = "".join(f"&{name}={value}" for name, value in named.items() if value)
    return request("POST", f"/segment?output=mask{query}", body, content_type="image/jpeg")


def text_request(inputs: str | list[str], **parameters: str) -> bytes:
    """A request for the emotion of one text, or of each text of a list."""
    non_empty = {name: value for name, value in parameters.items() if value}
    return json_request("/sentiment", {"inputs": inputs, "parameters": non_empty})


def tensor_request(model: str, arrays: Mapping[str, NDArray[Any]], **parameters: object) -> bytes:
    """A request of /v2 with arrays as bytes behind the JSON; the outputs come as bytes, too."""
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype.name],
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    parameters["binary_data_output"] = True
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return request(
        "POST",
        f"/v2/models/{model}/infer",
        head + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values()),
        content_type="application/octet-stream",
        headers={HEAD_LENGTH: str(len(head))},
    )


def load_request(model: str, *, key: str = "") -> bytes:
    """A request to load a model again, with the admin key."""
    headers = {"X-Api-Key": key, "Content-Length": "0"}
    return request("POST", f"/v2/repository/models/{model}/load", headers=headers)


def form(path: str, file: str, picture: bytes, **fields: str) -> bytes:
    """Build a form with fields, and the picture as its last part."""
    files = {file: ("p.jpg", picture, "image/jpeg")}
    made = httpx.Request("POST", f"http://{HOST}{path}", data=fields, files=files)
    return request("POST", path, made.read(), content_type=made.headers["content-type"])


def wait_chosen(server: Server) -> list[dict[str, Any]]:
    """Wait until the default group of each task's model is chosen; return how each was chosen.

    Raises RuntimeError after ten minutes.
    """

    def chosen() -> list[dict[str, Any]]:
        models = json.loads(send(server.port, request("GET", "/info")).body)["models"]
        choices = [model["choice"] for model in models if model.get("task")]
        return choices if all(choice["by"] != "start" for choice in choices) else []

    return wait_until(chosen, "not every group is chosen", timeout=CHOOSING_SECONDS, every=1.0)
