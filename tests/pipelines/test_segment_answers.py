"""What a hostile codec process answers to `/segment` is told to nobody, and it is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.codecs.picture import PictureStore
from app.codecs.pool import CodecPool
from app.codecs.service import Codecs
from app.contracts.errors import WorkerCrashed
from app.contracts.ports import Finished, ServedModelInfo
from app.contracts.tensors import TensorSpec
from app.pipelines.segment import pipeline as module
from app.pipelines.segment.pipeline import SegmentPipeline, open_pipeline
from app.pipelines.segment.request import read_options
from tests.codecs import pictures
from tests.engine.fakes import calling, wait_until
from tests.pipelines.hostile_stages import BACKGROUND, OPENED, RENDERED, WIDTHS

pytestmark = pytest.mark.slow  # a real codec process

INFO = ServedModelInfo(
    name="u2netp",
    version=1,
    directory=Path(),
    inputs=(TensorSpec("input", "float32", (-1, 3, 32, 32)),),
    outputs=(TensorSpec("d0", "float32", (-1, 1, 32, 32)),),
    parameters={"size": 32},
)
BACK = pictures.encoded(pictures.photo(40, 30), "PNG")


class Spent:
    """A Quota without limits."""

    def __init__(self) -> None:
        self.pixels: list[int] = []

    def spend(self, what: str, amount: int) -> None:
        assert what == "pixels"
        self.pixels.append(amount)


class Server:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        pool = CodecPool(count=1, wall_seconds=60.0, on_restart=self.reasons.append)
        self.codecs = Codecs(pool=pool, pictures=PictureStore(budget=1 << 30))
        self.pipeline: SegmentPipeline = open_pipeline(INFO, codecs=self.codecs)

    async def ask(self, width: int, *, background: bool, **options: str) -> Finished:
        body = pictures.encoded(pictures.photo(width, 60), "PNG")
        request = read_options(body, options, background=BACK if background else None)
        deadline = time.monotonic() + 60
        prepared = await self.pipeline.prepare(request, deadline=deadline)
        try:
            mask = np.linspace(0, 1, 1024, dtype=np.float32).reshape(1, 1, 32, 32)
            return await self.pipeline.finish(prepared, [{"d0": mask}], deadline=deadline)
        finally:
            prepared.release()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "STAGES", "tests.pipelines.hostile_stages")
        server = Server()
        yield server
        assert server.codecs.pictures.held == 0
        server.codecs.close()


@pytest.mark.parametrize("wrong", [*OPENED, *RENDERED, *BACKGROUND])
def test_what_no_stage_answers_costs_the_process(server: Server, wrong: str) -> None:
    """500 for whoever asked, no pixels given back, no stage or header by its words."""
    spent = Spent()
    before = len(server.reasons)
    background = wrong in BACKGROUND
    asking = server.ask(
        WIDTHS[wrong], background=background, output="composite" if background else "mask"
    )
    with calling("somebody", quota=spent), pytest.raises(WorkerCrashed):
        asyncio.run(asking)
    wait_until(lambda: len(server.reasons) > before)
    assert server.reasons[before:] == ["corrupt"]
    assert spent.pixels == ([] if wrong in OPENED else [60 * WIDTHS[wrong]])


@pytest.mark.parametrize(
    "options",
    [
        {"output": "mask"},
        {"output": "cutout", "crop": "true", "crop_margin": "10%"},
        {"output": "composite", "format": "jpg", "size": "preview"},
        {"output": "cutout", "format": "webp"},
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 64, 6000])
def test_what_the_stages_answer_is_believed(
    server: Server, options: dict[str, str], width: int
) -> None:
    before = len(server.reasons)
    background = options["output"] == "composite"
    found = asyncio.run(server.ask(width, background=background, **options)).value
    assert found.image
    assert len(server.reasons) == before
