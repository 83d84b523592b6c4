"""The ocr pipeline over real codec processes, with networks of the tests' own."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paddlepool.contracts.ports import WHOLE, RequestContext, ServedModelInfo
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import PictureStore
from paddlepool.tasks.codecs.pool import CodecPool, Codecs
from paddlepool.tasks.ocr.pipeline import OcrPipeline
from paddlepool.tasks.ocr.request import OcrRequest, OcrResult
from tests.tasks.ocr.pages import DETECTOR, ORIENTER, RECOGNISER

T = TypeVar("T")
Network = Callable[[Array], Mapping[str, Array]]


def detect(x: Array) -> Mapping[str, Array]:
    return {"y": (1 / (1 + np.exp(4 * x.mean(1, keepdims=True)))).astype(np.float32)}


def recognise(x: Array) -> Mapping[str, Array]:
    """The scores of tiny_models.Recogniser."""
    blue, green, red = x.mean(2).reshape(len(x), 3, -1, 8).mean(3).transpose(1, 0, 2)
    dark, redness = -20 * green - 2, 40 * (red - blue)
    classes = [0 * dark, dark + redness, dark - redness, 0 * dark - 50]
    powers = np.exp(np.stack(classes, -1))
    return {"y": (powers / powers.sum(-1, keepdims=True)).astype(np.float32)}


def recognise_best(x: Array) -> Mapping[str, Array]:
    """The best class of each step and its score."""
    scores = recognise(x)["y"]
    return {"best": scores.argmax(2).astype(np.int32), "score": scores.max(2)}


def orient(x: Array) -> Mapping[str, Array]:
    """Bars of a page that was turned clockwise by 90 degrees are higher than wide."""
    dark = x.mean(1)[0] < 0
    turned = dark.any(0).sum() < dark.any(1).sum()
    return {"y": np.array([[not turned, turned, 0, 0]], np.float32)}


def part(directory: Path, name: str, text: str, outputs: Sequence[TensorSpec]) -> ServedModelInfo:
    folder = directory / name
    folder.mkdir()
    (folder / "inference.yml").write_text(text, "utf-8")
    x = TensorSpec("x", "float32", (-1, 3, -1, -1))
    return ServedModelInfo(
        name=name, version=1, directory=folder, inputs=(x,), outputs=tuple(outputs)
    )


SCORES = (TensorSpec("y", "float32", (-1, -1, 4)),)
BEST = (TensorSpec("best", "int32", (-1, -1)), TensorSpec("score", "float32", (-1, -1)))


def info(
    directory: Path,
    *,
    recogniser: str = RECOGNISER,
    outputs: Sequence[TensorSpec] = SCORES,
    orienter: bool = True,
    **parameters: Any,
) -> ServedModelInfo:
    parts = {
        "detect": part(directory, "detector", DETECTOR, [TensorSpec("y", "float32", (-1,) * 4)]),
        "recognise": part(directory, "recogniser", recogniser, outputs),
    }
    if orienter:
        angles = [TensorSpec("y", "float32", (-1, 4))]
        parts["orient"] = part(directory, "orienter", ORIENTER, angles)
    return ServedModelInfo(
        name="ocr",
        version=1,
        directory=directory,
        inputs=(),
        outputs=(),
        parameters=parameters,
        pipeline="ocr",
        parts=parts,
    )


@dataclass(kw_only=True)
class NetworksContext(RequestContext):
    """A request whose jobs are run by functions, one for each part."""

    networks: Mapping[str, Network]
    shapes: dict[str, list[list[tuple[int, ...]]]] = field(default_factory=dict)
    """The shapes of the jobs of each call, by part."""

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        self.shapes.setdefault(part, []).append([job["x"].shape for job in jobs])
        return [dict(self.networks[part](job["x"])) for job in jobs]


class Server:
    def __init__(self, codecs: Codecs) -> None:
        self.codecs = codecs
        self._runner = asyncio.Runner()
        self.awaited(self._start())

    async def _start(self) -> None:
        self.codecs.pool.start()
        await self.codecs.pool.opened()

    def awaited(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call, context=contextvars.copy_context())

    def close(self) -> None:
        self.awaited(self.codecs.pool.close())
        self._runner.close()

    def ask(
        self, of: ServedModelInfo, *pictures: bytes, best: bool = False, **options: Any
    ) -> tuple[OcrResult, NetworksContext]:
        reader = recognise_best if best else recognise
        context = NetworksContext(
            deadline=time.monotonic() + 60,
            networks={"detect": detect, "recognise": reader, "orient": orient},
        )
        pipeline = OcrPipeline(of, codecs=self.codecs)
        request = OcrRequest(pictures=pictures, **options)
        return self.awaited(pipeline.run(request, context)), context


@contextmanager
def served() -> Iterator[Server]:
    """Codec processes of its own; no picture is held at its end."""
    codecs = Codecs(
        pool=CodecPool(count=1, wall_seconds=60.0),
        pictures=PictureStore(budget=1 << 28),
        limits=PictureLimits(pixels=4_000_000),
    )
    server = Server(codecs)
    try:
        yield server
        assert codecs.pictures.held == 0
    finally:
        server.close()
