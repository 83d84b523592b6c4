"""Replicas behind the balancer: what is lost while they die and are replaced.

    .venv/bin/python loadtest/replicas.py [--haproxy PATH] [--replicas 3] [--seconds 60]

Two users ask for masks and two for emotions through the balancer, and every answer is compared
with the calm one. `chaos`: one replica is killed with SIGKILL every ten seconds and started again,
one is drained and replaced. `rolling`: all are drained and replaced, one after the other. Exit
code 1: a wrong answer, fewer than 99.9 % answered in chaos, or one not answered in rolling.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from balanced import Replica, balancer, replicas
from cases import mask_request, picture, text_request
from closed_loop import checked
from harness import Connection

SHARE = 0.999
KILL_EVERY_SECONDS = 10.0
CHECKED_SECONDS = 3.0
"""After these the balancer, which asks every second, sends requests to a replica that is back."""
ENVIRONMENT = {
    "PADDLEPOOL_CODEC_PROCESSES": "1",
    "PADDLEPOOL_PROVE_GROUPS": "off",
    # Three replicas on few cores answer late; that is not what is measured here.
    "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000",
}
REQUESTS = {
    "mask of 1 MP": mask_request(picture(), predictor="onednn"),
    "one text": text_request("今天天气真好", predictor="onednn"),
}


@dataclass(slots=True)
class Tally:
    """Answers by what they were. `reasons` are statuses, or what became of the connection."""

    right: int = 0
    wrong: int = 0
    lost: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0

    @property
    def share(self) -> float:
        total = self.right + self.wrong + self.lost
        return self.right / total if total else 0.0

    def __str__(self) -> str:
        why = f" ({', '.join(f'{n} × {w}' for w, n in self.reasons.items())})" if self.lost else ""
        return (
            f"{self.right} right, {self.wrong} wrong, {self.lost} not answered{why}: "
            f"{self.share:.3%}; slowest {self.slowest:.1f} s"
        )


@contextlib.contextmanager
def users(port: int, calm: Mapping[str, bytes]) -> Iterator[Tally]:
    """Two users for each request, who never ask again, while the block runs; each answer is held to
    the calm one. The tally is complete after the block."""
    tally, lock, ending = Tally(), threading.Lock(), threading.Event()

    def use(asked: bytes, expected: bytes) -> None:
        connection: Connection | None = None
        while not ending.wait(0.05):
            begun = time.perf_counter()
            try:
                connection = connection or Connection(port)
                reply = connection.send(asked)
                reason = "" if reply.status == 200 else str(reply.status)
                if reply.headers.get("connection") == "close":
                    connection = None
            except OSError as error:
                connection, reason = None, type(error).__name__
            with lock:
                if reason:
                    tally.lost += 1
                    tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
                    continue
                tally.slowest = max(tally.slowest, time.perf_counter() - begun)
                if reply.body == expected:
                    tally.right += 1
                else:
                    tally.wrong += 1

    threads = [
        threading.Thread(target=use, args=(REQUESTS[name], calm[name]))
        for name in (*REQUESTS, *REQUESTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def chaos(running: list[Replica], seconds: float) -> list[str]:
    """Kill one every ten seconds, drain one in the middle; how soon each was ready again."""
    lines: list[str] = []
    began = time.perf_counter()
    for number in itertools.count():
        due = began + number * KILL_EVERY_SECONDS
        time.sleep(max(0.0, due - time.perf_counter()))
        if time.perf_counter() - began >= seconds:
            return lines
        drained = number == 2
        took = running[number % len(running)].replace(drained=drained)
        time.sleep(CHECKED_SECONDS)
        lines.append(f"{'drained' if drained else 'killed'}, ready again after {took:.1f} s")
    raise AssertionError("this is a bug: counting has no end")


def rolling(running: list[Replica]) -> None:
    for replica in running:
        replica.replace(drained=True)
        time.sleep(CHECKED_SECONDS)


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--haproxy", type=Path, default=shutil.which("haproxy"))
    arguments.add_argument("--replicas", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=60.0, help="of chaos")
    arguments.add_argument("--only", choices=("chaos", "rolling"))
    given = arguments.parse_args()
    if given.haproxy is None:
        arguments.error("haproxy is not on the path: apt-get install haproxy, or --haproxy PATH")
    failed = False
    with (
        tempfile.TemporaryDirectory() as directory,
        replicas(given.replicas, ENVIRONMENT) as running,
        balancer(given.haproxy, [each.port for each in running], Path(directory)) as port,
    ):
        calm = {name: checked(Connection(port).send(r)).body for name, r in REQUESTS.items()}
        parts: dict[str, tuple[float, Callable[[], list[str] | None]]] = {
            "chaos": (SHARE, lambda: chaos(running, given.seconds)),
            "rolling": (1.0, lambda: rolling(running)),
        }
        for name, (least, part) in parts.items():
            if given.only in (None, name):
                with users(port, calm) as tally:
                    for line in part() or ():
                        print(f"  {line}")
                print(f"{name}: {tally}")
                failed |= tally.share < least or tally.wrong > 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
