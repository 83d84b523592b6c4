"""Logs for people at a terminal: a line each, in colour, and nothing in it moves a cursor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TextIO

from app.observability.json_log import extras

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
