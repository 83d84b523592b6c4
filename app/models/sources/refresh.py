"""Runs a synchronisation in its own process.

The server loads no cloud library, and a synchronisation that hangs is ended.
"""

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
"""Time limit for copying everything new; versions that are complete by then stay."""
START_SECONDS = 30.0
"""The same limit at startup, if there is a version to serve and the source is polled again."""

log = logging.getLogger(__name__)


def first_refresh(address: str, root: Path, *, polled: bool) -> bool:
    """Run refresh() at startup. A source that hangs does not prevent serving the local versions.

    `polled` is True if the source is polled again: a version that is incomplete by then comes
    later.
    """
    short = polled and any(root.glob(f"*/*/{MANIFEST}"))
    timeout = START_SECONDS if short else TIMEOUT_SECONDS
    return refresh(address, root, until=threading.Event(), timeout=timeout)


def refresh(
    address: str, root: Path, *, until: threading.Event, timeout: float = TIMEOUT_SECONDS
) -> bool:
    """Synchronise `root` with the source, log what happened, and return whether it succeeded.

    Ends within `timeout` seconds, and soon after the event is set. Never raises: serving does not
    depend on a source that is gone.
    """
    command = [sys.executable, "-m", "app.cli", "models", "sync", address, "--end-with-input"]
    try:
        child = subprocess.Popen(
            [*command, "--repository", str(root)],
            stdin=subprocess.PIPE,  # closes when this process ends, for any reason
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
