"""The log: lines in order, written off the caller's thread, dropped rather than waited for."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from app.observability.log import WAITING_LINES, BackgroundHandler, JsonLines
from tests.engine.fakes import PATIENCE
from tests.ran import ran


class Gated(logging.StreamHandler[io.StringIO]):
    """A writer that stands still until its gate opens, like a pipe nobody reads."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.setFormatter(JsonLines())
        self.gate = threading.Event()
        self.writing = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.writing.set()
        self.gate.wait()
        super().emit(record)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def writer() -> Iterator[Gated]:
    writer = Gated()
    yield writer
    writer.gate.set()


def logger_of(handler: logging.Handler) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_a_reader_that_is_stuck_does_not_hold_the_end_up(
    writer: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing gives up on it after a moment, with the queue full or not."""
    monkeypatch.setattr("app.observability.log.FLUSH_SECONDS", 0.05)
    for lines in (1, WAITING_LINES + 1):
        handler = BackgroundHandler(writer)
        for _ in range(lines):
            logger_of(handler).info("line")
        closing = threading.Thread(target=handler.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


def test_the_end_of_the_process_loses_no_line() -> None:
    """Nobody closes the handler there: the interpreter does."""
    program = """
import logging
from app.observability.log import configure
configure("info")
for number in range(1000):
    logging.info("line %d", number)
"""
    done = ran([sys.executable, "-c", program])
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == [f"line {number}" for number in range(1000)]


def test_a_blocked_writer_does_not_block_the_caller(writer: Gated) -> None:
    """Lines beyond the limit are dropped, counted, and the count is written when there is room."""
    handler = BackgroundHandler(writer)
    logger = logger_of(handler)
    logger.info("first")
    assert writer.writing.wait(PATIENCE)
    for _ in range(WAITING_LINES + 7):  # returns although nothing is being written
        logger.info("more")
    writer.gate.set()
    while not handler.lines.empty():
        threading.Event().wait(0.01)
    logger.info("last")
    handler.close()
    assert writer.events()[0] == "first"
    assert writer.events()[-2:] == ["7 log lines were dropped", "last"]
