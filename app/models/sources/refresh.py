"""Runs a synchronisation in a process of its own: the server holds no cloud library, and one that
hangs is ended."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from app.models.repository.manifest import MANIFEST

POLL_SECONDS = 0.2
END_SECONDS = 5.0
TIMEOUT_SECONDS = 600.0
"""For everything that is new; what was complete by then stays."""
START_SECONDS = 30.0
"""For the same before a start, where there is something to serve and another look will follow."""

log = logging.getLogger(__name__)


def first_refresh(address: str, root: Path, *, polled: bool) -> bool:
    """`refresh` before a start. A source that hangs does not keep what is here from being served.

    `polled` says that the source is asked again: what is not complete by then comes later.
    """
    short = polled and any(root.glob(f"*/*/{MANIFEST}"))
    timeout = START_SECONDS if short else TIMEOUT_SECONDS
    return refresh(address, root, until=threading.Event(), timeout=timeout)


def refresh(
    address: str, root: Path, *, until: threading.Event, timeout: float = TIMEOUT_SECONDS
) -> bool:
    """Synchronise `root` with the source; whether that went well. What happened is in the log.

    Ends within `timeout` seconds, and soon when the event is set. Never raises: what is served
    does not depend on a source that is gone.
    """
    command = [sys.executable, "-m", "app.cli", "models", "sync", address, "--end-with-input"]
    try:
        child = subprocess.Popen(
            [*command, "--repository", str(root)],
            stdin=subprocess.PIPE,  # ends with this process, whatever ends it
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        log.warning("the model source cannot be asked: %s", error)
        return False
    printed: list[str] = []
    reader = threading.Thread(target=_collect, args=(child.stdout, printed), daemon=True)
    reader.start()
    give_up = time.monotonic() + timeout
    while child.poll() is None and time.monotonic() < give_up and not until.wait(POLL_SECONDS):
        pass
    late = child.poll() is None
    if late:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdin is not None:
        child.stdin.close()
    reader.join(END_SECONDS)
    for line in printed[-50:]:
        log.info("model source: %s", line)
    if late and not until.is_set():
        log.warning("the model source did not answer within %.0f s; tried again later", timeout)
    elif child.returncode:
        log.warning("the model source could not be read; what is here stays served")
    return child.returncode == 0


def _collect(output: IO[str] | None, printed: list[str]) -> None:
    if output is not None:
        with output:
            printed.extend(line.rstrip() for line in output)
