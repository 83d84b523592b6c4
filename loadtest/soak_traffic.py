"""Users who compare their answers with those of an undisturbed server, and soak.py's traffic."""

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from cases import form, mask_request, tensor_request, text_request
from harness import HOST, Connection, Reply, json_request, meanwhile, request, send
from inputs import SENTENCES, draw_pictures

BAD, DISCONNECTS = 0.05, 0.02
"""Shares of the requests."""
TOLERANCE = 1e-4
"""Tolerance of a number in a JSON reply: the rest of its batch may change its last bits."""
FAULTS = (0, 500, 503, 504)
"""Statuses of a lost request; 0 for a broken connection. A 503 with Retry-After is counted
separately: it was rejected and may be retried."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request as bytes; `picture` is True if codec processes work on it."""

    name: str
    data: bytes
    picture: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A failed request: when it was sent and ended (time.monotonic), and its status."""

    request: Case
    began: float
    ended: float
    status: int
    reason: str


@dataclass(slots=True)
class Tally:
    """Counts of sent requests by kind, and the wrong, lost and rejected ones."""

    sent: dict[str, int] = field(default_factory=lambda: {"good": 0, "bad": 0, "disconnect": 0})
    wrong: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    refused: list[Lost] = field(default_factory=list)

    @property
    def right(self) -> int:
        failed = len(self.wrong) + len(self.lost) + len(self.refused)
        return self.sent["good"] + self.sent["bad"] - failed


def good_requests() -> list[Case]:
    """Masks, cut-outs and composites of six pictures, a form, one or several texts, tensors."""
    drawn = draw_pictures()
    kinds = ("output=mask", "output=cutout&format=webp", "output=composite&format=jpg")
    requests = [
        Case(
            f"/segment {picture.width}x{picture.height} {kind}",
            request("POST", f"/segment?{kind}", picture.data, content_type="image/jpeg"),
            picture=True,
        )
        for number, picture in enumerate(drawn)
        for kind in (kinds[number % 3], kinds[(number + 1) % 3])
    ]
    requests.append(
        Case("/segment form", form("/segment?output=mask", "file", drawn[0].data), picture=True)
    )
    for texts in (*([text] for text in SENTENCES), list(SENTENCES[:4]), list(SENTENCES[4:12])):
        requests.append(Case(f"/sentiment of {len(texts)}", text_request(texts)))
    draw = np.random.default_rng(5)
    digit = draw.random((1, 784), np.float32)
    pixels = draw.random((1, 3, 320, 320), np.float32)
    return [
        *requests,
        Case("/v2 mnist", _infer("mnist", "image", digit)),
        Case("/v2 u2netp", tensor_request("u2netp", {"input": pixels})),
    ]


def bad_requests() -> list[Case]:
    """Broken pictures, texts, tensors and HTTP."""
    picture = draw_pictures()[0].data
    broken = {
        "cut off": picture[: len(picture) // 2],
        "none": b"GIF8",
        "bits": picture[:300] + bytes(300) + picture[600:],
    }
    sentiment = "/sentiment"
    bad_shape, bad_number = np.zeros((1, 3), np.float32), np.full((1, 784), np.nan, np.float32)
    return [
        *(
            Case(f"broken {name}", mask_request(body), picture=True)
            for name, body in broken.items()
        ),
        Case("unknown parameter", request("POST", "/segment?no=1", picture)),
        Case("no text", text_request([])),
        Case("long text", text_request("长" * 5000)),
        Case("not JSON", request("POST", sentiment, b"{", content_type="application/json")),
        Case("wrong shape", _infer("mnist", "image", bad_shape)),
        Case("no number", _infer("mnist", "image", bad_number)),
        Case("no path", request("GET", "/nothing")),
        Case("no HTTP", b"\x16\x03\x01\x02\x00\r\n\r\n"),
        Case("long header", request("GET", "/info", headers={"X-Long": "x" * 100_000})),
        Case("coding", request("POST", sentiment, headers={"Transfer-Encoding": "gzip, chunked"})),
    ]


def _infer(name: str, tensor: str, array: np.ndarray[Any, Any]) -> bytes:
    """The tensor as JSON, to this model."""
    described = {"name": tensor, "datatype": "FP32", "shape": array.shape, "data": array.tolist()}
    return json_request(f"/v2/models/{name}/infer", {"inputs": [described]})


def same_reply(reply: Reply, calm: Reply) -> bool:
    """Whether bytes are equal, or JSON except for last digits, or the error codes of rejections."""
    if reply.status != calm.status:
        return False
    if reply.status != 200:
        return _code(reply) == _code(calm)
    if reply.body == calm.body:
        return True
    if not reply.headers.get("content-type", "").startswith("application/json"):
        return False
    return _close(json.loads(reply.body), json.loads(calm.body))


def _code(reply: Reply) -> object:
    """Return the error code; None for a proxy's own reply, such as Ray's, which is plain text."""
    is_problem = "json" in reply.headers.get("content-type", "")
    return json.loads(reply.body).get("code") if is_problem else None


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    return bool(one == other)


class Traffic:
    """Users who send one request after another and compare each answer with the expected one."""

    def __init__(self, port: int, good: Sequence[Case], bad: Sequence[Case] = ()) -> None:
        """Request every expected answer, one after another.

        With invalid requests, some are sent and some users disconnect before their answer. Raises
        RuntimeError if a valid request is rejected or an invalid one causes a server fault.
        """
        self._port = port
        self.tally = Tally()
        self._lock = threading.Lock()
        self._good, self._bad = good, bad
        self._calm: dict[bytes, Reply] = {}
        for case in (*good, *bad):
            reply = self._calm[case.data] = send(port, case.data)
            if reply.status in FAULTS or (case in good and reply.status != 200):
                raise RuntimeError(f"{case.name}: status {reply.status}: {reply.body[:300]!r}")

    @contextlib.contextmanager
    def users(self, count: int, *, pause: float) -> Iterator[None]:
        """Run this many users within the block, who pause this many seconds on average."""
        with meanwhile(*(partial(self._use, pause, number) for number in range(count))):
            yield

    def _use(self, pause: float, number: int, ending: threading.Event) -> None:
        draw = random.Random(number)
        shares = (BAD, DISCONNECTS, 1 - BAD - DISCONNECTS) if self._bad else (0, 0, 1)
        with contextlib.closing(Connection(self._port)) as connection:
            while not ending.wait(draw.expovariate(1 / pause)):
                kind = draw.choices(("bad", "disconnect", "good"), shares)[0]
                if kind == "disconnect":
                    self._disconnect(draw)
                else:
                    self._send(connection, draw.choice(self._bad if kind == "bad" else self._good))
                with self._lock:
                    self.tally.sent[kind] += 1

    def _send(self, connection: Connection, case: Case) -> None:
        """Send one request, and note it if its answer is not the expected one."""
        began = time.monotonic()
        try:
            reply = connection.send(case.data)
        except OSError as error:
            lost = Lost(case, began, time.monotonic(), 0, type(error).__name__)
            self.tally.lost.append(lost)
            return
        calm = self._calm[case.data]
        if same_reply(reply, calm):
            return
        if reply.status in FAULTS:
            reason = str(_code(reply) or reply.status)
            failures = self.tally.refused if "retry-after" in reply.headers else self.tally.lost
            failures.append(Lost(case, began, time.monotonic(), reply.status, reason))
        else:
            body = reply.body[:200] if reply.status != 200 else b"another body"
            wrong = f"{case.name}: {calm.status} calm, {reply.status}: {body!r}"
            self.tally.wrong.append(wrong)

    def _disconnect(self, draw: random.Random) -> None:
        """Disconnect within a body or before the answer, with or without a reset."""
        data = draw.choice(self._good).data
        cut = draw.choice((len(data), draw.randrange(1, len(data))))
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self._port), timeout=30) as leaving,
        ):
            leaving.sendall(data[:cut])
            time.sleep(draw.uniform(0, 0.2))
            if draw.random() < 0.5:
                linger = struct.pack("ii", 1, 0)
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
