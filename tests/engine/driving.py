"""The engine's event loop in a thread of its own: tests are plain functions, and clients of it."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from paddlepool.contracts.ports import InferResult
from paddlepool.engine.registry.watcher import RepositoryWatcher
from paddlepool.models.repository.layout import ModelRepository
from tests.engine import fakes
from tests.engine.fakes import PATIENCE, row, soon


class Loop:
    """Runs until it is closed; calls may come from any thread but its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `function` on the loop, in the caller's context, and await its result if that is a
        coroutine. Cancelling the future cancels the coroutine."""

        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What start() comes to; an asyncio.Future, alone or in a list, as a Future of threads."""
        result = self.start(function, *args, **kwargs).result(PATIENCE)
        return self.outside(result)

    def outside(self, result: Any) -> Any:
        """The result as a test may use it."""
        if isinstance(result, asyncio.Future):
            return self.chained(result)
        if isinstance(result, list) and result and isinstance(result[0], asyncio.Future):
            return [self.chained(each) for each in result]
        if isinstance(result, contextlib.AbstractContextManager):
            return self._managed(result)
        return self.driven(result)

    def chained(self, future: asyncio.Future[Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self.loop.call_soon_threadsafe(chain, future, done)
        return done

    @contextlib.contextmanager
    def _managed(self, manager: contextlib.AbstractContextManager[Any]) -> Iterator[Any]:
        entered = self.driven(self.start(manager.__enter__).result(PATIENCE))
        try:
            yield entered
        except BaseException as error:
            if not self(manager.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            self(manager.__exit__, None, None, None)

    def driven(self, thing: Any) -> Any:
        """The thing, as a Driven where its class belongs to the loop."""
        if type(thing).__module__.startswith(
            ("paddlepool.engine.", "paddlepool.tasks.codecs.pool")
        ) and any(
            type(thing).__name__ == name
            for name in ("ServedModel", "Group", "ModelRegistry", "Batcher", "CodecPool", "Codecs")
        ):
            return Driven(self, thing)
        return thing

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class Driven:
    """Calls the methods of an object on its loop, and reads its attributes there."""

    def __init__(self, loop: Loop, thing: Any) -> None:
        self.__dict__["_loop"], self.__dict__["it"] = loop, thing

    def __getattr__(self, name: str) -> Any:
        value = self._loop.start(getattr, self.it, name).result(PATIENCE)
        if inspect.ismethod(value):
            return lambda *args, **kwargs: self._loop(
                value, *map(inner, args), **{name: inner(each) for name, each in kwargs.items()}
            )
        return self._loop.outside(value)

    def __setattr__(self, name: str, value: Any) -> None:
        self._loop.start(setattr, self.it, name, value).result(PATIENCE)

    def __eq__(self, other: object) -> bool:
        return bool(self.it == inner(other))

    def __hash__(self) -> int:
        return hash(self.it)


def inner(thing: Any) -> Any:
    return thing.it if isinstance(thing, Driven) else thing


def chain(source: asyncio.Future[Any], done: Future[Any]) -> None:
    """Settle `done` like `source`, and cancel `source` with it; called on the loop."""
    loop = source.get_loop()

    def settled(source: asyncio.Future[Any]) -> None:
        if source.cancelled():
            done.cancel()
            done.set_running_or_notify_cancel()
        elif not done.cancelled():
            error = source.exception()
            with contextlib.suppress(Exception):  # cancelled this moment
                done.set_exception(error) if error else done.set_result(source.result())

    def left(done: Future[Any]) -> None:
        if done.cancelled() and not loop.is_closed():
            loop.call_soon_threadsafe(source.cancel)

    source.add_done_callback(settled)
    done.add_done_callback(left)


def answer(registry: Any, *, version: int | None = None, group: str | None = None) -> InferResult:
    """What `double` answers to one request."""
    with registry.lease("double", version) as model:
        future = model.submit(row(1), deadline=soon(), group=group)
        result: InferResult = future.result(timeout=PATIENCE)
    assert result.outputs["y"].tolist() == [[2]]  # type: ignore[union-attr]
    return result


def served_double(loop: Loop, *args: Any, **options: Any) -> Any:
    return loop(lambda: fakes.served_double(*args, **options))


def open_registry(loop: Loop, *args: Any, **options: Any) -> Any:
    return loop(lambda: fakes.open_registry(*args, **options))


def open_watcher(loop: Loop, root: Any, registry: Any) -> Any:
    return Driven(loop, loop(RepositoryWatcher, ModelRepository(root), inner(registry)))


def driven_registry(loop: Loop, tmp_path: Any, factory: Any, double: Any) -> Iterator[Any]:
    registry = open_registry(loop, tmp_path, factory)
    registry.load_all()
    yield registry
    registry.close()
