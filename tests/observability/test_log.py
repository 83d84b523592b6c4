"""The log: written in a thread, dropped rather than waited for; how a terminal shows it."""

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.cli.serve import _log_formatter
from paddlepool.observability.log import (
    WAITING_LINES,
    BoundedQueueHandler,
    JsonFormatter,
    TerminalFormatter,
)
from tests.engine.fakes import PATIENCE
from tests.ran import ran


class Gated(io.StringIO):
    """A stream that stands still until its gate opens, like a pipe nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.writing = threading.Event()

    def write(self, text: str) -> int:
        self.writing.set()
        self.gate.wait()
        return super().write(text)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Iterator[Gated]:
    stream = Gated()
    yield stream
    stream.gate.set()


def log_to(stream: Gated) -> tuple[logging.Logger, BoundedQueueHandler]:
    handler, logger = BoundedQueueHandler(stream), logging.Logger("test")
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger, handler


def test_a_reader_that_is_stuck_does_not_hold_the_end_up(
    stream: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing gives up on it after a moment, with the queue full or not."""
    monkeypatch.setattr("paddlepool.observability.log.FLUSH_SECONDS", 0.05)
    for lines in (1, WAITING_LINES + 1):
        logger, handler = log_to(stream)
        for _ in range(lines):
            logger.info("line")
        closing = threading.Thread(target=handler.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


def test_the_end_of_the_process_loses_no_line() -> None:
    """Nobody closes the handler there: the interpreter does."""
    program = """
import logging
from paddlepool.observability.log import configure
configure("info")
for number in range(1000):
    logging.info("line %d", number)
"""
    done = ran([sys.executable, "-c", program])
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == [f"line {number}" for number in range(1000)]


def test_a_blocked_writer_does_not_block_the_caller(stream: Gated) -> None:
    """Lines beyond the limit are dropped, counted, and the count is written when there is room."""
    logger, handler = log_to(stream)
    logger.info("first")
    assert stream.writing.wait(PATIENCE)
    for _ in range(WAITING_LINES + 7):  # returns although nothing is being written
        logger.info("more")
    stream.gate.set()
    while not handler.lines.empty():
        threading.Event().wait(0.01)
    logger.info("last")
    handler.close()
    assert stream.events()[0] == "first"
    assert stream.events()[-2:] == ["7 log lines were dropped", "last"]


def test_a_line_is_json_in_ascii_whatever_its_values_are() -> None:
    """Values that only one of the two encoders knows look as those that both know."""
    values = {"a": "\u00e9", "b": 2**70, "c": np.float64(0.5), "d": Path("/x")}
    for name, value in values.items():
        line = JsonFormatter().format(logging.makeLogRecord({name: value}))
        assert line.isascii()
        assert line.startswith('{"time":"')
        expected = str(value) if isinstance(value, Path) else value
        assert json.loads(line)[name] == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def formatted(
    form: TerminalFormatter,
    event: str,
    *,
    name: str = "paddlepool.server",
    level: int = logging.INFO,
    **extra: Any,
) -> str:
    record = logging.LogRecord(name, level, "", 0, event, None, None)
    vars(record).update(extra)
    return re.sub(r"^(\x1b\[2m)?\d\d:\d\d:\d\d(\x1b\[0m)?  ", "", form.format(record))


REQUEST: dict[str, Any] = {
    "request_id": "3057adea88f0e8c7",
    "method": "POST",
    "route": "/segment",
    "status": 200,
    "milliseconds": 132.45,
    "x_model": "u2netp@2",
    "x_predictor": "onednn",
}


def test_the_start_ends_with_where_to_go() -> None:
    """An address that a browser opens, whatever is listened on."""
    form = TerminalFormatter(colour=False)
    listening = formatted(form, "listening", url="http://0.0.0.0:8000", pid=7)
    assert listening == "listening on http://0.0.0.0:8000; the models are being loaded"
    ready = formatted(form, "loaded", ready=True, seconds=8.9)
    assert ready == "ready after 8.9 s.  Open http://127.0.0.1:8000"
    assert "/info says why" in formatted(form, "loaded", ready=False, seconds=8.9)


def test_a_request_is_one_line() -> None:
    form = TerminalFormatter(colour=False)
    line = formatted(form, "request", name="paddlepool.access", **REQUEST)
    assert line == "200  POST /segment  132.45 ms  u2netp@2 onednn  3057adea88f0e8c7"
    refused = {name: REQUEST[name] for name in list(REQUEST)[:5]} | {"status": 422}
    line = formatted(form, "request", name="paddlepool.access", **refused)
    assert line == "422  POST /segment  132.45 ms  3057adea88f0e8c7"


@pytest.mark.parametrize(("status", "colour"), [(200, "32"), (404, "33"), (503, "31")])
def test_colours_say_how_it_went(status: int, colour: str) -> None:
    """Green, yellow, red; warnings and errors are marked, too, for who sees no colour."""
    form = TerminalFormatter(colour=True)
    line = formatted(form, "request", name="paddlepool.access", **REQUEST | {"status": status})
    assert line.startswith(f"\x1b[{colour}m{status}\x1b[0m  ")
    assert formatted(form, "odd", level=logging.WARNING) == "\x1b[33mwarning: odd\x1b[0m"
    assert (
        formatted(form, "bad", level=logging.ERROR, where="x")
        == "\x1b[31merror: bad  where=x\x1b[0m"
    )


def test_nothing_in_a_line_is_obeyed_by_the_terminal() -> None:
    """No second line, no colour, no title: they are shown as they are written in Python."""
    form = TerminalFormatter(colour=False)
    hostile = "a\r\n200  GET /forged\x1b]0;title\x07\u202e"
    line = formatted(form, "%s", name="x", level=logging.INFO, path=hostile)
    assert line == r"%s  path=a\r\n200  GET /forged\x1b]0;title\x07\u202e"
    try:
        raise ValueError(hostile)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    assert "\x1b" not in form.format(record)
    assert form.format(record).count("Traceback") == 1


@pytest.mark.parametrize(
    ("wanted", "stream", "kind"),
    [
        ("auto", Terminal(), TerminalFormatter),
        ("auto", io.StringIO(), JsonFormatter),
        ("json", Terminal(), JsonFormatter),
        ("text", io.StringIO(), TerminalFormatter),
    ],
    ids=["terminal", "pipe", "json asked for", "text asked for"],
)
def test_who_looks_decides_the_form(
    wanted: str, stream: io.StringIO, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that read the log today read the same."""
    monkeypatch.setattr(sys, "stderr", stream)
    assert type(_log_formatter(wanted, "a")) is kind
