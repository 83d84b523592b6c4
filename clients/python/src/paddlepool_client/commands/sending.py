"""Send pictures to a running server, several at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlepool_client import ApiError, Client, RequestFailed, Unauthorized, Unreachable
from paddlepool_client.commands.at_server import unreachable
from paddlepool_client.commands.errors import CommandError

NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Done:
    """The number of pictures that send() gave a result, and whether Ctrl-C stopped it."""

    count: int
    interrupted: bool


def send(
    pictures: Collection[Path],
    one: Callable[[Client, Path], None],
    *,
    connect: Callable[..., Client],
    url: str,
    parameters: Mapping[str, Any],
    jobs: int,
    before: int = 0,
) -> Done:
    """Call `one` for each picture, in `jobs` threads.

    `one` sends the picture and stores the result. If it raises RequestFailed, OSError or
    CommandError, the picture is reported on stderr, and the others go on. After Ctrl-C, requests in
    progress finish. `before` further pictures, which already have results, count in the progress
    bar. `parameters` are those of the requests, for errors. Raises CommandError if the server is
    gone or would reject every picture.
    """
    stopping = threading.Event()

    def pause(seconds: float) -> None:
        if stopping.wait(seconds):
            raise _Stopped  # do not retry for a minute after Ctrl-C

    total = before + len(pictures)
    with (
        connect(url, sleep=pause) as client,
        tqdm(total=total, initial=before, unit="picture", disable=total == 1) as bar,
    ):
        pool = ThreadPoolExecutor(jobs)
        running: dict[Future[None], Path] = {}
        lost: Exception | None = None
        try:
            for picture in pictures:
                running[pool.submit(one, client, picture)] = picture
            for future in as_completed(running):
                try:
                    future.result()
                except (RequestFailed, OSError, CommandError) as error:
                    if is_fatal(error):
                        lost = error
                        stopping.set()
                        break
                    bar.write(f"{running[future]}: {error}", file=sys.stderr)
                bar.update()
        except KeyboardInterrupt:
            stopping.set()
            bar.write("stopping after the requests in progress", file=sys.stderr)
        finally:
            pool.shutdown(cancel_futures=True)
    done = sum(not future.cancelled() and future.exception() is None for future in running)
    if lost is not None:
        if message := refusal(lost, parameters):
            raise CommandError(message)
        message = str(unreachable(lost) if isinstance(lost, Unreachable) else lost)
        raise CommandError(f"{message}; {before + done} of {total} pictures are done")
    return Done(done, stopping.is_set())


def refusal(error: Exception, parameters: Mapping[str, Any]) -> str:
    """Return the server's message, with the value sent, if it rejected a parameter; else ""."""
    if not (isinstance(error, ApiError) and error.code == "invalid_parameter"):
        return ""
    message = error.detail.partition(" (in a query")[0]
    value = parameters.get(message.partition(" ")[0])
    if value is not None and "must be" in message and "received" not in message:
        message += f", received {value!r}"
    return message


def is_fatal(error: Exception) -> bool:
    """Return whether every other picture would fail, too.

    That is so if there is no server, no access or no such model, or if an option or the background
    is rejected.
    """
    if isinstance(error, ApiError) and (
        error.status == NOT_FOUND
        or error.code == "invalid_parameter"
        or error.detail.startswith("bg_image: ")
    ):
        return True
    return isinstance(error, Unauthorized | Unreachable)


class _Stopped(Exception):
    """Ends a request that would otherwise be retried."""
