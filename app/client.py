"""A small Python client: `Client` blocks, `AsyncClient` awaits; both retry as the server asks.

    from app.client import Client

    with Client("http://127.0.0.1:8000") as client:
        cutout = client.segment("cat.jpg").picture            # uint8 [H,W,4], RGBA
        [emotion, *others] = client.sentiment(["今天真开心！"])[0]

What to send, what a reply means and when to try again are decided once, in plain functions and one
generator; the two classes only move bytes.
"""

from __future__ import annotations

import asyncio
import email.utils
import io
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Picture = NDArray[np.uint8]
Source = str | PathLike[str] | bytes | Picture

RETRIED = frozenset({429, 503})
NEVER_SENT = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
"""Requests that no other attempt would make right."""

MAX_WAIT_SECONDS = 30.0
"""A server that wants more than this is not waited for."""


class ApiError(Exception):
    """The server refused or failed: its status, stable code, and the limit it names, if any."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail", problem.get("error", "")))
        self.limit = problem.get("limit")
        self.received = problem.get("received")
        self.request_id = problem.get("request_id")
        super().__init__(f"{status} {self.code}: {self.detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation:
    """`picture` is uint8: [H,W,4] RGBA cut-out, [H,W] mask or [H,W,3] composite.

    `content` is the same as the server encoded it; `foreground` is (top, left, width, height) in
    pixels; `timings` are milliseconds by stage.
    """

    content: bytes
    content_type: str
    foreground: tuple[int, int, int, int]
    model: str
    predictor: str
    timings: Mapping[str, float]

    @property
    def picture(self) -> Picture:
        with Image.open(io.BytesIO(self.content)) as image:
            return np.asarray(image, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Emotion:
    """One class of one text; `score` is a probability, those of all classes sum to 1.

    `label_zh` is None where the model has no Chinese names.
    """

    label: str
    label_zh: str | None
    score: float


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently a 429, a 503 or a lost connection is tried again."""

    attempts: int = 5
    base_seconds: float = 0.25


_Call = Generator[httpx.Request | float, httpx.Response | httpx.TransportError, httpx.Response]


def _calling(request: httpx.Request, retries: Retries) -> _Call:
    """Yield the request to send, or seconds to sleep; return the first reply that is an answer."""
    for attempt in range(1, retries.attempts + 1):
        outcome = yield request
        last = attempt == retries.attempts
        if isinstance(outcome, httpx.Response):
            if outcome.is_success:
                return outcome
            if outcome.status_code not in RETRIED or last:
                raise ApiError(outcome.status_code, _problem(outcome))
            wait = _retry_after(outcome)
            if wait is not None and wait > MAX_WAIT_SECONDS:
                raise ApiError(outcome.status_code, _problem(outcome))
        elif last or isinstance(outcome, NEVER_SENT):
            raise outcome
        else:
            wait = None
        if wait is None:
            wait = retries.base_seconds * 2.0 ** (attempt - 1)
        # Jitter only ever adds: coming back before the server asked would be refused again.
        yield min(wait, MAX_WAIT_SECONDS) * (1.0 + 0.25 * random.random())
    raise AssertionError("this is a bug: Retries.attempts must be at least 1")


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _picture_bytes(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, np.ndarray):
        encoded = io.BytesIO()
        Image.fromarray(source).save(encoded, "png", compress_level=1)
        return encoded.getvalue()
    return Path(source).read_bytes()


def _segmentation(response: httpx.Response) -> Segmentation:
    headers = response.headers
    top, left, width, height = (
        int(headers[f"x-foreground-{side}"]) for side in ("top", "left", "width", "height")
    )
    timings = {}
    for part in headers.get("server-timing", "").split(","):
        stage, _, duration = part.strip().partition(";dur=")
        if duration:
            timings[stage] = float(duration)
    return Segmentation(
        content=response.content,
        content_type=headers["content-type"],
        foreground=(top, left, width, height),
        model=headers["x-model"],
        predictor=headers["x-predictor"],
        timings=timings,
    )


def _emotions(response: httpx.Response) -> list[list[Emotion]]:
    return [
        [Emotion(each["label"], each.get("label_zh"), each["score"]) for each in one]
        for one in response.json()
    ]


def _segment_request(
    client: httpx.Client | httpx.AsyncClient, source: Source, parameters: Mapping[str, Any]
) -> httpx.Request:
    sent = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
    }
    # The server tells the format from the bytes; the declared type only says "a picture".
    headers = {"content-type": "image/*"}
    return client.build_request(
        "POST", "/segment", params=sent, content=_picture_bytes(source), headers=headers
    )


def _sentiment_request(
    client: httpx.Client | httpx.AsyncClient, texts: Sequence[str], top_k: int
) -> httpx.Request:
    if isinstance(texts, str):
        raise TypeError("sentiment() takes a list of texts, not one text")
    body = {"inputs": list(texts), "parameters": {"top_k": top_k}}
    return client.build_request("POST", "/sentiment", json=body)


class Client:
    """Blocking client of one server. Raises ApiError, and httpx.TransportError at the last try."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: Retries = Retries(),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout, transport=transport
        )
        self._retries = retries
        self._sleep = sleep

    def segment(self, source: Source, **parameters: Any) -> Segmentation:
        """Cut out the foreground of a picture: a path, encoded bytes, or uint8 [H,W(,3|4)].

        `parameters` are those of POST /segment: output, format, refine, crop, bg_color, …
        """
        return _segmentation(self._call(_segment_request(self._http, source, parameters)))

    def sentiment(self, texts: Sequence[str], *, top_k: int = 6) -> list[list[Emotion]]:
        """Emotions of each text, best first."""
        return _emotions(self._call(_sentiment_request(self._http, texts, top_k)))

    def _call(self, request: httpx.Request) -> httpx.Response:
        calling = _calling(request, self._retries)
        step = next(calling)
        while True:
            try:
                if isinstance(step, float):
                    self._sleep(step)
                    step = next(calling)
                    continue
                try:
                    outcome: httpx.Response | httpx.TransportError = self._http.send(step)
                except httpx.TransportError as error:
                    outcome = error
                step = calling.send(outcome)
            except StopIteration as done:
                return _returned(done)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio. One client may serve many tasks at once."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: Retries = Retries(),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, transport=transport
        )
        self._retries = retries

    async def segment(self, source: Source, **parameters: Any) -> Segmentation:
        """As Client.segment; a path is read in a thread."""
        request = await asyncio.to_thread(_segment_request, self._http, source, parameters)
        return _segmentation(await self._call(request))

    async def sentiment(self, texts: Sequence[str], *, top_k: int = 6) -> list[list[Emotion]]:
        """As Client.sentiment."""
        return _emotions(await self._call(_sentiment_request(self._http, texts, top_k)))

    async def _call(self, request: httpx.Request) -> httpx.Response:
        calling = _calling(request, self._retries)
        step = next(calling)
        while True:
            try:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(calling)
                    continue
                try:
                    outcome: httpx.Response | httpx.TransportError = await self._http.send(step)
                except httpx.TransportError as error:
                    outcome = error
                step = calling.send(outcome)
            except StopIteration as done:
                return _returned(done)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _returned(done: StopIteration) -> httpx.Response:
    response: httpx.Response = done.value
    return response
