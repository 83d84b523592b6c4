"""The product's application with its compatible APIs, over a data plane that opens no picture."""

import base64
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import httpx

from paddlepool.application import build_application, enabled_apis
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.ports import RequestOutput
from paddlepool.engine.dataplane import DataPlane
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.classify.pipeline import ClassifyRequest, ClassifyResult
from paddlepool.tasks.segment.request import ForegroundBox, SegmentRequest, SegmentResult
from paddlepool.tasks.sentiment.pipeline import Score, TextRequest, TextScores
from paddlepool.tasks.task import load_tasks
from paddlepool.tasks.transforms.labels import Label
from tests.service.api.fakes import Client, make_services, make_settings, no_lifespan

PICTURE = b"\xff\xd8\xff not opened by the API process"
IN_BASE64 = base64.b64encode(PICTURE).decode()
STAGES = {"queue": 0.0, "infer": 0.1}
MODELS = {"classify": "animals", "segment": "u2netp", "sentiment": "emotion"}
LABELS = (Label(3, "cat", 0.75), Label(1, "dog", 0.12345678))
SCORES = (Score("happy", "快乐", 0.75), Score("sad", "悲伤", 0.25))


class FakePlane:
    """Answers every picture and text alike, and remembers what was asked."""

    default_models: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.payloads: list[Any] = []
        self.options: list[dict[str, Any]] = []
        self.error: PaddlepoolError | None = None
        self.before_reading: PaddlepoolError | None = None
        self.image = b"encoded"
        self.output: str | None = None
        self.labels = bytes([0, 255, 0, 255, 255, 0])
        self.scores: tuple[Score, ...] = SCORES
        self.box = ForegroundBox(top=1, left=2, width=3, height=4)

    async def run(
        self, task: str, read: Callable[[], Awaitable[Any]], **options: Any
    ) -> RequestOutput:
        if self.before_reading is not None:
            raise self.before_reading
        payload = await read()
        self.payloads.append(payload)
        self.options.append(options)
        if self.error is not None:
            raise self.error
        answers: dict[str, Callable[[Any], Any]] = {
            "classify": self._labels,
            "segment": self._mask,
            "sentiment": self._scores,
        }
        return RequestOutput(
            value=answers[task](payload),
            model=MODELS[task],
            version=2,
            group="onednn",
            stages=STAGES,
        )

    def _labels(self, request: ClassifyRequest) -> ClassifyResult:
        return ClassifyResult(list(LABELS[: request.top]), width=4, height=3)

    def _mask(self, wanted: SegmentRequest) -> SegmentResult:
        return SegmentResult(
            image=self.image,
            format=wanted.format,
            output=self.output or wanted.output,
            width=3,
            height=2,
            box=self.box,
            confidence=0.9,
            labels=self.labels if wanted.labels else None,
        )

    def _scores(self, request: TextRequest) -> tuple[TextScores, ...]:
        scores = self.scores[: request.top_k]
        return tuple(
            TextScores(scores=scores, tokens=3, truncated="长" in text, padding=4)
            for text in request.texts
        )

    @property
    def picture(self) -> SegmentRequest:
        payload = self.payloads[-1]
        assert isinstance(payload, SegmentRequest)
        return payload


class FakeServer:
    """A client of all APIs, and the data plane behind them."""

    def __init__(self, operations: Executor | None = None, **settings: Any) -> None:
        self.plane = FakePlane()
        tasks = load_tasks(PIPELINES)
        services = make_services(make_settings(**settings), operations=operations)
        self.services = replace(services, dataplane=cast(DataPlane, self.plane))
        self.client = Client(
            build_application(
                self.services,
                keys=services.settings.keys(),
                tasks=tasks.values(),
                lifespan=no_lifespan,
                compatible_apis=enabled_apis(services.settings, tasks),
            )
        )

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.client.post(path, **options)

    def form(
        self, path: str, name: str, fields: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """A form with the picture in the field `name`."""
        files = {name: ("photo.jpg", PICTURE, "image/jpeg")}
        return self.client.post(path, files=files, data=fields or {}, **options)


@functools.cache
def _built(**settings: Any) -> FakeServer:
    return FakeServer(**settings)


def shared_server(**settings: Any) -> FakeServer:
    """Return a server built once for these settings (80 ms), without the state of other tests."""
    server = _built(**settings)
    server.plane.forget()
    return server
