"""What the benchmark sends: a request to each endpoint, and the same work for the model alone."""

from __future__ import annotations

import asyncio
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from harness import request
from PIL import Image

from app.contracts.tensors import Tensors
from app.pipelines.sentiment.pipeline import open_pipeline
from app.repository.layout import ModelFiles, ModelRepository

TEXT = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。今天天气真好"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One endpoint: its request, and the same work for a predictor of the model alone."""

    name: str
    model: ModelFiles
    request: bytes
    inputs: Tensors
    rows: int = 1
    requests: int
    clients_per_instance: tuple[int, ...] = (1,)


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


def read_cases(repository: ModelRepository, *, requests: int) -> list[Case]:
    """One case for each task that the repository has a model of."""
    cases = []
    for name in repository.names():
        model = repository.read(name, repository.versions(name)[0])
        if model.config.pipeline == "segment":
            body = picture()
            cases.append(
                Case(
                    name="/segment 1 MP JPEG → mask",
                    model=model,
                    request=request(
                        "POST",
                        f"/segment?output=mask&model={name}",
                        body,
                        content_type="image/jpeg",
                    ),
                    inputs=model.selftest().inputs,
                    requests=requests,
                )
            )
        elif model.config.pipeline == "sentiment":
            job = tokens_of(model, TEXT)
            full = model.config.dynamic_batching.max_batch_size
            cases.append(
                sentiment_case(
                    model, job, texts=1, rows=1, requests=requests * 10, clients_per_instance=(1, 4)
                )
            )
            cases.append(
                sentiment_case(
                    model, job, texts=32, rows=full, requests=requests, clients_per_instance=(1, 2)
                )
            )
    return cases


def sentiment_case(
    model: ModelFiles,
    job: Tensors,
    *,
    texts: int,
    rows: int,
    requests: int,
    clients_per_instance: tuple[int, ...] = (1,),
) -> Case:
    inputs = TEXT if texts == 1 else [TEXT] * texts
    body = json.dumps({"inputs": inputs, "parameters": {"model": model.name}}).encode()
    return Case(
        name=f"/sentiment {texts} × {len(TEXT)} characters",
        model=model,
        request=request("POST", "/sentiment", body, content_type="application/json"),
        inputs={name: np.repeat(array, rows, axis=0) for name, array in job.items()},
        rows=texts,
        requests=requests,
        clients_per_instance=clients_per_instance,
    )


def tokens_of(model: ModelFiles, text: str) -> Tensors:
    with ThreadPoolExecutor(1) as pool:
        pipeline = open_pipeline(model.info(), executor=pool)
        prepared = asyncio.run(pipeline.prepare([text], deadline=time.monotonic() + 60))
    [job] = prepared.jobs
    return job
