"""The path of one request and its reply between the HTTP server and a route; the request log."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Iterable, Mapping
from typing import ClassVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from paddlepool.observability.metrics import METHODS, OTHER, UNMATCHED, Metrics
from paddlepool.service.api.middleware.compression import is_long, send_packed
from paddlepool.service.api.middleware.limits import Budget, TokenBucket, too_large
from paddlepool.service.api.services import Lifecycle

LOGGED = {b"x-model": "x_model", b"x-predictor": "x_predictor", b"server-timing": "server_timing"}
"""Reply headers that the log line repeats, mapped to their names in the log."""

WATCH_DELAY_SECONDS = 0.05
"""Time from the end of the body until a task starts to watch for the client's disconnect. Most
requests end before that and need no task."""


class Exchange:
    """One request and its reply: counts the body, adds reply headers, and cancels on disconnect.

    Create it in the task that handles the request. The body's bytes are reserved in the budget
    `bodies` from their arrival until close(). `status` is 0 until the reply begins. If
    `http.disconnect` arrives after the body and before the end of the reply, that task is
    cancelled: uvicorn alone would let it continue.

    **Invariant**: only this object calls the server's `receive` after the body is complete. A layer
    around it that reads ahead, such as BaseHTTPMiddleware, would disable that cancellation.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        body_cap: int,
        bodies: Budget,
        lifecycle: Lifecycle,
        common_headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        """`body_cap` is the body's maximum in bytes; every reply gets the `common_headers`."""
        self.headers = Headers(scope=scope)
        given: str | None = scope.get("state", {}).get("request_id")
        self.request_id = given or request_id_of(self.headers.get("x-request-id"))
        self.body_cap = body_cap
        self.status = 0
        self.sent: dict[str, str] = {}
        self.bucket: TokenBucket | None = None
        self.client_gone = False
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self._lifecycle = lifecycle
        self._common_headers = common_headers
        self._received = 0
        self._long_start: Message | None = None
        self._handler = asyncio.current_task()
        self._cancelled = False
        self._watcher: asyncio.Task[None] | None = None
        self._watching: asyncio.TimerHandle | None = None

    async def receive(self) -> Message:
        """Return the next message; after the body, wait for the disconnect.

        Raises FileTooLarge if the body exceeds `body_cap`, Overloaded if the bodies of all requests
        exceed their budget, and UnsupportedEncoding for a faulty gzip body.
        """
        if self._watching is not None:
            await asyncio.wait((self._start_watching(),))
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_gone = True
            return message
        if size := len(message.get("body", b"")):
            if self._received + size > self.body_cap:
                raise too_large(self.body_cap, f"more than {self.body_cap}")
            self._bodies.take(size)
            self._received += size
        if not message.get("more_body", False):
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(WATCH_DELAY_SECONDS, self._start_watching)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin_reply(message)
            if is_long(message):
                self._long_start = message
                return
        else:
            whole = not message.get("more_body", False)
            if whole and not self._cancelled:
                self._stop_watching()  # the server also reports a disconnect after every reply
            if self._long_start is not None:
                start, self._long_start = self._long_start, None
                if whole:
                    await send_packed(start, message, self.headers, self._receive, self._send)
                    return
                await self._send(start)
        await self._send(message)

    def _begin_reply(self, message: Message) -> None:
        self.status = message["status"]
        for name, value in message["headers"]:
            if name in LOGGED:
                self.sent[LOGGED[name]] = value.decode("latin-1")
        message["headers"] = [
            *message["headers"],
            (b"x-request-id", self.request_id.encode()),
            *self._common_headers,
        ]
        if self._lifecycle.draining:
            MutableHeaders(scope=message)["Connection"] = "close"
        if self.bucket is not None:
            MutableHeaders(scope=message).update(self.bucket.headers())

    def _start_watching(self) -> asyncio.Task[None]:
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        return self._watcher

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_gone = self._cancelled = True
        assert self._handler is not None, "this is a bug: an ASGI application runs in a task"
        self._handler.cancel()

    def was_cancelled(self) -> bool:
        """Return whether a disconnect cancelled the handling task; if so, undo the cancellation."""
        if self._cancelled and self._handler is not None:
            self._handler.uncancel()
        return self._cancelled

    def close(self) -> None:
        """Return the body's bytes to the budget, and stop watching.

        Afterwards receive() and send() must not be called.
        """
        self._bodies.give_back(self._received)
        self._stop_watching()
        # Break reference cycles: with the scope, and with the frame of a cancelled task.
        del self._receive, self._send, self._watcher

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._watcher is not None:
            self._watcher.cancel()


REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_GONE = 499
log = logging.getLogger("paddlepool.access")


class RequestRecord(logging.LogRecord):
    """The record of a finished request, with `extra` as attributes.

    The standard constructor would take longer. What it would collect about the process and the
    caller stays None, as paddlepool.observability.log.configure() sets it.
    """

    _COMMON: ClassVar = vars(logging.makeLogRecord({})) | {
        **dict.fromkeys(("process", "processName", "thread", "threadName")),
        "name": log.name,
        "levelno": logging.INFO,
        "levelname": "INFO",
        "msg": "request",
    }

    def __init__(self, **extra: object) -> None:
        now = time.time()
        # In the instance, because the formats of logging.Formatter read its __dict__.
        self.__dict__ |= {**self._COMMON, **extra, "created": now, "msecs": now % 1 * 1000}


def record(
    metrics: Metrics,
    *,
    request_id: str,
    method: str,
    route: str | None,
    status: int,
    seconds: float,
    routine: bool,
    sent: Mapping[str, str],
) -> None:
    """Measure and log one finished request, which took `seconds`.

    `route` is its template; None if no route matched. `sent` has the log's names and the values of
    the reply headers in LOGGED. A `routine` request, from a probe or a scraper, is logged only if
    its status is 400 or more.

    The log line has only the route's template: no path, query, text or file name of the client.
    """
    metrics.request_done(route=route, method=method, status=status, seconds=seconds)
    if routine and status < 400:
        return
    if log.isEnabledFor(logging.INFO):
        log.handle(
            RequestRecord(
                request_id=request_id,
                method=method if method in METHODS else OTHER,
                route=route or UNMATCHED,
                status=status,
                milliseconds=round(seconds * 1000, 2),
                **sent,
            )
        )


def request_id_of(offered: str | None) -> str:
    """Return the client's own id if it is well formed, else a new one."""
    if offered is not None and REQUEST_ID.fullmatch(offered):
        return offered
    return f"{random.getrandbits(64):016x}"  # no secret
