"""Rows of different widths on a real predictor."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from paddlepool.contracts.ports import RequestContext, ServedModelInfo
from paddlepool.contracts.tensors import Tensors, largest_difference
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.engine.dataplane import DataPlane, ready
from tests.engine.fakes import PATIENCE, RecordingObserver, open_registry
from tests.model_files import add_to_config

pytestmark = [pytest.mark.paddle, pytest.mark.slow]

WIDTHS = (9, 16, 11, 17)


class Images:
    """A pipeline whose payload is its jobs and whose value is their outputs."""

    async def run(self, payload: Sequence[Tensors], context: RequestContext) -> list[Tensors]:
        return await context.infer(payload)

    def close(self) -> None:
        pass


async def test_widths_share_a_run_and_equal_a_direct_run_of_the_padded_row(
    tiny_model_repository: Path, tmp_path: Path
) -> None:
    """Also in what the shadow compares: it gets the padded jobs."""
    root = Path(shutil.copytree(tiny_model_repository, tmp_path / "models"))
    config = root / "tiny" / "config.toml"
    config.write_text('pipeline = "images"\n' + config.read_text("utf-8"), "utf-8")
    add_to_config(root / "tiny", '[[ragged]]\ninput = "image"\naxis = 3\nstep = 8\nmax = 64\n')

    async def build(_: ServedModelInfo) -> Images:
        return Images()

    observer, listener = RecordingObserver(), Mock()
    registry = open_registry(root, ProcessBackend(), build_pipeline=build, observer=observer)
    rows: list[int] = []

    def stages_done(_: Any, results: Sequence[Any]) -> None:
        rows.extend(result.batch_rows for result in results)

    dataplane = DataPlane(
        registry,
        default_models={"images": "tiny"},
        stages_done=[stages_done],
        traffic_listener=listener,
    )
    draw = np.random.default_rng(3)
    images = [draw.random((1, 3, 8, width), np.float32) for width in WIDTHS]
    padded = [
        np.pad(image, ((0, 0), (0, 0), (0, 0), (0, -width % 8)))
        for image, width in zip(images, WIDTHS, strict=True)
    ]
    await registry.load_all()
    try:
        output = await dataplane.run(
            "images", ready([{"image": image} for image in images]), timeout=PATIENCE
        )
        [served] = registry.served()
        spec = served.files.spec(served.config.group("onednn"))
    finally:
        await registry.close()
    assert rows == [3, 3, 3, 1]
    assert [batch["rows"] for batch in observer.batches] == [3, 1]
    [_, _, shadowed, _] = listener.completed.call_args.args
    assert any(np.array_equal(shadowed["image"], image) for image in padded)
    predictor = ProcessBackend()(spec)
    try:
        for image, outputs in zip(padded, output.value, strict=True):
            direct = predictor.run({"image": image}, timeout=PATIENCE)
            assert largest_difference(outputs, direct) < 1e-6
    finally:
        predictor.close()
