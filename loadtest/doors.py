"""What each door costs over the task behind it, in turns on one connection to a real server.

    .venv/bin/python loadtest/doors.py [--requests 60] [--picture FILE] [--json FILE]

For each door a request to it and the same work asked of the task itself take turns, all doors in
each round. Compared is what a request takes beyond the stages that its reply names (decode, infer,
encode, ...), which are the same for both and vary by more than a door costs. What a door takes is
the median of the pairs' differences; the interval is that of resampled pairs (90 %). Two minutes on
two idle cores. Exit code 1 where a door takes more than --most milliseconds.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import TEXT
from harness import ROOT, Connection, Reply, request, running_server

JSON = "application/json"
BOUNDARY = "a-boundary-of-the-load-test"
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work, asked of a door and of the task."""

    name: str
    door: bytes
    task: bytes


def form(path: str, field: str, picture: bytes, **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="a.jpg"'
    parts.append(f"{head}\r\nContent-Type: image/jpeg\r\n\r\n".encode() + picture + b"\r\n")
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return request("POST", path, body, content_type=f"multipart/form-data; boundary={BOUNDARY}")


def as_json(path: str, document: dict[str, Any]) -> bytes:
    return request("POST", path, json.dumps(document).encode(), content_type=JSON)


def for_json(sent: bytes) -> bytes:
    """The same request, whose reply is wanted as JSON."""
    return sent.replace(b"\r\n", f"\r\nAccept: {JSON}\r\n".encode(), 1)


def pairs_of(picture: bytes) -> list[Pair]:
    encoded = base64.b64encode(picture).decode()
    mask = request("POST", "/segment?output=mask", picture, content_type="image/jpeg")
    labels = form("/segment?output=mask&threshold=0.5", "file", picture)
    cutout = form("/segment", "file", picture)
    text = as_json("/sentiment", {"inputs": TEXT})
    return [
        Pair(
            "rembg: form",
            form("/api/remove", "file", picture),
            form("/segment", "file", picture, refine="none", colours="original"),
        ),
        Pair(
            "remove.bg: form",
            form("/v1.0/removebg", "image_file", picture, size="full"),
            cutout,
        ),
        Pair(
            "remove.bg: base64",
            as_json("/v1.0/removebg", {"image_file_b64": encoded, "size": "full"}),
            cutout,
        ),
        Pair(
            "Hugging Face: picture",
            request("POST", "/hf/segment", picture, content_type="image/jpeg"),
            for_json(mask),
        ),
        Pair(
            "PaddleX: base64, labels",
            as_json("/semantic-segmentation", {"image": encoded}),
            for_json(labels),
        ),
        Pair("TEI: a text", as_json("/predict", {"inputs": TEXT}), text),
        Pair("Hugging Face: a text", as_json("/hf/sentiment", {"inputs": TEXT}), text),
    ]


def beyond(reply: Reply) -> float:
    """Milliseconds that no stage accounts for. Raises RuntimeError for a reply that is none."""
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {reply.body[:300]!r}")
    stages = reply.headers["server-timing"].split(", ")
    return 1000 * reply.seconds - sum(float(stage.partition("dur=")[2]) for stage in stages)


def measure(connection: Connection, pairs: Sequence[Pair], requests: int) -> np.ndarray:
    """Milliseconds beyond the stages: [pairs, requests, 2], the door's first."""
    taken = np.empty((len(pairs), requests, 2))
    for number in range(-WARM_UP, requests):
        for place, pair in enumerate(pairs):
            # Who comes first changes, so that neither is always the one after the other.
            for which in (0, 1) if number % 2 else (1, 0):
                found = beyond(connection.send((pair.door, pair.task)[which]))
                if number >= 0:
                    taken[place, number, which] = found
    return taken


def summary(taken: np.ndarray) -> dict[str, float]:
    """Of one pair's [requests, 2]."""
    draw = np.random.default_rng(38)
    more = taken[:, 0] - taken[:, 1]
    picks = draw.integers(0, len(more), (1_000, len(more)))
    low, high = np.quantile(np.median(more[picks], axis=1), (0.05, 0.95))
    door, task = np.median(taken, axis=0)
    return {
        "door_ms": float(door),
        "task_ms": float(task),
        "overhead_ms": float(np.median(more)),
        "low_ms": float(low),
        "high_ms": float(high),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/astronaut.jpg")
    parser.add_argument("--requests", type=int, default=60, help="of each kind, for each door")
    parser.add_argument("--most", type=float, default=0.3, help="milliseconds a door may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    report = {}
    with (
        running_server(arguments.repository) as server,
        contextlib.closing(Connection(server.port)) as connection,
    ):
        pairs = pairs_of(arguments.picture.read_bytes())
        taken = measure(connection, pairs, arguments.requests)
    print(f"{'ms beyond the stages, p50':28}{'task':>8}{'door':>8}{'more':>8}")
    for pair, each in zip(pairs, taken, strict=True):
        found = report[pair.name] = summary(each)
        missed = "" if found["overhead_ms"] <= arguments.most else "  MISSED"
        print(
            f"{pair.name:28}{found['task_ms']:8.2f}{found['door_ms']:8.2f}"
            f"{found['overhead_ms']:8.2f}  ({found['low_ms']:.2f} to {found['high_ms']:.2f})"
            f"{missed}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 0 if all(each["overhead_ms"] <= arguments.most for each in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
