"""`Client` blocks, `AsyncClient` is async. `calls` and `exchange` have the logic of both."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from paddlepool_client import calls
from paddlepool_client.calls import (
    Call,
    ClassifyOptions,
    OcrOptions,
    SegmentOptions,
    SentimentOptions,
    Source,
)
from paddlepool_client.errors import Unreachable
from paddlepool_client.exchange import Retries, completed, exchange, without_user
from paddlepool_client.results import (
    Classification,
    Emotion,
    Model,
    OcrResult,
    Segmentation,
)

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on. Type checkers know this module without the package.
    from typing_extensions import Self, Unpack

T = TypeVar("T")
Http = TypeVar("Http", bound=httpx.Client | httpx.AsyncClient)

DEFAULT_URL = "http://127.0.0.1:8000"


class Client:
    """Blocking client of one server; thread-safe.

    `timeout` is in seconds, for connecting and for each wait for bytes. `transport` replaces
    httpx's own, and `sleep` waits before a retry. A server on a loopback address is called without
    a proxy. Every method that sends a request can raise RequestFailed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: Retries = Retries(),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raise ValueError for a key or a proxy variable that cannot be used.

        A key must have only printable characters. Raises httpx.InvalidURL if `url` cannot be
        parsed. Nothing is sent yet.
        """
        settings = _settings(url, api_key, timeout)
        with _named_variables():
            http = httpx.Client(transport=transport, **settings)
        self._wire = _BlockingWire(http, sleep)
        self._retries = retries

    def segment(self, source: Source, **options: Unpack[SegmentOptions]) -> Segmentation:
        """Cut out the foreground of a picture: a path, bytes, an open file or a Pillow picture.

        Raises OSError if the file cannot be read, and TypeError if `source` is none of these or
        an option is unknown.
        """
        return self._run(calls.segment(source, options))

    def sentiment(
        self, texts: Sequence[str], **options: Unpack[SentimentOptions]
    ) -> list[list[Emotion]]:
        """Return the emotions of each text, best first: `top_k` of them, or all.

        Raises TypeError if `texts` is a single text or cannot be iterated, or an option is unknown.
        """
        return self._run(calls.sentiment(texts, options))

    def classify(self, source: Source, **options: Unpack[ClassifyOptions]) -> Classification:
        """Return the labels of a picture, best first: `top` of them, or the model's own number.

        Raises as segment() does.
        """
        return self._run(calls.classify(source, options))

    def ocr(self, sources: Source | Sequence[Source], **options: Unpack[OcrOptions]) -> OcrResult:
        """Read the text of a picture, or of a list of pictures in one request.

        Raises as segment() does, and TypeError if the list is empty.
        """
        return self._run(calls.ocr(sources, options))

    def models(self) -> list[Model]:
        """Return the versions of every model, except those that a newer ready one has replaced."""
        return self._run(calls.models())

    def info(self) -> dict[str, Any]:
        """Return the reply of GET /info: models, predictors, origin of the weights and limits."""
        return self._run(calls.info())

    def ready(self, model: str | None = None) -> bool:
        """Return whether all models, or this one (`name` or `name@version`), are ready.

        False for an unknown model. It does not wait until they are.
        """
        return self._run(calls.ready(model))

    def close(self) -> None:
        self._wire.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Call[T]) -> T:
        return completed(exchange(call, self._wire, self._retries))


class AsyncClient:
    """Client for asyncio, with the methods of Client; many tasks may share it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: Retries = Retries(),
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """See Client."""
        settings = _settings(url, api_key, timeout)
        with _named_variables():
            http = httpx.AsyncClient(transport=transport, **settings)
        self._wire = _AwaitingWire(http, sleep)
        self._retries = retries

    async def segment(self, source: Source, **options: Unpack[SegmentOptions]) -> Segmentation:
        """See Client.segment; a path is read in a thread."""
        return await self._run(calls.segment(source, options))

    async def sentiment(
        self, texts: Sequence[str], **options: Unpack[SentimentOptions]
    ) -> list[list[Emotion]]:
        """See Client.sentiment."""
        return await self._run(calls.sentiment(texts, options))

    async def classify(self, source: Source, **options: Unpack[ClassifyOptions]) -> Classification:
        """See Client.classify; a path is read in a thread."""
        return await self._run(calls.classify(source, options))

    async def ocr(
        self, sources: Source | Sequence[Source], **options: Unpack[OcrOptions]
    ) -> OcrResult:
        """See Client.ocr; paths are read in a thread."""
        return await self._run(calls.ocr(sources, options))

    async def models(self) -> list[Model]:
        """See Client.models."""
        return await self._run(calls.models())

    async def info(self) -> dict[str, Any]:
        """See Client.info."""
        return await self._run(calls.info())

    async def ready(self, model: str | None = None) -> bool:
        """See Client.ready."""
        return await self._run(calls.ready(model))

    async def aclose(self) -> None:
        await self._wire.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _run(self, call: Call[T]) -> T:
        return await exchange(call, self._wire, self._retries)


class _Wire(Generic[Http]):
    """The parts of an exchange.Wire that do not wait; `sleep` takes seconds."""

    def __init__(self, http: Http, sleep: Callable[[float], Any]) -> None:
        self.http = http
        self.url = str(without_user(http.base_url)).rstrip("/")
        self._sleep = sleep

    def build(
        self, call: Call[Any], body: bytes | None, files: Sequence[tuple[str, bytes]]
    ) -> httpx.Request:
        return self.http.build_request(
            call.method,
            call.path,
            params=call.params,
            headers=call.headers,
            content=body if call.json is None else _encoded(call.json),
            # A part with a file name is a file; the server ignores the name.
            files=[(name, (name, content)) for name, content in files] or None,
        )

    def _check_open(self) -> None:
        if self.http.is_closed:
            raise Unreachable("the client is closed")


class _BlockingWire(_Wire[httpx.Client]):
    async def send(self, request: httpx.Request) -> httpx.Response:
        self._check_open()
        return self.http.send(request)

    async def sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    async def read(self, path: Path) -> bytes:
        return path.read_bytes()  # noqa: ASYNC240 - nothing else runs on a blocking client's loop


class _AwaitingWire(_Wire[httpx.AsyncClient]):
    async def send(self, request: httpx.Request) -> httpx.Response:
        self._check_open()
        return await self.http.send(request)

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def read(self, path: Path) -> bytes:
        return await asyncio.to_thread(path.read_bytes)


def _settings(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the settings of httpx's client. A loopback address is called without a proxy.

    A proxy would take that address for its own machine. Certificates still come from the
    environment. Raises ValueError for a wrong key, and httpx.InvalidURL.
    """
    headers = _headers(api_key)
    address = httpx.URL(url)
    try:
        here = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        here = address.host == "localhost" or address.host.endswith(".localhost")
    verify = httpx.create_ssl_context() if here and address.scheme == "https" else True
    settings: dict[str, Any] = {"base_url": url, "headers": headers, "timeout": timeout}
    return settings | {"trust_env": not here, "verify": verify}


@contextlib.contextmanager
def _named_variables() -> Iterator[None]:
    """Turn httpx's errors about proxy variables into a ValueError that names them."""
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        variables = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY"
        raise ValueError(f"one of {variables} cannot be used: {error}") from error


def _encoded(value: Any) -> bytes:
    """Return JSON in UTF-8. A lone surrogate is escaped, so that the server can reject it."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _headers(api_key: str | None) -> dict[bytes, bytes]:
    if not api_key:
        return {}
    if not api_key.isprintable():
        # httpx would raise only when sending, and its message would contain the key.
        raise ValueError("the API key has characters that are invalid in an HTTP header")
    # The server reads a key as UTF-8, which httpx would not send by default.
    return {b"authorization": f"Bearer {api_key}".encode()}
