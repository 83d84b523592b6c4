"""What soak.py watches and does beside the traffic: each process's memory and descriptors, kills,
and reloads."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import Connection, Server, descendants, request

API, CODEC, PREDICTOR = "API", "codec", "predictor"
SAMPLE_SECONDS = 5.0
BEAT_SECONDS, STALL_SECONDS = 0.2, 2.0
"""This program looks at the clock so often; later by so much, it stood still itself."""
MODELS = ("emotion", "mnist", "u2netp")


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process: seconds of time.monotonic, resident bytes, open descriptors."""

    at: float
    role: str
    pid: int
    resident: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Kill:
    at: float
    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class Reload:
    """`status` 0 where no answer came."""

    model: str
    began: float
    ended: float
    status: int


@dataclass(slots=True)
class Watched:
    """`stalls` are when this program stood still, from and to: what happened then is not judged."""

    samples: list[Sample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    reloads: list[Reload] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)


@contextlib.contextmanager
def watching(
    server: Server, *, admin_key: str, kill_every: float, reload_every: float, seed: int
) -> Iterator[Watched]:
    """Sample, kill and reload while the block runs; intervals in seconds."""
    watched, ending = Watched(), threading.Event()
    draw = random.Random(seed)

    def kill() -> None:
        while not ending.wait(draw.uniform(0.5, 1.5) * kill_every):
            if killed := _kill_one(server, draw):
                watched.kills.append(killed)

    def reload() -> None:
        number = 0
        while not ending.wait(reload_every):
            watched.reloads.append(_reload(server, MODELS[number % len(MODELS)], admin_key))
            number += 1

    threads = [
        threading.Thread(target=each)
        for each in (kill, reload, lambda: _look(server, watched, ending))
    ]
    for thread in threads:
        thread.start()
    try:
        yield watched
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _look(server: Server, watched: Watched, ending: threading.Event) -> None:
    sampled = last = 0.0
    while not ending.wait(BEAT_SECONDS):
        now = time.monotonic()
        if last and now - last > STALL_SECONDS:
            watched.stalls.append((last, now))
        last = now
        if now - sampled >= SAMPLE_SECONDS:
            sampled = now
            watched.samples += samples(server)


def samples(server: Server) -> list[Sample]:
    """One of each process that lives."""
    found = []
    now = time.monotonic()
    for pid in (server.pid, *descendants(server.pid)):
        with contextlib.suppress(OSError):  # it has ended
            if (role := API if pid == server.pid else role_of(pid)) is not None:
                resident = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
                descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                page = os.sysconf("SC_PAGE_SIZE")
                found.append(Sample(now, role, pid, resident * page, descriptors))
    return found


def role_of(pid: int) -> str | None:
    """By its command line. Raises OSError when it has ended."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if b"app.process.worker" not in words:
        return None
    return next((role for role in (CODEC, PREDICTOR) if role.encode() in words), None)


def _kill_one(server: Server, draw: random.Random) -> Kill | None:
    """A codec or a predictor of this server, never another process."""
    children = [each for each in samples(server) if each.role != API]
    if not children:
        return None
    # Each kind as often, however many it has.
    role = draw.choice(sorted({each.role for each in children}))
    pid = draw.choice([each.pid for each in children if each.role == role])
    with contextlib.suppress(OSError):
        held = os.pidfd_open(pid)
        try:
            if pid in descendants(server.pid) and role_of(pid) == role:
                signal.pidfd_send_signal(held, signal.SIGKILL)
                return Kill(time.monotonic(), role, pid)
        finally:
            os.close(held)
    return None


def _reload(server: Server, model: str, admin_key: str) -> Reload:
    path = f"/v2/repository/models/{model}/load"
    asked = request("POST", path, headers={"X-Api-Key": admin_key, "Content-Length": "0"})
    began, status = time.monotonic(), 0
    with (
        contextlib.suppress(OSError),
        contextlib.closing(Connection(server.port, timeout=600)) as connection,
    ):
        status = connection.send(asked).status
    return Reload(model, began, time.monotonic(), status)


def longest_lived(all_samples: Sequence[Sample], role: str) -> list[list[Sample]]:
    """The samples of each process of a role, the longest-lived first. A process id that was away
    for several samples belongs to another process."""
    lives: list[list[Sample]] = []
    living: dict[int, list[Sample]] = {}
    for sample in all_samples:
        if sample.role != role:
            continue
        life = living.get(sample.pid)
        if life is None or sample.at - life[-1].at > 4 * SAMPLE_SECONDS:
            lives.append(life := [])
            living[sample.pid] = life
        life.append(sample)
    return sorted(lives, key=lambda each: each[0].at - each[-1].at)
