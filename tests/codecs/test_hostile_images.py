"""The corpus of hostile pictures through real codec processes, beside good traffic."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from app.codecs.picture import PictureStore
from app.codecs.pool import MEMORY_LIMIT, ChildPool
from app.engine.child import Reply
from app.errors import ImageUnreadable, InputError
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
}


def opened(pool: ChildPool, body: bytes) -> Reply:
    picture = PictureStore(budget=1 << 30).open()
    try:
        return pool.submit(
            OPEN,
            META,
            {"body": np.frombuffer(body, np.uint8)},
            descriptors=(picture.descriptor,),
            deadline=time.monotonic() + 30,
            blame=ImageUnreadable,
        ).result(timeout=40)
    finally:
        picture.release()


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmPeak:"))


def test_every_hostile_picture_has_its_expected_outcome() -> None:
    """314 files: decoded or refused as expected, no process lost, memory capped, neighbours served.

    Refused means an error that is the client's (InputError); each takes less than the wall limit.
    """
    if not CORPUS.is_dir():
        pytest.skip(f"NOT TESTED: the corpus {CORPUS.name} is not beside the project")
    manifest = json.loads((CORPUS / "MANIFEST.json").read_text("utf-8"))
    pool = ChildPool(count=2)
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
            started = time.monotonic()
            try:
                opened(pool, (CORPUS / name).read_bytes())
                outcome = "decode"
            except InputError:
                outcome = "reject"
            slowest = max(slowest, time.monotonic() - started)
            if entry["expect"] not in ("either", outcome):
                wrong[name] = outcome
        done.set()
        neighbour.join(timeout=30)
        peaks = [peak_bytes(pid) for pid in pool.pids()]
        status = pool.status()
    finally:
        done.set()
        pool.close()
    assert wrong == {}
    assert len(manifest) == 314
    assert status.restarts == 0
    assert slowest < 5.0
    assert max(peaks) <= MEMORY_LIMIT
    assert len(neighbours) > 50
    assert all(neighbours)
