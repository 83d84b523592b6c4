"""The corpus of hostile pictures through real codec processes, beside good traffic."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from app.codecs.picture import PictureStore
from app.codecs.pool import MEMORY_LIMIT, CodecPool
from app.contracts.errors import ImageUnreadable, InputError
from app.process.child import Reply
from app.settings import Settings
from tests.codecs import pictures

CORPUS = Path(__file__).parents[3] / "shared" / "data" / "hostile_images"
OPEN = "app.pipelines.segment.stages:open_picture"
META = {
    "limits": {},
    "network": {"size": 320, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
    "size": "full",
    "output": "mask",
    "refine": "none",
    "format": "png",
    "labels": False,
}


def opened(pool: CodecPool, body: bytes) -> Reply:
    picture = PictureStore(budget=1 << 30).open(1 << 28)
    try:
        return pool.submit(
            OPEN,
            META,
            {"body": np.frombuffer(body, np.uint8)},
            descriptors=(picture.descriptor,),
            deadline=time.monotonic() + 60,
            blame=ImageUnreadable,
        ).result(timeout=90)
    finally:
        picture.release()


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmPeak:"))


def processor_seconds(pool: CodecPool) -> dict[int, float]:
    """What each process has used so far; unlike time, it does not pass while others run."""
    fields = {pid: Path(f"/proc/{pid}/stat").read_text("ascii") for pid in pool.pids()}
    ticks = {pid: stat.rpartition(")")[2].split()[11:13] for pid, stat in fields.items()}
    return {pid: sum(map(int, each)) / os.sysconf("SC_CLK_TCK") for pid, each in ticks.items()}


@pytest.mark.slow
def test_every_hostile_picture_has_its_expected_outcome() -> None:
    """314 files: decoded or refused as expected, no process lost, memory capped, neighbours served.

    Refused means an error that is the client's (InputError); each takes less processor time than
    the wall limit of a server allows it.
    """
    if not CORPUS.is_dir():
        pytest.skip(f"NOT TESTED: the corpus {CORPUS.name} is not beside the project")
    manifest = json.loads((CORPUS / "MANIFEST.json").read_text("utf-8"))
    lost: list[str] = []
    pool = CodecPool(count=2, wall_seconds=60, on_restart=lost.append)
    good = pictures.encoded(pictures.photo(), "JPEG")
    done = threading.Event()
    neighbours: list[bool] = []

    def keep_asking() -> None:
        while not done.is_set():
            neighbours.append(opened(pool, good).meta["shape"] == [48, 64, 3])

    wrong: dict[str, str] = {}
    slowest = 0.0
    try:
        pool.warm_up("app.pipelines.segment.stages:warm_up")
        neighbour = threading.Thread(target=keep_asking)
        neighbour.start()
        for name, entry in manifest.items():
            before = processor_seconds(pool)
            try:
                opened(pool, (CORPUS / name).read_bytes())
                outcome = "decode"
            except InputError:
                outcome = "reject"
            for pid, seconds in processor_seconds(pool).items():
                slowest = max(slowest, seconds - before.get(pid, 0.0))
            if entry["expect"] not in ("either", outcome):
                wrong[name] = outcome
        done.set()
        neighbour.join(timeout=90)
        peaks = [peak_bytes(pid) for pid in pool.pids()]
    finally:
        done.set()
        pool.close()
    assert wrong == {}
    assert len(manifest) == 314
    assert lost == []
    assert 0.0 < slowest < Settings().codec_timeout_seconds
    assert max(peaks) <= MEMORY_LIMIT
    assert len(neighbours) > 50
    assert all(neighbours)
