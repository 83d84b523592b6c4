"""The segment pipeline over real codec processes, with a network of the test's own."""

import asyncio
import contextvars
import io
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from paddlepool.contracts.ports import WHOLE, RequestContext, ServedModelInfo
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import PictureStore
from paddlepool.tasks.codecs.pool import CodecPool, Codecs
from paddlepool.tasks.segment.pipeline import SegmentPipeline
from paddlepool.tasks.segment.request import SegmentRequest, SegmentResult

INFO = ServedModelInfo(
    name="u2netp",
    version=1,
    directory=Path(),
    inputs=(TensorSpec("input", "float32", (-1, 3, 320, 320)),),
    outputs=(TensorSpec("d0", "float32", (-1, 1, 320, 320)),),
)

MAPPED = ("/memfd:requests", "/memfd:replies")
"""Memory shared with the codec processes; a process maps it when it is first used."""
Network = Callable[[Array], Array]
T = TypeVar("T")


def bright(tensor: Array) -> Array:
    """A network whose mask is the brightness of its input."""
    grey = tensor.mean(axis=1, keepdims=True)
    return (1 / (1 + np.exp(-4 * grey))).astype(np.float32)


def request_of(body: bytes, options: Mapping[str, str], **more: Any) -> SegmentRequest:
    """A request with options as a query contains them."""
    return SegmentRequest.model_validate({"body": body, **options, **more})


@dataclass(kw_only=True)
class NetworkContext(RequestContext):
    """A request whose jobs are run by a function."""

    network: Network
    input: str = "input"

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        [job] = jobs
        return [{"d0": self.network(job[self.input])}]


class Server:
    def __init__(self, codecs: Codecs, lost: list[str]) -> None:
        self.codecs = codecs
        self.lost = lost
        """Why codec processes were replaced."""
        self.pipeline = SegmentPipeline(INFO, codecs=codecs)
        self._runner = asyncio.Runner()
        self.awaited(self._start())

    async def _start(self) -> None:
        self.codecs.pool.start()
        await self.codecs.pool.opened()

    def awaited(self, call: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the call ends, in the context of the test."""
        return self._runner.run(call, context=contextvars.copy_context())

    def close(self) -> None:
        self.awaited(self.codecs.pool.close())
        self._runner.close()

    def ask(self, body: bytes, network: Network = bright, **options: str) -> SegmentResult:
        return self.run(request_of(body, options), network)

    def run(
        self, request: SegmentRequest, network: Network = bright, seconds: float = 60.0
    ) -> SegmentResult:
        """Answer a request with a deadline in `seconds`."""
        context = NetworkContext(deadline=time.monotonic() + seconds, network=network)
        return self.awaited(self.pipeline.run(request, context))


@contextmanager
def served(*, wall_seconds: float = 60.0, **limits: Any) -> Iterator[Server]:
    """A server of its own; no picture is held at its end."""
    lost: list[str] = []
    codecs = Codecs(
        pool=CodecPool(count=2, wall_seconds=wall_seconds, on_restart=lost.append),
        pictures=PictureStore(budget=1 << 30),
        limits=PictureLimits(**limits),
    )
    server = Server(codecs, lost)
    try:
        yield server
        assert server.codecs.pictures.held == 0
    finally:
        server.close()


def pixels_of(result: SegmentResult) -> Any:
    return np.asarray(Image.open(io.BytesIO(result.image)))
