"""The log: one JSON object per line, or readable lines for a terminal."""

import asyncio
import contextlib
import json
import logging
import logging.handlers
import os
import queue
import select
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from paddlepool.contracts.sentences import printable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values that were passed to the log call as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, event, `extra` and exception as one line of JSON, ASCII only."""

    def __init__(self, *, replica: str = "") -> None:
        """Add the name of the `replica` to every line, unless it is empty."""
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
        # A value may be unknown to orjson, for example an integer of more than 64 bits.
        with contextlib.suppress(TypeError):
            if (text := orjson.dumps(line)).isascii():
                return text.decode()
        return json.dumps(line, default=str, separators=(",", ":"))


WAITING_LINES = 10_000
INTERVAL_SECONDS = 0.05
FLUSH_SECONDS = 5.0


class BoundedQueueHandler(logging.handlers.QueueHandler):
    """Passes lines to a thread that formats and writes them: a slow reader delays no request.

    While `WAITING_LINES` lines wait, further ones are dropped, and a later line reports how many.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self.lines)
        self._dropped = 0
        self.listener = BatchingListener(self, stream)
        self.listener.start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Filter and enqueue, without the handler's lock, which the queue does not need."""
        if accepted := bool(self.filter(record)):
            self.enqueue(record)  # the thread formats it
        return accepted

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.lines.qsize() >= WAITING_LINES:
            self._dropped += 1
            return
        if self._dropped:
            words, count = "%d log lines were dropped", (self._dropped,)
            line = logging.LogRecord("paddlepool.log", logging.WARNING, "", 0, words, count, None)
            self.lines.put_nowait(line)
            self._dropped = 0
        self.lines.put_nowait(record)

    def close(self) -> None:
        """Write the waiting lines. logging.shutdown() calls this even on a closed handler."""
        self.listener.stop()
        super().close()


class BatchingListener(logging.handlers.QueueListener):
    """Writes lines together, every `INTERVAL_SECONDS`, or before they exceed one pipe write.

    The standard listener wakes up for each line. It would write right after the line's request, and
    hold the interpreter lock when the client's next request arrives. Lines are written together,
    because this thread takes the lock from the event loop after each write.
    """

    def __init__(self, handler: BoundedQueueHandler, stream: TextIO) -> None:
        super().__init__(handler.lines)
        self._handler = handler
        self._stream = stream
        self._text = ""
        self._stopped = threading.Event()

    def dequeue(self, block: bool) -> logging.LogRecord:
        while self._handler.lines.empty():
            self._flush()
            time.sleep(INTERVAL_SECONDS)
        record = super().dequeue(block)
        if record is None:  # from stop(); no line follows
            self._flush()
            self._stopped.set()
        return record

    def handle(self, record: logging.LogRecord) -> None:
        try:
            line = self._handler.format(record) + "\n"
        except Exception:
            self._handler.handleError(record)
            return
        if len((self._text + line).encode(errors="replace")) > select.PIPE_BUF:  # may be torn
            self._flush()
        self._text += line

    def _flush(self) -> None:
        if not self._text:
            return
        text, self._text = self._text, ""
        with contextlib.suppress(Exception):  # later writes may succeed
            self._stream.write(text)
            self._stream.flush()

    def stop(self) -> None:
        """Write the waiting lines and stop; waits at most `FLUSH_SECONDS`, then loses the rest."""
        self.enqueue_sentinel()
        self._stopped.wait(FLUSH_SECONDS)


def configure(level: str, *, form: logging.Formatter | None = None) -> None:
    """Send all logs of the process to standard error through `form`, by default as JSON.

    `level`, such as "info", is the lowest level of lines that are kept. Replaces the handlers of
    the root logger and of uvicorn.
    """
    handler = BoundedQueueHandler(sys.stderr)
    handler.setFormatter(form or JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Do not collect what no line shows: see "Optimization" in the logging manual.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Our access lines replace uvicorn's. _is_wanted() drops its lines that add nothing to ours.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return whether to keep a line of uvicorn's logger.

    Our own line `connection refused` says more about a malformed request. When the end of a drain
    cancels requests, uvicorn logs their number first, so their tracebacks add nothing.
    """
    cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cancelled and record.msg != "Invalid HTTP request received."


COLOURS = {"good": "32", "warning": "33", "bad": "31", "dim": "2", "bold": "1"}


def coloured(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal for colours: TERM is not "dumb", NO_COLOR is unset."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class TerminalFormatter(logging.Formatter):
    """Formats time of day, event and `extra` as a line for people; `colour` adds ANSI colours."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour
        self._url = ""

    def format(self, record: logging.LogRecord) -> str:
        time = self._in("dim", datetime.fromtimestamp(record.created).strftime("%H:%M:%S"))
        line = f"{time}  {self._event(record, extras(record))}"
        if record.exc_info:
            line += "\n" + printable(self.formatException(record.exc_info), allowed="\n")
        return line

    def _event(self, record: logging.LogRecord, extra: dict[str, object]) -> str:
        event = record.getMessage()
        if record.name == "paddlepool.access":
            return self._request(extra)
        if event == "listening":
            self._url = str(extra["url"]).replace("//0.0.0.0:", "//127.0.0.1:")
            return f"listening on {printable(str(extra['url']))}; the models are being loaded"
        if event == "loaded" and not extra["ready"]:
            return self._in("bad", f"not every model could be loaded; {self._url}/info says why")
        if event == "loaded":
            return f"ready after {extra['seconds']} s.  {self._in('bold', f'Open {self._url}')}"
        words = printable("  ".join((event, *(f"{name}={value}" for name, value in extra.items()))))
        if record.levelno >= logging.ERROR:
            return self._in("bad", f"error: {words}")
        if record.levelno >= logging.WARNING:
            return self._in("warning", f"warning: {words}")
        return words

    def _request(self, extra: dict[str, object]) -> str:
        status = int(str(extra.pop("status")))
        kind = "good" if status < 400 else "warning" if status < 500 else "bad"
        who = " ".join(str(extra.get(name, "")) for name in ("x_model", "x_predictor"))
        words = f"{extra['method']} {extra['route']}  {extra['milliseconds']} ms  {who}"
        named = self._in("dim", printable(str(extra["request_id"])))
        return f"{self._in(kind, str(status))}  {printable(words).rstrip()}  {named}"

    def _in(self, kind: str, text: str) -> str:
        return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m" if self._colour else text
