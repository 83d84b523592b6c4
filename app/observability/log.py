"""The log: one JSON object a line, or lines for people at a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonLines(logging.Formatter):
    """Time, level, event, and whatever the caller gave as `extra`. ASCII only, one line always."""

    def __init__(self, *, replica: str = "") -> None:
        """Every line names the `replica` unless it is empty."""
        super().__init__()
        self._always = {"replica": replica} if replica else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._always,
        }
        line |= extras(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


WAITING_LINES = 10_000
INTERVAL_SECONDS = 0.05
FAREWELL_SECONDS = 5.0


class BackgroundHandler(logging.handlers.QueueHandler):
    """Hands lines to a thread that formats and writes them: a slow reader stops no request.

    When `WAITING_LINES` lines wait, further ones are dropped, and a line says how many were.
    """

    def __init__(self, writer: logging.Handler) -> None:
        self.lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self.lines)
        self._dropped = 0
        self._listener = _PacedListener(self.lines, writer)
        self._listener.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # formatting it here would take the request's time

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.lines.qsize() >= WAITING_LINES:
            self._dropped += 1
            return
        if self._dropped:
            self.lines.put_nowait(
                logging.LogRecord(
                    "paddlepool.log", logging.WARNING, "", 0,
                    "%d log lines were dropped", (self._dropped,), None,
                )
            )  # fmt: skip
            self._dropped = 0
        self.lines.put_nowait(record)

    def close(self) -> None:
        """Write what waits; logging.shutdown() calls this, also for a handler closed before.

        A reader that has stopped reading keeps the process alive for `FAREWELL_SECONDS`, no longer.
        """
        self._listener.stop()
        super().close()


class _PacedListener(logging.handlers.QueueListener):
    """Looks for lines every `INTERVAL_SECONDS`: one written as soon as its request is over would
    take the interpreter from the next one, which its client is just sending."""

    def __init__(
        self, lines: queue.SimpleQueue[logging.LogRecord], writer: logging.Handler
    ) -> None:
        super().__init__(lines, writer)
        self._lines = lines
        self._closing, self._written = threading.Event(), threading.Event()

    def dequeue(self, block: bool) -> logging.LogRecord:
        closing = self._closing.is_set()  # before it looks: what was said by then is in the queue
        while self._lines.empty():
            if closing:
                self._written.set()
                self.enqueue_sentinel()
            else:
                closing = self._closing.wait(INTERVAL_SECONDS)
        return self._lines.get(block)

    def stop(self) -> None:
        """Bounded: the standard one waits for as long as the writer is stuck."""
        self._closing.set()
        self._written.wait(FAREWELL_SECONDS)


def configure(
    level: str, stream: TextIO | None = None, *, form: logging.Formatter | None = None
) -> None:
    """Send every log of the process to `stream`, standard error by default, as JSON by default."""
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(form or JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [BackgroundHandler(writer)]
    root.setLevel(level.upper())
    # No line says where in the code it comes from; the manual's "Optimization" leaves that out.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Our own access line replaces uvicorn's, and its warnings of broken requests repeat our 400s.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_not_said_by_us)


def _not_said_by_us(record: logging.LogRecord) -> bool:
    """Whether to keep uvicorn's line: `connection refused` says more of a broken request, and a
    request that the end of a drain cancels is counted in a line before its traceback."""
    cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cancelled and record.msg != "Invalid HTTP request received."


COLOURS = {"good": "32", "warning": "33", "bad": "31", "dim": "2", "bold": "1"}


def coloured(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether colours are wanted there: a terminal that knows them, and nobody against it
    (https://no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


class TerminalLines(logging.Formatter):
    """The time of day, the event, and whatever the caller gave as `extra`."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour
        self._url = ""

    def format(self, record: logging.LogRecord) -> str:
        time = self._in("dim", datetime.fromtimestamp(record.created).strftime("%H:%M:%S"))
        line = f"{time}  {self._event(record, extras(record))}"
        if record.exc_info:
            line += "\n" + _plain(self.formatException(record.exc_info), kept="\n")
        return line

    def _event(self, record: logging.LogRecord, extra: dict[str, object]) -> str:
        event = record.getMessage()
        if record.name == "paddlepool.access":
            return self._request(extra)
        if event == "listening":
            self._url = str(extra["url"]).replace("//0.0.0.0:", "//127.0.0.1:")
            return f"listening on {_plain(str(extra['url']))}; the models are being loaded"
        if event == "loaded":
            return self._loaded(extra)
        words = _plain(f"{event}{_pairs(extra)}")
        if record.levelno >= logging.ERROR:
            return self._in("bad", f"error: {words}")
        if record.levelno >= logging.WARNING:
            return self._in("warning", f"warning: {words}")
        return words

    def _loaded(self, extra: dict[str, object]) -> str:
        if not extra["ready"]:
            return self._in("bad", f"not every model could be loaded; {self._url}/info says why")
        return f"ready after {extra['seconds']} s.  {self._in('bold', f'Open {self._url}')}"

    def _request(self, extra: dict[str, object]) -> str:
        status = int(str(extra.pop("status")))
        kind = "good" if status < 400 else "warning" if status < 500 else "bad"
        who = " ".join(str(extra.get(name, "")) for name in ("x_model", "x_predictor"))
        words = f"{extra['method']} {extra['route']}  {extra['milliseconds']} ms  {who}"
        named = self._in("dim", _plain(str(extra["request_id"])))
        return f"{self._in(kind, str(status))}  {_plain(words).rstrip()}  {named}"

    def _in(self, kind: str, text: str) -> str:
        return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m" if self._colour else text


def _pairs(extra: Mapping[str, object]) -> str:
    return "".join(f"  {name}={value}" for name, value in extra.items())


def _plain(text: str, kept: str = "") -> str:
    """Printable alone: what a terminal would obey is written as Python writes it."""
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )
