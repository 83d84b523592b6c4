"""What `/segment` costs beyond the predictor: decode, preprocess, postprocess and encode.

    python -m loadtest.segment_stages [--requests 40] [--megapixels 1]

A generated JPEG goes through real codec processes, with a drawn mask in place of a network's.
The kinds of request take turns, so that whatever else the machine does meets all of them alike.
What colour estimation takes is the difference that `colours=original` makes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image

from app.codecs.picture import PictureStore
from app.codecs.pool import CodecPool
from app.codecs.service import Codecs
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Array, TensorSpec
from app.pipelines.segment.pipeline import SegmentPipeline, open_pipeline
from app.pipelines.segment.request import read_options

STAGES = ("decode", "preprocess", "postprocess", "encode")
KINDS: dict[str, dict[str, str]] = {
    "mask": {"output": "mask"},
    "mask guided": {"output": "mask", "refine": "guided"},
    "cutout png": {"output": "cutout"},
    "cutout png, own colours": {"output": "cutout", "colours": "original"},
    "cutout png matting": {"output": "cutout", "refine": "matting"},
    "cutout png unrefined": {"output": "cutout", "refine": "none"},
    "cutout webp": {"output": "cutout", "format": "webp"},
    "composite jpg": {"output": "composite", "format": "jpg"},
    "preview png": {"size": "preview"},
}
INFO = ServedModelInfo(
    name="drawn",
    version=1,
    directory=Path(),
    inputs=(TensorSpec("input", "float32", (-1, 3, 320, 320)),),
    outputs=(TensorSpec("d0", "float32", (-1, 1, 320, 320)),),
)


def photograph(width: int = 1224, height: int = 816) -> bytes:
    """A JPEG (of about 1 MP) with soft shapes and grain, as photographs have."""
    random = np.random.default_rng(3)
    coarse = random.integers(0, 255, (24, 36, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    grain = random.normal(0, 6, (height, width, 1))
    file = io.BytesIO()
    pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def disc() -> Array:
    """A soft-edged mask (1, 1, 320, 320) of a third of the picture."""
    rows, columns = np.mgrid[:320, :320]
    mask: Array = np.clip((105 - np.hypot(rows - 160, columns - 160)) / 6, 0, 1)
    return mask.astype(np.float32)[None, None]


async def measure(
    pipeline: SegmentPipeline, body: bytes, mask: Array, kind: str
) -> dict[str, float]:
    """Milliseconds by stage, `total` from call to answer, and `bytes` of the result."""
    request = read_options(body, KINDS[kind])
    deadline = time.monotonic() + 60
    started = time.perf_counter()
    prepared = await pipeline.prepare(request, deadline=deadline)
    finished = await pipeline.finish(prepared, [{"d0": mask}], deadline=deadline)
    seconds = {"total": time.perf_counter() - started, **prepared.stages, **finished.stages}
    prepared.release()
    times = {stage: value * 1000 for stage, value in seconds.items()}
    return times | {"bytes": float(len(finished.value.image))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--requests", type=int, default=40, help="of each kind (default 40)")
    parser.add_argument("--megapixels", type=float, default=1.0, help="the JPEG's size (default 1)")
    given = parser.parse_args()
    requests = given.requests
    side = (given.megapixels / 1.5) ** 0.5 * 1000
    codecs = Codecs(pool=CodecPool(count=1), pictures=PictureStore(budget=1 << 30))
    body, mask = photograph(round(1.5 * side), round(side)), disc()
    try:
        pipeline = open_pipeline(INFO, codecs=codecs)
        for kind in KINDS:
            asyncio.run(measure(pipeline, body, mask, kind))
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(requests):
            for kind, measured in runs.items():
                measured.append(asyncio.run(measure(pipeline, body, mask, kind)))
    finally:
        codecs.close()
    print(
        f"{given.megapixels:g} MP JPEG of {len(body):,} bytes, "
        f"{requests} requests of each kind, one at a time"
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds, p50 (fastest)")
    columns = (*STAGES, "total")
    print(f"{'':25}" + "".join(f"{name:>16}" for name in columns) + f"{'bytes':>12}")
    for kind, measured in runs.items():
        cells = ""
        for name in columns:
            values = [run[name] for run in measured]
            cells += f"{statistics.median(values):8.1f} ({min(values):5.1f})"
        print(f"{kind:25}{cells}{measured[0]['bytes']:12,.0f}")


if __name__ == "__main__":
    main()
