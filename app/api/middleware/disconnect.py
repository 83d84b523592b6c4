"""Ends the work for a client that has gone away: uvicorn alone lets the handler run on."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Disconnect:
    """Cancels the handler when `http.disconnect` arrives after the body and before the reply.

    **Invariant**: nobody else calls the server's `receive` once the body is complete. A layer
    that hid it from this one (BaseHTTPMiddleware does) would switch cancellation off.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        handler = asyncio.current_task()
        assert handler is not None, "this is a bug: an ASGI application runs in a task"
        watcher: asyncio.Task[None] | None = None
        gone = asyncio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            scope["state"]["client_gone"] = True
            gone.set()
            handler.cancel()

        async def receive_watched() -> Message:
            nonlocal watcher
            if watcher is not None:
                await gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                scope["state"]["client_gone"] = True
            elif not message.get("more_body", False):
                watcher = asyncio.create_task(watch())
            return message

        async def send_watched(message: Message) -> None:
            # The server reports a disconnect after every complete reply, too.
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if last and watcher is not None and not gone.is_set():
                watcher.cancel()
            await send(message)

        try:
            await self._app(scope, receive_watched, send_watched)
        except asyncio.CancelledError:
            if not gone.is_set():
                raise
            handler.uncancel()
        finally:
            if watcher is not None:
                watcher.cancel()
