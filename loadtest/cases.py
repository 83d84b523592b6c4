"""The requests that benchmarks send: a picture, a text and a list of texts."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import numpy as np
from harness import request
from PIL import Image

from app.repository.layout import ModelFiles, ModelRepository

TEXT = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。今天天气真好"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request to a task; it has `rows` pictures or texts. `clients` keep its predictors busy."""

    name: str
    model: ModelFiles
    request: bytes
    rows: int = 1
    clients: int


def picture() -> bytes:
    """A JPEG of 1,152 × 868 = 1.0 MP: a shaded ball before a noisy gradient, the same each time."""
    random = np.random.default_rng(7)
    y, x = np.mgrid[0:868, 0:1152].astype(np.float32)
    distance = np.hypot(x - 576, y - 434) / 300
    ball = np.clip(1.2 - distance, 0, 1)[..., None] * np.array([255, 120, 60], np.float32)
    ground = np.stack([x / 5, y / 4, 200 - x / 8], axis=-1)
    pixels = np.where(distance[..., None] < 1, ball, ground) + random.normal(0, 6, (868, 1152, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def mask_request(body: bytes, *, model: str = "", predictor: str = "") -> bytes:
    """A request for the mask of a JPEG."""
    named = {"model": model, "predictor": predictor}
    query = "".join(f"&{name}={value}" for name, value in named.items() if value)
    return request("POST", f"/segment?output=mask{query}", body, content_type="image/jpeg")


def text_request(inputs: str | list[str], **parameters: str) -> bytes:
    """A request for the emotion of one text, or of each text of a list."""
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return request("POST", "/sentiment", body, content_type="application/json")


def read_cases(repository: ModelRepository, *, predictor: str = "") -> list[Case]:
    """A mask of 1 MP, a text and 32 texts, for each task that the repository has a model of.

    `predictor` names an instance group; without it the default group answers.
    """
    chosen = {"predictor": predictor} if predictor else {}
    cases = []
    for name in repository.names():
        model = repository.read(name, repository.versions(name)[0])
        count = model.config.group(model.config.default_group).count
        if model.config.pipeline == "segment":
            asked = mask_request(picture(), model=name, predictor=predictor)
            cases.append(Case(name="mask of 1 MP", model=model, request=asked, clients=count))
        elif model.config.pipeline == "sentiment":
            one = text_request(TEXT, model=name, **chosen)
            many = text_request([TEXT] * 32, model=name, **chosen)
            cases.append(Case(name="1 text", model=model, request=one, clients=4 * count))
            cases.append(
                Case(name="32 texts", model=model, request=many, rows=32, clients=2 * count)
            )
    return cases
