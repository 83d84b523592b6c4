"""The services that endpoints use, and a function that runs slow work in a thread."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast

from fastapi import Depends, Request

from paddlepool.contracts.errors import Overloaded
from paddlepool.contracts.status import CanaryStatus, TrialExample
from paddlepool.contracts.tensors import TaskTensors
from paddlepool.engine.dataplane import DataPlane
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.observability.metrics import Metrics
from paddlepool.settings.server import Settings

if TYPE_CHECKING:  # an optional extra
    from paddlepool.observability.tracing import Tracing


@dataclass(slots=True)
class Lifecycle:
    """The state of the server process: whether it drains, and whether a background task has failed.

    A signal handler sets `draining`, a plain value without a lock. Each of `closers` closes one
    interface other than HTTP. They are called when the drain delay is over, possibly twice: each
    stops accepting requests, and returns when the requests in flight have ended or the drain
    timeout is over.
    """

    draining: bool = False
    accepts_when_ready: bool = False
    """Whether to accept no connection until every model is ready. Set if servers share the port."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    failure: str = ""
    """A sentence about the background task that failed last. Unless empty, the server is not
    ready."""

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """Set `failure` if the task ended with an error. A callback for add_done_callback()."""
        if not task.cancelled() and task.exception() is not None:
            self.failure = f"The background task {task.get_name()!r} has failed; the log says why."

    async def close_others(self) -> None:
        await asyncio.gather(*(close() for close in self.closers))


class CanaryControl(Protocol):
    """Shows and changes which version of a model serves.

    Each method raises ModelNotFound and CanaryConflict; promote() and rollback() also raise
    ModelLoadFailed and ModelNotReady. The coroutines are called from the event loop.
    """

    def status(self, model: str) -> CanaryStatus: ...

    def examples_of(self, model: str) -> Sequence[TrialExample]: ...

    async def promote(self, model: str) -> None: ...

    async def reject(self, model: str) -> None: ...

    async def rollback(self, model: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The application's services, built once by `create_app`; `app.state.paddlepool` has them."""

    settings: Settings
    registry: ModelRegistry
    dataplane: DataPlane
    metrics: Metrics
    canaries: CanaryControl
    lifecycle: Lifecycle
    task_tensors: Mapping[str, TaskTensors] = field(default_factory=dict)
    """Tasks that answer as models under /v2, by name."""
    task_origins: Mapping[str, str] = field(default_factory=dict)
    """`Task.origin` of each task, by the task's name."""
    confinement: Callable[[], Mapping[str, Sequence[str]]] = dict
    """Returns the active confinement measures by kind of child process."""
    tracing: Tracing | None = None
    operations: Executor
    """One thread for work of milliseconds: /info, /compare/data, large documents and tensors."""


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.paddlepool)


async def _services(request: Request) -> Services:
    # FastAPI would run a plain function in a thread for every request.
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]


T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""JSON up to this size is read in a few milliseconds, too few to justify a thread switch."""

PART_BYTES = 192 * 1024
"""Bytes that base64_parts() encodes at a time. Divisible by three, so that no part is padded."""


async def run_off_loop(services: Services, work: Callable[[], T], *, size: int) -> T:
    """Return the result of `work`; it runs in the operations thread if `size` exceeds LARGE_BYTES.

    A thread helps only if `work` consists of several calls: the interpreter does not switch threads
    during one call into C, such as the call of a parser. Raises the errors of `work`, and
    Overloaded if the thread does not start it within the setting `timeout_default_ms`.
    """
    if size <= LARGE_BYTES:
        return work()
    seconds = services.settings.timeout_default_ms / 1000
    waiting = services.operations.submit(work)
    # Cancelling has no effect if the work is already running.
    timer = asyncio.get_running_loop().call_later(seconds, waiting.cancel)
    try:
        return await asyncio.wrap_future(waiting)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Overloaded(
            f"too many large documents are being processed; this one waited {seconds:g} s",
            limit=seconds,
        ) from None
    finally:
        timer.cancel()


def base64_parts(data: bytes) -> Iterator[bytes]:
    """Yield the base64 of `data` in parts; the interpreter can switch threads between them."""
    view = memoryview(data)
    return (b64encode(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))
